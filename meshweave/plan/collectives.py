"""Describe each collective in one row: what it carries, moves, cuts and joins, and what that means for arrays.

Plans, their replay, verifiers, passes and lowerings read the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshweave.errors import PlanError
from meshweave.layout.digits import Values, padding, reduce


@dataclass(frozen=True)
class CollectiveRow:
    """Describe one collective of the local view, the op `dist.{op}`.

    details:  what its op and its plan step carry besides the axes of the group.
    received: received(unit, ranks): the elements that the busiest of `ranks` members receives; None where none move.
              `cost.received` says what a unit is.
    rounds:   rounds(ranks): messages that follow each other.
    cuts:     the detail that names a dim: of its pieces of ceil(n / ranks) each member gets one; "": none is cut.
    joins:    the detail that names a dim along which the members' pieces are joined, up to the extent of the result.
    fuses:    the collectives that may read its result and be one with it: transforms/communication/fusion/chains.py.
    in_place: every element stays at its place on its rank, so that operand and result may share one buffer.
    direct:   the suffix of a form for ranks that read each other's buffers: `box` for `all_gather_box`, which moves
              elements straight to where they belong; otherwise they are packed. "": there is none.
    nccl:     the NCCL function that does all of it; "" where it takes sends and receives.
    mpi:      the MPI function that does it; "" where nothing moves.
    planned:  whether redistributions may be made of it.
    """

    op: str
    details: tuple[str, ...] = ()
    received: Callable[[int, int], int] | None = None
    rounds: Callable[[int], int] = lambda ranks: ranks - 1
    cuts: str = ""
    joins: str = ""
    fuses: tuple[str, ...] = ()
    in_place: bool = False
    direct: str = ""
    nccl: str = ""
    mpi: str = ""
    planned: bool = True

    @property
    def reduces(self) -> bool:
        """Tell whether it combines the numbers of its members."""
        return "kind" in self.details

    @property
    def has_dims(self) -> bool:
        """Tell whether it splits or joins dims of its tensor."""
        return bool(self.cuts or self.joins)

    @property
    def is_blockwise(self) -> bool:
        """Tell whether it moves blocks that its attributes name, instead of the pieces of a table."""
        return bool(self.details)

    @property
    def forms(self) -> tuple[str, ...]:
        """Return the names of its compiled forms, the longest first."""
        return (f"{self.op}_{self.direct}", self.op) if self.direct else (self.op,)

    def shape(
        self, given: Sequence[int], ranks: int, details: Mapping[str, Any], wanted: Sequence[int]
    ) -> list[int]:
        """Return the shape that members with tensors of shape `given` get, where they want the shape `wanted`."""
        found = list(given)
        if self.cuts:
            found[details[self.cuts]] = -(-given[details[self.cuts]] // ranks)
        if self.joins:
            dim = details[self.joins]
            found[dim] = min(given[dim] * ranks, wanted[dim])
        return found

    def replay(
        self, group: Sequence[Values], details: Mapping[str, Any], wanted: Sequence[int]
    ) -> tuple[list[Values], list[int]]:
        """Do it to the members' arrays; return what each has then, and the bytes that each has received."""
        count = len(group)
        if "sources" in self.details:
            sources = details["sources"]
            if sorted(sources) != list(range(count)):
                raise PlanError(f"sources are not a permutation of the {count} members")
            return [group[k].copy() for k in sources], [
                0 if k == at else group[at].nbytes for k, at in enumerate(sources)
            ]
        if self.reduces:
            group = [reduce(details["kind"], group)] * count
        rows = [
            _pieces(mine, details[self.cuts], count) if self.cuts else [mine] * count
            for mine in group
        ]
        own = [row[k] for k, row in enumerate(rows)]
        if self.reduces:
            assert self.received is not None
            nbytes = self.received(own[0].size, count) * own[0].itemsize if count > 1 else 0
            return own, [nbytes] * count
        if not self.joins:
            return own, [0] * count
        dim = details[self.joins]
        whole = [joined([row[k] for row in rows], dim, wanted[dim]) for k in range(count)]
        return whole, [sum(row[k].nbytes for row in rows) - own[k].nbytes for k in range(count)]


