"""Print the diagnostics of the driver, and match the comments of `--verify-diagnostics` that expect them.

    // expected-error @below {{no axis "z"}}           on the next line; also @above, @+2, @-2, or this line without any
    // expected-remark @+1 {{read {{[0-9]+}} times}}   inner braces hold a regular expression
    // expected-note @unknown {{...}}                  for a diagnostic without a position

The text may be any part of the message. Errors, warnings and remarks that nothing expects are
mismatches; notes are not.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshweave.errors import MeshweaveError, UsageError

if TYPE_CHECKING:  # here, for --help needs no compiler
    from meshweave.ir.bindings import ir

_POSITION = re.compile(r"(.*):(\d+):(\d+)$")
_COMMENT = re.compile(r"//[^\n]*?expected-(?P<what>\w+)")
_EXPECTED = re.compile(
    r"expected-(?P<severity>error|warning|remark|note)(?:-re)?\s*"
    r"(?:@\s*(?P<where>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}"
)


@dataclass(frozen=True)
class Diagnostic:
    """Hold one message. severity: error, warning, remark or note; location: "file:line:col" or "<unknown>"."""

    severity: str
    location: str
    message: str

    @property
    def line(self) -> int | None:
        """Return the line it is about, from 1; None if it has no position."""
        m = _POSITION.match(self.location)
        return int(m[2]) if m else None

    def under(self, name: str) -> "Diagnostic":
        """Replace "-", which MLIR's parser calls a text without a name, by the file's name."""
        if not self.location.startswith("-:"):
            return self
        return replace(self, location=name + self.location[1:])

    def __str__(self) -> str:
        where = "" if self.location == "<unknown>" else f"{self.location}: "
        return f"{where}{self.severity}: {self.message}"


def from_error(error: MeshweaveError) -> Diagnostic:
    """Return an error that was raised as a diagnostic."""
    return Diagnostic("error", error.location or "<unknown>", error.message)


def from_mlir(diagnostic: "ir.Diagnostic") -> list[Diagnostic]:
    """Copy MLIR's diagnostic and its notes, which do not outlive their handler."""
    from meshweave.ir.locations import location_text

    def value(d: "ir.Diagnostic", severity: str) -> Diagnostic:
        return Diagnostic(severity, location_text(d.location), d.message.strip())

    return [
        value(diagnostic, diagnostic.severity.name.lower()),
        *(value(note, "note") for note in diagnostic.notes),
    ]


@dataclass(frozen=True)
class Expectation:
    """Hold a comment at line `written` that expects a diagnostic with `text`, at `line` (None: no position)."""

    severity: str
    line: int | None
    text: str
    written: int

    def meets(self, d: Diagnostic) -> bool:
        """Tell whether `d` is what the comment expects."""
        if d.severity != self.severity or d.line != self.line:
            return False
        return re.search(_pattern(self.text), d.message) is not None


def _pattern(text: str) -> str:
    """Return a regular expression for the text of a comment, which is verbatim outside of inner braces."""
    parts = re.split(r"\{\{(.*?)\}\}", text)
    return "".join(f"(?:{p})" if i % 2 else re.escape(p) for i, p in enumerate(parts))


def expectations(text: str) -> list[Expectation]:
    """Read the expectations in the comments of `text`. Raises UsageError for one that cannot be read."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if (comment := _COMMENT.search(line)) is None:
            continue
        m = _EXPECTED.search(line, comment.start())
        if m is None:
            raise UsageError(
                f"line {number}: cannot read {line[comment.start() :].strip()!r}: "
                "write expected-error @below {{text}}, or -warning, -remark, -note"
            )
        found.append(Expectation(m["severity"], _line(m["where"], number), m["text"], number))
        try:
            re.compile(_pattern(m["text"]))
        except re.error as error:
            raise UsageError(
                f"line {number}: {{{{...}}}} holds no regular expression: {error}"
            ) from None
    return found


def _line(where: str | None, number: int) -> int | None:
    steps = {None: 0, "above": -1, "below": 1}
    if where == "unknown":
        return None
    return number + (steps[where] if where in steps else int(where or 0))


def mismatches(
    expected: Iterable[Expectation], produced: Iterable[Diagnostic], name: str
) -> list[Diagnostic]:
    """Return an error, in file `name`, for each unexpected diagnostic and each expectation not met."""
    left, problems = list(expected), []
    for d in produced:
        if (met := next((e for e in left if e.meets(d)), None)) is not None:
            left.remove(met)
        elif d.severity != "note":
            problems.append(
                Diagnostic("error", d.location, f"unexpected {d.severity}: {d.message}")
            )
    for e in left:
        where = f"{name}:{e.written}:1"
        problems.append(
            Diagnostic("error", where, f'expected {e.severity} "{e.text}" was not produced')
        )
    return problems
