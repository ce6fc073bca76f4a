"""Choose the collectives that run in a region's slices, and those of them that become a ring.

A collective that only the region reads moves into it, and is sliced as any op. An all_gather over a dim that slices
then cut into the members' shards moves no more than a shard at a time: slice t of the gathered dim *is* the shard of
member t. So member m begins at slice m, holds its own shard, and hands on what it holds after each slice:

    slice at step k of member m: (m + k) mod n        shard at step k + 1: a permute by one of that at step k

As many bytes as the gather, in n - 1 steps, and no gathered tensor. Slices run in another order on each rank: they are
independent, or add up in an order of their own, which `numerics = "bit_exact"` forbids. So members must not exchange
what belongs to a slice: there is no ring where slices communicate over its axes. Slices along further time axes run one
after the other while a shard is here.
"""

from collections.abc import Collection
from dataclasses import dataclass

from meshweave.dialects.dist import LayoutAttr, axes_attr, axes_of
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.ops import replace_op
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import users, walk
from meshweave.transforms.slicing.program import BEFORE, MOVES, REDUCTIONS, SLICED, SliceProgram

GATHERS = ("dist.all_gather", "dist.exchange")
WITHIN = "hint.within"
"""On a hint.place: the slices are of what each rank holds of the dim, since the layout names mesh axes too."""


@dataclass(frozen=True)
class Ring:
    """Describe the gathers of a slice program that form a ring.

    axes:    the mesh axes that they gather over; time: the time axis of the slices that are shards.
    size:    how many members there are, and slices along that axis.
    gathers: the all_gather ops of the slice program; cuts: what slices take of them, each with its gather.
    """

    axes: tuple[str, ...]
    time: str
    size: int
    gathers: tuple[ir.Operation, ...]
    cuts: dict[ir.Operation, ir.Operation]

    def index(self, b: OpBuilder) -> ir.Value:
        """Return this rank's number in the ring."""
        return b.one("dist.axis_index", ir.IndexType.get(), axes=axes_attr(self.axes))

    def slice_at(self, step: ir.Value, me: ir.Value, b: OpBuilder) -> ir.Value:
        """Return the slice that member `me` runs at a step."""
        return b.binary("remui", b.binary("addi", step, me), b.index(self.size))

    def handed_on(self, shard: ir.Value, b: OpBuilder) -> ir.Value:
        """Return the shard of the next step: that of the next member."""
        sources = ir.ArrayAttr.get([i64((m + 1) % self.size) for m in range(self.size)])
        axes = axes_attr(self.axes)
        return b.one("dist.permute", shard.type, shard, axes=axes, sources=sources)


def ring_of(
    program: SliceProgram, space: Mesh | None, keeps_order: bool, staged: bool
) -> tuple[Ring | None, str]:
    """Return the ring over the axes of the first gather that can be in one, or None and the reason.

    The reason is "" where no slice takes part of a gathered dim.

    keeps_order: slices must add up in one order on all ranks. staged: they run op by op, several in flight.
    """
    found: dict[tuple[tuple[str, ...], str], dict[ir.Operation, list[ir.Operation]]] = {}
    reasons = []
    for op in program.ops:
        cut = _cut_by(program, op, space)
        if cut is None:
            continue
        time, cuts = cut
        problem = _problem(program, op, time, cuts, space) or _exchanged(program, axes_of(op))
        if problem:
            reasons.append(problem)
        else:
            found.setdefault((axes_of(op), time), {})[op] = cuts
    if found and keeps_order:
        return (
            None,
            "each rank would add slices up in an order of its own, and numerics = bit_exact",
        )
    if found and staged:
        return None, "a ring hands shards on from slice to slice, and several are in flight"
    for (axes, time), gathers in found.items():
        cuts_of = {cut: gather for gather, all_ in gathers.items() for cut in all_}
        return Ring(axes, time, program.body.mesh.size(time), tuple(gathers), cuts_of), ""
    return None, reasons[0] if reasons else ""


def _cut_by(
    program: SliceProgram, op: ir.Operation, space: Mesh | None
) -> tuple[str, list[ir.Operation]] | None:
    """Return the time axis along which slices cut what `op` gathers over mesh axes, and the ops that cut."""
    if space is None or op.name not in GATHERS or program.phases[op] != BEFORE:
        return None
    cuts = [user.operation for user in users(op.results[0])]
    if not cuts or not axes_of(op) or not all(space.has(a) for a in axes_of(op)):
        return None
    axes = {axes_of(cut) if cut.name == "dist.all_slice" else () for cut in cuts}
    dims = {cut.attributes["dim"].value for cut in cuts if cut.name == "dist.all_slice"}
    if len(axes) != 1 or dims != {_gathered_dim(op)}:
        return None
    (along,) = axes
    return (along[0], cuts) if len(along) == 1 else None


def _gathered_dim(op: ir.Operation) -> int | None:
    """Return the one dim in which the result of a gather is larger than its operand."""
    shapes = [v.type.shape for v in (op.operands[0], op.results[0])]
    grown = [d for d, (own, whole) in enumerate(zip(*shapes)) if own < whole]
    return grown[0] if len(grown) == 1 else None


def _problem(
    program: SliceProgram,
    gather: ir.Operation,
    time: str,
    cuts: list[ir.Operation],
    space: Mesh | None,
) -> str:
    """Say why slices along `time` are not the members' shards, one each; "" where they are."""
    assert space is not None
    slices, members = program.body.mesh.size(time), space.axis_count(axes_of(gather))
    over = ", ".join(axes_of(gather))
    if gather.name != "dist.all_gather":
        return f"the shards over {over} are not of one size"
    if slices != members:
        return f"{slices} slices along {time}, and {members} shards over {over}"
    if any(cut.results[0].type != gather.operands[0].type for cut in cuts):
        return f"a slice along {time} is not a shard over {over}"
    if len(program.body.mesh.axes) == 1 and program.trips != slices:
        return f"only {program.trips} of {slices} slices along {time} hold anything"
    return ""


def _exchanged(program: SliceProgram, axes: tuple[str, ...]) -> str:
    """Say which op of a slice communicates over axes along which each member would be at another slice; "" for none."""
    own = {axis.partition(":")[0] for axis in axes}
    for op in [inner for o in program.ops if program.phases[o] == SLICED for inner in walk(o)]:
        if op.name in (*MOVES, *REDUCTIONS) and own & {
            axis.partition(":")[0] for axis in axes_of(op)
        }:
            return f"slices need {op.name} over {', '.join(axes_of(op))}, and each rank would be at another one"
    return ""


def take_in_collectives(region: ir.Operation) -> None:
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


def _behind_gathers(place: ir.Operation) -> None:
    """Turn `gather(place(v))` over the placed dim into `place(gather(v))`: slices are of the whole dim."""
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
        b = OpBuilder(ir.InsertionPoint.after(gather), place.location)
        behind = b.one("hint.place", result.type, result, layout=place.attributes["layout"])
        result.replace_all_uses_except(behind, behind.owner.operation)
    replace_op(place, [place.operands[0]])
