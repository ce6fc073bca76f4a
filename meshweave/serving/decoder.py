"""What a model must give to be served: slots for sequences, a program for a prompt, and one for the next tokens.

A file `model.py` that `meshweave serve` takes defines `decoder`, which returns such a model:

    def decoder(mesh: str = "", engine: str = "local", slots: int = 8) -> Decoder: ...
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from meshweave.errors import CompileError, MeshweaveError, UsageError, did_you_mean

Logits: TypeAlias = np.ndarray[Any, Any]


class Decoder(Protocol):
    """Decode up to `slots` sequences at a time; each has at most `length` tokens, its prompt included.

    vocabulary: tokens are 0 to vocabulary - 1. ends: the tokens that end a sequence.
    """

    slots: int
    length: int
    vocabulary: int
    ends: Collection[int]

    def prefill(self, slot: int, tokens: np.ndarray[Any, Any]) -> Logits:
        """Begin a sequence in a slot, whatever was there; return the logits (vocabulary) behind its last token."""

    def decode(self, tokens: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> Logits:
        """Put one token in each slot, at its place, and return the logits (slots, vocabulary) behind each.

        tokens, places: int32 of (slots). A slot without a sequence has token 0 at place 0; what is returned for it is
        not looked at.
        """

    def reset(self) -> None:
        """Forget all sequences. Called after a failure too: what the decoder held may be lost with it."""

    def close(self) -> None:
        """Free threads, processes and memory."""


Options: TypeAlias = dict[str, Any]
_NEEDED = ("slots", "length", "vocabulary", "ends", "prefill", "decode", "reset", "close")


def decoder_of(file: str, options: Options) -> Decoder:
    """Run a Python file and return what its function `decoder` gives for these options.

    Raises UsageError for an option that it does not take, CompileError for what is wrong with the file.
    """
    make: Callable[..., Any] | None = getattr(_loaded(file), "decoder", None)
    if not callable(make):
        raise CompileError("no function `decoder`, which returns what is to be served", file)
    known = inspect.signature(make).parameters
    for name in options:
        if name not in known:
            raise UsageError(
                f"--{name}: decoder of {file} takes no {name}{did_you_mean(name, known)}"
            )
    made: Decoder = _called(file, lambda: make(**options))
    return checked(made, file)


def checked(decoder: Decoder, who: str) -> Decoder:
    """Return a decoder. Raises CompileError unless it has all that one needs."""
    missing = [name for name in _NEEDED if not hasattr(decoder, name)]
    if missing:
        raise CompileError(f"{type(decoder).__name__} has no {', '.join(missing)}", who)
    for name in ("slots", "length", "vocabulary"):
        value = getattr(decoder, name)
        if not isinstance(value, int) or value < 1:
            raise CompileError(f"{name} is {value!r:.40}, a number of at least 1 is needed", who)
    return decoder


def _loaded(file: str) -> Any:
    """Run a file as a module; its folder is where it may import from."""
    path = Path(file).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CompileError("cannot read it as Python", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    loader = spec.loader
    _called(file, lambda: loader.exec_module(module))
    return module


def _called(file: str, function: Callable[[], Any]) -> Any:
    """Call what is in a file of the user. Raises CompileError, with the line of the file, for what it raises."""
    try:
        return function()
    except MeshweaveError:
        raise
    except Exception as error:
        path = str(Path(file).resolve())
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == path), None)
        where = f"{file}:{line}" if line else file
        raise CompileError(
            f"{type(error).__name__}: {' '.join(str(error).split())}", where
        ) from None
