"""Collectives of a sliced region: which run in its slices, and which of them become a ring.

A collective that only the region reads moves into it, and is sliced as any op. An all_gather over a dim that slices
then cut into the members' shards moves no more than a shard at a time: slice t of the gathered dim *is* the shard of
member t. So member m begins at slice m, holds its own shard, and hands on what it holds after each slice:

    slice at step k of member m: (m + k) mod n        shard at step k + 1: a permute by one of that at step k

As many bytes as the gather, in n - 1 steps, and no gathered tensor. Slices run in another order on each rank: they are
independent, or add up in an order of their own, which `numerics = "bit_exact"` forbids.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr, axes_attr, axes_of
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import replace, users, walk
from meshweave.transforms.hint_make import Make
from meshweave.transforms.hint_program import BEFORE, MOVES, SliceProgram

WITHIN = "hint.within"
"""On a hint.place: the slices are of what each rank holds of the dim, since the layout names mesh axes too."""


@dataclass(frozen=True)
class Ring:
    """The gathers of a slice program that go round.

    axes:    the mesh axes that they gather over; size: how many members that are, and slices.
    gathers: the all_gather ops of the slice program; cuts: what slices take of them, each with its gather.
    """

    axes: tuple[str, ...]
    size: int
    gathers: tuple[Any, ...]
    cuts: dict[Any, Any]

    def index(self, make: Make) -> Any:
        """This rank's number in the ring."""
        return make.op(
            "dist.axis_index", [ir.IndexType.get()], [], axes=axes_attr(self.axes)
        ).results[0]

    def slice_at(self, step: Any, me: Any, make: Make) -> Any:
        """The slice that member `me` runs at a step."""
        return make.arith("remui", make.arith("addi", step, me), make.index(self.size))

    def handed_on(self, shard: Any, make: Make) -> Any:
        """The shard of the next step: that of the next member."""
        i64 = ir.IntegerType.get_signless(64)
        sources = [ir.IntegerAttr.get(i64, (m + 1) % self.size) for m in range(self.size)]
        return make.op(
            "dist.permute",
            [shard.type],
            [shard],
            axes=axes_attr(self.axes),
            sources=ir.ArrayAttr.get(sources),
        ).results[0]


def ring_of(program: SliceProgram, space: Mesh | None) -> Ring | None:
    """The ring of the gathers over the axes of the first one that can be in a ring; None where there is none."""
    time = program.body.mesh
    if space is None or len(time.axes) != 1:
        return None
    (axis,) = time.names
    size = time.size(axis)
    found: dict[tuple[str, ...], dict[Any, list[Any]]] = {}
    for op in program.ops:
        if op.name != "dist.all_gather" or program.phases[op] != BEFORE or program.trips != size:
            continue
        axes = axes_of(op)
        if all(space.has(a) for a in axes) and space.axis_count(axes) == size:
            cuts = [user.operation for user in users(op.results[0])]
            if cuts and all(_is_shard(cut, op, axis) for cut in cuts):
                found.setdefault(axes, {})[op] = cuts
    for axes, gathers in found.items():
        cuts = {cut: gather for gather, all_ in gathers.items() for cut in all_}
        return Ring(axes, size, tuple(gathers), cuts)
    return None


def _is_shard(cut: Any, gather: Any, axis: str) -> bool:
    """Does `cut` take along `axis` what one member gave?"""
    return (
        cut.name == "dist.all_slice"
        and axes_of(cut) == (axis,)
        and cut.attributes["dim"].value == gather.attributes["dim"].value
        and cut.results[0].type == gather.operands[0].type
    )


def take_in_collectives(region: Any) -> None:
    """Move collectives into `region` that only it reads, and places behind the gathers that their dims wait for."""
    inside = set(walk(region))
    first = region.regions[0].blocks[0].operations[0].operation
    before = [view.operation for view in region.block.operations]
    for op in reversed(before[: before.index(region)]):
        if op.name not in (*MOVES, "dist.all_reduce", "dist.all_slice"):
            continue
        readers = [use.owner.operation for r in op.results for use in r.uses]
        if readers and all(reader in inside for reader in readers):
            op.move_before(first)
            inside.add(op)
            first = op
    for op in list(walk(region)):
        if op.name == "hint.place" and WITHIN not in op.attributes:
            _behind_gathers(op)


def _behind_gathers(place: Any) -> None:
    """`gather(place(v))` over the placed dim is `place(gather(v))`: slices are of the whole dim."""
    cut = LayoutAttr(place.attributes["layout"]).layout.block_axes()
    readers = [user.operation for user in users(place.results[0])]
    dims: Collection[int] = [d for d, axes in enumerate(cut) if axes]
    if not readers or not all(
        op.name == "dist.all_gather" and op.attributes["dim"].value in dims for op in readers
    ):
        return
    for gather in readers:
        gather.operands[0] = place.operands[0]
        result = gather.results[0]
        old = [(use.owner, use.operand_number) for use in result.uses]
        behind = ir.Operation.create(
            "hint.place",
            results=[result.type],
            operands=[result],
            attributes={"layout": place.attributes["layout"]},
            loc=place.location,
            ip=ir.InsertionPoint.after(gather),
        )
        for reader, i in old:
            reader.operands[i] = behind.results[0]
    replace(place, [place.operands[0]])
