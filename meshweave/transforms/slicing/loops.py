"""Run the program of one slice in loops: depth-first one loop of everything, else stages over groups of slices.

Slices are numbered row-major over the time axes. A group of w slices runs stage by stage, each stage one heavy op for
all w slices; what another stage reads is held for the group in a tensor of w slices. Depth-first is one stage of all
ops, breadth-first one group of all slices. Results and accumulators go through all loops and are updated in place.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from meshweave.dialects.dist import axes_of
from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, iterator_types, tensor_type
from meshweave.transforms.partitioning.neutral import neutral_attr
from meshweave.transforms.propagation.bodies import ELEMENTWISE, is_tensor
from meshweave.transforms.propagation.values import is_free
from meshweave.transforms.slicing.program import (
    AFTER,
    BEFORE,
    SLICED,
    RegionResult,
    SliceProgram,
    reads,
)
from meshweave.transforms.slicing.ring import Ring
from meshweave.transforms.slicing.stage import Slot, Stage, copied, covered, padded

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


def is_light(op: ir.Operation) -> bool:
    """Tell whether `op` costs next to nothing, so that every stage may repeat it: a view, a scalar, a fill."""
    return op.name in _LIGHT or is_free(op) or not any(is_tensor(r.type) for r in op.results)


@dataclass
class Slicer:
    """Write the loops of one region in front of it.

    shifted: slices that would reach beyond the end begin earlier, so that nothing is padded.
    padded:  of what slices take of values that are there before, by the all_slice: those values, padded once.
    """

    program: SliceProgram
    region: ir.Operation
    ring: Ring | None = None
    known: dict[ir.Value, ir.Value] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    stage_of: dict[ir.Value, int] = field(default_factory=dict)
    shifted: bool = False
    padded: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def run(self, width: int, staged: bool) -> list[ir.Value]:
        """Write the loops, and return what the region's results become.

        width: slices in flight. staged: op by op within a group, not all ops of a slice in one.
        """
        program, body = self.program, self.program.body
        self.shifted = self.ring is None and program.may_shift
        b = OpBuilder.before(self.region)
        for number, (argument, value) in enumerate(zip(body.block.arguments, body.captured)):
            self.known[argument] = self._whole(b, number, argument, value)
        round_ = self.ring.gathers if self.ring is not None else ()
        for op in program.ops:
            if program.phases[op] == BEFORE and not is_free(op) and op not in round_:
                self._clone(op, b)
        self._pad(b)
        heavy = [o for o in program.ops if program.phases[o] == SLICED and not is_light(o)]
        heavy = [o for o in heavy if o not in program.accumulators]
        stages = _stages(heavy) if staged else [heavy]
        self.stage_of = {r: n for n, ops in enumerate(stages) for op in ops for r in op.results}
        self._make_slots(b)
        values = [slot.init for slot in self.slots]
        for slot, value in zip(self.slots, self._groups(b, stages, width, values)):
            self.known[slot.value] = value
        for op in program.ops:
            if program.phases[op] == AFTER:
                self._clone(op, b)
        return [self._cut(b, r) for r in program.results]

    def _cut(self, b: OpBuilder, result: RegionResult) -> ir.Value:
        value = result.value
        if result.phase == SLICED or (result.phase == AFTER and result.layout is not None):
            key = value if value in self.known else None
            assert key is not None, "a sliced result has a slot"
            whole = self.known[value]
            return b.extract_slice(
                whole, tensor_type(result.shape, whole.type.element_type), [0] * len(result.shape)
            )
        return self._once(value, b)

    def _whole(self, b: OpBuilder, number: int, argument: ir.Value, value: ir.Value) -> ir.Value:
        """Return a captured value, padded where the last slices reach beyond its end."""
        body = self.program.body
        layout = body.layouts[number]
        if layout is None or not layout.used_axes or self.shifted:
            return value
        shape = self.program.padded(layout, body.shapes[number])
        return value if shape == body.shapes[number] else padded(b, value, shape)

    def _pad(self, b: OpBuilder) -> None:
        """Pad, in front of the loops, values made there that slices read beyond the end of."""
        cut_by_ring = self.ring.cuts if self.ring is not None else ()
        mesh = self.program.body.mesh
        for op in self.program.ops:
            if op.name != "dist.all_slice" or op in cut_by_ring or self.shifted:
                continue
            value, axes = op.operands[0], axes_of(op)
            if value in self.known and not isinstance(value.owner, ir.Block) and mesh.has(axes[0]):
                shape = covered(op, mesh.axis_count(axes))
                if shape != list(value.type.shape):
                    self.padded[op] = padded(b, self.known[value], shape)

    def _make_slots(self, b: OpBuilder) -> None:
        """Make slots for the results that slices write, then for the accumulators."""
        program = self.program
        written = {r.value: (r, r.layout) for r in program.results if r.layout is not None}
        for op in program.accumulators:
            value = op.results[0]
            kind = op.attributes["kind"].value
            shape = tuple(value.type.shape)
            layout = None
            if value in written:
                result, layout = written[value]
                shape = program.padded(layout, result.shape)
            element = value.type.element_type
            init = b.fill(b.constant(neutral_attr(kind, element)), tensor_type(shape, element))
            self.slots.append(Slot(value, init, layout, kind, program.repeats(op)))
        for result, layout in written.values():
            if result.phase == SLICED:
                shape = result.shape
                if not self.shifted:
                    shape = program.padded(layout, shape)
                init = b.empty(tensor_type(shape, result.value.type.element_type))
                self.slots.append(Slot(result.value, init, layout))

    def _groups(
        self, b: OpBuilder, stages: list[list[ir.Operation]], width: int, values: list[ir.Value]
    ) -> list[ir.Value]:
        """Run all slices, `width` at a time; the last group may be smaller."""
        trips = self.program.trips
        width = min(width, trips)
        if self.ring is not None:
            return self._round(b, self.ring, stages[0], values)
        if len(stages) == 1 or width >= trips:
            return self._group(b, None, trips, stages, values)
        whole, rest = divmod(trips, width)
        if whole == 1:
            values = self._group(b, None, width, stages, values)
        else:
            loop, inner, g, carried = b.for_loop(0, whole, 1, values)
            done = self._group(inner, inner.times(g, width), width, stages, carried)
            inner.op("scf.yield", [], done)
            values = list(loop.results)
        if rest:
            values = self._group(b, b.index(whole * width), rest, stages, values)
        return values

    def _group(
        self,
        b: OpBuilder,
        start: ir.Value,
        width: int,
        stages: list[list[ir.Operation]],
        values: list[ir.Value],
    ) -> list[ir.Value]:
        """Run slices start to start + width - 1, stage by stage."""
        held: dict[ir.Value, ir.Value] = {}
        values = list(values)
        for number, ops in enumerate(stages):
            mine = [i for i, slot in enumerate(self.slots) if self._home(slot) == number]
            later = self._read_later(number, stages)
            kept = [r for op in ops for r in op.results if r in later]
            over = in_place(ops, kept, held, later)
            buffers = [
                held[over[v]]
                if v in over
                else b.empty(tensor_type([width, *v.type.shape], v.type.element_type))
                for v in kept
            ]
            given = [*[values[i] for i in mine], *buffers]
            loop, inner, j, carried = b.for_loop(0, width, 1, given)
            k = j if start is None else inner.binary("addi", j, start)
            now = {over[v]: c for v, c in zip(kept, carried[len(mine) :]) if v in over}
            stage = Stage(self, inner, k, j, held | now)
            done = stage.run(ops, [(self.slots[i], v) for i, v in zip(mine, carried)])
            for value, buffer in zip(kept, carried[len(mine) :]):
                offsets = [j, *[0] * len(value.type.shape)]
                done.append(inner.insert_slice(stage.env[value], buffer, offsets))
            inner.op("scf.yield", [], done)
            for i, value in zip(mine, loop.results):
                values[i] = value
            held.update(zip(kept, list(loop.results)[len(mine) :]))
        return values

    def _round(
        self, b: OpBuilder, ring: Ring, ops: list[ir.Operation], values: list[ir.Value]
    ) -> list[ir.Value]:
        """Run all slices, beginning with those of this rank's own shard; the last shard is not handed on."""
        me = ring.index(b)
        shards = [self._once(gather.operands[0], b) for gather in ring.gathers]
        loop, inner, step, carried = b.for_loop(0, ring.size - 1, 1, [*values, *shards])
        held = carried[len(values) :]
        coming = [ring.handed_on(shard, inner) for shard in held]
        now = ring.slice_at(step, me, inner)
        done = self._turn(inner, ring, now, ops, carried[: len(values)], held)
        inner.op("scf.yield", [], [*done, *coming])
        results = list(loop.results)
        last = ring.slice_at(b.index(ring.size - 1), me, b)
        return self._turn(b, ring, last, ops, results[: len(values)], results[len(values) :])

    def _turn(
        self,
        b: OpBuilder,
        ring: Ring,
        now: ir.Value,
        ops: list[ir.Operation],
        values: list[ir.Value],
        shards: list[ir.Value],
    ) -> list[ir.Value]:
        """Run the slices of one shard, number `now`: as many as the other time axes have."""
        mesh = self.program.body.mesh
        others = mesh.nranks // ring.size
        if others == 1:
            return self._step(b, now, ops, values, shards)
        below = prod(mesh.size(a) for a in mesh.names[mesh.names.index(ring.time) + 1 :])
        loop, inner, other, carried = b.for_loop(0, others, 1, values)
        size = inner.index(below)
        high, low = inner.binary("divui", other, size), inner.binary("remui", other, size)
        k = inner.binary("addi", inner.times(high, ring.size), now)
        k = inner.binary("addi", inner.times(k, below), low)
        inner.op("scf.yield", [], self._step(inner, k, ops, carried, shards))
        return list(loop.results)

    def _step(
        self,
        b: OpBuilder,
        k: ir.Value,
        ops: list[ir.Operation],
        values: list[ir.Value],
        shards: list[ir.Value],
    ) -> list[ir.Value]:
        """Run slice `k`, with what this rank holds at the time for each gather of the ring."""
        assert self.ring is not None
        stage = Stage(self, b, k, k, {})
        mine = dict(zip(self.ring.gathers, shards))
        stage.env |= {cut.results[0]: mine[gather] for cut, gather in self.ring.cuts.items()}
        return stage.run(ops, list(zip(self.slots, values)))

    def _home(self, slot: Slot) -> int:
        """Return the stage that writes a slot: where its value is made, the last one for a view or an input."""
        value = self.slice_of(slot)
        last = max(self.stage_of.values(), default=0)
        return self.stage_of.get(value, last)

    def slice_of(self, slot: Slot) -> ir.Value:
        """Return what a slice adds to the slot: for an accumulator the operand of its all_reduce."""
        return slot.value.owner.operands[0] if slot.kind else slot.value

    def _heavy_behind(self, value: ir.Value) -> set[ir.Value]:
        """Return the results of heavy ops that `value` is, or is made of by light ones."""
        if value in self.stage_of:
            return {value}
        if value in self.known or isinstance(value.owner, ir.Block):
            return set()
        return {h for v in reads(value.owner.operation) for h in self._heavy_behind(v)}

    def _read_later(self, number: int, stages: list[list[ir.Operation]]) -> set[ir.Value]:
        """Return the results of heavy ops that later stages read."""
        wanted: set[ir.Operation] = set()
        for later in stages[number + 1 :]:
            for op in later:
                for value in reads(op):
                    wanted |= self._heavy_behind(value)
        for slot in self.slots:
            if self._home(slot) > number:
                wanted |= self._heavy_behind(self.slice_of(slot))
        return wanted

    def _clone(self, op: ir.Operation, b: OpBuilder) -> None:
        """Copy an op that runs once, in front of the loops or behind them."""
        copied(op, b, lambda v: self._once(v, b), self.known)

    def _once(self, value: ir.Value, b: OpBuilder) -> ir.Value:
        """Return a value outside the loops.

        Fills and the like are made again for each reader: a shared one would be copied.
        """
        if value in self.known:
            return self.known[value]
        fresh: dict[ir.Value, ir.Value] = {}
        copied(value.owner.operation, b, lambda v: self._once(v, b), fresh)
        return fresh[value]


