"""Fill the body of a stage's loop over slices.

It holds the stage's ops for slice `k`, and what that adds to results and accumulators.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import Index, OpBuilder
from meshweave.ir.ops import replace_op
from meshweave.layout.layout import Layout
from meshweave.transforms.base import walk
from meshweave.transforms.partitioning.neutral import neutral_attr
from meshweave.transforms.propagation.bodies import combiner
from meshweave.transforms.slicing.body import outside
from meshweave.transforms.slicing.program import reads


@dataclass
class Slot:
    """Hold what goes through all loops: a result that slices are written into, or an accumulator.

    value:   what a slice adds to it. layout: where in it, None: everywhere. kind: how an accumulator combines.
    repeats: time axes that what is added does not depend on: it is the same in all slices along them.
    """

    value: ir.Value
    init: ir.Value
    layout: Layout | None
    kind: str = ""
    repeats: tuple[str, ...] = ()


def covered(cut: ir.Operation, slices: int) -> list[int]:
    """Return the shape that `slices` slices of a dim cover, given the all_slice of one."""
    dim = cut.attributes["dim"].value
    shape = list(cut.operands[0].type.shape)
    shape[dim] = cut.results[0].type.shape[dim] * slices
    return shape


def padded(b: OpBuilder, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Pad `value` with zeros behind its end in each dim, up to `shape`."""
    return b.pad(value, shape, neutral_attr("sum", value.type.element_type))


def copied(
    op: ir.Operation,
    b: OpBuilder,
    get: Callable[[ir.Value], ir.Value],
    env: dict[ir.Value, ir.Value],
) -> ir.Operation:
    """Copy `op`; `get` gives what it reads from outside, its results go to `env`."""
    places = {(o, i) for o, i in outside(op)} | {(op, i) for i in range(len(op.operands))}
    read = {v: get(v) for v in reads(op)}  # first: what they make stands before the copy
    new = op.clone(b.ip)
    for mine, copy in zip(walk(op), walk(new)):
        for i, value in enumerate(mine.operands):
            if (mine, i) in places:
                copy.operands[i] = read[value]
    env.update(zip(op.results, new.results))
    return new


