"""Replay the steps of a plan element by element on plain arrays, and count what each rank receives.

It knows what each op means and nothing of how plans are made, so it is the oracle of both planner
and engines. An exchange is the table of its two layouts, piece by piece, as engines run it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshweave.errors import PlanError
from meshweave.layout.digits import neutral, padding, reduce
from meshweave.layout.mesh import Mesh
from meshweave.plan.exchange import Table
from meshweave.plan.steps import Step

Values = np.ndarray[Any, np.dtype[Any]]
Group = list[Values]


@dataclass(frozen=True)
class Simulation:
    """Where a replay ended: one array per rank, and for each step the bytes each rank received from
    others.
    """

    shards: tuple[Values, ...]
    received: tuple[tuple[int, ...], ...]

    @property
    def busiest(self) -> tuple[int, ...]:
        """Per step the bytes that the busiest rank received."""
        return tuple(max(step) for step in self.received)


def simulate(
    steps: Iterable[Step], shards: Sequence[Values], mesh: Mesh, shape: Sequence[int]
) -> Simulation:
    """Replay `steps` on one local tensor per rank of a tensor of global `shape`.

    Raises PlanError when there is not one shard per rank or a step does not fit the tensors it is
    given.
    """
    if len(shards) != mesh.nranks:
        raise PlanError(f"mesh ({mesh}) needs {mesh.nranks} shards, got {len(shards)}")
    now = list(shards)
    received: list[tuple[int, ...]] = []
    for step in steps:
        local, wanted = (
            layout.allocation_shape(mesh, shape) for layout in (step.source, step.target)
        )
        for rank, shard in enumerate(now):
            if shard.shape != local:
                raise PlanError(f"rank {rank}: {step} is given a tensor of shape {shard.shape}")
        if step.op in ("exchange", "relayout"):
            now, incoming = _exchange(step, now, mesh, shape)
            received.append(tuple(incoming))
            continue
        counts = [0] * mesh.nranks
        for members in mesh.groups(step.axes):
            group = [now[rank] for rank in members]
            results, incoming = _OPS[step.op](step, group, wanted)
            for rank, result, nbytes in zip(members, results, incoming, strict=True):
                if result.shape != wanted:
                    raise PlanError(f"rank {rank}: {step} gives {result.shape}, not {wanted}")
                now[rank], counts[rank] = result, nbytes
        received.append(tuple(counts))
    return Simulation(tuple(now), tuple(received))


def _exchange(
    step: Step, shards: Group, mesh: Mesh, shape: Sequence[int]
) -> tuple[Group, list[int]]:
    """Copy every piece of the table of the two layouts, element by element."""
    table = Table(step.source, step.target, mesh, tuple(shape))
    wanted = step.target.allocation_shape(mesh, shape)
    results, incoming = [], []
    for rank in range(mesh.nranks):
        result: Values = np.full(prod(wanted), padding(shards[0].dtype), shards[0].dtype)
        nbytes = 0
        for piece in table.receives(rank):
            if piece.sender != rank:
                nbytes += piece.size * result.itemsize
                if step.op == "relayout":
                    raise PlanError(f"rank {rank}: {step} would receive from rank {piece.sender}")
            given = _addresses(piece.source, piece.extents, piece.source_strides)
            taken = _addresses(piece.target, piece.extents, piece.target_strides)
            result[taken] = shards[piece.sender].reshape(-1)[given]
        results.append(result.reshape(wanted))
        incoming.append(nbytes)
    return results, incoming


def _addresses(first: int, extents: Sequence[int], strides: Sequence[int]) -> Any:
    found: Any = np.array(first)
    for extent, stride in zip(extents, strides, strict=True):
        found = found[..., None] + np.arange(extent) * stride
    return found


def _pieces(tensor: Values, dim: int, count: int) -> Group:
    """`count` pieces of ceil(n / count) along dim; beyond the end of the tensor is padding."""
    piece = -(-tensor.shape[dim] // count)
    grown = list(tensor.shape)
    grown[dim] = piece * count
    whole: Values = np.full(grown, padding(tensor.dtype), tensor.dtype)
    whole[tuple(slice(size) for size in tensor.shape)] = tensor
    return np.split(whole, count, axis=dim) if piece else [tensor] * count


def _joined(tensors: Group, dim: int, size: int) -> Values:
    whole = np.concatenate(tensors, axis=dim)
    return np.take(whole, np.arange(min(size, whole.shape[dim])), axis=dim)


def _all_slice(step: Step, group: Group, wanted: Sequence[int]) -> tuple[Group, list[int]]:
    assert step.dim is not None
    own = [_pieces(mine, step.dim, len(group))[k] for k, mine in enumerate(group)]
    return own, [0] * len(group)


def _all_gather(step: Step, group: Group, wanted: Sequence[int]) -> tuple[Group, list[int]]:
    assert step.dim is not None
    whole = _joined(group, step.dim, wanted[step.dim])
    total = sum(tensor.nbytes for tensor in group)
    return [whole.copy() for _ in group], [total - mine.nbytes for mine in group]


def _all_to_all(step: Step, group: Group, wanted: Sequence[int]) -> tuple[Group, list[int]]:
    assert step.split_dim is not None and step.concat_dim is not None
    sent = [_pieces(mine, step.split_dim, len(group)) for mine in group]
    results, incoming = [], []
    for k in range(len(group)):
        blocks = [pieces[k] for pieces in sent]
        results.append(_joined(blocks, step.concat_dim, wanted[step.concat_dim]))
        incoming.append(sum(block.nbytes for block in blocks) - blocks[k].nbytes)
    return results, incoming


def _reduce_scatter(step: Step, group: Group, wanted: Sequence[int]) -> tuple[Group, list[int]]:
    assert step.dim is not None and step.kind is not None
    own = _pieces(reduce(step.kind, group), step.dim, len(group))
    return own, [piece.nbytes * (len(group) - 1) for piece in own]


def _all_reduce(step: Step, group: Group, wanted: Sequence[int]) -> tuple[Group, list[int]]:
    """As a ring does it: each member reduces its chunk of the flat tensor, then all gather."""
    assert step.kind is not None
    total = reduce(step.kind, group)
    size, itemsize, count = total.size, total.itemsize, len(group)
    chunk = -(-size // count)
    own = [max(0, min(chunk, size - k * chunk)) for k in range(count)]
    incoming = [((count - 1) * mine + size - mine) * itemsize for mine in own]
    return [total.copy() for _ in group], incoming if count > 1 else [0]


def _permute(step: Step, group: Group, wanted: Sequence[int]) -> tuple[Group, list[int]]:
    assert step.sources is not None
    if sorted(step.sources) != list(range(len(group))):
        raise PlanError(f"{step}: sources are not a permutation of the {len(group)} members")
    incoming = [0 if k == at else group[at].nbytes for k, at in enumerate(step.sources)]
    return [group[at].copy() for at in step.sources], incoming


def _local(step: Step, group: Group, wanted: Sequence[int]) -> tuple[Group, list[int]]:
    assert step.kind is not None
    if step.kind == "avg":
        return group, [0] * len(group)
    others = [np.full_like(mine, neutral(step.kind, mine.dtype)) for mine in group[1:]]
    return [group[0], *others], [0] * len(group)


def _embed(step: Step, group: Group, wanted: Sequence[int]) -> tuple[Group, list[int]]:
    assert step.dim is not None and step.kind is not None
    results = []
    for k, mine in enumerate(group):
        result: Values = np.full(tuple(wanted), neutral(step.kind, mine.dtype), mine.dtype)
        place = np.arange(mine.shape[step.dim])
        inside = place + k * len(place) < wanted[step.dim]
        there: list[Any] = [slice(None)] * mine.ndim
        there[step.dim] = place[inside] + k * len(place)
        result[tuple(there)] = np.compress(inside, mine, axis=step.dim)
        results.append(result)
    return results, [0] * len(group)


_OPS: dict[str, Callable[[Step, Group, Sequence[int]], tuple[Group, list[int]]]] = {
    "all_slice": _all_slice,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "permute": _permute,
    "local": _local,
    "embed": _embed,
}
