"""The program of one slice as loops: depth-first one loop of everything, else stages over groups of slices.

Slices are numbered row-major over the time axes. A group of w slices runs stage by stage, each stage one heavy op for
all w slices; what another stage reads is held for the group in a tensor of w slices. Depth-first is one stage of all
ops, breadth-first one group of all slices. Results and accumulators go through all loops and are updated in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from meshweave.bindings import ir
from meshweave.layout.layout import Layout
from meshweave.transforms.base import replace, walk
from meshweave.transforms.bodies import combiner, is_tensor
from meshweave.transforms.hint_accumulate import combined, starts_neutral
from meshweave.transforms.hint_body import outside
from meshweave.transforms.hint_make import Make, tensor_of
from meshweave.transforms.hint_program import AFTER, BEFORE, SLICED, SliceProgram, reads
from meshweave.transforms.hint_reuse import in_place, is_elementwise
from meshweave.transforms.hint_ring import Ring
from meshweave.transforms.neutral import neutral_attr
from meshweave.transforms.rules import is_free

_LIGHT = (
    "tensor.expand_shape",
    "tensor.collapse_shape",
    "tensor.extract_slice",
    "tensor.cast",
    "tensor.extract",
    "tensor.dim",
    "dist.axis_index",
    "dist.all_slice",
    "hint.place",
)


def is_light(op: Any) -> bool:
    """Does `op` cost next to nothing, so that every stage may do it anew: a view, a scalar, a fill?"""
    return op.name in _LIGHT or is_free(op) or not any(is_tensor(r.type) for r in op.results)


@dataclass
class Slot:
    """What goes through all loops: a result that slices are written into, or an accumulator.

    value:  what a slice adds to it. layout: where in it, None: everywhere. kind: how an accumulator combines.
    """

    value: Any
    init: Any
    layout: Layout | None
    kind: str = ""


@dataclass
class Slicer:
    """Writes the loops of one region in front of it.

    shifted: slices that would reach beyond the end begin earlier, so that nothing is padded.
    """

    program: SliceProgram
    region: Any
    ring: Ring | None = None
    known: dict[Any, Any] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    stage_of: dict[Any, int] = field(default_factory=dict)
    shifted: bool = False

    def run(self, width: int, staged: bool) -> list[Any]:
        """What the region's results become.

        width: slices in flight. staged: op by op within a group, not all ops of a slice in one.
        """
        program, body = self.program, self.program.body
        self.shifted = self.ring is None and program.may_shift
        make = Make(ir.InsertionPoint(self.region), self.region.location)
        for number, (argument, value) in enumerate(zip(body.block.arguments, body.captured)):
            self.known[argument] = self._whole(make, number, argument, value)
        round_ = self.ring.gathers if self.ring is not None else ()
        for op in program.ops:
            if program.phases[op] == BEFORE and not is_free(op) and op not in round_:
                self._clone(op, make)
        heavy = [o for o in program.ops if program.phases[o] == SLICED and not is_light(o)]
        heavy = [o for o in heavy if o not in program.accumulators]
        stages = _stages(heavy) if staged else [heavy]
        self.stage_of = {r: n for n, ops in enumerate(stages) for op in ops for r in op.results}
        self._make_slots(make)
        values = [slot.init for slot in self.slots]
        for slot, value in zip(self.slots, self._groups(make, stages, width, values)):
            self.known[slot.value] = value
        for op in program.ops:
            if program.phases[op] == AFTER:
                self._clone(op, make)
        return [self._cut(make, r) for r in program.results]

    def _cut(self, make: Make, result: Any) -> Any:
        value = result.value
        if result.phase == SLICED or (result.phase == AFTER and result.layout is not None):
            key = value if value in self.known else None
            assert key is not None, "a sliced result has a slot"
            whole = self.known[value]
            return make.extract(
                whole, tensor_of(result.shape, whole.type.element_type), [0] * len(result.shape)
            )
        return self._once(value, make)

    def _whole(self, make: Make, number: int, argument: Any, value: Any) -> Any:
        """A captured value, padded where the last slices reach beyond its end."""
        body = self.program.body
        layout = body.layouts[number]
        if layout is None or not layout.used_axes or self.shifted:
            return value
        shape = self.program.padded(layout, body.shapes[number])
        return value if shape == body.shapes[number] else make.padded(value, shape)

    def _make_slots(self, make: Make) -> None:
        """Slots of the results that slices write, then of the accumulators."""
        program = self.program
        layouts: dict[Any, Any] = {}
        for result in program.results:
            if result.layout is not None:
                layouts[result.value] = result
        for op in program.accumulators:
            value = op.results[0]
            result = layouts.get(value)
            kind = op.attributes["kind"].value
            shape = tuple(value.type.shape)
            layout = None
            if result is not None:
                layout, shape = result.layout, program.padded(result.layout, result.shape)
            init = make.filled(shape, neutral_attr(kind, value.type.element_type))
            self.slots.append(Slot(value, init, layout, kind))
        for result in layouts.values():
            if result.phase == SLICED:
                shape = result.shape
                if not self.shifted:
                    shape = program.padded(result.layout, shape)
                init = make.empty(shape, result.value.type.element_type)
                self.slots.append(Slot(result.value, init, result.layout))

    def _groups(
        self, make: Make, stages: list[list[Any]], width: int, values: list[Any]
    ) -> list[Any]:
        """All slices, `width` at a time; the last group may be smaller."""
        trips = self.program.trips
        width = min(width, trips)
        if self.ring is not None:
            return self._round(make, self.ring, stages[0], values)
        if len(stages) == 1 or width >= trips:
            return self._group(make, None, trips, stages, values)
        whole, rest = divmod(trips, width)
        if whole == 1:
            values = self._group(make, None, width, stages, values)
        else:
            loop, g, carried = make.loop(whole, values)
            inner = make.inside(loop)
            done = self._group(inner, inner.times(g, width), width, stages, carried)
            inner.op("scf.yield", [], done)
            values = list(loop.results)
        if rest:
            values = self._group(make, make.index(whole * width), rest, stages, values)
        return values

    def _group(
        self, make: Make, start: Any, width: int, stages: list[list[Any]], values: list[Any]
    ) -> list[Any]:
        """Slices start .. start + width - 1, stage by stage."""
        held: dict[Any, Any] = {}
        values = list(values)
        for number, ops in enumerate(stages):
            mine = [i for i, slot in enumerate(self.slots) if self._home(slot) == number]
            later = self._read_later(number, stages)
            kept = [r for op in ops for r in op.results if r in later]
            over = in_place(ops, kept, held, later)
            buffers = [
                held[over[v]]
                if v in over
                else make.empty([width, *v.type.shape], v.type.element_type)
                for v in kept
            ]
            loop, j, carried = make.loop(width, [*[values[i] for i in mine], *buffers])
            inner = make.inside(loop)
            k = j if start is None else inner.arith("addi", j, start)
            now = {over[v]: b for v, b in zip(kept, carried[len(mine) :]) if v in over}
            stage = _Stage(self, inner, k, j, held | now)
            done = stage.run(ops, [(self.slots[i], v) for i, v in zip(mine, carried)])
            for value, buffer in zip(kept, carried[len(mine) :]):
                offsets = [j, *[0] * len(value.type.shape)]
                done.append(inner.insert(stage.env[value], buffer, offsets))
            inner.op("scf.yield", [], done)
            for i, value in zip(mine, loop.results):
                values[i] = value
            held.update(zip(kept, list(loop.results)[len(mine) :]))
        return values

    def _round(self, make: Make, ring: Ring, ops: list[Any], values: list[Any]) -> list[Any]:
        """All slices, beginning with this rank's own; the last one hands nothing on."""
        me = ring.index(make)
        shards = [self._once(gather.operands[0], make) for gather in ring.gathers]
        loop, step, carried = make.loop(ring.size - 1, [*values, *shards])
        inner = make.inside(loop)
        held = carried[len(values) :]
        coming = [ring.handed_on(shard, inner) for shard in held]
        done = self._step(inner, ring.slice_at(step, me, inner), ops, carried, held)
        inner.op("scf.yield", [], [*done, *coming])
        results = list(loop.results)
        last = ring.slice_at(make.index(ring.size - 1), me, make)
        return self._step(make, last, ops, results, results[len(values) :])

    def _step(
        self, make: Make, k: Any, ops: list[Any], values: list[Any], shards: list[Any]
    ) -> list[Any]:
        """Slice `k`, with what this rank holds at the time of each gather of the ring."""
        assert self.ring is not None
        stage = _Stage(self, make, k, k, {})
        mine = dict(zip(self.ring.gathers, shards))
        stage.env |= {cut.results[0]: mine[gather] for cut, gather in self.ring.cuts.items()}
        return stage.run(ops, list(zip(self.slots, values)))

    def _home(self, slot: Slot) -> int:
        """The stage that writes a slot: where its value is made, the last one for a view or an input."""
        value = self._slice_of(slot)
        last = max(self.stage_of.values(), default=0)
        return self.stage_of.get(value, last)

    def _slice_of(self, slot: Slot) -> Any:
        """What a slice adds to the slot: of an accumulator the operand of its all_reduce."""
        return slot.value.owner.operands[0] if slot.kind else slot.value

    def _heavy_behind(self, value: Any) -> set[Any]:
        """The results of heavy ops that `value` is, or is made of by light ones."""
        if value in self.stage_of:
            return {value}
        if value in self.known or isinstance(value.owner, ir.Block):
            return set()
        return {h for v in reads(value.owner.operation) for h in self._heavy_behind(v)}

    def _read_later(self, number: int, stages: list[list[Any]]) -> set[Any]:
        """The results of heavy ops that stages behind this one read."""
        wanted: set[Any] = set()
        for later in stages[number + 1 :]:
            for op in later:
                for value in reads(op):
                    wanted |= self._heavy_behind(value)
        for slot in self.slots:
            if self._home(slot) > number:
                wanted |= self._heavy_behind(self._slice_of(slot))
        return wanted

    def _clone(self, op: Any, make: Make) -> None:
        """A copy of an op that runs once, in front of the loops or behind them."""
        copied(op, make, lambda v: self._once(v, make), self.known)

    def _once(self, value: Any, make: Make) -> Any:
        """A value outside the loops. Fills and the like are made anew for each reader: a shared one would be copied."""
        if value in self.known:
            return self.known[value]
        fresh: dict[Any, Any] = {}
        copied(value.owner.operation, make, lambda v: self._once(v, make), fresh)
        return fresh[value]


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


def _stages(ops: list[Any]) -> list[list[Any]]:
    """One op a stage, elementwise ops that follow each other together: as one kernel they need no tensor between."""
    stages: list[list[Any]] = []
    for op in ops:
        if stages and is_elementwise(op) and is_elementwise(stages[-1][-1]):
            stages[-1].append(op)
        else:
            stages.append([op])
    return stages or [[]]


@dataclass
class _Stage:
    """The body of one stage's loop: slice `k`, number `j` of its group. held: what stages before left, by value."""

    slicer: Slicer
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
        value, type_ = operands[0], op.results[0].type
        dim = op.attributes["dim"].value
        offsets: list[Any] = [0] * len(type_.shape)
        size, extent = type_.shape[dim], value.type.shape[dim]
        offsets[dim] = self._begin(make, place, axes, size, extent)
        shape = list(value.type.shape)
        shape[dim] = size * self.slicer.program.body.mesh.axis_count(axes)
        if shape[dim] != extent and not self.slicer.shifted:
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
            if slot.kind and op.results and self.slicer._slice_of(slot) == op.results[0]:
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
        piece = self.get(self.slicer._slice_of(slot))
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
