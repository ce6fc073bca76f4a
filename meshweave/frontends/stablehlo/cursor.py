"""Read pretty-printed ops and attributes from MLIR text, token by token."""

import re
from collections.abc import Callable
from typing import TypeVar

from meshweave.errors import CompileError

T = TypeVar("T")
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_][\w$.-]*")
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_NUMBER = re.compile(r"-?\d+")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_TYPE = re.compile(r"!?[A-Za-z_][\w$.]*")
_BRACKET = re.compile(r'->|[<>()\[\]{}]|"(?:[^"\\\n]|\\.)*"|//[^\n]*')
_BRACE = re.compile(r'[{}]|"(?:[^"\\\n]|\\.)*"|//[^\n]*')
_CLOSING = {"<": ">", "(": ")", "[": "]", "{": "}"}


class Cursor:
    """Hold a position in `text`; errors call the text `name`.

    Each `take_*` moves past what it returns, and past white space and comments before it.
    """

    def __init__(self, text: str, pos: int = 0, name: str = "-") -> None:
        self.text, self.pos, self.name = text, pos, name

    def error(self, message: str, pos: int | None = None) -> CompileError:
        """Return a CompileError at `pos` (default: here), to be raised."""
        at = self.pos if pos is None else pos
        return CompileError(message, place(self.text, at, self.name))

    def skip(self) -> None:
        """Move past white space and comments."""
        space = _SPACE.match(self.text, self.pos)
        assert space is not None  # the pattern matches the empty string
        self.pos = space.end()

    def at(self, literal: str) -> bool:
        """Tell whether `literal` comes next."""
        self.skip()
        return self.text.startswith(literal, self.pos)

    def take_if(self, literal: str) -> bool:
        """Take `literal` if it comes next; tell whether it did."""
        if not self.at(literal):
            return False
        self.pos += len(literal)
        return True

    def take(self, literal: str) -> None:
        """Take `literal`. Raises CompileError when something else comes next."""
        if not self.take_if(literal):
            raise self.error(f"expected {literal!r}, found {self.found()}")

    def found(self) -> str:
        """Return what comes next, short and quoted, for messages."""
        self.skip()
        line = self.text[self.pos : self.pos + 24].split("\n", 1)[0]
        return repr(line) if line else "the end of the line or text"

    def _match(self, pattern: "re.Pattern[str]", what: str) -> "re.Match[str]":
        self.skip()
        m = pattern.match(self.text, self.pos)
        if m is None:
            raise self.error(f"expected {what}, found {self.found()}")
        self.pos = m.end()
        return m

    def take_name(self) -> str:
        """Take a bare identifier."""
        return self._match(_NAME, "a name").group()

    def take_symbol(self) -> str:
        """Take a symbol, `@mesh` or `@"my mesh"`; return its name without the @."""
        self.take("@")
        return self.take_string() if self.at('"') else self.take_name()

    def take_string(self) -> str:
        """Take a string in double quotes; return its content."""
        return self._match(_STRING, "a string").group(1)

    def take_number(self) -> int:
        """Take a whole number."""
        return int(self._match(_NUMBER, "a number").group())

    def take_value(self) -> str:
        """Take an SSA value: `%0`, `%arg1`, `%3#2`."""
        return self._match(_VALUE, "a value").group()

    def take_list(self, item: Callable[[], T], opening: str, closing: str) -> list[T]:
        """Take items with commas between them in brackets, perhaps none."""
        self.take(opening)
        items: list[T] = []
        while not self.at(closing):
            items.append(item())
            if not self.take_if(","):
                break
        self.take(closing)
        return items

    def take_type(self) -> str:
        """Take one type, such as `tensor<4x8xf32>` or `i32`."""
        start = self._match(_TYPE, "a type").start()
        if self.text.startswith("<", self.pos):
            self.take_group("<")
        return self.text[start : self.pos]

    def take_group(self, opening: str) -> str:
        """Take a bracket group; return it with its brackets."""
        self.skip()
        start, pos, stack = self.pos, self.pos, []
        if not self.text.startswith(opening, pos):
            raise self.error(f"expected {opening!r}, found {self.found()}")
        while (m := _BRACKET.search(self.text, pos)) is not None:
            token, pos = m.group(), m.end()
            if token in _CLOSING:
                stack.append(_CLOSING[token])
            elif token in (">", ")", "]", "}"):
                if stack.pop() != token:
                    raise self.error(f"{opening!r} is never closed: found {token!r} first", start)
                if not stack:
                    self.pos = pos
                    return self.text[start:pos]
        raise self.error(f"{opening!r} is never closed", start)

    def take_block(self) -> tuple[int, int]:
        """Take a region in braces; return the places of its `{` and behind its `}`. Fast on long bodies."""
        self.skip()
        start, pos, depth = self.pos, self.pos, 0
        if not self.text.startswith("{", pos):
            raise self.error(f"expected '{{', found {self.found()}")
        while (m := _BRACE.search(self.text, pos)) is not None:
            token, pos = m.group(), m.end()
            depth += (token == "{") - (token == "}")
            if depth == 0 and token == "}":
                self.pos = pos
                return start, pos
        raise self.error("'{' is never closed", start)


def place(text: str, pos: int, name: str) -> str:
    """Return `name:line:col` of position `pos` of `text`."""
    line = text.count("\n", 0, pos) + 1
    return f"{name}:{line}:{pos - text.rfind(chr(10), 0, pos)}"