def _stages(ops: list[ir.Operation]) -> list[list[ir.Operation]]:
    """Split ops into stages of one op.

    Elementwise ops that follow each other share a stage: as one kernel they need no tensor between.
    """
    stages: list[list[ir.Operation]] = []
    for op in ops:
        if stages and is_elementwise(op) and is_elementwise(stages[-1][-1]):
            stages[-1].append(op)
        else:
            stages.append([op])
    return stages or [[]]


def is_elementwise(op: ir.Operation) -> bool:
    """Tell whether `op` makes each element of its result from the elements there of its operands."""
    if op.name == "linalg.generic":
        return IteratorType.REDUCTION not in iterator_types(op)
    return (
        op.name == "linalg.map" or op.name.startswith(("arith.", "math.")) or op.name in ELEMENTWISE
    )


def in_place(
    ops: Sequence[ir.Operation],
    kept: Sequence[ir.Value],
    held: Mapping[ir.Value, ir.Value],
    later: Collection[ir.Value],
) -> dict[ir.Value, ir.Value]:
    """Return, for values of `kept` that the stage `ops` makes, the value of `held` whose place it may take.

    held: what stages before left, by value. later: what stages behind this one read. A row of a softmax is read whole
    before it is written.
    """
    if not all(is_elementwise(op) or op.name == "linalg.softmax" for op in ops):
        return {}
    free = [v for op in ops for v in op.operands if v in held and v not in later]
    found: dict[ir.Value, ir.Value] = {}
    for value in kept:
        place = next((v for v in free if v.type == value.type), None)
        if place is not None:
            found[value] = place
            free = [v for v in free if v != place]
    return found
