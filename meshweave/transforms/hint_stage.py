"""The body of a stage's loop over slices: its ops for slice `k`, and what that adds to results and accumulators."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from meshweave.bindings import ir
from meshweave.layout.layout import Layout
from meshweave.transforms.base import replace, walk
from meshweave.transforms.bodies import combiner
from meshweave.transforms.hint_accumulate import combined, starts_neutral
from meshweave.transforms.hint_body import outside
from meshweave.transforms.hint_make import Make
from meshweave.transforms.hint_program import reads


@dataclass
class Slot:
    """What goes through all loops: a result that slices are written into, or an accumulator.

    value:  what a slice adds to it. layout: where in it, None: everywhere. kind: how an accumulator combines.
    """

    value: Any
    init: Any
    layout: Layout | None
    kind: str = ""


def covered(cut: Any, slices: int) -> list[int]:
    """The shape that so many slices of a dim cover, by the all_slice of one."""
    dim = cut.attributes["dim"].value
    shape = list(cut.operands[0].type.shape)
    shape[dim] = cut.results[0].type.shape[dim] * slices
    return shape


def copied(op: Any, make: Make, get: Any, env: dict[Any, Any]) -> Any:
    """A copy of `op`, what it reads from outside taken by `get`; its results go to `env`."""
    places = {(o, i) for o, i in outside(op)} | {(op, i) for i in range(len(op.operands))}
    read = {v: get(v) for v in reads(op)}  # first: what they make stands before the copy
    new = op.clone(make.ip)
    for mine, copy in zip(walk(op), walk(new)):
        for i, value in enumerate(mine.operands):
            if (mine, i) in places:
                copy.operands[i] = read[value]
    env.update(zip(op.results, new.results))
    return new


@dataclass
class Stage:
    """The body of one stage's loop: slice `k`, number `j` of its group. held: what stages before left, by value."""

    slicer: Any
    make: Make
    k: Any
    j: Any
    held: dict[Any, Any]
    env: dict[Any, Any] = field(default_factory=dict)
    coordinates: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def run(self, ops: list[Any], slots: list[tuple[Slot, Any]]) -> list[Any]:
        """The ops for this slice, then each slot with what the slice adds to it."""
        done: dict[int, Any] = {}
        for op in ops:
            mine = self._accumulates(op, slots)
            if mine is None:
                self._heavy(op)
                continue
            slot, into = slots[mine]
            done[mine] = self._accumulate(op, slot, into)
        for i, (slot, into) in enumerate(slots):
            if i not in done:
                done[i] = self._write(slot, into)
        return [done[i] for i in range(len(slots))]

    def _heavy(self, op: Any) -> None:
        """A copy of `op`; what stands in its regions and asks for the slice's number gets it."""
        for inner in walk(op):
            if axes := self._time_axes(inner):
                self.coordinate(axes)  # in front of the copy
        for inner in walk(copied(op, self.make, self.get, self.env)):
            if axes := self._time_axes(inner):
                make = Make(ir.InsertionPoint(inner), inner.location)
                replace(inner, [self._over_time(inner, axes, inner.operands, make)])

    def _time_axes(self, op: Any) -> tuple[str, ...]:
        """The time axes that an axis_index or all_slice names."""
        if op.name not in ("dist.axis_index", "dist.all_slice"):
            return ()
        axes = tuple(a.value for a in op.attributes["axes"])
        return axes if set(axes) & set(self.slicer.program.body.mesh.names) else ()

    def get(self, value: Any) -> Any:
        """A value of the slice's program, here."""
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
            self.env[value] = self.make.extract(self.held[value], value.type, offsets)
        else:
            self._light(value.owner.operation)
        return self.env[value]

    def _argument_layout(self, value: Any) -> Layout | None:
        if not isinstance(value.owner, ir.Block):
            return None
        layout = self.slicer.program.body.layouts[value.arg_number]
        return layout if layout is not None and layout.used_axes else None

    def _light(self, op: Any) -> None:
        if axes := self._time_axes(op):
            operands = [self.get(v) for v in op.operands]
            self.env[op.results[0]] = self._over_time(op, axes, operands, self.make)
            return
        copied(op, self.make, self.get, self.env)

    def _over_time(
        self, op: Any, axes: tuple[str, ...], operands: Sequence[Any], make: Make
    ) -> Any:
        """What an axis_index or all_slice over time axes gives in this slice."""
        place = self.coordinate(axes)
        if op.name == "dist.axis_index":
            return place
        type_, dim = op.results[0].type, op.attributes["dim"].value
        offsets: list[Any] = [0] * len(type_.shape)
        extent = op.operands[0].type.shape[dim]
        offsets[dim] = self._begin(make, place, axes, type_.shape[dim], extent)
        value = self.slicer.padded.get(op)
        if value is None:
            value = operands[0]
            shape = covered(op, self.slicer.program.body.mesh.axis_count(axes))
            if shape != list(value.type.shape) and not self.slicer.shifted:
                value = make.padded(value, shape)
        return make.extract(value, type_, offsets)

    def coordinate(self, axes: tuple[str, ...]) -> Any:
        """The linear coordinate of this slice over `axes`, first named major."""
        if axes not in self.coordinates:
            mesh = self.slicer.program.body.mesh
            total = None
            for axis in axes:
                one = self._digit(axis)
                if total is not None:
                    total = self.make.times(total, mesh.size(axis))
                total = one if total is None else self.make.arith("addi", total, one)
            self.coordinates[axes] = total
        return self.coordinates[axes]

    def _digit(self, axis: str) -> Any:
        mesh = self.slicer.program.body.mesh
        place = mesh.names.index(axis)
        stride = prod(mesh.size(name) for name in mesh.names[place + 1 :])
        digit = self.k
        if stride > 1:
            digit = self.make.arith("divui", digit, self.make.index(stride))
        if place > 0:
            digit = self.make.arith("remui", digit, self.make.index(mesh.size(axis)))
        return digit

    def _begin(self, make: Make, place: Any, axes: Sequence[str], size: int, extent: int) -> Any:
        """Where slice number `place` over `axes` begins in a dim."""
        first = make.times(place, size)
        beyond = self.slicer.program.body.mesh.axis_count(axes) * size > extent
        if beyond and self.slicer.shifted:
            first = make.arith("minui", first, make.index(extent - size))
        return first

    def _offsets(self, layout: Layout, local: Sequence[int], whole: Any) -> list[Any]:
        return [
            self._begin(self.make, self.coordinate(axes), axes, size, extent) if axes else 0
            for axes, size, extent in zip(layout.block_axes(), local, whole.type.shape)
        ]

    def _part(self, whole: Any, type_: Any, layout: Layout) -> Any:
        return self.make.extract(whole, type_, self._offsets(layout, type_.shape, whole))

    def _accumulates(self, op: Any, slots: list[tuple[Slot, Any]]) -> int | None:
        """The slot that `op` may add to directly: it reduces in the same way, from neutral elements, for it alone."""
        for i, (slot, _) in enumerate(slots):
            if slot.kind and op.results and self.slicer.slice_of(slot) == op.results[0]:
                uses = sum(1 for _ in op.results[0].uses)
                if uses == 1 and combiner(op) == slot.kind and starts_neutral(op, slot.kind):
                    return i
        return None

    def _accumulate(self, op: Any, slot: Slot, into: Any) -> Any:
        """`op` with the accumulator for its init."""
        block = into if slot.layout is None else self._part(into, op.results[0].type, slot.layout)
        init = op.operands[len(op.operands) - 1]
        new = copied(op, self.make, lambda v: block if v == init else self.get(v), self.env)
        result = new.results[0]
        if slot.layout is None:
            return result
        return self.make.insert(result, into, self._offsets(slot.layout, result.type.shape, into))

    def _write(self, slot: Slot, into: Any) -> Any:
        piece = self.get(self.slicer.slice_of(slot))
        if not slot.kind:
            return self.make.insert(
                piece, into, self._offsets(self._layout(slot), piece.type.shape, into)
            )
        block = into if slot.layout is None else self._part(into, piece.type, slot.layout)
        total = combined(self.make, slot.kind, piece, block)
        if slot.layout is None:
            return total
        return self.make.insert(total, into, self._offsets(slot.layout, piece.type.shape, into))

    def _layout(self, slot: Slot) -> Layout:
        assert slot.layout is not None
        return slot.layout