@dataclass
class Stage:
    """Build the body of one stage's loop, for slice `k`, number `j` of its group.

    Field `held` has what earlier stages left, by value.
    """

    slicer: Any
    b: OpBuilder
    k: ir.Value
    j: ir.Value
    held: dict[ir.Value, ir.Value]
    env: dict[ir.Value, ir.Value] = field(default_factory=dict)
    coordinates: dict[tuple[str, ...], ir.Value] = field(default_factory=dict)

    def run(self, ops: list[ir.Operation], slots: list[tuple[Slot, ir.Value]]) -> list[ir.Value]:
        """Run the ops for this slice, then return each slot with what the slice adds to it."""
        done: dict[int, ir.Value] = {}
        for op in ops:
            mine = self._accumulates(op, slots)
            if mine is None:
                self._heavy(op)
                continue
            done[mine] = self._add(*slots[mine], op)
        for i, (slot, into) in enumerate(slots):
            if i not in done:
                done[i] = self._add(slot, into)
        return [done[i] for i in range(len(slots))]

    def _add(self, slot: Slot, into: ir.Value, op: ir.Operation | None = None) -> ir.Value:
        """Return `into` with what this slice adds, once where other slices would add the same again.

        op: what adds it directly.
        """
        if not slot.repeats:
            return self._updated(slot, into, op)
        again = self.coordinate(slot.repeats)
        first = self.b.compare(arith.CmpIPredicate.eq, again, self.b.index(0))

        def added(b: OpBuilder) -> list[ir.Value]:
            inside = replace(self, b=b, env=dict(self.env), coordinates=dict(self.coordinates))
            return [inside._add(replace(slot, repeats=()), into, op)]

        return self.b.if_else(first, [into.type], added, lambda _: [into])[0]

    def _heavy(self, op: ir.Operation) -> None:
        """Copy `op`; what asks for the slice's number in its regions gets it."""
        for inner in walk(op):
            if axes := self._time_axes(inner):
                self.coordinate(axes)  # in front of the copy
        for inner in walk(copied(op, self.b, self.get, self.env)):
            if axes := self._time_axes(inner):
                b = OpBuilder.before(inner)
                replace_op(inner, [self._over_time(inner, axes, inner.operands, b)])

    def _time_axes(self, op: ir.Operation) -> tuple[str, ...]:
        """Return the time axes that an axis_index or all_slice names."""
        if op.name not in ("dist.axis_index", "dist.all_slice"):
            return ()
        axes = tuple(a.value for a in op.attributes["axes"])
        return axes if set(axes) & set(self.slicer.program.body.mesh.names) else ()

    def get(self, value: ir.Value) -> ir.Value:
        """Return a value of the slice's program, here."""
        if value in self.env:
            return self.env[value]
        slicer = self.slicer
        if value in slicer.known:
            layout = self._argument_layout(value)
            if layout is None:
                return slicer.known[value]
            self.env[value] = self._part(slicer.known[value], value.type, layout)
        elif value in self.held:
            offsets = [self.j, *[0] * len(value.type.shape)]
            self.env[value] = self.b.extract_slice(self.held[value], value.type, offsets)
        else:
            self._light(value.owner.operation)
        return self.env[value]

    def _argument_layout(self, value: ir.Value) -> Layout | None:
        if not isinstance(value.owner, ir.Block):
            return None
        layout = self.slicer.program.body.layouts[value.arg_number]
        return layout if layout is not None and layout.used_axes else None

    def _light(self, op: ir.Operation) -> None:
        if axes := self._time_axes(op):
            operands = [self.get(v) for v in op.operands]
            self.env[op.results[0]] = self._over_time(op, axes, operands, self.b)
            return
        copied(op, self.b, self.get, self.env)

    def _over_time(
        self, op: ir.Operation, axes: tuple[str, ...], operands: Sequence[ir.Value], b: OpBuilder
    ) -> ir.Value:
        """Return what an axis_index or all_slice over time axes gives in this slice."""
        place = self.coordinate(axes)
        if op.name == "dist.axis_index":
            return place
        type_, dim = op.results[0].type, op.attributes["dim"].value
        offsets: list[ir.Value] = [0] * len(type_.shape)
        extent = op.operands[0].type.shape[dim]
        offsets[dim] = self._begin(b, place, axes, type_.shape[dim], extent)
        value = self.slicer.padded.get(op)
        if value is None:
            value = operands[0]
            shape = covered(op, self.slicer.program.body.mesh.axis_count(axes))
            if shape != list(value.type.shape) and not self.slicer.shifted:
                value = padded(b, value, shape)
        return b.extract_slice(value, type_, offsets)

    def coordinate(self, axes: tuple[str, ...]) -> ir.Value:
        """Return the linear coordinate of this slice over `axes`, first named major."""
        if axes not in self.coordinates:
            mesh = self.slicer.program.body.mesh
            total = None
            for axis in axes:
                one = self._digit(axis)
                if total is not None:
                    total = self.b.times(total, mesh.size(axis))
                total = one if total is None else self.b.binary("addi", total, one)
            self.coordinates[axes] = total
        return self.coordinates[axes]

    def _digit(self, axis: str) -> ir.Value:
        mesh = self.slicer.program.body.mesh
        place = mesh.names.index(axis)
        stride = prod(mesh.size(name) for name in mesh.names[place + 1 :])
        digit = self.k
        if stride > 1:
            digit = self.b.binary("divui", digit, self.b.index(stride))
        if place > 0:
            digit = self.b.binary("remui", digit, self.b.index(mesh.size(axis)))
        return digit

    def _begin(
        self, b: OpBuilder, place: ir.Value, axes: Sequence[str], size: int, extent: int
    ) -> ir.Value:
        """Return where slice number `place` over `axes` begins in a dim."""
        first = b.times(place, size)
        beyond = self.slicer.program.body.mesh.axis_count(axes) * size > extent
        if beyond and self.slicer.shifted:
            first = b.binary("minui", first, b.index(extent - size))
        return first

    def _offsets(self, layout: Layout, local: Sequence[int], whole: ir.Value) -> list[Index]:
        return [
            self._begin(self.b, self.coordinate(axes), axes, size, extent) if axes else 0
            for axes, size, extent in zip(layout.block_axes(), local, whole.type.shape)
        ]

    def _part(self, whole: ir.Value, type_: ir.Type, layout: Layout) -> ir.Value:
        return self.b.extract_slice(whole, type_, self._offsets(layout, type_.shape, whole))

    def _accumulates(self, op: ir.Operation, slots: list[tuple[Slot, ir.Value]]) -> int | None:
        """Return the slot that `op` may add to directly.

        The op reduces in the same way, from neutral elements, for the slot alone.
        """
        for i, (slot, _) in enumerate(slots):
            if slot.kind and op.results and self.slicer.slice_of(slot) == op.results[0]:
                uses = sum(1 for _ in op.results[0].uses)
                if uses == 1 and combiner(op) == slot.kind and starts_neutral(op, slot.kind):
                    return i
        return None

    def _updated(self, slot: Slot, into: ir.Value, op: ir.Operation | None) -> ir.Value:
        """Return `into` with what this slice adds. op: what adds it with the accumulator as its init, if any does."""
        piece = op.results[0] if op is not None else self.get(self.slicer.slice_of(slot))
        shape, layout = piece.type.shape, slot.layout
        if slot.kind:
            block = into if layout is None else self._part(into, piece.type, layout)
            if op is None:
                piece = combined(self.b, slot.kind, piece, block)
            else:
                piece = self._accumulated(op, block)
        if layout is None:
            return piece
        return self.b.insert_slice(piece, into, self._offsets(layout, shape, into))

    def _accumulated(self, op: ir.Operation, block: ir.Value) -> ir.Value:
        """Run `op` with `block` of the accumulator as its init."""
        init = op.operands[len(op.operands) - 1]
        new = copied(op, self.b, lambda v: block if v == init else self.get(v), self.env)
        return new.results[0]


