"""Split PTX text into tokens, each with its line."""

from __future__ import annotations

import re
from typing import NamedTuple

from meshweave.simulator.ptx.fault import EmulationError

_TOKEN = re.compile(
    r"(?P<blank>[ \t\r]+|//[^\n]*)|(?P<line>\n)|(?P<comment>/\*.*?\*/)"
    r'|(?P<string>"[^"\n]*")|(?P<word>[%$.\w]+(?:::[\w.]+)*)|(?P<mark>[@!{}()\[\]<>;:,=+|-])',
    re.DOTALL,
)


class Token(NamedTuple):
    """Hold a word, string or mark of the text, and its line."""

    text: str
    line: int


def tokens(text: str) -> list[Token]:
    """Return the tokens of PTX text without comments.

    Raises EmulationError at a character that PTX has only in strings and comments.
    """
    found, line, position = [], 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise EmulationError(f"ptx line {line}: unexpected character {text[position]!r}")
        kind, piece = match.lastgroup, match.group()
        if kind in ("word", "mark", "string"):
            found.append(Token(piece, line))
        elif kind in ("line", "comment"):
            line += piece.count("\n")
        position = match.end()
    return found
