"""Check that this processor has what a program was compiled for, and ask the system for its tiles."""

from __future__ import annotations

import ctypes
from collections.abc import Collection

from meshweave.errors import MeshweaveError
from meshweave.processor import AMX, features

# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18


def check_processor(needed: Collection[str]) -> None:
    """Raise MeshweaveError, which names what is missing, where code with these features cannot run here."""
    here = features()
    missing = sorted(set(needed) - here) if here else []
    if missing:
        raise MeshweaveError(
            f"the program was compiled for a processor with {', '.join(missing)}, which this one lacks: "
            "compile it on this machine"
        )
    if AMX & set(needed) and not allow_tiles():
        raise MeshweaveError(
            "the program uses tiles (AMX), which the system does not let this process use: compile it with "
            "kernels=-gemm_bf16"
        )


def allow_tiles() -> bool:
    """Ask the system to let all threads of this process use tiles; tell whether it does."""
    return not ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILES)