_COMBINE = {
    "sum": ("arith.addf", "arith.addi"),
    "prod": ("arith.mulf", "arith.muli"),
    "max": ("arith.maximumf", "arith.maxsi"),
    "min": ("arith.minimumf", "arith.minsi"),
}


def combined(b: OpBuilder, kind: str, piece: ir.Value, block: ir.Block) -> ir.Value:
    """Return block (kind) piece, element by element, in the place of `block`."""
    name = _combine_op(kind, piece.type.element_type)
    return b.elementwise([piece], block, lambda inner, xs: inner.one(name, xs[0].type, *xs))


def _combine_op(kind: str, element: ir.Type) -> str:
    if str(element) == "i1" and kind in ("max", "min"):
        return "arith.ori" if kind == "max" else "arith.andi"
    floats = not isinstance(element, ir.IntegerType | ir.IndexType)
    return _COMBINE[kind][0 if floats else 1]


def starts_neutral(op: ir.Operation, kind: str) -> bool:
    """Tell whether the init of `op` is full of the neutral element of `kind`."""
    if not op.name.startswith("linalg.") or len(op.results) != 1:
        return False
    init = op.operands[len(op.operands) - 1]
    if isinstance(init.owner, ir.Block) or init in list(op.operands)[:-1]:
        return False
    owner = init.owner.operation
    neutral = neutral_attr(kind, init.type.element_type)
    if owner.name == "arith.constant":
        value = owner.attributes["value"]
        return isinstance(value, ir.DenseElementsAttr) and value.get_splat_value() == neutral
    if owner.name not in ("linalg.fill", "tensor.splat"):
        return False
    scalar = owner.operands[0].owner
    return (
        not isinstance(scalar, ir.Block)
        and scalar.operation.name == "arith.constant"
        and scalar.operation.attributes["value"] == neutral
    )
