"""Read what the shape of code depends on in this machine: its cache and its vectors."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshweave.processor import AMX, features, vendor

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


def asks_ahead() -> bool:
    """Tell whether loops that compute much for each byte that they read should ask for memory ahead of them.

    Where vectors have 64 bytes such a loop takes less time by that. Where they have 32, on AMD Zen 3, it takes a fifth
    more: the processor reads such streams ahead by itself, and the loop has twice as many instructions.
    """
    return vectors().nbytes == 64


def bf16_unit() -> str:
    """Return what multiplies bf16 faster than f32 here: "tiles" (AMX), "dots" (vectors), or "" where nothing does.

    Intel's instructions for vectors of bf16 take longer than f32's: they count for AMD's alone.
    """
    if {*AMX, "avx512bw"} <= features():
        return "tiles"
    dots = {"avx512_bf16", "avx512bw"} <= features() and vendor() == "AuthenticAMD"
    return "dots" if dots else ""


def integer_unit() -> str:
    """Return what multiplies pairs of 16-bit integers and adds them up in int32: "dots" (vectors), or ""."""
    return "dots" if "avx512bw" in features() else ""


@cache
def vectors() -> Vectors:
    """Return the vectors of this machine; where the system does not say, those of any 64-bit machine."""
    words = features()
    if "avx512f" in words:
        return Vectors(64, 32)
    return Vectors(32, 16) if "avx2" in words else Vectors(16, 16)
