"""Say what bytes hold: values of the program on tensors, parts of them, and parts put into others.

leaf      the result of an op, an input, a constant: `detail` tells which
nothing   bytes that may hold anything
insert    `parts[0]`, but for the bytes of `region`, which hold `parts[1]`
slice     the bytes of `region` of `parts[0]`
head      what a buffer holds when a trip of a loop begins; `detail` is (loop, buffer)
join      what a buffer holds behind branches or a loop; `detail` is (join, buffer)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from meshweave.verification.buffers.regions import ByteRegion, Form, apart, inside, within
from meshweave.verification.buffers.scalars import ComputedScalar, Scalars


@dataclass(eq=False, slots=True)  # frozen it would take longer to make
class Content:
    """Hold what `nbytes` bytes hold. Equal contents of one table are one object."""

    kind: str
    nbytes: int
    detail: Hashable = None
    parts: tuple[Content, ...] = ()
    region: ByteRegion | None = None

    @property
    def is_unclear(self) -> bool:
        """Tell whether it may be what it should, though nothing is known of it."""
        return bool(getattr(self.detail, "unclear", False))


class LoadedScalar(NamedTuple):
    """Key of a scalar that is read from a content."""

    of: Content
    region: ByteRegion


class Number(NamedTuple):
    """Detail of a leaf that is a scalar."""

    form: Form


@dataclass
class Contents:
    """Make contents, each once."""

    scalars: Scalars = field(default_factory=Scalars)
    _made: dict[object, Content] = field(default_factory=dict)

    def _put(
        self,
        kind: str,
        nbytes: int,
        detail: Hashable = None,
        parts: tuple[Content, ...] = (),
        region: ByteRegion | None = None,
    ) -> Content:
        key = kind, nbytes, detail, parts, region
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Content(*key)
        return found

    def leaf(self, detail: Hashable, nbytes: int) -> Content:
        """Return the value that `detail` tells from all others."""
        return self._put("leaf", nbytes, detail)

    def fresh(self, detail: Hashable, nbytes: int) -> Content:
        """Return a value that is no other. detail: that of no other."""
        return Content("leaf", nbytes, detail)

    def nothing(self, nbytes: int, why: Hashable = "") -> Content:
        """Return bytes that may hold anything. why: how they have come to."""
        return self._put("nothing", nbytes, why)

    def unknown(self, kind: str, detail: Hashable, nbytes: int) -> Content:
        """Return a head or a join."""
        return self._put(kind, nbytes, detail)

    def slice(self, of: Content, region: ByteRegion) -> Content:
        """Return the bytes of a region of a content."""
        if region.is_all_of(of.nbytes):
            return of
        while of.kind == "insert":
            base, value = of.parts
            assert of.region is not None
            if of.region == region:
                return value
            if not apart(of.region, region, self.scalars.bounds):
                return self._cut(of, region)
            of = base
        if of.kind == "nothing":
            return self.nothing(region.nbytes, of.detail)
        if of.kind == "slice":
            assert of.region is not None
            found = within(region, of.region, self.scalars.bounds)
            if found is not None:
                return self.slice(of.parts[0], found)
        return self._put("slice", region.nbytes, None, (of,), region)

    def _cut(self, of: Content, region: ByteRegion) -> Content:
        """Return the bytes of a region that meets the one which was put in last."""
        base, value = of.parts
        assert of.region is not None
        found = inside(region, of.region, self.scalars.bounds)
        if found is not None:
            return self.slice(value, found)
        found = inside(of.region, region, self.scalars.bounds)
        if found is not None:
            return self.insert(self.slice(base, region), found, value)
        return self._put("slice", region.nbytes, None, (of,), region)

    def insert(self, base: Content, region: ByteRegion, value: Content) -> Content:
        """Return `base` with `value` in the bytes of a region."""
        if region.is_all_of(base.nbytes):
            return value
        if not value.nbytes:
            return base
        if base.kind == "insert" and base.region == region:
            base = base.parts[0]
        if value.kind == "slice" and value.parts[0] is base and value.region == region:
            return base
        return self._put("insert", base.nbytes, None, (base, value), region)


def covers(regions: Mapping[ByteRegion, object], nbytes: int) -> bool:
    """Tell whether regions that share no byte are all of a buffer."""
    if sum(r.nbytes for r in regions) != nbytes:
        return False
    runs = sorted((r.offset.const, r.reach) for r in regions)
    in_runs = all(r.nbytes == r.reach and not r.offset.terms for r in regions)
    if in_runs:
        return all(a + reach <= b for (a, reach), (b, _) in pairwise(runs))
    return _all_apart(list(regions))


def _all_apart(regions: list[ByteRegion]) -> bool:
    return all(apart(a, b) for k, a in enumerate(regions) for b in regions[:k])


@dataclass
class Replacing:
    """Put contents and scalars in the place of leaves and atoms of the program on tensors, and of joins."""

    contents: Contents
    leaves: dict[Content, Content] = field(default_factory=dict)
    atoms: dict[int, Form] = field(default_factory=dict)
    _forms: dict[int, Form] = field(default_factory=dict)
    _known: dict[Content, Content] = field(default_factory=dict)

    def learn(self, leaves: Mapping[Content, Content], atoms: Mapping[int, Form]) -> None:
        """Replace more from now on: what is new, by what may hold something that is replaced already."""
        for leaf, content in leaves.items():
            self.leaves[leaf] = self.content(content)
        for atom, form in atoms.items():
            self.atoms[atom] = self.form(form)

    def form(self, form: Form) -> Form:
        """Return a scalar with its atoms replaced."""
        found = Form(form.const)
        for atom, factor in form.terms:
            found = found.plus(self._atom(atom), factor)
        return found

    def _atom(self, atom: int) -> Form:
        found = self.atoms.get(atom, self._forms.get(atom))
        if found is None:
            scalars = self.contents.scalars
            key, operands = scalars.made[atom]
            if isinstance(key, LoadedScalar):
                key = LoadedScalar(self.content(key.of), self.region(key.region))
            new = [self.form(operand) for operand in operands]
            if isinstance(key, ComputedScalar):
                found = scalars.op(key, new)
            else:
                found = scalars.atom(key, new)
            self._forms[atom] = found
        return found

    def region(self, region: ByteRegion) -> ByteRegion:
        """Return a region with its offset replaced."""
        return ByteRegion(self.form(region.offset), region.dims) if region.offset.terms else region

    def content(self, content: Content) -> Content:
        """Return a content with its leaves replaced."""
        chain = []
        while content.kind == "insert" and content not in self._known:
            chain.append(content)
            content = content.parts[0]
        found = self._known.get(content)
        if found is None:
            found = self._known[content] = self._replaced(content)
        for insert in reversed(chain):
            assert insert.region is not None
            value = self.content(insert.parts[1])
            found = self.contents.insert(found, self.region(insert.region), value)
            self._known[insert] = found
        return found

    def _replaced(self, content: Content) -> Content:
        if content.kind == "slice":
            assert content.region is not None
            of = self.content(content.parts[0])
            return self.contents.slice(of, self.region(content.region))
        if isinstance(content.detail, Number):
            number = Number(self.form(content.detail.form))
            return self.contents.leaf(number, content.nbytes)
        return self.leaves.get(content, content)
