"""Damage to text and bytes: tokens of one text put into another, numbers and types changed, lines lost or moved."""

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

NUMBERS = ("0", "1", "2", "3", "5", "7", "8", "16", "-1", "?", "1000000", "9223372036854775807")
ELEMENTS = ("f32", "f64", "f16", "bf16", "i1", "i8", "i16", "i32", "i64", "ui8", "ui32", "index")
TOKENS = (
    *("0", "-1", "9", "?", "x", "<", ">", "{", "}", "(", ")", "[", "]", '"', "%0", "@main", "^bb0"),
    *("tensor<", "99999999999", ",", "->", "=", "dense<", "_", "true", "*", "complex<f32>"),
    *("tensor<0xf32>", "tensor<f32>", "none", "\0", "\x7f", "é"),
)
VALUES: tuple[Any, ...] = (
    *(
        0,
        1,
        2,
        3,
        64,
        -1,
        1 << 31,
        1 << 40,
        1 << 80,
        0.5,
        True,
        None,
        "",
        "x",
        "[x]",
        "f64",
        "step",
        [],
        {},
        [1],
    ),
)
_WORD = re.compile(r'%[\w.]+|@\w+|\w+\.\w+|"[^"\n]*"|\d+|\w+')


@st.composite
def garbled(draw: st.DrawFn, texts: st.SearchStrategy[str], tokens: Sequence[str]) -> str:
    """A text with up to four tokens put in or pieces left out."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        lost = draw(st.sampled_from((0, 0, 1, 3)))
        text = text[:at] + draw(st.sampled_from(("", *tokens))) + text[at + lost :]
    return text


def _number(draw: st.DrawFn, text: str) -> str:
    """Change a number at one place, or at all: sizes then still agree."""
    found = sorted(set(re.findall(r"(?<![\w.%@#])\d+|\d+(?=x)|(?<=x)\d+", text)))
    if not found:
        return text
    old, new = draw(st.sampled_from(found)), draw(st.sampled_from(NUMBERS))
    pattern = rf"(?<![\d.%#]){old}(?![\d.])"
    if draw(st.booleans()):
        return re.sub(pattern, new, text)
    return _one(draw, text, pattern, new)


def _element(draw: st.DrawFn, text: str) -> str:
    """Change an element type, at one place or at all."""
    old, new = draw(st.sampled_from(ELEMENTS)), draw(st.sampled_from(ELEMENTS))
    pattern = rf"(?<![a-z0-9.]){old}\b|(?<=x){old}\b"
    return re.sub(pattern, new, text) if draw(st.booleans()) else _one(draw, text, pattern, new)


def _word(draw: st.DrawFn, text: str) -> str:
    """Put one word of the text, a name, an op or a string, in the place of another."""
    words = list(_WORD.finditer(text))
    if not words:
        return text
    at = draw(st.sampled_from(range(len(words))))
    alike = sorted({w[0] for w in words if _sort(w[0]) == _sort(words[at][0])})
    return text[: words[at].start()] + draw(st.sampled_from(alike)) + text[words[at].end() :]


def _sort(word: str) -> str:
    return word[0] if word[0] in '%@"' else "op" if "." in word else "n" if word.isdigit() else "w"


def _one(draw: st.DrawFn, text: str, pattern: str, new: str) -> str:
    places = list(re.finditer(pattern, text))
    if not places:
        return text
    place = places[draw(st.sampled_from(range(len(places))))]
    return text[: place.start()] + new + text[place.end() :]


def _lines(draw: st.DrawFn, text: str) -> str:
    """Lose, double or move a line."""
    lines = text.split("\n")
    at, to = (draw(st.sampled_from(range(len(lines)))) for _ in range(2))
    what = draw(st.sampled_from(("lose", "double", "move")))
    line = lines[at] if what == "double" else lines.pop(at)
    if what != "lose":
        lines.insert(to, line)
    return "\n".join(lines)


def _token(draw: st.DrawFn, text: str) -> str:
    at, lost = draw(st.integers(0, len(text))), draw(st.sampled_from((0, 1, 5, 20)))
    return text[:at] + draw(st.sampled_from(("", *TOKENS))) + text[at + lost :]


@st.composite
def changed(draw: st.DrawFn, texts: Sequence[str]) -> str:
    """A program of `texts`, changed once to three times, most often so that it can still be parsed."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        text = draw(st.sampled_from((_number, _element, _word, _word, _lines, _token)))(draw, text)
    return text


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with a few of them changed, left out or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.sampled_from((1, 1, 2, 4)))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        lost = draw(st.sampled_from((0, 1, 1, 1, 8, 1 << 30)))
        data[at : at + lost] = draw(st.binary(max_size=4))
    return bytes(data)


def json_changed(draw: st.DrawFn, value: Any) -> Any:
    """A value as JSON has it, with one part of it changed."""
    if isinstance(value, dict | list) and value and draw(st.integers(0, 4)):
        keys = sorted(value) if isinstance(value, dict) else range(len(value))
        key = draw(st.sampled_from(keys))
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        if draw(st.integers(0, 9)) == 0:
            del copy[key]
        else:
            copy[key] = json_changed(draw, value[key])
        return copy
    near = [value + 1, max(0, value - 1), value * 2] if type(value) is int else []
    return draw(st.sampled_from((*VALUES, *near)))
