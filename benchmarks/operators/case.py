"""A case of the sweep: an operator on arguments of given shapes, written for JAX and for torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

Function = Callable[..., Any]
RANKS = 2

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "u8": np.uint8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "bool": np.bool_,
}
_FORM = re.compile(r"(\w+)\[([\d,]*)\](\+|<\d+)?")


@dataclass(frozen=True)
class Split:
    """Where the arguments lie on an axis `x` of two ranks, and the least bytes that a rank must receive for it.

    layouts: of each argument; None leaves one to propagation.
    bound:   bytes that the busiest rank receives in any partition of the operator from there. A result made of rows
             that are cut may lie anywhere, one that is a sum over them is whole on each rank.
    """

    layouts: tuple[str | None, ...]
    bound: int = 0


@dataclass(frozen=True)
class Case:
    """An operator and its arguments.

    arguments: `f32[128,64]`: normal numbers; `f32[128]+`: positive ones; `i32[9]<50`: whole ones from 0 to 49.
    jax:       the operator, of the module jax and arrays of JAX. torch: of the module torch and its tensors, or None.
    gradient:  the arguments by which it is differentiated, against a result given as one more argument; () forward.
    dp, tp:    how two ranks may share it.
    """

    family: str
    name: str
    arguments: tuple[str, ...]
    jax: Function
    torch: Function | None = None
    gradient: tuple[int, ...] = ()
    dp: Split | None = None
    tp: Split | None = None

    def function(self, jax: ModuleType) -> Function:
        """Return what JAX compiles, of the arguments (and the result's gradient)."""

        def forward(*arrays: Any) -> Any:
            return self.jax(jax, *arrays)

        def backward(*arrays: Any) -> Any:
            *given, seed = arrays

            def by(*chosen: Any) -> Any:
                full = list(given)
                for at, value in zip(self.gradient, chosen, strict=True):
                    full[at] = value
                return self.jax(jax, *full)

            return jax.vjp(by, *(given[at] for at in self.gradient))[1](seed)

        return backward if self.gradient else forward

    def torch_function(self, torch: ModuleType) -> Function | None:
        """Return what torch runs, of the same arguments; None where the case is not written for it."""
        if self.torch is None:
            return None
        written = self.torch

        def forward(*tensors: Any) -> Any:
            with torch.no_grad():
                return written(torch, *tensors)

        def backward(*tensors: Any) -> Any:
            *given, seed = tensors
            given = [t.detach() for t in given]
            by = [given[at].requires_grad_() for at in self.gradient]
            return torch.autograd.grad(written(torch, *given), by, seed)

        return backward if self.gradient else forward

    def drawn(self) -> list[np.ndarray[Any, Any]]:
        """Draw the arguments, the same each time."""
        rng = np.random.default_rng(0)
        return [draw(text, rng) for text in self.arguments]


def draw(text: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draw an array of a form such as `i32[4,4]<10`."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f'the argument "{text}" is not of a form such as f32[4,4] or i32[4]<10')
    kind, sizes, rest = found.groups()
    shape, dtype = tuple(int(n) for n in sizes.split(",") if n), DTYPES[kind]
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    if kind[0] in "iu":
        return rng.integers(0, int(rest[1:]) if rest else 100, shape).astype(dtype)
    values = rng.standard_normal(shape)
    return np.asarray(np.abs(values) + 0.125 if rest == "+" else values).astype(dtype)


def nbytes(*texts: str) -> int:
    """Return the bytes of arrays of these forms."""
    found = [_FORM.fullmatch(text) for text in texts]
    return sum(
        prod(int(n) for n in m[2].split(",") if n) * np.dtype(DTYPES[m[1]]).itemsize
        for m in found
        if m
    )


def added(*texts: str) -> int:
    """Return the bytes that a rank receives of sums, or extremes, that each of two ranks is to have whole.

    For p ranks they are 2 (p - 1) / p of the tensor: the own part of each other's addend, then the others' sums
    [Patarasuk, Yuan, JPDC 2009].
    """
    return 2 * (RANKS - 1) * nbytes(*texts) // RANKS


def both(written: Function) -> dict[str, Function]:
    """Return the fields `jax` and `torch` of an operator that is spelled alike in jax.numpy and in torch."""
    return {
        "jax": lambda jax, *arrays: written(jax.numpy, *arrays),
        "torch": lambda torch, *tensors: written(torch, *tensors),
    }


def first_dims(arguments: Sequence[str], shared: Sequence[int] = ()) -> tuple[str | None, ...]:
    """Return layouts that cut the first dim of each argument, but of those at `shared`, which every rank has."""
    found: list[str | None] = []
    for at, text in enumerate(arguments):
        rank = len([n for n in text.split("[")[1].split("]")[0].split(",") if n])
        first = "_" if at in shared else "x"
        found.append(f"[{', '.join([first, *'_' * (rank - 1)])}]" if rank else "[]")
    return tuple(found)


def dp(arguments: Sequence[str], shared: Sequence[int] = (), bound: int = 0) -> Split:
    """Cut the first dim of each argument; those at `shared` lie on every rank."""
    return Split(first_dims(arguments, shared), bound)
