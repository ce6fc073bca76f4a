"""What this machine is, as far as the shape of code depends on it: its cache, its vectors."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CACHE_FILE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def cache_bytes() -> int:
    """Bytes of the second-level cache of a core; 1 MiB where the system does not say."""
    with suppress(OSError, ValueError):
        text = _CACHE_FILE.read_text().strip()
        return int(text.rstrip("KM")) * _UNITS.get(text[-1:], 1)
    return 1 << 20


@dataclass(frozen=True)
class Vectors:
    """Vectors of a core: bytes of one, and how many registers hold one."""

    nbytes: int
    registers: int


@cache
def vectors() -> Vectors:
    """Of this machine; those that any 64-bit one has where the system does not say."""
    words: set[str] = set()
    with suppress(OSError), open("/proc/cpuinfo") as file:
        words = set(next((line for line in file if line.startswith("flags")), "").split())
    if "avx512f" in words:
        return Vectors(64, 32)
    return Vectors(32, 16) if "avx2" in words else Vectors(16, 16)
