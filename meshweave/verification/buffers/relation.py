"""Tell whether bytes hold what the program on tensors says, also from one trip of a loop to the next.

What a buffer holds when a trip begins is not known while the trip is walked. Each time it matters, a *claim* is made:
these bytes hold this value. It is checked for what the loop starts with, and, once the body has been walked, for what
the body leaves there; that may make claims of other buffers, until there are no new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from meshweave.verification.buffers.contents import (
    Content,
    Contents,
    LoadedScalar,
    Number,
    Replacing,
    covers,
)
from meshweave.verification.buffers.program import Where
from meshweave.verification.buffers.regions import Bounds, ByteRegion, Form, apart, inside, whole

MOST_CLAIMS = 2000  # of a loop, beyond which it stays unproven


class Span(NamedTuple):
    """Name bytes of a space: that of the arena is "arena", others are whole buffers."""

    space: str
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Count the bytes."""
        return self.end - self.start


class Held(NamedTuple):
    """Detail of what a span holds where a trip begins, or behind branches: the number of the loop or join."""

    number: int
    span: Span


class Made(NamedTuple):
    """Detail of a leaf that a step makes. plain: by an op that the check does not look into."""

    number: int
    result: int
    what: str
    where: Where
    plain: bool = True

    def __str__(self) -> str:
        """Name the value and its place."""
        return f"{self.what} at {self.where}"


class Given(NamedTuple):
    """Detail of a leaf that is there from the start: an input or a constant."""

    kind: str
    key: object

    def __str__(self) -> str:
        """Name the value."""
        return f"{self.kind} {self.key}" if self.kind == "input" else self.kind


class Doubt(NamedTuple):
    """Say why bytes are not shown to hold what they should. sure: they hold something else."""

    sure: bool
    reason: str


Regions = tuple[ByteRegion, ...]
Taken = tuple[tuple[Form, int], ...]
"""Ways that are taken: conditions, each with 0 where it holds and 1 where it does not."""


class Claim(NamedTuple):
    """Claim that bytes of a region of a span hold a value, but for some; `taken`: where conditions go these ways."""

    span: Span
    region: ByteRegion
    want: Content
    but: Regions
    taken: Taken = ()


@dataclass
class LoopInvariant:
    """Hold what is claimed of buffers whenever a trip of a loop begins.

    first: what the loop starts with in the place of what it carries. later: what a trip hands on; None while the body
    is walked. entry, end: what the buffers that the body writes hold before the first trip, and after a trip.
    atoms: how many there are when the loop begins.
    """

    where: Where
    first: Replacing
    atoms: int
    entry: Mapping[Span, Content]
    later: Replacing | None = None
    end: Mapping[Span, Content] = field(default_factory=dict)
    claims: set[Claim] = field(default_factory=set)
    waiting: list[Claim] = field(default_factory=list)
    settling: bool = False

    def changes(self, want: Content) -> bool:
        """Tell whether a value may be another one in the next trip."""
        return self.first.content(want) is not want

    def moves(self, region: ByteRegion) -> bool:
        """Tell whether a region may be another one in the next trip."""
        return self.first.region(region) != region

    def turns(self, condition: Form) -> bool:
        """Tell whether a condition may be another one in the next trip: what is found in a trip is of that trip."""
        is_old = all(atom < self.atoms for atom, _ in condition.terms)
        return not is_old or self.first.form(condition) != condition


Ways = Sequence[tuple[Content, Replacing]]


