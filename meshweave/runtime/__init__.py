"""Run bundles: engines, arrays laid out over ranks, failures found and named.

Nothing here needs a compiler.
"""

from meshweave.runtime.array import Array, collect, place
from meshweave.runtime.engine import ENGINES, Call, Engine, Executable, engine
from meshweave.runtime.mpi import run_inside

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
