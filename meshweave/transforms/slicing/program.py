"""Find what the program of one slice says about the loop around it.

That is what runs before, in and after the loop, and what it carries.

A value is *sliced* when it depends on the coordinate of a time axis. One that does not runs once, before the loop. A
sum over a time axis is an accumulator: it is complete when the last slice has run, and what reads it runs after.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from meshweave.dialects.dist import axes_of
from meshweave.hints.keys import HintError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import terminator
from meshweave.layout.layout import Layout
from meshweave.plan.collectives import dist_ops
from meshweave.transforms.base import users, walk
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.slicing.body import SliceBody

BEFORE, SLICED, AFTER = "before", "sliced", "after"
MOVES = dist_ops(lambda row: row.received is not None and not row.in_place and row.planned)
REDUCTIONS = dist_ops(lambda row: row.reduces)


class NotSliceable(HintError):
    """Report that the body cannot run slice by slice as asked: which op prevents it, and why."""


@dataclass(frozen=True)
class RegionResult:
    """Describe a result of the region.

    It says which value of the slice it is made of, in which phase, in which layout over time.
    """

    value: ir.Value
    phase: str
    layout: Layout | None
    shape: tuple[int, ...]


@dataclass
class SliceProgram:
    """Hold the program of one slice, sorted.

    phases:       of each op of its block.
    accumulators: the dist.all_reduce ops over time axes.
    results:      what the region yields.
    axes:         the time axes that each value depends on.
    """

    body: SliceBody
    phases: dict[ir.Operation, str] = field(default_factory=dict)
    accumulators: list[ir.Operation] = field(default_factory=list)
    results: list[RegionResult] = field(default_factory=list)
    axes: dict[ir.Value, frozenset[str]] = field(default_factory=dict)
    complete: set[ir.Value] = field(default_factory=set)

    @property
    def ops(self) -> list[ir.Operation]:
        """Return the ops of the block but the last."""
        return [view.operation for view in self.body.block.operations][:-1]

    @property
    def trips(self) -> int:
        """Count the slices that hold anything."""
        mesh = self.body.mesh
        if len(mesh.axes) > 1:
            return mesh.nranks
        most = 0
        for layout, shape in zip(self.body.layouts, self.body.shapes):
            if layout is not None and layout.used_axes:
                for n, local, axes in zip(
                    shape, layout.local_shape(mesh, shape), layout.block_axes()
                ):
                    if axes and local:
                        most = max(most, -(-n // local))
        return most or mesh.nranks

    @property
    def may_shift(self) -> bool:
        """Tell whether a slice that would reach beyond the end may begin earlier, and repeat what another one does.

        Not where slices are added up or know their number; and all that is cut must be so in the same ratio.
        """
        mesh = self.body.mesh
        if self.accumulators:
            return False
        cuts: dict[tuple[str, ...], set[Fraction]] = {}
        for layout, shape in zip(self.body.layouts, self.body.shapes):
            if layout is not None:
                rows = zip(shape, layout.local_shape(mesh, shape), layout.block_axes())
                for extent, size, axes in rows:
                    if axes and size:
                        cuts.setdefault(axes, set()).add(Fraction(extent, size))
        for op in self.ops:
            for inner in walk(op):
                if not _axes_named(inner) & set(mesh.names):
                    continue
                if inner.name != "dist.all_slice" or inner != op:
                    return False
                dim = op.attributes["dim"].value
                extent, size = (v.type.shape[dim] for v in (op.operands[0], op.results[0]))
                cuts.setdefault(axes_of(op), set()).add(Fraction(extent, max(size, 1)))
        names = [a for axes in cuts for a in axes]
        return len(set(names)) == len(names) and all(len(ratios) == 1 for ratios in cuts.values())

    def padded(self, layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that all slices fill, their padding included."""
        mesh = self.body.mesh
        one = len(mesh.axes) == 1
        return tuple(
            n if not axes else local * (self.trips if one else prod(mesh.size(a) for a in axes))
            for n, local, axes in zip(shape, layout.local_shape(mesh, shape), layout.block_axes())
        )

    def repeats(self, accumulator: ir.Operation) -> tuple[str, ...]:
        """Return the time axes along which all slices add the same: once is enough."""
        if accumulator.attributes["kind"].value in ("max", "min"):
            return ()  # again and again does no harm
        summed = self.axes[accumulator.results[0]] | _axes_named(accumulator)
        return tuple(axis for axis in self.body.mesh.names if axis not in summed)

    def phase(self, value: ir.Value) -> str:
        """Return the phase in which `value` is there."""
        if value in self.complete:
            return AFTER
        return SLICED if self.axes.get(value) else BEFORE

    def count(self, phase: str) -> int:
        """Count the ops that compute tensors in this phase; a region in the region counts as one."""
        return sum(
            1
            for op, p in self.phases.items()
            if p == phase and op.results and any("hint.op" in o.attributes for o in walk(op))
        )


