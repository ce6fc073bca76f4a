"""Take arrays of other libraries, inside traced functions and outside of them."""

from __future__ import annotations

from meshweave.api.outside import whole
from meshweave.frontends.python.builder import current, fail
from meshweave.frontends.python.functions.create import asarray
from meshweave.frontends.python.tracer import Tracer
from meshweave.layout import Mesh
from meshweave.runtime.arrays.array import Array, as_mesh, as_numpy
from meshweave.runtime.arrays.dlpack import HasDLPack


def from_dlpack(
    x: Tracer | HasDLPack, /, *, device: Mesh | str | None = None, copy: bool | None = None
) -> Array | Tracer:
    """Take an array of another library, in the processor's memory.

    device: the mesh, each rank of which gets the whole; by default one rank, and for an Array its own mesh and layout.
    A traced function gets a constant of its program, other code an Array, which keeps the memory of one rank unless
    `copy` is True.
    Raises UsageError for an object without `__dlpack__`, BufferError where `copy` is False and a copy is needed.
    """
    if current() is not None:
        if isinstance(x, Tracer):
            return x
        if not hasattr(x, "__dlpack__"):
            fail(f"from_dlpack: a {type(x).__name__} has no __dlpack__")
        return asarray(
            as_numpy(x, "from_dlpack"), device=None if device is None else as_mesh(device)
        )
    mesh = Mesh() if device is None else as_mesh(device)
    if isinstance(x, Array) and (device is None or mesh == x.mesh):
        if copy or x.kind.rank is not None:
            return x.copy()
        return Array(x.shards, x.mesh, x.layout, x.shape, x.dtype_name)
    if copy is False and mesh.nranks > 1:
        raise BufferError(f"from_dlpack: each rank of ({mesh}) needs a copy, copy=False")
    if isinstance(x, Array):
        return whole(x.numpy(), mesh, x.dtype_name)
    made = Array.from_dlpack(x, mesh=mesh)
    return made.holding([shard.copy() for shard in made.shards]) if copy else made
