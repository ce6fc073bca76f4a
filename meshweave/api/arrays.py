"""Take arrays of other libraries, inside traced functions and outside of them."""

from __future__ import annotations

from meshweave.errors import UsageError
from meshweave.frontends.python.builder import current, fail
from meshweave.frontends.python.functions.create import asarray
from meshweave.frontends.python.tracer import Tracer
from meshweave.layout import Mesh
from meshweave.runtime.arrays.array import Array, as_numpy
from meshweave.runtime.arrays.dlpack import HasDLPack


def from_dlpack(
    x: Tracer | HasDLPack, /, *, device: Mesh | None = None, copy: bool | None = None
) -> Array | Tracer:
    """Take an array of another library, in the processor's memory.

    A traced function gets a constant of its program, other code an Array of one rank, which keeps the memory unless
    `copy` is True. Raises UsageError for an object without `__dlpack__`.
    """
    if current() is not None:
        if isinstance(x, Tracer):
            return x
        if not hasattr(x, "__dlpack__"):
            fail(f"from_dlpack: a {type(x).__name__} has no __dlpack__")
        return asarray(as_numpy(x, "from_dlpack"), device=device)
    if device not in (None, Mesh()):
        raise UsageError(f"from_dlpack: device={device!r:.40}: the processor's memory is the only")
    made = Array.from_dlpack(x)
    return made.holding([shard.copy() for shard in made.shards]) if copy else made
