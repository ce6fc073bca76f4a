"""What torch's DTensor moves from one layout to another: bytes that a rank receives, pair by pair.

PYTHON -m benchmarks.peers.dtensor [--mesh 2,2] [--shape 1024x1024]

PYTHON has torch. One process stands for rank 0 in a process group that moves nothing; what DTensor
asks it for is counted, as rings and pairwise exchanges do it. All ranks ask for the same where sizes divide.
On a CPU DTensor gathers where its plan says all_to_all; it is counted as the all_to_all that it is on a GPU.
One line of JSON a pair; its bytes are those of the better of DTensor's two planners.
"""

import argparse
import itertools
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.redistribute import layouts
from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh
from meshweave.layout.interchange import Pending, Replicate, Shard, StridedShard, to_dtensor

GATHER, SCATTER, REDUCE = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"


def placement(ours: Any) -> Any:
    """Torch's object for one of our placements."""
    from torch.distributed.tensor import placement_types as theirs

    if isinstance(ours, Shard):
        return theirs.Shard(ours.dim)
    if isinstance(ours, StridedShard):
        return theirs._StridedShard(ours.dim, split_factor=ours.split_factor)
    if isinstance(ours, Pending):
        return theirs.Partial(ours.reduce_op)
    assert isinstance(ours, Replicate)
    return theirs.Replicate()


def device_mesh(mesh: Mesh, rank: int = 0) -> Any:
    """A torch DeviceMesh of the mesh, in a process that stands for `rank` and moves nothing."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=rank, world_size=mesh.nranks, store=FakeStore())
    sizes = tuple(axis.size for axis in mesh.axes)
    return init_device_mesh("cpu", sizes, mesh_dim_names=mesh.names)


@contextmanager
def counted() -> Iterator[list[tuple[str, int]]]:
    """The collectives that run inside, with the bytes that a rank receives."""
    from torch.distributed.tensor import placement_types
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[tuple[str, int]] = []
    hidden = [False]

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            found = _received(str(func), args, out)
            if found is not None and not hidden[0]:
                calls.append(found)
            return out

    plain = placement_types.shard_dim_alltoall

    def all_to_all(tensor: Any, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> Any:
        group, nbytes = mesh.size(mesh_dim), tensor.numel() * tensor.element_size()
        calls.append(("all_to_all", (group - 1) * nbytes // group))
        hidden[0] = True
        try:
            return plain(tensor, gather_dim, shard_dim, mesh, mesh_dim)
        finally:
            hidden[0] = False

    placement_types.shard_dim_alltoall = all_to_all
    try:
        with Recorder():
            yield calls
    finally:
        placement_types.shard_dim_alltoall = plain


def _received(name: str, args: Any, out: Any) -> tuple[str, int] | None:
    """The collective of that operator, and what a rank receives in a ring; None for others.

    Raises ValueError for a collective that is not known here: it must not pass for nothing.
    """
    if "c10d" not in name or "wait_tensor" in name or "_wrap_tensor" in name:
        return None
    given, made = (tensor.numel() * tensor.element_size() for tensor in (args[0], out))
    if GATHER in name:
        return "all_gather", made - given
    if SCATTER in name:
        return "reduce_scatter", given - made
    if REDUCE in name:
        from torch.distributed.distributed_c10d import _resolve_process_group

        group = args[-1]
        size = (_resolve_process_group(group) if isinstance(group, str) else group).size()
        return "all_reduce", 2 * (size - 1) * given // size
    raise ValueError(f"collective {name} is not counted")


def moved(
    source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...], devices: Any, mincost: bool
) -> dict[str, Any]:
    """Bytes and collectives of one redistribute, as one of the two planners has it."""
    import torch
    from torch.distributed.tensor import DTensor, _redistribute

    first, last = (
        [placement(p) for p in to_dtensor(layout, mesh, shape)] for layout in (source, target)
    )
    local = torch.zeros(source.local_shape(mesh, shape))
    value = DTensor.from_local(
        local, devices, first, run_check=False, shape=torch.Size(shape), stride=_strides(shape)
    )
    _redistribute._gen_transform_infos.cache_clear()  # it does not tell the planners apart
    with _redistribute.use_min_cost_redistribution_plan(mincost), counted() as calls:
        result = value.redistribute(devices, last).to_local()
        result = result.wait() if hasattr(result, "wait") else result
    if tuple(result.shape) != target.local_shape(mesh, shape):
        raise ValueError(f"a result of shape {tuple(result.shape)}")
    return {"bytes": sum(nbytes for _, nbytes in calls), "ops": [name for name, _ in calls]}


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def both(
    source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...], devices: Any
) -> dict[str, Any]:
    """The better of the two planners; or the error of the first."""
    best: dict[str, Any] | None = None
    error = ""
    for mincost in (False, True):
        try:
            found = moved(source, target, mesh, shape, devices, mincost)
        except (LayoutError, RuntimeError, ValueError, NotImplementedError, AssertionError) as e:
            error = error or f"{type(e).__name__}: {str(e).splitlines()[0][:120]}"
            continue
        if best is None or found["bytes"] < best["bytes"]:
            best = found
    return {"error": error} if best is None else best


def main() -> None:
    """Print what DTensor moves for every pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", default="2,2", help="sizes of the two axes")
    parser.add_argument("--shape", default="1024x1024")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    x, y = map(int, options.mesh.split(","))
    mesh, shape = Mesh(x=x, y=y), tuple(map(int, options.shape.split("x")))
    devices = device_mesh(mesh)
    every = layouts(mesh, len(shape), True)
    for source, target in itertools.product(every, every):
        row = both(source, target, mesh, shape, devices)
        print(json.dumps({"source": str(source), "target": str(target), **row}))


if __name__ == "__main__":
    main()
