"""Describe the exchange of two layouts by what its ranks have in common; each makes its section of it when it loads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from meshweave.abi import rounded
from meshweave.bundle import ExchangeInfo
from meshweave.errors import CompileError
from meshweave.exchange.section import Section
from meshweave.exchange.table import Table
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import has_digits, is_run
from meshweave.plan.check import flaw
from meshweave.plan.overlap import overlap, same_sizes
from meshweave.plan.steps import PlanStep

LIMIT = 64 << 20  # bytes of a rank's section
COUNTED_RANKS = 64  # of a mesh on which it is counted what each rank sends


class Exchange(NamedTuple):
    """Describe an exchange.

    info: for the manifest. received: bytes that the busiest rank receives. runs: bytes copied at a time, of the ranks
    looked at.
    """

    info: ExchangeInfo
    received: int
    runs: frozenset[int]


def exchange_of(table: Table, axes: Sequence[str], width: int, messages: bool) -> Exchange:
    """Describe an exchange within the groups over `axes`, of elements of `width` bytes.

    messages: whether ranks send each other messages; else each reads the others' memory.
    Raises CompileError when a section is larger than LIMIT, or a rank would receive from outside of its group.
    """
    source, target = (layout.without_partial() for layout in (table.source, table.target))
    step = PlanStep("exchange" if axes else "relayout", tuple(axes), source, target, 0)
    if wrong := flaw((step,), source, target, table.mesh, table.shape):
        raise CompileError(f"dist.exchange: {wrong}")
    table = Table(source, target, table.mesh, table.shape)
    given = str(source), str(target), table.shape, width
    info = ExchangeInfo(tuple(axes), *given, _staging(table, width) if messages else 0)
    received = overlap(source, target, table.mesh, table.shape).at_most * width
    return Exchange(info, received, _runs(table, axes, width))


def _staging(table: Table, width: int) -> int:
    """Bound the bytes of messages that a rank packs and unpacks.

    A rank sends what it has, and its target lacks, to `repeats` ranks at most, and to one less what it keeps; to
    windows, mostly less.
    """
    source, target, mesh, shape = table.source, table.target, table.mesh, table.shape
    packed = unpacked = 0
    if not _lies_straight(source, target, mesh, shape):
        held = prod(source.local_shape(mesh, shape))
        packed = overlap(target, source, mesh, shape).at_most + (table.repeats - 1) * held
        if any(target.window(dim) is not None for dim in range(target.ndim)):
            packed = min(packed, _most_sent(table))
    if not _lies_straight(target, source, mesh, shape):
        unpacked = overlap(source, target, mesh, shape).at_most
    return rounded(packed * width) + unpacked * width


def _most_sent(table: Table) -> int:
    """Bound the elements that a rank sends: exactly on small meshes."""
    if table.mesh.nranks <= COUNTED_RANKS:
        ranks = range(table.mesh.nranks)
        return max(sum(piece.size for piece in table.sends(rank)) for rank in ranks)
    return (table.mesh.nranks - 1) * prod(table.target.local_shape(table.mesh, table.shape))


def _lies_straight(one: Layout, other: Layout, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Tell whether what a rank of `one` shares with any rank of `other` is always one run of its memory.

    It is where the minor dims are shared whole, and the major ones have one index on a rank.
    """
    dims = range(len(shape))
    if one.order is not None or other.order is not None:
        return False
    if not all(is_run(layout, mesh, shape, dim) for layout in (one, other) for dim in dims):
        return False
    whole = [_is_whole(one, other, mesh, shape, dim) for dim in dims]
    cut = max((dim for dim in dims if not whole[dim]), default=0)
    return prod(one.local_shape(mesh, shape)[:cut]) <= 1


def _is_whole(one: Layout, other: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int) -> bool:
    """Tell whether ranks share all or nothing of what `one` gives them of a dim, and none of it is padding."""
    if not has_digits(one, mesh, shape, dim) or other.window(dim) is not None:
        return False
    padded = prod(one.extents(mesh, shape, dim)) != shape[dim]
    alike = not other.axes_of(dim) or same_sizes(one, other, mesh, shape, dim)
    return not padded and alike


def _runs(table: Table, axes: Sequence[str], width: int) -> frozenset[int]:
    """Return the bytes that the first rank, the last and one between copy at a time: others do mostly the same."""
    found = set[int]()
    for rank in {0, table.mesh.nranks // 2, table.mesh.nranks - 1}:
        group = table.mesh.group(axes, rank) if axes else (rank,)
        section = Section(table, rank, group, width, messages=False)
        nbytes = section.words().nbytes
        if nbytes > LIMIT:
            raise CompileError(
                f"dist.exchange: the table of {table.source} to {table.target} takes {nbytes:,} bytes "
                f"on rank {rank}, the most is {LIMIT:,}: go by a layout in larger blocks"
            )
        found |= {box.run for _, box in section.received}
    return frozenset(found)


def block_table(
    mesh: Mesh, axes: Sequence[str], shape: Sequence[int], cut: int | None, joined: int
) -> Table:
    """Return the table of an all_to_all, or of an all_gather, as an exchange of blocks.

    shape: of all tensors of a group together. joined: the dim that members hold blocks of before; cut: that they hold
    blocks of afterwards, None: none.
    """

    def blocks(dim: int | None) -> Layout:
        return Layout.blocks([tuple(axes) if k == dim else () for k in range(len(shape))])

    return Table(blocks(joined), blocks(cut), mesh, tuple(shape))