@dataclass
class Relation:
    """Compare what memory holds with values of the program on tensors.

    choices: the conditions of joins that are not loops'. ways: what each condition gives where it holds, and
    where it does not.
    """

    contents: Contents
    loops: list[LoopInvariant] = field(default_factory=list)
    joins: list[dict[Span, Ways]] = field(default_factory=list)
    choices: dict[int, Form] = field(default_factory=dict)
    ways: dict[Form, tuple[Replacing, Replacing]] = field(default_factory=dict)
    _taken: Taken = ()
    _known: set[tuple[Content, Content, Regions, Taken]] = field(default_factory=set)

    def choose(self, condition: Form, ways: tuple[Replacing, Replacing]) -> None:
        """Note that a condition says which way the last join went, and what it gives either way."""
        self.choices[len(self.joins) - 1], self.ways[condition] = condition, ways

    def refines(self, got: Content, want: Content, but: Regions = ()) -> Doubt | None:
        """Return None where bytes surely hold `want` as far as that is anything, else why not. but: bytes left out."""
        if got is want or want.kind == "nothing" or not want.nbytes:
            return None
        key = (got, want, but, self._taken)
        if key in self._known or (but and covers(dict.fromkeys(but), got.nbytes)):
            return None
        found = self._compared(got, want, but)
        if found is None:
            self._known.add(key)
        return found

    def _compared(self, got: Content, want: Content, but: Regions) -> Doubt | None:
        if got.kind == "slice":
            assert got.region is not None
            base = got.parts[0]
            if base.kind in ("head", "join"):
                return self._open(base, got.region, want, but)
            if want.kind == "slice" and want.region == got.region and want.parts[0] is not base:
                # What lies around may not be known to be apart.
                doubt = self.refines(base, want.parts[0])
                return doubt and doubt._replace(sure=False)
        if got.kind in ("head", "join"):
            return self._open(got, whole(got.nbytes), want, but)
        if "insert" in (got.kind, want.kind):
            return self._pieces(got, want, but)
        if got.kind == "nothing":
            left = sum(r.nbytes for r in but) < got.nbytes  # else they may be all of it
            reason = f"expected {named(want)}, is {got.detail or 'nothing'}"
            return Doubt(left and not got.is_unclear, reason)
        reason = f"expected {named(want)}, is {named(got)}"
        return Doubt(_plain(got) and _plain(want) and not but, reason)

    def _pieces(self, got: Content, want: Content, but: Regions) -> Doubt | None:
        """Compare contents that are made of pieces: the last piece of one of them, then what is around it."""
        left, bounds = dict.fromkeys(but), self.contents.scalars.bounds
        while "insert" in (got.kind, want.kind):
            region, doubt = _peeled(got, want, bounds), None
            hidden = any(inside(region, other, bounds) for other in left)
            if not hidden:
                doubt = self._piece(got, want, region)
            if doubt is not None and left:
                doubt = self._piece_around(got, want, region, left, doubt)
            if doubt is not None:
                return doubt
            got, want = (
                c.parts[0] if c.kind == "insert" and c.region == region else c for c in (got, want)
            )
            if not hidden:
                left[region] = None
        return self.refines(got, want, tuple(left))

    def _piece(
        self, got: Content, want: Content, region: ByteRegion, but: Regions = ()
    ) -> Doubt | None:
        """Compare the bytes of a region of two contents. but: bytes of the region left out."""
        if got.region == want.region:
            return self.refines(got.parts[1], want.parts[1], but)
        part, wanted = (self.contents.slice(c, region) for c in (got, want))
        if part.parts[:1] == (got,) and wanted.parts[:1] == (want,):
            return self._part(part, wanted, but)
        return self.refines(part, wanted, but)

    def _piece_around(
        self, got: Content, want: Content, region: ByteRegion, known: Iterable[ByteRegion], doubt: Doubt
    ) -> Doubt | None:  # fmt: skip
        """Compare a piece again, without those of its bytes that are known to be right. doubt: of all its bytes."""
        bounds = self.contents.scalars.bounds
        meeting = [other for other in known if not apart(other, region, bounds)]
        if not meeting:
            return doubt
        but = [found for found in (inside(r, region, bounds) for r in meeting) if found is not None]
        again = self._piece(got, want, region, tuple(but)) if but else doubt
        return again and again._replace(sure=False)

    def _part(self, part: Content, wanted: Content, but: Regions) -> Doubt | None:
        """Compare pieces; those that other pieces meet in a way that is not known would lead round in circles."""
        for content in (part, wanted):
            if content.kind == "slice" and content.parts[0].kind == "insert" and part is not wanted:
                return Doubt(
                    False, f"expected {named(wanted)}, is {named(part)}, as far as is known"
                )
        return self.refines(part, wanted, but)

    # Loops and branches.

    def _open(
        self, content: Content, region: ByteRegion, want: Content, but: Regions
    ) -> Doubt | None:
        assert isinstance(content.detail, Held)
        number, span = content.detail
        if content.kind == "head":
            return self._head(self.loops[number], span, region, want, but)
        condition = self.choices.get(number)
        taken = [k for other, k in self._taken if other == condition]
        for k, (one, replacing) in enumerate(self.joins[number][span]):
            if taken and k not in taken:
                continue
            part = self.contents.slice(one, replacing.region(region))
            left = tuple([replacing.region(r) for r in but])
            with self._taking(() if condition is None else ((condition, k),)):
                doubt = self.refines(part, replacing.content(want), left)
            if doubt is not None:
                return doubt
        return None

    @contextmanager
    def _taking(self, ways: Taken) -> Iterator[None]:
        """Compare where conditions go these ways, and those that they go already."""
        before = self._taken
        self._taken = (*before, *[way for way in ways if way not in before])
        try:
            yield
        finally:
            self._taken = before

    def _head(
        self, loop: LoopInvariant, span: Span, region: ByteRegion, want: Content, but: Regions
    ) -> Doubt | None:
        """Claim what is needed when a trip begins, or more where that is likelier to hold for every trip.

        A part of what a loop carries is where all of it is. What is left out may be left out of every trip only if it
        is the same in each, and what is wanted does not change.
        """
        tries = [(region, want, but)]
        if but and (loop.changes(want) or any(loop.moves(r) for r in but)):
            tries.insert(0, (region, want, ()))
        if want.kind == "slice" and want.region == region and want.parts[0].nbytes == span.nbytes:
            tries.insert(0, (whole(span.nbytes), want.parts[0], ()))
        taken = tuple([way for way in self._taken if not loop.turns(way[0])])
        doubt: Doubt | None = None
        for one in tries:
            doubt = self._claim(loop, Claim(span, *one, taken))
            if doubt is None:
                break
        # Where a condition goes another way in each trip, more was claimed than is needed.
        return doubt and doubt._replace(sure=doubt.sure and taken == self._taken)

    def _claim(self, loop: LoopInvariant, claim: Claim) -> Doubt | None:
        if claim in loop.claims:
            return None
        if len(loop.claims) >= MOST_CLAIMS:
            return Doubt(False, "too much to follow from trip to trip")
        loop.claims.add(claim)
        doubt = self._holds(claim, loop.entry, loop.first)
        if doubt is not None:
            loop.claims.remove(claim)
            return doubt
        loop.waiting.append(claim)
        return self.settle(loop) if loop.later is not None and not loop.settling else None

    def _holds(
        self, claim: Claim, held: Mapping[Span, Content], replacing: Replacing
    ) -> Doubt | None:
        """Check a claim of what buffers hold at some time. replacing: what the values of a trip are then."""
        part = self.contents.slice(held[claim.span], replacing.region(claim.region))
        left = tuple([replacing.region(region) for region in claim.but])
        want = replacing.content(claim.want)
        for condition, k in claim.taken:
            part, want = (self.ways[condition][k].content(content) for content in (part, want))
        before, self._taken = self._taken, claim.taken
        try:
            return self.refines(part, want, left)
        finally:
            self._taken = before

    def settle(self, loop: LoopInvariant) -> Doubt | None:
        """Check what has been claimed of a loop for the trips behind the first."""
        assert loop.later is not None
        loop.settling, found = True, None
        while loop.waiting and found is None:
            found = self._holds(loop.waiting.pop(), loop.end, loop.later)
        loop.settling = False
        reason = f"{found.reason}, behind a trip of the loop at {loop.where}" if found else ""
        return found and found._replace(reason=reason)


