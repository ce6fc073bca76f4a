"""Read which features this processor has, by the names that the system gives them."""

from contextlib import suppress
from functools import cache

_GENERATED = (
    "avx",
    "bmi",
    "sse",
    "fma",
    "f16c",
    "gfni",
    "vaes",
    "vpclmul",
    "abm",
    "movbe",
    "popcnt",
)
"""How the names of features begin that LLVM uses by itself, beyond those of every 64-bit processor."""
COMMON = "x86-64-v3"
"""What LLVM calls the processors of this level and above: all of the last ten years."""
OF_COMMON = (
    "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt", "sse4_1", "sse4_2", "ssse3",
)  # fmt: skip
"""Its features beyond those of every 64-bit processor (System V ABI, x86-64 supplement)."""
AMX = frozenset({"amx_tile", "amx_bf16"})
"""Tiles: code that uses them says so, and the system must be asked for them."""


@cache
def features() -> frozenset[str]:
    """Return all features of this processor; none where the system does not say."""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        line = next((line for line in file if line.startswith("flags")), "")
        return frozenset(line.partition(":")[2].split())
    return frozenset()


@cache
def vendor() -> str:
    """Return who made this processor; "" where the system does not say."""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        line = next((line for line in file if line.startswith("vendor_id")), "")
        return line.partition(":")[2].strip()
    return ""


def generated() -> tuple[str, ...]:
    """Return the features that code compiled here may use without saying so, sorted."""
    return tuple(sorted(name for name in features() if name.startswith(_GENERATED)))
