"""Run bundles: engines, arrays laid out over ranks, failures found and named.

Nothing here imports the compiler or the simulator. A file at this level serves several engines; what one engine alone
needs is in its room. The faces and the simulator may import this room.
"""

from meshweave.runtime.arrays.array import Array, collect, place
from meshweave.runtime.engine import BoundCall, Engine, Executable, engine
from meshweave.targets import ENGINES

__all__ = [
    "ENGINES",
    "Array",
    "BoundCall",
    "Engine",
    "Executable",
    "collect",
    "engine",
    "place",
    "run_inside",
]


def __getattr__(name: str) -> object:
    if name != "run_inside":
        raise AttributeError(f"module 'meshweave.runtime' has no attribute {name!r}")
    from meshweave.runtime.mpi.engine import run_inside  # its imports take long

    return run_inside
