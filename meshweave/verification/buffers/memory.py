"""Follow what each byte of memory holds while a program runs: spans that share no byte, each with its content."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from meshweave.verification.buffers.contents import Content, Contents
from meshweave.verification.buffers.program import Where
from meshweave.verification.buffers.relation import Span


class Lost(NamedTuple):
    """Tell what has overwritten a span. name: of what, where: in the source. unclear: on some way it has not."""

    name: object
    where: Where
    unclear: bool = False

    def __str__(self) -> str:
        """Return the reason, for a message."""
        return f"overwritten by {self.name} at {self.where}"


@dataclass
class Memory:
    """Hold the contents of spans; writing one loses those that it meets."""

    contents: Contents
    held: dict[Span, Content] = field(default_factory=dict)
    lost: dict[Span, Lost] = field(default_factory=dict)
    _order: list[Span] = field(default_factory=list)
    _before: list[dict[Span, Content | None]] = field(default_factory=list)

    def read(self, span: Span) -> Content:
        """Return what a span holds."""
        found = self.held.get(span)
        if found is not None:
            return found
        return self.contents.nothing(span.nbytes, self.lost.get(span, "never written"))

    def write(self, span: Span, content: Content, who: Lost) -> None:
        """Let a span hold something. who: what is told of those that are lost."""
        order = self._order
        at = bisect_left(order, span)
        if (at and meets(order[at - 1], span)) or (at < len(order) and meets(order[at], span)):
            for other in list(self.meeting(span)):
                if other != span:
                    self.lose(other, who)
        self._put(span, content)

    def rewrite(self, span: Span, content: Content) -> bool:
        """Let a span that holds something hold something else; tell whether it does hold something.

        It then meets no other that does, since those share no byte.
        """
        old = self.held.get(span)
        if old is None:
            return False
        if self._before:
            self._before[-1].setdefault(span, old)
        self.held[span] = content
        return True

    def lose(self, span: Span, who: Lost) -> None:
        """Let a span hold nothing that is known."""
        self.lost[span] = who
        self._put(span, None)

    def meeting(self, span: Span) -> Iterator[Span]:
        """Yield the spans that share a byte with this one."""
        order = self._order
        at = bisect_left(order, span)
        if at and meets(order[at - 1], span):
            yield order[at - 1]
        while at < len(order) and meets(order[at], span):
            yield order[at]
            at += 1

    def _put(self, span: Span, content: Content | None) -> None:
        old = self.held.get(span)
        for changes in self._before[-1:]:
            changes.setdefault(span, old)
        if content is None:
            if old is not None:
                del self.held[span]
                del self._order[bisect_left(self._order, span)]
            return
        if old is None:
            insort(self._order, span)
        self.held[span] = content

    @contextmanager
    def noted(self) -> Iterator[dict[Span, Content | None]]:
        """Give the contents that spans had before what is done inside changes them."""
        changes: dict[Span, Content | None] = {}
        self._before.append(changes)
        yield changes
        self._before.pop()
        for span, old in changes.items():
            for outer in self._before[-1:]:
                outer.setdefault(span, old)

    def back_to(self, before: dict[Span, Content | None]) -> None:
        """Undo changes."""
        for span, _ in before.items():  # first those that go, so that spans never meet
            self._put(span, None)
        for span, old in before.items():
            if old is not None:
                self._put(span, old)


def meets(a: Span, b: Span) -> bool:
    """Tell whether two spans share a byte."""
    return a.space == b.space and a.start < b.end and b.start < a.end
