"""Walk a function on buffers beside the same function on tensors: blocks, branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import isfinite
from typing import NamedTuple

from meshweave.verification.buffers.contents import Content, Replacing
from meshweave.verification.buffers.memory import Lost, meets
from meshweave.verification.buffers.program import (
    BufferAddress,
    CheckedStep,
    Function,
    StepBlock,
    Work,
)
from meshweave.verification.buffers.regions import Form, reached
from meshweave.verification.buffers.relation import Doubt, Given, Held, LoopInvariant, Span, Ways
from meshweave.verification.buffers.steps import ARENA, Steps
from meshweave.verification.buffers.tensors import StepCursor
from meshweave.verification.buffers.touches import Touched, row_by_row
from meshweave.verification.buffers.views import EitherView, StridedView


class Carried(NamedTuple):
    """Tell what a loop carries on buffers: what it starts from, and the number of the same value on tensors.

    The number is None for a buffer, which a loop hands on as it is, and -1 where there is no such value.
    """

    start: int
    number: int | None


class FunctionCheck(Steps):
    """Check one function."""

    def run(self, reference: Function) -> None:
        """Check the function against the one on tensors."""
        function, numbers = self.function, self.function.body.arguments
        given = len(numbers) - function.outputs
        arguments, ends = reference.body.arguments, reference.body.ends
        if given != len(arguments) or function.outputs != len(ends):
            reason = "takes or gives another number of tensors than it does on tensors"
            self.say(Doubt(True, reason), f"@{function.name}", function.where)
            return
        self.tensors.empty(reference.empty)
        for k, number in enumerate(numbers):
            name = f"input {k}" if k < given else f"output {k - given}"
            span = self.space(number, name)
            if k < given:
                content = self.tensors.leaf(arguments[k], Given("input", k))
                self.memory.write(span, content, Lost(name, function.where))
        self._blocks(reference.body, function.body)
        if function.taken != function.promised:
            reason = (
                f"writes inputs {list(function.taken)}, mw.program says {list(function.promised)}"
            )
            self.say(Doubt(True, reason), f"@{function.name}", function.where)
        taken = function.taken or (-1,) * function.outputs
        for number, source, made in zip(numbers[given:], taken, ends):
            view = self.buffer(number if source < 0 else numbers[source])
            doubt = self.holds(view, self.tensors.content(made))
            self.say(doubt, self.name(view), function.where)

    def _blocks(self, reference: StepBlock, body: StepBlock) -> None:
        """Walk two blocks; what is started in the one on buffers must end there."""
        cursor, outer = StepCursor(self.tensors, reference.steps), self.pending
        self.pending = dict(outer)
        for step in body.steps:
            self._step(step, cursor)
        for ticket, pending in self.pending.items():
            if ticket not in outer:
                reason = "a collective is started, and not waited for in its block"
                self.say(Doubt(True, reason), self.name(pending.target), pending.step.where)
        self.pending = outer
        cursor.pass_to(len(cursor.steps))
        for left in cursor.missing():
            assert isinstance(left.key, Work)
            self.say(Doubt(True, "is missing"), f"mw.{left.key.kind} {left.key.name}", left.where)

    def _step(self, step: CheckedStep, cursor: StepCursor) -> None:
        self.checked += 1
        method = _METHODS.get(step.what)
        if method is not None:
            method(self, step, cursor)
        else:
            self.values[step.results[0]] = self.made(step)

    def _fuse(self, step: CheckedStep, cursor: StepCursor) -> None:
        members: list[Touched] = []
        self.unit = members
        for inner in step.bodies[0].steps:
            self._step(inner, cursor)
        self.unit = None
        assert isinstance(step.key, int)
        self.say(row_by_row(members, step.key), "mw.fuse", step.where)

    # Control flow.

    def _find(self, step: CheckedStep, cursor: StepCursor) -> CheckedStep | None:
        """Return the same control flow on tensors, whose results are values then."""
        reference = cursor.find(step.what)
        if reference is None:
            reason = "is not in the program on tensors"
            self.say(Doubt(False, reason), f"scf.{step.what}", step.where)
            self._give_up(step)
        elif reference.results and reference.results[0] not in self.tensors.values:
            self.tensors.fresh(reference, reference.results, f"what scf.{step.what} gives")
        return reference

    def _give_up(self, step: CheckedStep) -> None:
        """Go on behind control flow that nothing is known of."""
        for span in self._written(step):
            self.memory.lose(span, Lost(f"scf.{step.what}", step.where))
        for number in step.results:
            if number in self.after.shapes:
                self.space(number, f"a result of scf.{step.what} at {step.where}")
            else:
                self.lose(number)

    def _same(self, ours: Sequence[int], theirs: Sequence[int], step: CheckedStep) -> None:
        """Check that numbers are those on tensors."""
        for one, other in zip(ours, theirs):
            if self.form(one) != self.tensors.form(other):
                reason = "depends on another number than on tensors"
                self.say(Doubt(False, reason), f"scf.{step.what}", step.where)

    def _if(self, step: CheckedStep, cursor: StepCursor) -> None:
        reference = self._find(step, cursor)
        if reference is None:
            return
        self._same(step.operands[:1], reference.operands[:1], step)
        ends: list[dict[Span, Content | None]] = []
        before = set(self.names)
        for k, theirs in enumerate(reference.bodies):
            ours = step.bodies[k] if k < len(step.bodies) else StepBlock((), (), ())
            with self.memory.noted() as changes:
                self._blocks(theirs, ours)
                ends.append({span: self.memory.held.get(span) for span in changes})
                self.memory.back_to(changes)
        ways = self.tensors.branched(reference)
        given = {
            s for body in step.bodies for end in body.ends for s in _spans(self.values.get(end))
        }
        held = self._join(ends, ways, before, given, step)
        condition = self.tensors.form(reference.operands[0])
        self.tensors.joined(condition, held)
        self.relation.choose(condition, self.tensors.ways(condition))
        self._branch_results(step, reference)

    def _join(
        self, ends: Sequence[dict[Span, Content | None]], ways: Sequence[Replacing],
        before: Collection[Span], given: Collection[Span], step: CheckedStep,
    ) -> dict[Content, list[Content]]:  # fmt: skip
        """Let memory hold what one branch or the other leaves; return that, with what it is in each of them.

        before, given: what was placed before, and what one of them gives: one may write it, and the other lose it.
        """
        number, joins = len(self.relation.joins), dict[Content, list[Content]]()
        self.relation.joins.append({})
        who = Lost("a branch", step.where, unclear=True)
        held: dict[Span, list[Content]] = {}
        spans = dict.fromkeys(span for end in ends for span in end)
        for span in sorted(spans, key=given.__contains__):  # what is written last stays
            found = [end[span] if span in end else self.memory.held.get(span) for end in ends]
            if any(found) and (span in given or span in before):
                found = [c or self.contents.nothing(span.nbytes, who) for c in found]
            known = [content for content in found if content is not None]
            if len(known) == len(found):
                held[span] = known
            else:
                self.memory.lose(span, who)
        for span, known in held.items():
            content = known[0]
            if any(other is not content for other in known):
                self.relation.joins[number][span] = list(zip(known, ways))
                content = self.contents.unknown("join", Held(number, span), span.nbytes)
                joins[content] = known
            self.memory.write(span, content, who)
        return joins

    def _branch_results(self, step: CheckedStep, reference: CheckedStep) -> None:
        """Give a value to what an scf.if gives on buffers: numbers in order, and one of two buffers."""
        scalars = [k for k, n in enumerate(reference.results) if self.tensors.shape(n) is None]
        for k, number in enumerate(step.results):
            ends = [body.ends[k] for body in step.bodies]
            if number in self.after.shapes:
                one, other = (self.buffer(end) for end in ends)
                condition = self.form(step.operands[0])
                self.values[number] = one if one == other else EitherView(condition, one, other)
                continue
            forms = [self.form(end) for end in ends]
            same = [
                j
                for j in scalars
                if forms == [self.tensors.form(b.ends[j]) for b in reference.bodies]
            ]
            if same:
                self.values[number] = self.tensors.form(reference.results[same[0]])
            else:
                self.say(Doubt(False, "gives another number than on tensors"), "scf.if", step.where)
                self.lose(number)

    def _for(self, step: CheckedStep, cursor: StepCursor) -> None:
        reference = self._find(step, cursor)
        if reference is None:
            return
        self._same(step.operands[:3], reference.operands[:3], step)
        lower, upper, by = self.forms(step.operands[:3])
        ours, theirs = step.bodies[0], reference.bodies[0]
        self.tensors.fresh(reference, theirs.arguments, "what a loop carries")
        index = self.tensors.form(theirs.arguments[0])
        atom = index.terms[0][0]
        self.values[ours.arguments[0]] = index
        self._bound(atom, lower, upper, by)
        carried = self._carried(
            ours.arguments[1:],
            step.operands[3:],
            theirs.arguments[1:],
            reference.operands[3:],
            step,
        )
        first = self.tensors.replacing(theirs.arguments[1:], reference.operands[3:])
        first = replace(first, atoms={**first.atoms, atom: lower})
        with self.memory.noted() as changes:
            number = self._enter(step, first)
            self._blocks(theirs, ours)
        later = self.tensors.replacing(theirs.arguments[1:], theirs.ends)
        self._settle(number, replace(later, atoms={**later.atoms, atom: index.plus(by)}), step)
        self._handed_on(carried, ours.ends, theirs.ends, step)
        runs = not (lower.terms or upper.terms) and upper.const > lower.const
        leave = self.tensors.replacing(
            reference.results, theirs.ends if runs else theirs.arguments[1:]
        )
        if not runs:
            self._before_trip(number, changes, step)
        self._leave(changes, leave, step)
        self._loop_results(step.results, carried, reference.results)

    def _bound(self, atom: int, lower: Form, upper: Form, by: Form) -> None:
        """Note what the index of a loop may be."""
        bounds = self.contents.scalars.bounds
        (low, _), (_, high) = reached(lower, bounds), reached(upper, bounds)
        if not (lower.terms or upper.terms or by.terms):
            high -= (upper.const - 1 - lower.const) % max(by.const, 1)
        if isfinite(low) and isfinite(high) and low < high:
            bounds[atom] = int(low), int(high) - 1

    def _while(self, step: CheckedStep, cursor: StepCursor) -> None:
        reference = self._find(step, cursor)
        if reference is None:
            return
        (head, body), (their_head, their_body) = step.bodies, reference.bodies
        self.tensors.fresh(reference, their_head.arguments, "what a loop carries")
        carried = self._carried(
            head.arguments, step.operands, their_head.arguments, reference.operands, step
        )
        first = self.tensors.replacing(their_head.arguments, reference.operands)
        with self.memory.noted() as changes:
            number = self._enter(step, first)
            self._blocks(their_head, head)
            self._same(head.ends[:1], their_head.ends[:1], step)
            self._pass_on(body, head.ends[1:], their_body, their_head.ends[1:], step)
            with self.memory.noted() as later:
                self._blocks(their_body, body)
                self._settle(
                    number, self.tensors.replacing(their_head.arguments, their_body.ends), step
                )
                self._handed_on(carried, body.ends, their_body.ends, step)
                self.memory.back_to(later)
        self._leave(changes, self.tensors.replacing(reference.results, their_head.ends[1:]), step)
        self._while_results(step, reference)

    def _pass_on(
        self,
        body: StepBlock,
        given: Sequence[int],
        theirs: StepBlock,
        their_given: Sequence[int],
        step: CheckedStep,
    ) -> None:
        """Give the second block of an scf.while what the first hands it."""
        for argument, number in zip(theirs.arguments, their_given):
            self.tensors.values[argument] = self.tensors.values[number]
        for argument, number in zip(body.arguments, given):
            self.values[argument] = self.values[number]

    def _while_results(self, step: CheckedStep, reference: CheckedStep) -> None:
        """Give a value to what an scf.while gives: what its condition hands on, as it is behind the last trip."""
        scalars = [k for k, n in enumerate(reference.results) if self.tensors.shape(n) is None]
        theirs = reference.bodies[0].ends[1:]
        for number, end in zip(step.results, step.bodies[0].ends[1:]):
            if number in self.after.shapes:
                self.values[number] = self.buffer(end)
                continue
            same = [k for k in scalars if self.tensors.form(theirs[k]) == self.form(end)]
            if same:
                self.values[number] = self.tensors.form(reference.results[same[0]])
            else:
                self.say(
                    Doubt(False, "gives another number than on tensors"), "scf.while", step.where
                )
                self.lose(number)

    def _carried(
        self,
        arguments: Sequence[int],
        starts: Sequence[int],
        theirs: Sequence[int],
        given: Sequence[int],
        step: CheckedStep,
    ) -> list[Carried]:
        """Give a value to what a loop carries on buffers, and tell what it is on tensors."""
        free = [k for k, n in enumerate(theirs) if self.tensors.shape(n) is None]
        found: list[Carried] = []
        for argument, start in zip(arguments, starts):
            if argument in self.after.shapes:
                self.values[argument] = self.values[start]
                found.append(Carried(start, None))
                continue
            k = next((k for k in free if self.tensors.form(given[k]) == self.form(start)), -1)
            found.append(Carried(start, k))
            if k < 0:
                reason = "carries a number that it does not carry on tensors"
                self.say(Doubt(False, reason), f"scf.{step.what}", step.where)
                self.lose(argument)
            else:
                free.remove(k)
                self.values[argument] = self.tensors.form(theirs[k])
        return found

    def _handed_on(
        self,
        carried: Sequence[Carried],
        ends: Sequence[int],
        theirs: Sequence[int],
        step: CheckedStep,
    ) -> None:
        """Check what a trip hands on: the same numbers as on tensors, and the buffers that it was given."""
        for (start, number), end in zip(carried, ends):
            if number is None and self.values[end] != self.values[start]:
                reason = "hands on another buffer than it was given"
                self.say(Doubt(False, reason), f"scf.{step.what}", step.where)
            elif number is not None and number >= 0:
                self._same([end], [theirs[number]], step)

    def _loop_results(
        self, results: Sequence[int], carried: Sequence[Carried], theirs: Sequence[int]
    ) -> None:
        for result, (start, number) in zip(results, carried):
            if number is None:
                self.values[result] = self.values[start]
            elif number < 0:
                self.lose(result)
            else:
                self.values[result] = self.tensors.form(theirs[number])

    # Memory around a loop.

    def _enter(self, step: CheckedStep, first: Replacing) -> int:
        """Let memory be as it is when a trip begins; return the number of the loop."""
        written = self._written(step)
        entry = {span: self.memory.held[span] for span in written if span in self.memory.held}
        for span in written:  # what a loop carries may begin as bytes that nobody has written
            if span in self.names and not any(meets(span, other) for other in entry):
                entry[span] = self.memory.read(span)
        number = len(self.relation.loops)
        atoms = len(self.contents.scalars.made)
        self.relation.loops.append(LoopInvariant(step.where, first, atoms, entry))
        who = Lost("a trip of the loop", step.where)
        for span in [m for w in written for m in list(self.memory.meeting(w)) if m not in entry]:
            self.memory.lose(span, who)
        for span in entry:
            head = self.contents.unknown("head", Held(number, span), span.nbytes)
            self.memory.write(span, head, who)
        return number

    def _settle(self, number: int, later: Replacing, step: CheckedStep) -> None:
        """Check, at the end of a trip, that the next one finds what it needs."""
        loop = self.relation.loops[number]
        loop.end = {span: self.memory.read(span) for span in loop.entry}
        loop.later = later
        self.say(self.relation.settle(loop), "a loop", step.where)

    def _before_trip(
        self, number: int, changes: dict[Span, Content | None], step: CheckedStep
    ) -> None:
        """Let memory be as it is before the trip that does not come."""
        entry = self.relation.loops[number].entry
        for span in list(changes):
            self.memory.lose(span, Lost("the loop", step.where))
        for span in entry:
            head = self.contents.unknown("head", Held(number, span), span.nbytes)
            self.memory.write(span, head, Lost("the loop", step.where))

    def _leave(
        self, changes: dict[Span, Content | None], leave: Replacing, step: CheckedStep
    ) -> None:
        """Let memory hold what a loop leaves. leave: what its results are in terms of a trip."""
        number = len(self.relation.joins)
        ways: dict[Span, Ways] = {}
        self.relation.joins.append(ways)
        for span in list(changes):
            content = self.memory.held.get(span)
            if content is not None:
                ways[span] = ((content, leave),)
                join = self.contents.unknown("join", Held(number, span), span.nbytes)
                self.memory.write(span, join, Lost("the loop", step.where))

    def _written(self, step: CheckedStep) -> list[Span]:
        """Return the spans that control flow may write."""
        found: dict[Span, None] = {}
        local: dict[int, tuple[Span, ...]] = {}

        def spans(number: int) -> tuple[Span, ...]:
            return local[number] if number in local else _spans(self.values.get(number))

        def visit(step: CheckedStep) -> None:
            what, operands = step.what, step.operands
            for targets, numbers in _handed(step):
                local.update((t, spans(n)) for t, n in zip(targets, numbers))
            for body in step.bodies:
                for inner in body.steps:
                    visit(inner)
            if what == "work":
                assert isinstance(step.key, Work)
                operands = operands[len(operands) - step.key.outs - step.key.memory :]
            elif what in ("copy", "store"):
                operands = operands[1:2]
            else:
                _define(step, local, spans)
                return
            found.update((span, None) for number in operands for span in spans(number))

        visit(step)
        return list(found)


def _spans(value: object) -> tuple[Span, ...]:
    if isinstance(value, EitherView):
        return (*_spans(value.one), *_spans(value.other))
    return (value.base,) if isinstance(value, StridedView) else ()


def _define(
    step: CheckedStep, local: dict[int, tuple[Span, ...]], spans: Callable[[int], tuple[Span, ...]]
) -> None:
    """Note which spans the results of a step may be in."""
    if isinstance(step.key, BufferAddress):
        local[step.results[0]] = (Span(ARENA, step.key.offset, step.key.offset + step.key.nbytes),)
    elif step.what in ("view", "reshape"):
        local[step.results[0]] = spans(step.operands[0])
    elif step.what == "choose":
        local[step.results[0]] = (*spans(step.operands[1]), *spans(step.operands[2]))
    elif step.what in ("for", "while"):
        starts = step.operands[3:] if step.what == "for" else step.operands
        local.update((r, spans(s)) for r, s in zip(step.results, starts))
    elif step.what == "if":
        for k, result in enumerate(step.results):
            local[result] = tuple([s for body in step.bodies for s in spans(body.ends[k])])


def _handed(step: CheckedStep) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Return the arguments of the blocks of a loop, each with the values that they start from."""
    if step.what == "for":
        return [(step.bodies[0].arguments[1:], step.operands[3:])]
    if step.what == "while":
        return [(body.arguments, step.operands) for body in step.bodies]
    return []


_METHODS: dict[str, Callable[[FunctionCheck, CheckedStep, StepCursor], None]] = {
    "work": FunctionCheck.work, "copy": FunctionCheck.copy, "store": FunctionCheck.store, "load": FunctionCheck.load,
    "fuse": FunctionCheck._fuse, "for": FunctionCheck._for, "if": FunctionCheck._if, "while": FunctionCheck._while,
}  # fmt: skip
