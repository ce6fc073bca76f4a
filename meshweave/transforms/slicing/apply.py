"""hint-apply: read the regions' hints, settle which of several holds, and open the ledger.

before:  "hint.region"() ({ .. }) {hints = {slice = "t=4", order = "dfs"}}
after:   the same with a number on the region and on each op in it, and the ledger on the module

A function with `hint.hints = {peak_bytes = "8MiB"}` is a region under these; with `loose` no op says so where the bytes
of @main alone are bounded, so that the program is the one without hints. A `dist.constrain` that names a time axis
is split: to space the axis is a local factor, and what is laid out along it within a slice becomes a `hint.place`. A
key that the target cannot obey is an error where it is required, else a remark. hint-verify at the end finds out what
became of each hint.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.dist import LayoutAttr
from meshweave.dialects.hint import hints_in
from meshweave.errors import LayoutError
from meshweave.hints.keys import PREFERRED, Hint, HintError, TimeAxis, resolve, supports
from meshweave.hints.ledger import (
    HONOURED,
    SUPERSEDED,
    UNSUPPORTED,
    Ledger,
    Op,
    Outcome,
    Region,
    StatedHint,
)
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.locations import location_text
from meshweave.ir.ops import replace_op
from meshweave.layout.layout import AxisFactor, Layout, LocalFactor
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import Pass, at, fail, functions, mesh_of_module
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.values import is_free
from meshweave.transforms.slicing.copies import enter_copies
from meshweave.transforms.slicing.ledger import (
    OP,
    REGION,
    WHOLE,
    WHOLE_REGION,
    hold_axes,
    main_of,
    set_number,
    tell,
    write_ledger,
)
from meshweave.transforms.slicing.outer import Outer
from meshweave.transforms.slicing.ring import WITHIN
from meshweave.transforms.slicing.ties import (
    PARALLEL,
    REDUCTION,
    DimFactors,
    MadeDim,
    Node,
    Ties,
    loops,
)


@dataclass(frozen=True)
class HintApply(Pass):
    """Read hints, settle which hold, open the ledger.

    target: what the program is compiled for: it says which keys it obeys.
    hints:  what holds in regions that say nothing else, as hints=order=bfs,width=2.
    loose:  make no region of @main where its bytes are bounded and nothing else is said: hint-budget takes it in one
            piece, whatever that takes.
    """

    name: ClassVar[str] = "hint-apply"
    target: str = "cpu"
    hints: tuple[str, ...] = ()
    loose: bool = False

    def run(self, module: ir.Module) -> None:
        ledger = Ledger.empty()
        loose = self.loose and not self.hints and is_bounded_alone(module)
        with at(module):
            supports(self.target, "slice")
            for hint in _options(self.hints):
                ledger.said.append(StatedHint(len(ledger.said), -1, hint))
        mesh = mesh_of_module(module)
        found: list[tuple[int, ir.Operation]] = []
        for f in functions(module):
            around = -1
            if WHOLE in f.operation.attributes:
                f.operation.attributes[WHOLE_REGION] = i64(len(ledger.regions))
                hints = _taken_off(f.operation)
                if loose and f.operation == main_of(module):
                    around = _open(f.operation, hints, -1, ledger)
                    found.append((around, f.operation))
                else:
                    put_around(f.operation, hints)
            _enter(f.operation.regions[0].blocks[0], around, ledger, found)
        for number, op in found:
            with at(op):
                self._settle(ledger, number, op)
            _check_axes(ledger, number, op, mesh)
        done: Done = {}
        for _, op in found:
            split_constraints(op, mesh, done)
        enter_copies(module, ledger)
        if ledger.regions:
            write_ledger(module, ledger)

    def _settle(self, ledger: Ledger, number: int, region: ir.Operation) -> None:
        """Close what is known now of the ops whose innermost region is this one."""
        chain = [-1, *ledger.chain(number)]
        said = [s for r in chain for s in ledger.said if s.region == r]
        depth = [chain.index(s.region) for s in said]
        resolved = resolve([s.hint for s in said], depth)
        ops = [op.number for op in ledger.ops if op.region == number]
        for old, new in resolved.superseded.items():
            by = f"by {said[new].hint} at {said[new].hint.where}"
            for op in ops:
                ledger.close(said[old].number, op, Outcome(SUPERSEDED, by))
        for i, one in enumerate(said):
            must = (one.hint.key, one.hint.parsed) == ("fuse", "must")
            if i in resolved.superseded or (supports(self.target, one.hint.key) and not must):
                continue
            if (one.hint.key, one.hint.parsed) == ("overlap", "none"):
                for op in ops:
                    ledger.close(one.number, op, Outcome(HONOURED, _WHY["overlap"]))
                continue
            why = _WHY.get(
                "must" if must else one.hint.key, f"target {self.target} has no {one.hint.key}"
            )
            outcome = Outcome(UNSUPPORTED, why, f"drop {one.hint.key}")
            for op in ops:
                ledger.close(one.number, op, outcome)
            if one.region in (number, -1):
                tell(one, outcome, region)


def _taken_off(function: ir.Operation) -> ir.DictAttr:
    """Take `hint.hints` off a function, and return it."""
    hints = function.attributes[WHOLE]
    del function.attributes[WHOLE]
    if len(function.regions[0].blocks) > 1 or not isinstance(hints, ir.DictAttr):
        fail(function, f"{WHOLE}: a dictionary of hints, of a function of one block, is right")
    return hints


def is_bounded_alone(module: ir.Module) -> bool:
    """Tell whether `hint.hints` of @main bound its bytes and say nothing else."""
    main = main_of(module)
    hints = None if main is None else main.attributes.get(WHOLE)
    return isinstance(hints, ir.DictAttr) and [one.name for one in hints] == ["peak_bytes"]


def put_around(function: ir.Operation, hints: ir.DictAttr) -> ir.Operation:
    """Put all ops of a function in a region under these hints, and return that."""
    *ops, end = (view.operation for view in function.regions[0].blocks[0].operations)
    values = list(end.operands)
    b = OpBuilder(ir.InsertionPoint(end), function.location)
    region = b.op("hint.region", [v.type for v in values], regions=1, hints=hints)
    inner = region.regions[0].blocks.append()
    for op in ops:
        inner.append(op)
    OpBuilder(ir.InsertionPoint(inner), end.location).op("hint.yield", [], values)
    for number, result in enumerate(region.results):
        end.operands[number] = result
    return region


def hint_whole(module: ir.Module, hints: Sequence[Hint]) -> None:
    """Put hints around all of @main; what it has of the same keys itself is replaced."""
    main = main_of(module)
    assert main is not None  # check_entry has seen it
    own = main.attributes.get(WHOLE)
    entries = {one.name: one.attr for one in own} if isinstance(own, ir.DictAttr) else {}
    entries |= {hint.key: ir.StringAttr.get(hint.value) for hint in hints}
    main.attributes[WHOLE] = ir.DictAttr.get(entries)


def _options(given: tuple[str, ...]) -> list[Hint]:
    found = []
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise HintError(f'hint-apply: hints: "{text}" is not KEY=VALUE, as order=bfs')
        found.append(Hint.make(key, value, PREFERRED, "a compile option"))
    return found


def _enter(
    block: ir.Block, region: int, ledger: Ledger, found: list[tuple[int, ir.Operation]]
) -> None:
    """Give numbers to the regions and ops of `block`, which stands in region `region`."""
    for view in block.operations:
        op = view.operation
        inner = region
        if op.name == "hint.region":
            inner = _open(op, op.attributes["hints"], region, ledger)
            set_number(op, REGION, inner)
            found.append((inner, op))
        elif region >= 0 and _counts(op):
            set_number(op, OP, len(ledger.ops))
            ledger.ops.append(Op(len(ledger.ops), op.name, location_text(op), region))
        if not op.name.startswith("linalg."):
            for child in op.regions:
                for below in child.blocks:
                    _enter(below, inner, ledger, found)


def _open(op: ir.Operation, hints: ir.Attribute, parent: int, ledger: Ledger) -> int:
    """Enter a region under hints, which stands where `op` does; return its number."""
    which, where = len(ledger.regions), location_text(op)
    ledger.regions.append(Region(which, where, parent))
    with at(op):
        for hint in hints_in(hints, where):
            ledger.said.append(StatedHint(len(ledger.said), which, hint))
    return which


_WHY = {
    "must": "no op is forced into the kernel of another: that is done where it costs less",
    "overlap": "collectives are done when they return, so none runs under the compute of a slice",
}
"""Why no target obeys what is about more than a missing feature of one."""

NOT_COUNTED = ("dist.constrain", "arith.constant", "hint.place")
"""Ops that compute nothing: no hint is about them."""


def _counts(op: ir.Operation) -> bool:
    """Tell whether `op` is one that hints are about: it computes a tensor, or hands work to something that does."""
    if op.name in NOT_COUNTED or is_free(op):
        return False
    return any(is_tensor(r.type) for r in op.results)


def _check_axes(ledger: Ledger, number: int, region: ir.Operation, mesh: Mesh | None) -> None:
    """Refuse a time axis that is a mesh axis, or that has the name of another one around it."""
    mine = [s for s in ledger.said if s.region == number and s.hint.key == "slice"]
    around = [
        (axis, s)
        for r in ledger.chain(number)[:-1]
        for s in ledger.said
        if s.region == r and s.hint.key == "slice"
        for axis in s.hint.parsed
    ]
    for said in mine:
        for axis in said.hint.parsed:
            if mesh is not None and mesh.has(axis.name):
                fail(region, f"{said.hint}: {axis.name} is an axis of the mesh ({mesh}) already")
            for other, where in around:
                if axis.name == other.name:
                    fail(
                        region,
                        f"{said.hint}: the region at {where.hint.where} has the time axis {other} "
                        "already: give the inner one another name",
                    )


Done = dict[Node, DimFactors]


def split_constraints(region: ir.Operation, mesh: Mesh | None, done: Done | None = None) -> None:
    """Split the constraints of a region's own block that name time axes.

    done: what the region has in the order of slices (see hint_outer); None to leave it in the order it is in.
    """
    for view in list(region.regions[0].blocks[0].operations):
        op = view.operation
        if op.name == "dist.constrain":
            layout = LayoutAttr(op.attributes["layout"]).layout
            axes = _time_axes(region)
            named = [n for n in layout.used_axes if n in axes]
            if named:
                _split(op, layout, axes, mesh, done)


def _time_axes(region: ir.Operation) -> dict[str, TimeAxis]:
    """Return the time axes of a region and of those around it, by name."""
    return {axis.name: axis for _, axes in _sliced_regions(region) for axis in axes}


def _sliced_regions(op: ir.Operation) -> Iterator[tuple[ir.Operation, tuple[TimeAxis, ...]]]:
    """Yield `op` and the ops around it that are regions with time axes, inner ones first, with these."""
    above = op
    while above is not None:
        region = above.operation
        if region.name == "hint.region":
            for hint in hints_in(region.attributes["hints"]):
                if hint.key == "slice":
                    yield region, hint.parsed
        above = region.parent


def _split(
    op: ir.Operation,
    layout: Layout,
    axes: dict[str, TimeAxis],
    mesh: Mesh | None,
    done: Done | None,
) -> None:
    """Turn `constrain [x*t, _]` into `constrain [x, _]` and `place [t, _]`."""
    with at(op, "dist.constrain"):
        if any(a in axes for p in layout.partial for a in p.axes):
            raise LayoutError(f"layout {layout}: a sum over a time axis is never left pending")
        time = Layout.blocks(
            [
                [f.name for f in dim if isinstance(f, AxisFactor) and f.name in axes]
                for dim in layout.dims
            ]
        )
        before = [(done or {}).get(MadeDim(op.results[0], d)) for d in range(layout.ndim)]
        dims = [_in_space(layout, d, axes) for d in range(layout.ndim)]
        space = Layout(tuple(dims), layout.partial, layout.order, layout.uneven)
        if done is not None:
            space = _in_blocks(op, layout, space, before, mesh, done)
    value = op.operands[0]
    if space.used_axes or not space.is_block:
        op.attributes["layout"] = LayoutAttr.make(space)
        value = op.results[0]
    b = OpBuilder.after(op)
    placed = b.one("hint.place", value.type, value, layout=LayoutAttr.make(time))
    place = placed.owner
    op.results[0].replace_all_uses_except(placed, place.operation)
    if space.used_axes:
        place.attributes[WITHIN] = ir.UnitAttr.get()
    if value == op.operands[0]:
        replace_op(op, [value])
    if done is not None:
        _hold(place, layout, axes)


def _hold(place: ir.Operation, layout: Layout, axes: dict[str, TimeAxis]) -> None:
    """Let ops that run along a dim with time axes and mesh axes keep both: slices are of what each rank holds."""
    both: dict[int, list[str]] = {}
    for d, dim in enumerate(layout.dims):
        names = [f.name for f in dim if isinstance(f, AxisFactor)]
        mine = [name for name in names if name not in axes]
        if 0 < len(mine) < len(names):
            both[d] = mine
    if not both:
        return
    ties, value = Ties(_owner(place, layout)), place.results[0]
    found = [
        (loop.op, loop.number, mine)
        for d, mine in both.items()
        for loop in loops(ties.together(MadeDim(value, d)), PARALLEL, REDUCTION)
    ]
    for reader, factor, mine in found:  # behind the search: an op hashes by what it is
        hold_axes(reader, factor, mine)


def _in_blocks(
    op: ir.Operation,
    layout: Layout,
    space: Layout,
    before: list[DimFactors | None],
    mesh: Mesh | None,
    done: Done,
) -> Layout:
    """Return `space` in blocks, and bring the region into the order of its digits (outer.py) where that differs."""
    for d, was in enumerate(before):
        if was is not None and was != space.dims[d]:
            raise LayoutError(f"layout {layout}: dim {d} runs with one that is cut another way")
    new = [d for d, was in enumerate(before) if was is None]
    if any(isinstance(f, LocalFactor) and f.extent for d in new for f in space.dims[d]):
        if mesh is None or mesh.is_symbolic:
            raise LayoutError(f"layout {layout}: time before space needs a mesh with known sizes")
        if space.partial or space.order is not None or space.uneven != "flat":
            raise LayoutError(f"layout {layout}: time before space goes with blocks alone")
        if not op.results[0].type.has_static_shape:
            raise LayoutError(f"layout {layout}: the shape of {op.results[0].type} is not static")
        Outer(_owner(op, layout), mesh, space, done).run(op.results[0])
    devices = [[f for f in row if isinstance(f, AxisFactor)] for row in space.dims]
    rows = [row if d in new and space.is_block else devices[d] for d, row in enumerate(space.dims)]
    return Layout(tuple(tuple(r) for r in rows), space.partial, space.order, space.uneven)


def _owner(op: ir.Operation, layout: Layout) -> ir.Operation:
    """Return the outermost region that has a time axis of `layout`."""
    named = set(layout.used_axes)
    around = [r for r, axes in _sliced_regions(op) if named & {axis.name for axis in axes}]
    return around[-1] if around else None


def _in_space(layout: Layout, dim: int, axes: dict[str, TimeAxis]) -> DimFactors:
    """Return the factors of a dim with its time axes as local factors, which they are to space.

    Those behind all mesh axes are what each rank does one after the other with its own part: they need no factor.
    """
    factors = layout.dims[dim]
    sharded = [f for f in factors if isinstance(f, AxisFactor) and f.name not in axes]
    last = max((i for i, f in enumerate(factors) if f in sharded), default=-1)
    for factor in factors[: last + 1]:
        if isinstance(factor, AxisFactor) and factor.name in axes and not axes[factor.name].count:
            raise LayoutError(
                f"layout {layout}: {axes[factor.name]} stands before a mesh axis: say how many slices"
            )
    locals_ = [f for f in factors if isinstance(f, LocalFactor) and f.extent is not None]
    if not locals_ and last == len(sharded) - 1:
        return tuple(sharded)
    return tuple(
        LocalFactor(axes[f.name].count) if isinstance(f, AxisFactor) and f.name in axes else f
        for f in factors
        if not (isinstance(f, AxisFactor) and f.name in axes and axes[f.name].count is None)
    )