def _peeled(got: Content, want: Content, bounds: Bounds) -> ByteRegion:
    """Return the region of the last piece of one of two contents: of the larger where one holds the other."""
    ours, theirs = (c.region if c.kind == "insert" else None for c in (got, want))
    if ours is None or theirs is None:
        found = ours or theirs
        assert found is not None
        return found
    return theirs if ours != theirs and inside(ours, theirs, bounds) else ours


def _plain(content: Content) -> bool:
    """Tell whether a content can be told from any other of this kind."""
    while content.kind == "slice":
        assert content.region is not None
        if content.region.offset.terms:
            return False
        content = content.parts[0]
    detail = content.detail
    return content.kind == "leaf" and (
        detail.plain if isinstance(detail, Made) else isinstance(detail, Given)
    )


def named(content: Content) -> str:
    """Name a content for a message."""
    if content.kind == "slice":
        return f"a part of {named(content.parts[0])}"
    if content.kind == "insert":
        return f"{named(content.parts[1])} in {named(content.parts[0])}"[:200]
    if isinstance(content.detail, Number):
        return "a number"
    return str(content.detail) if content.kind == "leaf" else "what a loop or branch leaves"


__all__ = [
    "Doubt",
    "Given",
    "LoadedScalar",
    "LoopInvariant",
    "Made",
    "Relation",
    "Span",
    "Ways",
    "named",
]
