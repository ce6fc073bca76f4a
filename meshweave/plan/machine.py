"""Read what the shape of code depends on in this machine: its cache and its vectors."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CACHE_FILE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def cache_bytes() -> int:
    """Return the bytes of the second-level cache of a core; 1 MiB where the system does not say."""
    with suppress(OSError, ValueError):
        text = _CACHE_FILE.read_text().strip()
        return int(text.rstrip("KM")) * _UNITS.get(text[-1:], 1)
    return 1 << 20


@dataclass(frozen=True)
class Vectors:
    """Describe the vectors of a core: bytes of one, and the number of registers that hold one."""

    nbytes: int
    registers: int


@cache
def vectors() -> Vectors:
    """Return the vectors of this machine; where the system does not say, those of any 64-bit machine."""
    words: set[str] = set()
    with suppress(OSError), open("/proc/cpuinfo") as file:
        words = set(next((line for line in file if line.startswith("flags")), "").split())
    if "avx512f" in words:
        return Vectors(64, 32)
    return Vectors(32, 16) if "avx2" in words else Vectors(16, 16)
