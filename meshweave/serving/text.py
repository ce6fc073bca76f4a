"""Text from tokens, a piece at a time, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from meshweave.errors import MeshweaveError, UsageError

_PARTIAL = "\ufffd"  # what a tokenizer gives for bytes that are not yet a character


class Tokenizer(Protocol):
    """Turn text into tokens and back."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""


class FileTokenizer:
    """Use a tokenizer.json, as the package `tokenizers` writes it."""

    def __init__(self, file: str) -> None:
        try:
            package = import_module("tokenizers")
        except ImportError:
            raise UsageError(
                "--tokenizer needs tokenizers, which is not installed: pip install 'meshweave[serve]'"
            ) from None
        try:
            self._inner = package.Tokenizer.from_file(file)
        except Exception as error:  # of the package's own kind, which has no name
            said = " ".join(str(error).split())
            raise MeshweaveError(f"{file}: no tokenizer: {said}") from None
        self.vocabulary = int(self._inner.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that begin every text."""
        return [int(token) for token in self._inner.encode(text).ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without those that mark begin and end."""
        return str(self._inner.decode(list(tokens)))


class TextStream:
    """Turn tokens into pieces of text as they come; what may yet become a stop string is held back.

    A token may be a part of a character, and its text may depend on the token before: so the text of the last few
    tokens is made again with each, and what is new of it is given.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, [stop for stop in stops if stop]
        self._tokens: list[int] = []
        self._first = self._given = (
            0  # tokens from which text is made again, and those whose text is known
        )
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Return the text that a token adds, up to a stop string; `stopped` tells that there was one."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._first : self._given])
        text = self._tokenizer.decode(self._tokens[self._first :])
        if text.endswith(_PARTIAL) or len(text) <= len(before):
            return ""
        self._first, self._given = self._given, len(self._tokens)
        return self._released(text[len(before) :])

    def end(self) -> str:
        """Return what was held back, when no token follows."""
        before = self._tokenizer.decode(self._tokens[self._first : self._given])
        text = self._tokenizer.decode(self._tokens[self._first :])
        made = "" if self.stopped else self._released(text[len(before) :]) + self._held
        self._first = self._given = len(self._tokens)
        self._held = ""
        return made

    def _released(self, new: str) -> str:
        text = self._held + new
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of a text with which a stop string may begin.

    >>> _overlap("a b", "bc")
    1
    """
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0
    )
