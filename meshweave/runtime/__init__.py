"""Run bundles: engines, arrays laid out over ranks, failures found and named.

Nothing here needs a compiler.
"""

from typing import Any

from meshweave.runtime.array import Array, collect, place
from meshweave.runtime.engine import ENGINES, Call, Engine, Executable, engine

__all__ = [
    "ENGINES",
    "Array",
    "Call",
    "Engine",
    "Executable",
    "collect",
    "engine",
    "place",
    "run_inside",
]


def __getattr__(name: str) -> Any:
    if name != "run_inside":
        raise AttributeError(f"module 'meshweave.runtime' has no attribute {name!r}")
    from meshweave.runtime.mpi import run_inside  # what starts processes takes long to import

    return run_inside
