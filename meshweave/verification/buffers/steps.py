"""Check each step on buffers against what memory holds, and against the same step on tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from meshweave.verification.answer import Finding
from meshweave.verification.buffers.contents import Content, Contents, Number
from meshweave.verification.buffers.memory import Lost, Memory
from meshweave.verification.buffers.program import (
    AffineIndex,
    BufferAddress,
    CheckedProgram,
    CheckedStep,
    Function,
    Subview,
    Work,
)
from meshweave.verification.buffers.regions import ByteRegion, Form, apart
from meshweave.verification.buffers.relation import Doubt, Given, Held, Relation, Span
from meshweave.verification.buffers.tensors import StepCursor, Tensors, element, scalar, tag
from meshweave.verification.buffers.touches import Touched, copied, in_place, launched
from meshweave.verification.buffers.views import (
    Buffer,
    EitherView,
    StridedView,
    Tensor,
    buffers_of,
    shaped,
    strided,
)

ARENA = "arena"
NOT_TAKEN: Mapping[Form, int] = {}
_IN_PLACE = "mw_all_reduce_"  # collectives whose operand and result may be one buffer


class PendingCollective(NamedTuple):
    """Hold what a collective that has been started still works on."""

    step: CheckedStep
    source: Buffer
    target: Buffer


@dataclass
class Steps:
    """Check the steps of one function. refuted, unproven: what is wrong, and what is not known."""

    before: CheckedProgram
    after: CheckedProgram
    function: Function
    alignment: int
    refuted: list[Finding] = field(default_factory=list)
    unproven: list[Finding] = field(default_factory=list)
    checked: int = 0

    def __post_init__(self) -> None:
        """Make the two states: values on tensors, and memory."""
        self.contents = Contents()
        self.tensors = Tensors(self.before, self.contents)
        self.relation = Relation(self.contents)
        self.memory = Memory(self.contents)
        self.values: dict[int, Buffer | EitherView | Form] = {}
        self.names: dict[Span, str | BufferAddress] = {}
        self.pending: dict[int, PendingCollective] = {}
        self.unit: list[Touched] | None = None
        self.given_up = {f"input {number}" for number in self.function.taken}  # may be written

    def say(
        self, doubt: Doubt | None, value: str | Buffer | EitherView | Form, where: object
    ) -> None:
        if doubt is not None:
            name = value if isinstance(value, str) else self.name(value)
            finding = Finding(name, str(where), doubt.reason)
            (self.refuted if doubt.sure else self.unproven).append(finding)

    def lose(self, number: int) -> None:
        """Let a scalar be one that nothing is known of."""
        self.values[number] = self.contents.scalars.atom(("lost", number))

    def space(self, number: int, name: str) -> Span:
        """Let a buffer be a space of its own."""
        shape = self.after.shapes[number]
        span = Span(name, 0, shape.nbytes)
        self.names[span] = name
        self.values[number] = shaped(span, shape)
        return span

    # Values.

    def form(self, number: int) -> Form:
        found = self.values[number]
        assert isinstance(found, Form)
        return found

    def forms(self, numbers: Sequence[int]) -> list[Form]:
        return [self.form(number) for number in numbers]

    def buffer(self, number: int) -> Buffer | EitherView:
        found = self.values[number]
        assert not isinstance(found, Form)
        return found

    def content(self, view: Buffer | EitherView, taken: Mapping[Form, int] = NOT_TAKEN) -> Content:
        """Return what a buffer holds. taken: the way that was taken in branches, by their condition."""
        if isinstance(view, StridedView):
            held = self.memory.read(view.base)
            if not view.is_all:
                held = self.contents.slice(held, view.region)
            for condition, k in taken.items():
                held = self.tensors.ways(condition)[k].content(held)
            return held
        either, condition = (view.one, view.other), view.condition
        if condition in taken:
            return self.content(either[taken[condition]], taken)
        nbytes = buffers_of(view)[0].region.nbytes
        contents = [self.content(one, {**taken, condition: k}) for k, one in enumerate(either)]
        return self._either(condition, Span("choice", 0, nbytes), contents)

    def name(self, view: Buffer | EitherView | Form) -> str:
        found = self.names.get(view.base) if isinstance(view, StridedView) else None
        return "a buffer" if found is None else str(found)

    def holds(self, view: Buffer | EitherView, want: Content) -> Doubt | None:
        """Return None where a buffer holds a content."""
        return self.relation.refines(self.content(view), want)

    def made(self, step: CheckedStep) -> Buffer | EitherView | Form:
        """Return the value of a step that touches no memory."""
        what, operands, key = step.what, step.operands, step.key
        if what == "place":
            assert isinstance(key, BufferAddress)
            span = Span(ARENA, key.offset, key.offset + key.nbytes)
            self._placed(span, key, step)
            return shaped(span, self.after.shapes[step.results[0]])
        if what == "scalar":
            return scalar(self.contents, key, self.forms(operands))
        if what == "choose":
            one, other = self.buffer(operands[1]), self.buffer(operands[2])
            return EitherView(self.form(operands[0]), one, other)
        shape = self.after.shapes[step.results[0]]
        if what == "constant":
            name = f"constant {step.results[0]}"
            span = self.space(step.results[0], name)
            held = self.contents.leaf(Given("constant", key), span.nbytes)
            self.memory.write(span, held, Lost(name, step.where))
            return shaped(span, shape)
        return self._view(self.buffer(operands[0]), step)

    def _view(self, source: Buffer | EitherView, step: CheckedStep) -> Buffer | EitherView:
        if isinstance(source, EitherView):
            return EitherView(
                source.condition, self._view(source.one, step), self._view(source.other, step)
            )
        shape = self.after.shapes[step.results[0]]
        offset = source.offset
        if step.what == "view":
            assert isinstance(step.key, Subview)
            offset = source.window(step.key, self.forms(step.operands[1:]), shape).offset
        return strided(source.base, offset, shape.sizes, shape.strides, shape.width)

    def _placed(self, span: Span, spot: BufferAddress, step: CheckedStep) -> None:
        """Check where a buffer lies."""
        self.names[span] = spot
        if span.end > self.function.arena:
            reason = f"ends at byte {span.end} of an arena of {self.function.arena}"
            self.say(Doubt(True, reason), str(spot), step.where)
        if spot.offset % self.alignment:
            reason = f"lies at byte {spot.offset}, which is no multiple of {self.alignment}"
            self.say(Doubt(True, reason), str(spot), step.where)

    # What touches memory.

    def _may(
        self, views: Sequence[Buffer], step: CheckedStep, writes: bool, ticket: int = -1
    ) -> None:
        """Check that buffers may be touched now."""
        for view in views:
            space = view.base.space
            fixed = writes and space != ARENA and space.startswith(("input", "constant"))
            if fixed and view.region.nbytes and space not in self.given_up:
                reason = "is written, though it is an input or a constant"
                self.say(Doubt(True, reason), view, step.where)
            if not view.is_all and view.region.nbytes:
                at, reach = view.region.offset, view.region.reach
                if not at.terms and not 0 <= at.const <= view.base.nbytes - reach:
                    reason = "a view reaches beyond its buffer"
                    self.say(Doubt(True, reason), view, step.where)
            if self.pending:
                self._may_now(view, step, writes, ticket)

    def _may_now(self, view: Buffer, step: CheckedStep, writes: bool, ticket: int) -> None:
        """Check that no collective that is under way needs what is touched."""
        for number, pending in self.pending.items():
            for other in (pending.source, pending.target):
                if number == ticket or not (writes or other is pending.target):
                    continue
                if _meet(view, other):
                    verb = "written" if writes else "read"
                    reason = f"is {verb} while the collective started at {pending.step.where} runs"
                    self.say(Doubt(_surely(view, other), reason), self.name(view), step.where)

    def _write(self, view: Buffer | EitherView, content: Content, step: CheckedStep) -> None:
        """Let a buffer hold a content."""
        if isinstance(view, EitherView):
            self._write_either(view, content, step)
        elif content.nbytes:
            held = content
            if not view.is_all:
                held = self.contents.insert(self.memory.read(view.base), view.region, content)
            if not self.memory.rewrite(view.base, held):
                name = self.names.get(view.base, "a buffer")
                self.memory.write(view.base, held, Lost(name, step.where))

    def _write_either(self, view: EitherView, content: Content, step: CheckedStep) -> None:
        """Let one of two buffers hold a content, and the other what it held, either way."""
        one, other = view.one, view.other
        who = Lost(f"{self.name(view)}, or not,", step.where, unclear=True)
        if isinstance(one, EitherView) or isinstance(other, EitherView):
            for part in (one, other):
                self._write(part, self.contents.nothing(content.nbytes, who), step)
            self.say(
                Doubt(False, "one of more than two buffers is written"), "a buffer", step.where
            )
            return
        ways = self.tensors.ways(view.condition)
        held = {}
        for k, part in enumerate((one, other)):
            before = [way.content(self.memory.read(part.base)) for way in ways]
            now = ways[k].content(content)
            if not part.is_all:
                now = self.contents.insert(before[k], part.region, now)
            held[part.base] = [now if way == k else before[way] for way in range(2)]
        for span, contents in held.items():
            self.memory.write(span, self._either(view.condition, span, contents), who)

    def _either(self, condition: Form, span: Span, contents: Sequence[Content]) -> Content:
        """Return what holds one content or the other: of a span, or of a choice between two."""
        join, ways = Held(len(self.relation.joins), span), self.tensors.ways(condition)
        self.relation.joins.append({span: list(zip(contents, ways))})
        self.relation.choose(condition, ways)
        found = self.contents.unknown("join", join, span.nbytes)
        self.tensors.joined(condition, {found: contents})
        return found

    def copy(self, step: CheckedStep, cursor: StepCursor) -> None:
        """Check a copy, and do it."""
        source, target = (self.buffer(number) for number in step.operands)
        self._may(buffers_of(source), step, False)
        self._may(buffers_of(target), step, True)
        ours, theirs = (self.after.shapes[number] for number in step.operands)
        if (ours.sizes, ours.element) != (theirs.sizes, theirs.element):
            self.say(Doubt(True, "a copy between shapes"), self.name(target), step.where)
        elif isinstance(target, StridedView):
            touched = copied(buffers_of(source), target)
            self.say(in_place(touched), target, step.where)
            self._note(touched)
        self._write(target, self.content(source), step)

    def _note(self, touched: Touched) -> None:
        if self.unit is not None:
            self.unit.append(touched)

    def store(self, step: CheckedStep, cursor: StepCursor) -> None:
        view = self.buffer(step.operands[1])
        content = self.contents.leaf(Number(self.form(step.operands[0])), buffers_of(view)[0].width)
        self._may(buffers_of(view), step, True)
        self._write(self._element(view, self.forms(step.operands[2:])), content, step)

    def load(self, step: CheckedStep, cursor: StepCursor) -> None:
        view = self._element(self.buffer(step.operands[0]), self.forms(step.operands[1:]))
        self._may(buffers_of(view), step, False)
        content = self.content(view)
        known = None if _is_open(content) else element(self.contents, content)
        if known is not None and cursor.drop_load(known):
            self.values[step.results[0]] = known
            return
        wanted = cursor.load(view.region if isinstance(view, StridedView) else None)
        if wanted is None:
            if known is None:
                reason = "a number is read that is not read on tensors"
                self.say(Doubt(False, reason), self.name(view), step.where)
                self.lose(step.results[0])
            else:
                self.values[step.results[0]] = known
            return
        tensor = self.tensors.view(wanted.operands[0])
        at = tensor.element(self.tensors.forms(wanted.operands[1:]))
        doubt = self.holds(view, self.contents.slice(tensor.base, at))
        self.say(doubt, view, step.where)
        self.values[step.results[0]] = self.tensors.form(wanted.results[0])

    def _element(self, view: Buffer | EitherView, indices: Sequence[Form]) -> Buffer | EitherView:
        if isinstance(view, EitherView):
            return EitherView(
                view.condition, *(self._element(v, indices) for v in (view.one, view.other))
            )
        return strided(view.base, view.element(indices).offset, (), (), view.width)

    # Kernels, collectives, calls.

    def work(self, step: CheckedStep, cursor: StepCursor) -> None:
        work = step.key
        assert isinstance(work, Work)
        count = len(step.operands) - work.outs - work.memory
        given = list(map(self.values.__getitem__, step.operands[:count]))
        written = [self.buffer(number) for number in step.operands[count:]]
        outs, memory = written[: work.outs], written[work.outs :]
        self._touched(step, work, given, outs, memory)
        reference = cursor.find(tag(step))
        if reference is None:
            reason = "is not in the program on tensors"
            self.say(Doubt(True, reason), f"mw.{work.kind} @{work.name}", step.where)
            why = "what another op than on tensors gives"
            made = [self.contents.nothing(buffers_of(out)[0].region.nbytes, why) for out in outs]
        else:
            self._compare(step, reference, count)
            made = [self.tensors.content(number) for number in reference.results]
        for own in memory:
            assert isinstance(own, StridedView)
            self._write(own, self.contents.nothing(own.region.nbytes, "memory of an op"), step)
        for out, content in zip(outs, made):
            self._write(out, content, step)

    def _touched(
        self, step: CheckedStep, work: Work, given: Sequence[Buffer | EitherView | Form],
        outs: Sequence[Buffer | EitherView], memory: Sequence[Buffer | EitherView],
    ) -> None:  # fmt: skip
        """Check what a step touches, without looking at what is there."""
        ticket = work.ticket if work.kind in ("start", "wait") else -1
        every, written = _buffers(given), _buffers((*outs, *memory))
        self._may(every, step, False, ticket)
        self._may(written, step, True, ticket)
        if len(written) > len(outs) + len(memory):
            return  # one of two buffers, which is said where it is written
        if work.kind == "launch":
            if self.unit is None and not _any_meet(every, written):
                return
            forms = {k: value for k, value in enumerate(given) if isinstance(value, Form)}
            views = {k: buffers_of(v) for k, v in enumerate(given) if not isinstance(v, Form)}
            touched = launched(
                f"@{work.name}", self.after.kernels[work.name], forms, views, written
            )
            self.say(in_place(touched), written[0], step.where)
            self._note(touched)
            return
        self._no_overlap(step, work, [*every, *written], len(written))
        if len(every) == 1:
            self._early(step, work, [*every, *written])
        elif work.kind in ("start", "wait"):
            self.say(
                Doubt(False, f"mw.{work.kind} of one of two buffers"),
                self.name(written[0]),
                step.where,
            )

    def _no_overlap(
        self, step: CheckedStep, work: Work, views: Sequence[Buffer], written: int
    ) -> None:
        """Check that what a collective or call writes is apart from all else that it touches."""
        for k, other_number in _near(views, len(views) - written):
            view, other = views[k], views[other_number]
            same = other.base == view.base and other.region == view.region
            allowed = work.name.startswith(_IN_PLACE) and same and work.kind == "collective"
            if allowed or not _meet(view, other):
                continue
            reason = f"mw.{work.kind} works on {self.name(other)} in the same bytes"
            self.say(Doubt(_surely(view, other), reason), self.name(view), step.where)

    def _early(self, step: CheckedStep, work: Work, views: Sequence[Buffer]) -> None:
        """Note what is started, and what has been waited for."""
        if work.kind == "start":
            if work.ticket in self.pending:
                self.say(
                    Doubt(True, "is started again before it is waited for"),
                    self.name(views[1]),
                    step.where,
                )
            self.pending[work.ticket] = PendingCollective(step, views[0], views[1])
        elif work.kind == "wait":
            pending = self.pending.pop(work.ticket, None)
            if pending is None:
                self.say(
                    Doubt(True, "is waited for, but not started"), self.name(views[1]), step.where
                )
            elif (pending.source, pending.target) != tuple(views[:2]):
                self.say(
                    Doubt(True, "is waited for in other buffers than it was started in"),
                    self.name(views[1]),
                    step.where,
                )

    def _compare(self, step: CheckedStep, reference: CheckedStep, count: int) -> None:
        """Check that a step is given what it is given on tensors."""
        work = step.key
        assert isinstance(work, Work)
        values, shapes, held = self.tensors.values, self.before.shapes, self.memory.held
        for k, number in enumerate(reference.operands[: count + work.outs]):
            value, shape = self.values[step.operands[k]], shapes.get(number)
            if isinstance(value, Form) or shape is None:
                same = isinstance(value, Form) and value == self.tensors.form(number)
                doubt = (
                    None if same else Doubt(False, f"operand {k} is another number than on tensors")
                )
                self.say(doubt, "a number", step.where)
                continue
            own, want = self.after.shapes[step.operands[k]], values[number]
            if own.sizes != shape.sizes or own.element != shape.element:
                ours, theirs = (f"{s.element} {list(s.sizes)}" for s in (own, shape))
                reason = f"operand {k} is {ours}, on tensors {theirs}"
                self.say(Doubt(True, reason), self.name(value), step.where)
            elif _is_all_of(value, want, held):
                continue  # most operands
            elif k < count or self._continues(work, k - count, shape.sizes):
                doubt = self.holds(value, self.tensors.content(number))
                if doubt is not None:
                    doubt = doubt._replace(reason=f"operand {k}: {doubt.reason}")
                    self.say(doubt, value, step.where)

    def _continues(self, work: Work, out: int, sizes: Sequence[int]) -> bool:
        """Tell whether what an op writes may hold something of before: it goes on from it, or leaves a part of it."""
        if work.kind != "launch":
            return True
        kernel = self.after.kernels[work.name]
        indices = kernel.outputs[out]
        if kernel.continues[out] or indices is None:
            return True
        return not _writes_all(indices, kernel.sizes, tuple(sizes))


@lru_cache(maxsize=1 << 12)
def _writes_all(
    indices: tuple[AffineIndex, ...], loops: tuple[int, ...], sizes: tuple[int, ...]
) -> bool:
    """Tell whether loops of these sizes go over all elements of a tensor."""
    wide = [index.loops for index, size in zip(indices, sizes) if size != 1]
    return len(set(wide)) == len(wide) and not any(
        index.const or index.operands or (size != 1 and not _is_all(index.loops, loops, size))
        for index, size in zip(indices, sizes)
    )


def _is_all(loops: tuple[tuple[int, int], ...], sizes: Sequence[int], size: int) -> bool:
    """Tell whether an index goes over all of a dim."""
    return len(loops) == 1 and loops[0][1] == 1 and sizes[loops[0][0]] == size


def _is_all_of(
    value: Buffer | EitherView, want: Tensor | Form, held: Mapping[Span, Content]
) -> bool:
    """Tell whether a value is all of a buffer, which holds all that is wanted."""
    if isinstance(value, EitherView) or isinstance(want, Form):
        return False
    return value.is_all and want.is_all and held.get(value.base) is want.base


def _is_open(content: Content) -> bool:
    """Tell whether a content depends on a loop or branch that it is looked at from within, or from behind."""
    while content.kind == "slice":
        content = content.parts[0]
    return content.kind in ("head", "join", "insert")


def _buffers(values: Iterable[Buffer | EitherView | Form]) -> list[Buffer]:
    """Return the buffers that values may be."""
    found = list[Buffer]()
    for value in values:
        if isinstance(value, StridedView):
            found.append(value)
        elif isinstance(value, EitherView):
            found += buffers_of(value)
    return found


def _any_meet(read: Sequence[Buffer], written: Sequence[Buffer]) -> bool:
    """Tell whether the span of what is written shares a byte with that of something else that is touched."""
    for k, view in enumerate(written):
        space, start, end = view.base
        for other in (*read, *written[:k]):
            there, begin, stop = other.base
            if start < stop and begin < end and space == there:
                return True
    return False


def _near(views: Sequence[Buffer], first: int) -> list[tuple[int, int]]:
    """Return the pairs of views whose spans share a byte, the later one first, which is at least the `first`-th."""
    found, open_ = list[tuple[int, int]](), list[tuple[int, int]]()  # of these: end and number
    here, reach = "", 0
    for (space, start, end), k in sorted([(view.base, k) for k, view in enumerate(views)]):
        if space != here or start >= reach:
            here, reach, open_ = space, end, [(end, k)]
            continue
        open_ = [pair for pair in open_ if pair[0] > start]
        found += [(max(j, k), min(j, k)) for _, j in open_ if max(j, k) >= first]
        open_.append((end, k))
        reach = max(reach, end)
    return sorted(found)


def _absolute(view: Buffer) -> ByteRegion:
    region = view.region
    return ByteRegion(region.offset.plus(Form(view.base.start)), region.dims)


def _meet(a: Buffer, b: Buffer) -> bool:
    """Tell whether two buffers may share a byte."""
    if a.base.space != b.base.space or a.base.start >= b.base.end or b.base.start >= a.base.end:
        return False
    return bool(a.region.nbytes and b.region.nbytes) and not apart(_absolute(a), _absolute(b))


def _surely(a: Buffer, b: Buffer) -> bool:
    """Tell whether two buffers that meet surely do, as far as a simple look tells."""
    return all(not view.offset.terms and len(view.region.dims) == 1 for view in (a, b))
