"""Replay the steps of a plan element by element on plain arrays, and count what each rank receives.

It knows what each op means (`CollectiveRow.replay`) and nothing of how plans are made, so it is the oracle of both
planner and engines. An exchange is the table of its two layouts, piece by piece, as engines run it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshweave.errors import PlanError
from meshweave.exchange.table import Table
from meshweave.layout.digits import Values, neutral, padding
from meshweave.layout.mesh import Mesh
from meshweave.plan.collectives import BY_OP, joined
from meshweave.plan.steps import PlanStep

Group = list[Values]


@dataclass(frozen=True)
class Simulation:
    """Hold where a replay ended: one array per rank, and for each step the bytes each rank received from others."""

    shards: tuple[Values, ...]
    received: tuple[tuple[int, ...], ...]

    @property
    def busiest(self) -> tuple[int, ...]:
        """Return, for each step, the bytes that the busiest rank received."""
        return tuple(max(step) for step in self.received)


def simulate(
    steps: Iterable[PlanStep], shards: Sequence[Values], mesh: Mesh, shape: Sequence[int]
) -> Simulation:
    """Replay `steps` on one local tensor per rank of a tensor of global `shape`.

    Raises PlanError when there is not one shard per rank or a step does not fit the tensors it is given.
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
            now, counts = _exchange(step, now, mesh, shape)
            received.append(tuple(counts))
            continue
        counts = [0] * mesh.nranks
        for members in mesh.groups(step.axes):
            group = [now[rank] for rank in members]
            results, incoming = _replayed(step, group, wanted)
            for rank, result, nbytes in zip(members, results, incoming, strict=True):
                if result.shape != wanted:
                    raise PlanError(f"rank {rank}: {step} gives {result.shape}, not {wanted}")
                now[rank], counts[rank] = result, nbytes
        received.append(tuple(counts))
    return Simulation(tuple(now), tuple(received))


def _exchange(
    step: PlanStep, shards: Group, mesh: Mesh, shape: Sequence[int]
) -> tuple[Group, list[int]]:
    """Copy every piece of the table of the two layouts, element by element."""
    table = Table(step.source, step.target, mesh, tuple(shape))
    wanted = step.target.allocation_shape(mesh, shape)
    results, incoming = [], []
    for rank in range(mesh.nranks):
        result: Values = np.full(prod(wanted), padding(shards[0].dtype), shards[0].dtype)
        nbytes = 0
        for piece in table.receives(rank):
            if piece.peer != rank:
                nbytes += piece.size * result.itemsize
                if step.op == "relayout":
                    raise PlanError(f"rank {rank}: {step} would receive from rank {piece.peer}")
            given = _addresses(piece.source, piece.extents, piece.source_strides)
            taken = _addresses(piece.target, piece.extents, piece.target_strides)
            result[taken] = shards[piece.peer].reshape(-1)[given]
        results.append(result.reshape(wanted))
        incoming.append(nbytes)
    return results, incoming


def _addresses(first: int, extents: Sequence[int], strides: Sequence[int]) -> Any:
    found: Any = np.array(first)
    for extent, stride in zip(extents, strides, strict=True):
        found = found[..., None] + np.arange(extent) * stride
    return found


def _replayed(
    step: PlanStep, group: Group, wanted: tuple[int, ...]
) -> tuple[Sequence[Values], Sequence[int]]:
    """Return what each member of a group has after the step, and the bytes that it has received."""
    if step.op in BY_OP:
        try:
            return BY_OP[step.op].replay(group, step.details(), wanted)
        except PlanError as error:
            raise PlanError(f"{step}: {error.message}") from None
    if step.kind == "avg":  # of equal operands
        return group, [0] * len(group)
    assert step.kind is not None
    neutrals = [np.full_like(mine, neutral(step.kind, mine.dtype)) for mine in group]
    if step.op == "local":
        return [group[0], *neutrals[1:]], [0] * len(group)
    rows = [[*neutrals[:k], mine, *neutrals[k + 1 :]] for k, mine in enumerate(group)]
    assert step.op == "embed" and step.dim is not None
    return [joined(row, step.dim, wanted[step.dim]) for row in rows], [0] * len(group)
