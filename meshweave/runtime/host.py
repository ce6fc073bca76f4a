"""Call functions of this process from compiled code: callbacks of programs, by their numbers.

A program names a function by a number that depends on its name and on how many of that name came before, not on the
process: ranks that are processes of their own, which trace the same program, agree on it.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshweave.abi import PURE
from meshweave.errors import MeshweaveError, RankError

Values = npt.NDArray[Any]


class ArrayKind(NamedTuple):
    """Describe an array that is given to a function, or comes back."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Return how large it is. What has no elements is not in the program."""
        return math.prod(self.shape) * self.dtype.itemsize

    def at(self, address: int) -> Values:
        """Return the array of this kind at an address: no copy."""
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        memory = memoryview((ctypes.c_char * self.nbytes).from_address(address))
        return np.frombuffer(memory, self.dtype).reshape(self.shape)


class PythonFunction(NamedTuple):
    """Hold a function of arrays, and of which kinds these are."""

    name: str
    call: Callable[..., Sequence[Any]]
    operands: tuple[ArrayKind, ...]
    results: tuple[ArrayKind, ...]


_FUNCTIONS: dict[int, PythonFunction] = {}
_ALIKE: dict[str, Iterator[int]] = {}
"""How many functions of a name and kinds came before."""


def registered(function: PythonFunction) -> int:
    """Keep a function for as long as this process lives; return its number, of 62 bits."""
    kinds = f"{function.name} {function.operands} {function.results}"
    before = next(_ALIKE.setdefault(kinds, count()))  # two threads never get the same
    text = f"{kinds} {before}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2
    _FUNCTIONS[number] = function
    return number


class _Raised(threading.local):
    """Hold what functions have raised in this thread's run: the first, and its name, and how many did."""

    first: tuple[str, BaseException] | None = None
    count = 0


class HostCalls:
    """Be what the code of one program calls; keep what a function has raised until the run is over.

    After that no function with effects is called any more. Pure ones are: what they give all ranks, which come to the
    end of the program together, must agree on. In the place of results are zeros and ones, in the order of Thue and
    Morse: whichever of them a loop waits for, and after however many other calls it asks again, it comes to its end.
    """

    def __init__(self) -> None:
        """Make the function that compiled code calls."""
        given = (ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))
        self._entry = ctypes.CFUNCTYPE(None, *given)(self._called)
        self._raised = _Raised()

    @property
    def address(self) -> int:
        """Return the address of the function."""
        return ctypes.cast(self._entry, ctypes.c_void_p).value or 0

    def heard(self, step: Callable[[int], int]) -> Callable[[int], int]:
        """Return a step that raises RankError, from what a function has raised in it, once it is over."""

        def raising(context: int) -> int:
            code = step(context)
            failed, self._raised.first, self._raised.count = self._raised.first, None, 0
            if failed is not None:
                name, error = failed
                line = f"{name} of Python raised {type(error).__name__}: {error}"
                raise RankError(line) from error
            return code

        return raising

    def _called(self, number: int, rank: int, places: Any) -> None:
        """Call a function. rank: PURE, where it has no effects; else the rank, of which the first alone calls it."""
        if rank > 0:
            return
        function = _FUNCTIONS.get(number)
        if function is None:
            missing = MeshweaveError(
                "the program calls a function of the process that compiled it: compile it in this one"
            )
            self._raised.first = self._raised.first or (f"function {number}", missing)
            return
        addresses = iter(places[k] for k in count())
        given = [kind.at(next(addresses) if kind.nbytes else 0) for kind in function.operands]
        results = [kind.at(next(addresses) if kind.nbytes else 0) for kind in function.results]
        try:
            if self._raised.first is None or rank == PURE:
                made = function.call(*[value.copy() for value in given])
                for place, value in zip(results, made, strict=True):
                    place[...] = value
                return
        except BaseException as error:  # told when the run is over: ranks must not part
            self._raised.first = self._raised.first or (function.name, error)
        for place in results:
            place[...] = self._raised.count.bit_count() % 2
        self._raised.count += 1
