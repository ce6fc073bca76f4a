"""hint-slice: run each region under `slice` in slices, one after the other, and dissolve all regions.

The time axes of a region are a mesh, and its body is laid out on it, propagated and partitioned as over devices:
parallel dims become independent slices, sums become accumulators, what does not depend on a slice runs once before.
Where no `dist.constrain` names a time axis, the first dim of the results is taken that all ops share.

    order = "dfs" (width 1)   slice by slice through all ops: least memory
    order = "bfs"             op by op through all slices
    width = w                 groups of w slices, op by op within a group

Runs in the local view, behind dist-partition.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import ClassVar

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import MeshweaveError
from meshweave.hints.keys import KEYS, TimeAxis
from meshweave.hints.ledger import (
    HONOURED,
    INFEASIBLE,
    SUPERSEDED,
    UNSUPPORTED,
    Ledger,
    Outcome,
    StatedHint,
)
from meshweave.ir.bindings import ir
from meshweave.ir.calls import has_effects
from meshweave.ir.locations import location_text
from meshweave.ir.ops import replace_op, terminator
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Axis, Mesh
from meshweave.transforms.base import Pass, at, fail, inline_single_block, mesh_of_module, walk
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.slicing.body import body_of, partitioned
from meshweave.transforms.slicing.ledger import (
    CHOSEN,
    REGION,
    mark_region,
    number,
    ops_met,
    read_ledger,
    regions_of,
    settle,
    write_ledger,
)
from meshweave.transforms.slicing.loops import Slicer
from meshweave.transforms.slicing.order import arrange
from meshweave.transforms.slicing.program import (
    AFTER,
    BEFORE,
    SLICED,
    NotSliceable,
    SliceProgram,
    sliced_program,
)
from meshweave.transforms.slicing.ring import Ring, ring_of, take_in_collectives

MAX_CANDIDATES = 64
"""Ways to lay the time axes on the dims of the results that are tried."""


@dataclass(frozen=True)
class HintSlice(Pass):
    """Run regions in slices, and dissolve them."""

    name: ClassVar[str] = "hint-slice"

    def run(self, module: ir.Module) -> None:
        ledger = read_ledger(module)
        arrange(module, ledger)
        while regions := regions_of(module):
            region = regions[0]
            which = number(region, REGION)
            if not 0 <= which < len(ledger.regions):
                fail(
                    region,
                    "the hints of this region are not in the ledger: run hint-apply first",
                )
            _region(module, region, which, ledger)
            write_ledger(module, ledger)


_FUSED = {
    "never": "each op is a kernel of its own",
    "may": "ops are computed in the kernel of another where that costs less",
}
"""What happens to the ops of a region by its `fuse`."""


def _region(module: ir.Module, region: ir.Operation, which: int, ledger: Ledger) -> None:
    """Obey the hints of a region as far as they are about slices, and dissolve it."""
    with at(region):
        effective = ledger.effective(which)
    met = ops_met(region, ledger)
    fuse = effective.get("fuse")
    stream = _stream(effective.get("stream"), ledger, met)
    mark_region(region, which, fuse.hint.parsed if fuse is not None else "", stream)
    if fuse is not None and fuse.hint.parsed in _FUSED:
        settle(ledger, [fuse], met, Outcome(HONOURED, _FUSED[fuse.hint.parsed]), region)
    program = None
    said = effective.get("slice")
    if axes := _axes(region, said):
        take_in_collectives(region)
        program = _sliced(region, said, axes, ledger, met)
    if program is not None:
        _refuse_other_order(region, program, ledger, effective, met)
    if program is None:
        _unsliced(region, which, ledger, effective, met)
        ledger.apply_region(which)
    else:
        width, staged = _schedule(region, ledger, effective, program, met)
        mesh = mesh_of_module(module)
        ring, why = ring_of(program, mesh, _keeps_order(effective, program), staged)
        if said is not None:
            _close_slices(program, ring, why, said, ledger)
        values = Slicer(program, region, ring).run(width, staged)
        replace_op(region, values)
        ledger.apply_region(which, program.trips, width)


def _stream(said: StatedHint | None, ledger: Ledger, met: list[int]) -> int | None:
    """Return the stream that the kernels of a region are launched on.

    None where none is asked for, or the target has none.
    """
    if said is None or any(ledger.is_closed(said.number, op, UNSUPPORTED) for op in met):
        return None
    stream: int = said.hint.parsed
    for op in met:
        ledger.close(said.number, op, Outcome(HONOURED, f"launched on compute stream {stream}"))
    return stream


def _refuse_other_order(
    region: ir.Operation,
    program: SliceProgram,
    ledger: Ledger,
    effective: dict[str, StatedHint],
    met: list[int],
) -> None:
    """Refuse `bit_exact` where slices add up floats: the order would depend on how many there are."""
    sums = [
        op
        for op in program.accumulators
        if op.attributes["kind"].value in ("sum", "prod", "avg")
        and isinstance(op.results[0].type.element_type, ir.FloatType | ir.ComplexType)
    ]
    if sums and _keeps_order(effective, program):
        names = ", ".join(a.value for a in sums[0].attributes["axes"])
        reason = f"slices along {names} would each add up a part, in another order"
        remedy = "slice another dim, or ask for numerics = deterministic"
        settle(ledger, [effective["numerics"]], met, Outcome(INFEASIBLE, reason, remedy), region)


def _keeps_order(effective: dict[str, StatedHint], program: SliceProgram) -> bool:
    """Tell whether slices must add up in one order on all ranks."""
    numerics = effective.get("numerics")
    exact = numerics is not None and numerics.hint.parsed.kind == "bit_exact"
    return exact and bool(program.accumulators)


def _axes(region: ir.Operation, said: StatedHint | None) -> tuple[TimeAxis, ...]:
    """Return the time axes of a region: those that hint-budget chose, else those it asks for."""
    chosen = region.attributes.get(CHOSEN)
    if isinstance(chosen, ir.StringAttr):
        axes: tuple[TimeAxis, ...] = KEYS["slice"].parse(chosen.value) if chosen.value else ()
        return axes
    axes = said.hint.parsed if said is not None else ()
    if said is not None and any(axis.is_open for axis in axes):
        fail(region, f"{said.hint} does not say how many slices: run hint-budget first")
    return axes


def _sliced(
    region: ir.Operation,
    said: StatedHint | None,
    axes: tuple[TimeAxis, ...],
    ledger: Ledger,
    met: list[int],
) -> SliceProgram | None:
    """Return the program of one slice; None where the hint is not required and cannot be obeyed."""
    asked = [said] if said is not None else []
    try:
        program = choose(region, axes)
    except NotSliceable as error:
        remedy = (
            "slice another dim, by dist.constrain in the region, or end the region before that op"
        )
        settle(ledger, asked, met, Outcome(INFEASIBLE, error.message, remedy), region)
        return None
    return program


def _close_slices(
    program: SliceProgram, ring: Ring | None, why: str, said: StatedHint, ledger: Ledger
) -> None:
    """Say of each op how often it runs. why: there is no ring of gathers."""
    mesh = program.body.mesh
    names = ", ".join(mesh.names)
    reasons = {
        SLICED: f"{program.trips} slices along {names}",
        BEFORE: f"the same in all slices of {names}: runs once, before them",
        AFTER: f"runs once, when all slices of {names} have been added up",
    }
    if ring is not None:
        over = ", ".join(ring.axes)
        reasons[SLICED] += f", {ring.size - 1} permutes around {over} in the place of a gather"
    elif why:
        reasons[SLICED] += f", behind a gather that is no ring: {why}"
    for op in program.ops:
        for inner in ops_met(op, ledger):
            reason = reasons[program.phases[op]] if mesh.axes else "one slice holds all there is"
            ledger.close(said.number, inner, Outcome(HONOURED, reason))


def _schedule(
    region: ir.Operation,
    ledger: Ledger,
    effective: dict[str, StatedHint],
    program: SliceProgram,
    met: list[int],
) -> tuple[int, bool]:
    """Return how many slices are in flight, and whether they run op by op."""
    trips = program.trips
    order, width = effective.get("order"), effective.get("width")
    schedule = order.hint.parsed.schedule if order is not None else None
    default = {"bfs": trips, "strict": trips}.get(schedule or "", 1)
    chosen = min(width.hint.parsed, trips) if width is not None else default
    if width is not None:
        settle(ledger, [width], met, Outcome(HONOURED, f"{chosen} slices in flight"), region)
    if order is not None and schedule is not None:
        agrees = (schedule == "dfs") == (chosen < trips) or trips == 1
        outcome = Outcome(HONOURED, f"{trips} slices, {chosen} in flight")
        if not agrees and width is not None:
            outcome = Outcome(SUPERSEDED, f"by {width.hint} at {width.hint.where}")
        settle(ledger, [order], met, outcome, region)
    _close_bundle(region, ledger, effective, met)
    return chosen, chosen > 1 and trips > 1


def _unsliced(
    region: ir.Operation,
    which: int,
    ledger: Ledger,
    effective: dict[str, StatedHint],
    met: list[int],
) -> None:
    """Close what is about slices in a region that has none, and splice its body in."""
    own = [n for n in met if not _slices_inside(ledger, which, n)]
    outer = any(_has_slice(ledger, r) for r in ledger.chain(which)[:-1])
    for key in ("order", "width"):
        said, mine = effective.get(key), own
        if said is None or (met and not mine):
            continue  # it is for regions inside, which have slices
        if outer and said.region != which:  # those around that run in slices have answered
            mine = [n for n in own if (said.number, n) not in ledger.outcomes]
            if not mine:
                continue
        if key == "order" and said.hint.parsed.schedule is None:
            continue  # it says before or after what: arrange has seen to that
        if key == "order" and said.hint.parsed.schedule == "strict":
            settle(ledger, [said], mine, Outcome(HONOURED, "ops run as listed"), region)
            continue
        outcome = Outcome(INFEASIBLE, "the region has no slices", 'say how many: slice = "t=8"')
        settle(ledger, [said], mine, outcome, region)
    _close_bundle(region, ledger, effective, met)
    for op in walk(region):
        if op.name == "hint.place":
            _place_inside(op, region, ledger)
    inline_single_block(region)


def _place_inside(place: ir.Operation, region: ir.Operation, ledger: Ledger) -> None:
    """Keep, of a place in a region without slices, what names the time axes of regions inside it."""
    inside = {number(r, REGION) for r in _regions_between(place, region)}
    axes = {
        axis.name
        for said in ledger.said
        if said.hint.key == "slice" and said.region in inside
        for axis in said.hint.parsed
    }
    kept = [
        [name for name in dim if name in axes]
        for dim in LayoutAttr(place.attributes["layout"]).layout.block_axes()
    ]
    if any(kept):
        place.attributes["layout"] = LayoutAttr.make(Layout.blocks(kept))
    else:
        replace_op(place, [place.operands[0]])


def _regions_between(op: ir.Operation, region: ir.Operation) -> list[ir.Operation]:
    found = []
    above = op.parent
    while above is not None and above.operation != region:
        if number(above.operation, REGION) >= 0:
            found.append(above)
        above = above.operation.parent
    return found


def _has_slice(ledger: Ledger, region: int) -> bool:
    return any(s.region == region and s.hint.key == "slice" for s in ledger.said)


def _slices_inside(ledger: Ledger, region: int, op: int) -> bool:
    """Tell whether the op is in a region with slices of its own below `region`."""
    chain = ledger.chain(ledger.ops[op].region)
    return any(_has_slice(ledger, r) for r in chain[chain.index(region) + 1 :])


def _close_bundle(
    region: ir.Operation, ledger: Ledger, effective: dict[str, StatedHint], met: list[int]
) -> None:
    """Close a hint `bundle`: a name that `order` of another region refers to."""
    if (said := effective.get("bundle")) is not None:
        settle(ledger, [said], met, Outcome(HONOURED, "names the region"), region)


def choose(region: ir.Operation, axes: tuple[TimeAxis, ...]) -> SliceProgram:
    """Return the program of one slice of `region`.

    It is cut where constraints say, else along the first dims of the results that all ops share. Raises
    NotSliceable with what prevents it.
    """
    for op in walk(region):
        if has_effects(op):
            called, place = op.attributes["function"].value, location_text(op.location)
            raise NotSliceable(f"{called} of Python at {place} runs once, not once in a slice")
    types = [v.type for v in terminator(region.regions[0].blocks[0]).operands]
    constrained = {n for op in walk(region) if op.name == "hint.place" for n in _names(op)}
    free = [axis for axis in axes if axis.name not in constrained]
    if not free:
        mesh = _mesh(axes, extents_of_places(region))
        return _tried(region, axes, mesh, [None] * len(types))
    best: tuple[int, SliceProgram] | None = None
    reasons = []
    for r, placed, extents in islice(_candidates(region, types, free), MAX_CANDIDATES):
        try:
            mesh = _mesh(axes, extents)
            wish: list[Layout | None] = [None] * len(types)
            wish[r] = Layout.blocks([[n for n in dim if mesh.has(n)] for dim in placed])
            program = _tried(region, axes, mesh, wish)
        except NotSliceable as error:
            reasons.append(f"result {r} as {Layout.blocks(placed)}: {error.message}")
            continue
        left = program.count(BEFORE) + program.count(AFTER)
        if best is None or left < best[0]:
            best = (left, program)
        if left == 0:
            break
    if best is None:
        names = ", ".join(axis.name for axis in free)
        raise NotSliceable(
            f"no dim of the results that {names} can cut: {'; '.join(reasons) or 'they have none'}"
        )
    return best[1]


def _tried(
    region: ir.Operation, axes: tuple[TimeAxis, ...], mesh: Mesh, wish: list[Layout | None]
) -> SliceProgram:
    try:
        body = body_of(region, mesh, wish, [axis.name for axis in axes])
        partitioned(body)
    except NotSliceable:
        raise
    except MeshweaveError as error:
        raise NotSliceable(error.message) from error
    program = sliced_program(body)
    if mesh.axes and not program.count(SLICED):
        raise NotSliceable(f"nothing in the region runs along {', '.join(mesh.names)}")
    return program


def _names(place: ir.Operation) -> tuple[str, ...]:
    return LayoutAttr(place.attributes["layout"]).layout.used_axes


def _candidates(
    region: ir.Operation, types: list[ir.Type], free: list[TimeAxis]
) -> Iterator[tuple[int, list[list[str]], dict[str, int]]]:
    """Yield ways to lay time axes on a result, major dims first: its number, axes by dim, the extent each axis cuts."""
    known = extents_of_places(region)
    for r, type_ in enumerate(types):
        if not is_tensor(type_):
            continue
        for dims in product(range(len(type_.shape)), repeat=len(free)):
            placed: list[list[str]] = [[] for _ in type_.shape]
            extents = dict(known)
            for axis, d in zip(free, dims):
                cut = prod(a.count or 1 for a in free if a.name in placed[d])
                extents[axis.name] = -(-type_.shape[d] // cut)
                placed[d].append(axis.name)
            yield r, placed, extents


def extents_of_places(region: ir.Operation) -> dict[str, int]:
    """Return, for each time axis that a place names, the extent of the dim it cuts."""
    found: dict[str, int] = {}
    for op in walk(region):
        if op.name == "hint.place":
            layout = LayoutAttr(op.attributes["layout"]).layout
            for names, extent in zip(layout.block_axes(), op.results[0].type.shape):
                found |= dict.fromkeys(names, extent)
    return found


def _mesh(axes: tuple[TimeAxis, ...], extents: dict[str, int]) -> Mesh:
    """Return the time axes that cut something, as a mesh: a size becomes the number of slices that cover the dim.

    Raises NotSliceable for more slices than the dim has elements.
    """
    counted = []
    for axis in axes:
        extent = extents.get(axis.name)
        if axis.count is not None and extent is not None and axis.count > max(extent, 1):
            raise NotSliceable(f"{axis} is more slices than the {extent} elements there are to cut")
        count = axis.count or (1 if extent is None else -(-extent // (axis.size or 1)))
        if count > 1:
            counted.append(Axis(axis.name, count))
    return Mesh(*counted)