def _pieces(tensor: Values, dim: int, count: int) -> list[Values]:
    """Cut into `count` pieces of ceil(n / count) along dim; what lies beyond the end of the tensor is padding."""
    piece = -(-tensor.shape[dim] // count)
    grown = list(tensor.shape)
    grown[dim] = piece * count
    whole: Values = np.full(grown, padding(tensor.dtype), tensor.dtype)
    whole[tuple(slice(size) for size in tensor.shape)] = tensor
    return np.split(whole, count, axis=dim) if piece else [tensor] * count


def joined(tensors: Sequence[Values], dim: int, size: int) -> Values:
    """Concatenate along a dim, cut at `size`."""
    whole = np.concatenate(tensors, axis=dim)
    return np.take(whole, np.arange(min(size, whole.shape[dim])), axis=dim)


def _others(unit: int, ranks: int) -> int:
    """Return a unit from each other member."""
    return (ranks - 1) * unit


def _ring(unit: int, ranks: int) -> int:
    """Return a ring all_reduce's elements: the own chunk to reduce it, then every other chunk."""
    chunk = -(-unit // ranks)
    return (ranks - 1) * chunk + unit - chunk


ROWS = (
    CollectiveRow("all_slice", ("dim",), cuts="dim", fuses=("all_slice",)),
    CollectiveRow("permute", ("sources",), lambda unit, ranks: unit, lambda ranks: 1, mpi="MPI_Sendrecv"),
    CollectiveRow(
        "all_to_all", ("split_dim", "concat_dim"), _others, cuts="split_dim", joins="concat_dim", direct="box",
        mpi="MPI_Alltoall",
    ),
    CollectiveRow(
        "all_gather", ("dim",), _others, joins="dim", fuses=("all_gather", "all_slice"), direct="box",
        nccl="ncclAllGather", mpi="MPI_Allgather",
    ),
    CollectiveRow(
        "reduce_scatter", ("dim", "kind"), _others, cuts="dim", fuses=("reduce_scatter", "all_gather"), direct="box",
        nccl="ncclReduceScatter", mpi="MPI_Reduce_scatter_block",
    ),
    CollectiveRow(
        "all_reduce", ("kind",), _ring, lambda ranks: 2 * (ranks - 1), fuses=("all_reduce", "all_slice"), in_place=True,
        nccl="ncclAllReduce", mpi="MPI_Allreduce",
    ),
    CollectiveRow("exchange", (), lambda unit, ranks: unit, mpi="MPI_Alltoallv"),
    CollectiveRow("merge", (), lambda unit, ranks: unit, mpi="MPI_Alltoallv", planned=False),
)  # fmt: skip
BY_OP = {row.op: row for row in ROWS}
TALKING = tuple(row.op for row in ROWS if row.received is not None)
"""The collectives that move data between ranks."""
MOVING = tuple(row.op for row in ROWS if row.op in TALKING and row.planned)
"""Those of plans, in the order in which these try them."""


def dist_ops(wanted: Callable[[CollectiveRow], bool]) -> tuple[str, ...]:
    """Return the names of the `dist` ops whose rows are wanted."""
    return tuple(f"dist.{row.op}" for row in ROWS if wanted(row))


def row_of_symbol(symbol: str) -> CollectiveRow | None:
    """Return the row of a compiled collective by its symbol, such as `mw_all_reduce_sum_f32_start`.

    None for a relayout, which moves nothing between ranks.
    """
    name = symbol.removeprefix("mw_")
    return next((row for row in ROWS if name == row.op or name.startswith(f"{row.op}_")), None)
