"""Evaluate a program on tensors: every value becomes a content, or a scalar, as soon as the walk has come to it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from meshweave.verification.buffers.contents import (
    Content,
    Contents,
    LoadedScalar,
    Number,
    Replacing,
)
from meshweave.verification.buffers.program import (
    BufferAddress,
    CheckedProgram,
    CheckedStep,
    Shape,
    StepBlock,
    Subview,
    Work,
)
from meshweave.verification.buffers.regions import ByteRegion, Form, region, whole
from meshweave.verification.buffers.relation import Given, Made
from meshweave.verification.buffers.scalars import ComputedScalar
from meshweave.verification.buffers.views import Tensor, reshaped, shaped


@dataclass
class Tensors:
    """Hold what the values of a program on tensors are."""

    program: CheckedProgram
    contents: Contents
    values: dict[int, Tensor | Form] = field(default_factory=dict)
    _ways: dict[Form, tuple[Replacing, Replacing]] = field(default_factory=dict)
    _made: int = 0

    def form(self, number: int) -> Form:
        """Return a scalar."""
        found = self.values[number]
        assert isinstance(found, Form)
        return found

    def forms(self, numbers: Sequence[int]) -> list[Form]:
        """Return scalars."""
        return [self.form(number) for number in numbers]

    def view(self, number: int) -> Tensor:
        """Return a tensor."""
        found = self.values[number]
        assert not isinstance(found, Form)
        return found

    def content(self, number: int) -> Content:
        """Return what a tensor holds."""
        view = self.values[number]
        assert not isinstance(view, Form)
        return view.base if view.is_all else self.contents.slice(view.base, view.region)

    def shape(self, number: int) -> Shape | None:
        """Return the shape of a tensor; None for a scalar."""
        return self.program.shapes.get(number)

    def give(self, number: int, content: Content) -> None:
        """Let a tensor hold a content."""
        self.values[number] = shaped(content, self.program.shapes[number])

    def leaf(self, number: int, detail: Hashable) -> Content:
        """Let a tensor be a value that is no other."""
        shape = self.program.shapes[number]
        content = self.contents.leaf(detail, shape.nbytes)
        self.values[number] = shaped(content, shape)
        return content

    def fresh(
        self, step: CheckedStep, numbers: Sequence[int], what: str, plain: bool = False
    ) -> None:
        """Let values be no others: what an op gives that is not looked into, or a loop carries."""
        self._made += 1
        shapes, values, contents = self.program.shapes, self.values, self.contents
        for k, number in enumerate(numbers):
            made, shape = Made(self._made, k, what, step.where, plain), shapes.get(number)
            if shape is None:
                values[number] = contents.scalars.atom(made)
            else:
                values[number] = shaped(contents.fresh(made, shape.nbytes), shape)

    def replacing(self, numbers: Sequence[int], by: Sequence[int]) -> Replacing:
        """Return what puts values in the place of others, which are no others."""
        leaves: dict[Content, Content] = {}
        atoms: dict[int, Form] = {}
        for number, other in zip(numbers, by):
            if self.shape(number) is None:
                atoms[self.form(number).terms[0][0]] = self.form(other)
            else:
                leaves[self.content(number)] = self.content(other)
        return Replacing(self.contents, leaves, atoms)

    def empty(self, numbers: Sequence[int]) -> None:
        """Let tensors be what nobody has written."""
        made: dict[int, Tensor] = {}  # by the shape, which all tensors of a type have in common
        for number in numbers:
            shape = self.program.shapes[number]
            found = made.get(id(shape))
            if found is None:
                found = made[id(shape)] = shaped(self.contents.nothing(shape.nbytes), shape)
            self.values[number] = found

    # Steps.

    def step(self, step: CheckedStep) -> None:
        """Evaluate a step; what control flow gives is looked into by whoever finds it on buffers too."""
        what, results, key = step.what, step.results, step.key
        if what == "scalar":
            self.values[results[0]] = scalar(self.contents, key, self.forms(step.operands))
        elif what == "work":
            assert isinstance(key, Work)
            self.fresh(step, results, _title(key), plain=True)
        elif what == "if":
            self._branches(step)
        elif what == "choose":
            self.fresh(step, results, "what a choice gives")
            ways = [self.replacing(results, [number]) for number in step.operands[1:]]
            self._learn(step, ways)
        elif what in ("for", "while"):
            self.fresh(step, results, "what a loop gives")
        elif what == "load":
            view, indices = self.view(step.operands[0]), self.forms(step.operands[1:])
            self.values[results[0]] = element(
                self.contents, self.contents.slice(view.base, view.element(indices))
            )
        else:
            self._tensor(step, what, results[0])

    def _tensor(self, step: CheckedStep, what: str, result: int) -> None:
        shape, contents, operands = self.program.shapes[result], self.contents, step.operands
        if what == "constant":
            self.leaf(result, Given("constant", step.key))
        elif what == "elements":
            self.give(result, self._elements(operands, shape))
        elif what == "reshape":
            self.values[result] = reshaped(contents, self.view(operands[0]), shape)
        elif what == "view":
            assert isinstance(step.key, Subview)
            source = self.view(operands[0])
            self.values[result] = source.window(step.key, self.forms(operands[1:]), shape)
        elif what == "insert":
            assert isinstance(step.key, Subview)
            target = shaped(self.content(operands[1]), shape)
            part = self.program.shapes[operands[0]]
            at = target.window(step.key, self.forms(operands[2:]), part).region
            self.give(result, contents.insert(target.base, at, self.content(operands[0])))
        elif what == "put":
            target = shaped(self.content(operands[1]), shape)
            at = target.element(self.forms(operands[2:]))
            number = contents.leaf(Number(self.form(operands[0])), shape.width)
            self.give(result, contents.insert(target.base, at, number))
        else:
            raise AssertionError(f"{what} is none of a program on tensors")

    def _elements(self, operands: Sequence[int], shape: Shape) -> Content:
        found = self.contents.nothing(shape.nbytes)
        for k, form in enumerate(self.forms(operands)):
            at = region(Form(k * shape.width), (), (), shape.width)
            number = self.contents.leaf(Number(form), shape.width)
            found = self.contents.insert(found, at, number)
        return found

    def _branches(self, step: CheckedStep) -> None:
        """Evaluate the branches of an scf.if that has none on buffers, where it may be a choice between two."""
        self.fresh(step, step.results, "what a branch gives")
        for body in step.bodies:
            self.run(body)
        self.branched(step)

    def branched(self, step: CheckedStep) -> tuple[Replacing, ...]:
        """Note and return what the branches of an scf.if give, once they have been evaluated."""
        given = tuple([self.replacing(step.results, body.ends) for body in step.bodies])
        self._learn(step, given)
        return given

    def _learn(self, step: CheckedStep, given: Sequence[Replacing]) -> None:
        for way, one in zip(self.ways(self.form(step.operands[0])), given):
            way.learn(one.leaves, one.atoms)

    def ways(self, condition: Form) -> tuple[Replacing, Replacing]:
        """Return what every choice on a condition has given: where it holds, and where it does not."""
        found = self._ways.get(condition)
        if found is None:
            found = self._ways[condition] = Replacing(self.contents), Replacing(self.contents)
        return found

    def joined(self, condition: Form, joins: Mapping[Content, Sequence[Content]]) -> None:
        """Note what memory holds behind branches on a condition, by what it holds in each of them."""
        for k, way in enumerate(self.ways(condition)):
            way.learn({join: contents[k] for join, contents in joins.items()}, {})

    def run(self, body: StepBlock) -> None:
        """Evaluate the steps of a block."""
        for step in body.steps:
            self.step(step)


def scalar(contents: Contents, key: Hashable, operands: Sequence[Form]) -> Form:
    """Return what a scalar op gives, or a constant."""
    if isinstance(key, int):
        return Form(key)
    assert isinstance(key, ComputedScalar)
    found = contents.scalars.op(key, operands)
    if key.name == "mw.member":
        assert isinstance(key.details, tuple)
        contents.scalars.bounds[found.terms[0][0]] = (0, key.details[1] - 1)
    return found


def element(contents: Contents, content: Content) -> Form:
    """Return the scalar that a content of one element is."""
    if isinstance(content.detail, Number):
        return content.detail.form
    return contents.scalars.atom(LoadedScalar(content, whole(content.nbytes)))


def _title(work: Work) -> str:
    return f"mw.{work.kind} @{work.name}" if work.name else f"mw.{work.kind}"


_MEETING = ("start", "wait", "collective")  # work that other ranks wait for


@dataclass
class StepCursor:
    """Walk the steps of a block on tensors beside those on buffers, which are the same but for some that are gone."""

    tensors: Tensors
    steps: Sequence[CheckedStep]
    at: int = 0
    # Steps that were passed over, by what finds them.
    left: dict[Hashable, list[CheckedStep]] = field(default_factory=dict)
    places: dict[Hashable, list[int]] = field(default_factory=dict)
    tags: list[Hashable] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Note where each step is found."""
        self.tags = list(map(tag, self.steps))
        for k, what in enumerate(self.tags):
            self.places.setdefault(what, []).append(k)

    def find(self, wanted: Hashable) -> CheckedStep | None:
        """Return the next step of that tag, or the first that was passed over, and evaluate all before it."""
        places = self.places.get(wanted, [])
        while places and places[0] < self.at:
            places.pop(0)
        if not places:
            passed = self.left.get(wanted)
            return passed.pop(0) if passed else None
        self.pass_to(places[0])
        self.at += 1
        found = self.steps[self.at - 1]
        if found.what == "work":
            self.tensors.step(found)
        return found

    def pass_to(self, end: int) -> None:
        """Evaluate the steps before number `end`."""
        while self.at < end:
            step, what = self.steps[self.at], self.tags[self.at]
            self.at += 1
            self.tensors.step(step)
            if what is not None:
                self.left.setdefault(what, []).append(step)

    def missing(self) -> list[CheckedStep]:
        """Return the collectives that have not been found, though something needs what they give."""
        found = []
        for step in [step for steps in self.left.values() for step in steps]:
            meets = isinstance(step.key, Work) and step.key.kind in _MEETING
            shapes = self.tensors.program.shapes
            if meets and not step.dead and any(shapes[n].nbytes for n in step.results):
                found.append(step)
        return found

    def _loads(self) -> list[CheckedStep]:
        """Return the loads that have been passed over, and those that come before anything else is done."""
        end = self.at
        while end < len(self.steps) and self.tags[end] in (None, "load"):
            end += 1
        self.pass_to(end)
        return self.left.setdefault("load", [])

    def drop_load(self, number: Form) -> bool:
        """Take out the load that gives a number; tell whether there is one."""
        loads = self._loads()
        found = next((s for s in loads if self.tensors.form(s.results[0]) == number), None)
        if found is not None:
            loads.remove(found)
        return found is not None

    def load(self, region: ByteRegion | None) -> CheckedStep | None:
        """Take out and return a load: the first, or the first of these bytes if there is one."""
        loads = self._loads()
        if not loads:
            return None
        found = next((s for s in loads if self._region(s) == region), loads[0])
        loads.remove(found)
        return found

    def _region(self, load: CheckedStep) -> ByteRegion:
        view = self.tensors.view(load.operands[0])
        return view.element(self.tensors.forms(load.operands[1:]))


def tag(step: CheckedStep) -> Hashable:
    """Return what a step is found by in the other program; None for one that is not looked for."""
    if step.what == "work":
        assert isinstance(step.key, Work)
        return step.key.kind, step.key.name, step.key.details
    return step.what if step.what in ("for", "if", "while", "load") else None


__all__ = ["BufferAddress", "StepCursor", "Tensors", "element", "scalar", "tag"]