def sliced_program(body: SliceBody) -> SliceProgram:
    """Sort a partitioned body. Raises NotSliceable naming the op and the dim that stand in the way."""
    program = SliceProgram(body)
    for argument, layout in zip(body.block.arguments, body.layouts):
        program.axes[argument] = frozenset(layout.used_axes if layout is not None else ())
    for op in program.ops:
        _sort(program, op)
    end = terminator(body.block)
    first = len(body.captured)
    for i, value in enumerate(end.operands):
        layout = body.layouts[first + i]
        phase = program.phase(value)
        used = frozenset(layout.used_axes if layout is not None else ())
        if phase == SLICED and used != program.axes[value]:
            raise NotSliceable(f"result {i} depends on slices that its layout {layout} leaves out")
        if phase == AFTER and not used:
            layout = None
        program.results.append(RegionResult(value, phase, layout, body.shapes[first + i]))
    return program


def reads(op: ir.Operation) -> list[ir.Value]:
    """Return the values that `op` and the ops in it read, without those defined within."""
    inside = {r for o in walk(op) for r in o.results} | {
        a for o in walk(op) for g in o.regions for b in g.blocks for a in b.arguments
    }
    return [v for o in walk(op) for v in o.operands if v not in inside]


def _sort(program: SliceProgram, op: ir.Operation) -> None:
    mesh = program.body.mesh
    time = set(mesh.names)
    for inner in walk(op):
        named = _axes_named(inner) & time
        if named and inner.name == "dist.all_slice":
            _check_cut(program, inner, named)
        if named and (inner.name in MOVES or (inner.name == "dist.all_reduce" and inner != op)):
            raise NotSliceable(_needs_whole(inner, named))
    read = reads(op)
    axes = frozenset[str]().union(*[program.axes.get(v, frozenset()) for v in read])
    for inner in walk(op):
        if inner.name in ("dist.axis_index", "dist.all_slice"):
            axes |= _axes_named(inner) & time
    late = [v for v in read if v in program.complete]
    if late and (axes or any(program.axes.get(v) for v in late)):
        raise NotSliceable(_needs_complete(op, late[0], program.complete))
    reduced = _axes_named(op) & time if op.name == "dist.all_reduce" else frozenset[str]()
    if reduced and axes:
        program.accumulators.append(op)
        program.phases[op] = SLICED
        program.complete |= set(op.results)
        axes -= reduced
    else:
        program.phases[op] = AFTER if late else SLICED if axes else BEFORE
        if late:
            program.complete |= set(op.results)
    for result in op.results:
        program.axes[result] = axes


def _check_cut(program: SliceProgram, cut: ir.Operation, axes: frozenset[str]) -> None:
    """Refuse slices of what an op made whole, before the loop: it could not run in slices."""
    made = cut.operands[0].owner
    if isinstance(made, ir.Block) or "hint.op" not in made.operation.attributes:
        return
    if program.phases.get(made.operation) == BEFORE:
        dim = cut.attributes["dim"].value
        cutting = ", ".join(sorted(axes))
        raise NotSliceable(
            f"{_named(made.operation)} needs dim {dim} of {made.operation.results[0].type} whole, and "
            f"{cutting} cuts it"
        )


def _axes_named(op: ir.Operation) -> frozenset[str]:
    attr = op.attributes.get("axes")
    if not op.name.startswith("dist.") or not isinstance(attr, ir.ArrayAttr):
        return frozenset()
    return frozenset(a.value for a in attr)


def _reader(value: ir.Value) -> ir.Operation:
    """Return the op that wants what a move over time makes: the first reader that is no move itself."""
    for reader in users(value):
        op = reader.operation
        if op.name in (*MOVES, "dist.all_slice", "dist.all_reduce"):
            found = _reader(op.results[0])
            if found is not None:
                return found
        else:
            return op
    return None


def _named(op: ir.Operation) -> str:
    if op is None or op.name in ("func.return", "hint.yield", "scf.yield"):
        return "the end of the region"
    return f"'{op.name}' at {location_text(op)}"


def _needs_whole(move: ir.Operation, axes: frozenset[str]) -> str:
    cut = ", ".join(sorted(axes))
    reader = _named(_reader(move.results[0]))
    if move.name in REDUCTIONS:
        return f"{reader} reads the sum over all slices of {cut} before they have run"
    attr = move.attributes.get("dim") or move.attributes.get("concat_dim")
    dim = f"dim {attr.value} of {_type(move)}" if attr is not None else "another part of it"
    made = move.operands[0].owner
    by = "" if isinstance(made, ir.Block) else f" (made by {_named(made.operation)})"
    return f"{reader} needs {dim} whole, and {cut} cuts it{by}"


def _type(op: ir.Operation) -> ir.Type:
    return op.results[0].type if is_tensor(op.results[0].type) else "it"


def _needs_complete(op: ir.Operation, value: ir.Value, complete: set[ir.Value]) -> str:
    made = _reduction_behind(value, complete)
    return (
        f"{_named(op)} reads the complete reduction of {_named(made)} in a slice, and it is "
        "complete only when all slices have run"
    )


def _reduction_behind(value: ir.Value, complete: set[ir.Value]) -> ir.Operation | None:
    """Return the op whose results are added up over slices to what `value` is made of."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        tensors = [v for v in op.operands if is_tensor(v.type)]
        if op.name == "dist.all_reduce":
            made = tensors[0].owner
            return None if isinstance(made, ir.Block) else made.operation
        late = [v for v in tensors if v in complete]
        if not late:
            return op
        value = late[0]
    return None
