"""The program of one slice as loops: depth-first one loop of everything, else stages over groups of slices.

Slices are numbered row-major over the time axes. A group of w slices runs stage by stage, each stage one heavy op for
all w slices; what another stage reads is held for the group in a tensor of w slices. Depth-first is one stage of all
ops, breadth-first one group of all slices. Results and accumulators go through all loops and are updated in place.
"""

from dataclasses import dataclass, field
from math import prod
from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.dist import axes_of
from meshweave.transforms.bodies import is_tensor
from meshweave.transforms.hint_make import Make, tensor_of
from meshweave.transforms.hint_program import AFTER, BEFORE, SLICED, SliceProgram, reads
from meshweave.transforms.hint_reuse import in_place, is_elementwise
from meshweave.transforms.hint_ring import Ring
from meshweave.transforms.hint_stage import Slot, Stage, copied, covered
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
class Slicer:
    """Writes the loops of one region in front of it.

    shifted: slices that would reach beyond the end begin earlier, so that nothing is padded.
    padded:  of what slices take of values that are there before, by the all_slice: those values, padded once.
    """

    program: SliceProgram
    region: Any
    ring: Ring | None = None
    known: dict[Any, Any] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    stage_of: dict[Any, int] = field(default_factory=dict)
    shifted: bool = False
    padded: dict[Any, Any] = field(default_factory=dict)

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
        self._pad(make)
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

    def _pad(self, make: Make) -> None:
        """Pad in front of the loops what was made there and slices take too much of."""
        cut_by_ring = self.ring.cuts if self.ring is not None else ()
        mesh = self.program.body.mesh
        for op in self.program.ops:
            if op.name != "dist.all_slice" or op in cut_by_ring or self.shifted:
                continue
            value, axes = op.operands[0], axes_of(op)
            if value in self.known and not isinstance(value.owner, ir.Block) and mesh.has(axes[0]):
                shape = covered(op, mesh.axis_count(axes))
                if shape != list(value.type.shape):
                    self.padded[op] = make.padded(self.known[value], shape)

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
            stage = Stage(self, inner, k, j, held | now)
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
        """All slices, beginning with those of this rank's own shard; the last shard is handed on to nobody."""
        me = ring.index(make)
        shards = [self._once(gather.operands[0], make) for gather in ring.gathers]
        loop, step, carried = make.loop(ring.size - 1, [*values, *shards])
        inner = make.inside(loop)
        held = carried[len(values) :]
        coming = [ring.handed_on(shard, inner) for shard in held]
        now = ring.slice_at(step, me, inner)
        done = self._turn(inner, ring, now, ops, carried[: len(values)], held)
        inner.op("scf.yield", [], [*done, *coming])
        results = list(loop.results)
        last = ring.slice_at(make.index(ring.size - 1), me, make)
        return self._turn(make, ring, last, ops, results[: len(values)], results[len(values) :])

    def _turn(
        self, make: Make, ring: Ring, now: Any, ops: list[Any], values: list[Any], shards: list[Any]
    ) -> list[Any]:
        """The slices of one shard, number `now`: as many as the other time axes have."""
        mesh = self.program.body.mesh
        others = mesh.nranks // ring.size
        if others == 1:
            return self._step(make, now, ops, values, shards)
        below = prod(mesh.size(a) for a in mesh.names[mesh.names.index(ring.time) + 1 :])
        loop, other, carried = make.loop(others, values)
        inner = make.inside(loop)
        size = inner.index(below)
        high, low = inner.arith("divui", other, size), inner.arith("remui", other, size)
        k = inner.arith("addi", inner.times(high, ring.size), now)
        k = inner.arith("addi", inner.times(k, below), low)
        inner.op("scf.yield", [], self._step(inner, k, ops, carried, shards))
        return list(loop.results)

    def _step(
        self, make: Make, k: Any, ops: list[Any], values: list[Any], shards: list[Any]
    ) -> list[Any]:
        """Slice `k`, with what this rank holds at the time of each gather of the ring."""
        assert self.ring is not None
        stage = Stage(self, make, k, k, {})
        mine = dict(zip(self.ring.gathers, shards))
        stage.env |= {cut.results[0]: mine[gather] for cut, gather in self.ring.cuts.items()}
        return stage.run(ops, list(zip(self.slots, values)))

    def _home(self, slot: Slot) -> int:
        """The stage that writes a slot: where its value is made, the last one for a view or an input."""
        value = self.slice_of(slot)
        last = max(self.stage_of.values(), default=0)
        return self.stage_of.get(value, last)

    def slice_of(self, slot: Slot) -> Any:
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
                wanted |= self._heavy_behind(self.slice_of(slot))
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


def _stages(ops: list[Any]) -> list[list[Any]]:
    """One op a stage, elementwise ops that follow each other together: as one kernel they need no tensor between."""
    stages: list[list[Any]] = []
    for op in ops:
        if stages and is_elementwise(op) and is_elementwise(stages[-1][-1]):
            stages[-1].append(op)
        else:
            stages.append([op])
    return stages or [[]]
