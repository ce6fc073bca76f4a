"""Read the text of pipelines and of pass options, and hold the text of our pipelines. Pure, no MLIR."""

import re
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from meshweave.errors import UsageError

GLOBAL_PASSES = (
    "hint-apply",
    "trivial-dce",
    "remake-scores",
    "outline-repeats",
    "sort-together",
    "dist-donate",
    "dist-propagate",
    "dist-insert-redistribute",
    "dist-legalize-redistribute",
    "dist-partition",
    "hint-budget",
    "hint-recompute",
    "hint-slice",
    "select-kernels",
    "dist-fuse-collectives",
    "dist-overlap",
    "hint-verify",
    "canonicalize",
    "cse",
)
"""From the global view to the local program, on a mesh of known sizes."""

CANONICALIZE = "canonicalize{disable-patterns={anonymous}::FoldInsertPadIntoFill}"
"""MLIR's pass, less a pattern that forgets strides: a pad that is put into a fill with gaps landed where none are."""
CLEAN_UP = f"builtin.module({CANONICALIZE},cse)"

_NAME = re.compile(r"[\w.\-]+")


@dataclass(frozen=True)
class PassEntry:
    """Hold one entry: a pass with the text of its options, or an op name with passes for such ops."""

    name: str
    options: str | None = None
    children: "tuple[PassEntry, ...] | None" = None


@cache
def read(text: str) -> tuple[PassEntry, ...]:
    """Parse the elements of a pipeline text. Raises UsageError that shows where it cannot be read."""
    reader = _PipelineReader(text)
    elements = reader.elements() if reader.peek() else ()
    if reader.peek():
        raise reader.error(f"expected a comma, got {reader.peek()!r}")
    return elements


class _PipelineReader:
    """Read left to right; `at` is the next character that has not been read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def error(self, message: str) -> UsageError:
        here = self.text[self.at : self.at + 20] or "the end"
        return UsageError(f"pipeline: {message} at character {self.at + 1} ({here})")

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def elements(self) -> tuple[PassEntry, ...]:
        found = [self.element()]
        while self.peek() == ",":
            self.at += 1
            found.append(self.element())
        return tuple(found)

    def element(self) -> PassEntry:
        self.peek()
        if (m := _NAME.match(self.text, self.at)) is None:
            raise self.error("expected the name of a pass")
        self.at = m.end()
        options = self.braces() if self.peek() == "{" else None
        if self.peek() != "(":
            return PassEntry(m[0], options)
        self.at += 1
        children = self.elements()
        if self.peek() != ")":
            raise self.error(f'"{m[0]}(" is not closed: expected a comma or ")"')
        self.at += 1
        return PassEntry(m[0], options, children)

    def braces(self) -> str:
        end = group_end(self.text, self.at)
        if end is None:
            raise self.error('"{" is not closed')
        inside = self.text[self.at + 1 : end - 1]
        self.at = end
        return inside


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def group_end(text: str, start: int, opening: str = "{[(", closing: str = ")]}") -> int | None:
    """Return the index after the bracket group that opens at `start`; None if it never ends.

    Strings are skipped, and the arrow `->` closes nothing.
    """
    depth, i = 0, start
    while i < len(text):
        ch = text[i]
        if ch == '"':
            if (m := _STRING.match(text, i)) is None:
                return None
            i = m.end() - 1
        elif ch in opening:
            depth += 1
        elif ch in closing and not (ch == ">" and text[i - 1] == "-"):
            depth -= 1
        i += 1
        if depth == 0:
            return i
    return None


_OPTION = re.compile(r"\s*([\w\-]+)(=)?")


def parse_options(text: str, who: str) -> dict[str, str | None]:
    """Parse `a=1 b=x,y c="two words" d` into a dict of texts; an option without a value has None.

    Raises UsageError.
    """
    found: dict[str, str | None] = {}
    at = 0
    while text[at:].strip():
        if (m := _OPTION.match(text, at)) is None:
            raise UsageError(
                f"{who}: cannot read the options at {text[at:].strip()!r}; they look like a=1 b=x,y"
            )
        if m[1] in found:
            raise UsageError(f"{who}: option {m[1]} is given twice")
        at = m.end()
        found[m[1]] = None
        if m[2]:
            end = _value_end(text, at, who)
            found[m[1]] = _unquoted(text[at:end])
            at = end
    return found


def _value_end(text: str, at: int, who: str) -> int:
    while at < len(text) and not text[at].isspace():
        if text[at] in '"{[(':
            end = group_end(text, at) if text[at] != '"' else text.find('"', at + 1) + 1
            if not end:
                raise UsageError(f"{who}: {text[at:]!r} is not closed")
            at = end
        else:
            at += 1
    return at


def _unquoted(value: str) -> str:
    if len(value) >= 2 and (value[0], value[-1]) in (('"', '"'), ("{", "}"), ("[", "]")):
        return value[1:-1]
    return value


def _inner(kind: object) -> tuple[object, bool]:
    """Return the type without `| None`, and whether None was allowed."""
    if get_origin(kind) in (Union, UnionType):
        rest = [k for k in get_args(kind) if k is not NoneType]
        return rest[0], len(rest) < len(get_args(kind))
    return kind, False


def _name(kind: object) -> str:
    assert isinstance(kind, type)
    return kind.__name__


def type_text(kind: object) -> str:
    """Return the name of an option's type in help: `int`, `str,...`."""
    kind, _ = _inner(kind)
    return f"{_name(get_args(kind)[0])},..." if get_origin(kind) is tuple else _name(kind)


def parse_value(text: str | None, kind: object, who: str) -> Any:
    """Read `text` as a value of type `kind`.

    kind: int, float, bool, str, a tuple of one of these, or one of these `| None`. Raises UsageError, prefixed with
          `who`.
    """
    kind, optional = _inner(kind)
    if text is None:
        if kind is bool:
            return True
        raise UsageError(f"{who} needs a value ({type_text(kind)})")
    if optional and text == "none":
        return None
    if get_origin(kind) is tuple:
        parts = [p.strip() for p in text.split(",")] if text.strip() else []
        return tuple(parse_value(p, get_args(kind)[0], who) for p in parts)
    if kind is bool:
        if text.lower() not in _BOOLS:
            raise UsageError(f"{who} must be true or false, not {text!r}")
        return _BOOLS[text.lower()]
    assert isinstance(kind, type)
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{who} must be {_A[kind]}, not {text!r}") from None


_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_A = {int: "a whole number", float: "a number", str: "text"}
