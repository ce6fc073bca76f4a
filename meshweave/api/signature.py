"""Describe a call to a compiled function: its leaves, and the key that its program is found by."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from meshweave.errors import UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import where
from meshweave.frontends.python.dtypes import (
    Scalar,
    as_dtype,
    complex128,
    limits,
    promoted,
    weak_kind,
)
from meshweave.frontends.python.program import ArgumentSpec
from meshweave.runtime.arrays.array import Array


def leaf_spec(value: object, path: str) -> ArgumentSpec:
    """Return what the compiler has to know of an argument. Raises UsageError, naming it, if it is no array."""
    if isinstance(value, Array):
        return ArgumentSpec(tuple(value.shape), as_dtype(value.dtype_name), layout=value.layout)
    if isinstance(value, Scalar):
        kind = weak_kind(value) or "f"
        dtype = complex128 if kind == "c" else promoted([], [kind])  # no digit is lost beside it
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            many = f"an integer of {value.bit_length()} bits"
            said = f"{value:.10e}" if abs(value) < 1 << 1000 else many
            raise UsageError(f"argument {path}: {said} is no {dtype!r}", where())
        return ArgumentSpec((), dtype, weak=True)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise UsageError(
            f"argument {path}: {type(value).__name__} is no array; name it in static_argnames",
            where(),
        )
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(
            f"argument {path}: a masked array: give its data and its mask as two arrays", where()
        )
    try:
        return ArgumentSpec(tuple(value.shape), as_dtype(value.dtype))
    except UsageError as error:
        raise UsageError(f"argument {path}: {error.message}", where()) from None


def check_fits(value: float, spec: ArgumentSpec, path: str) -> None:
    """Raise UsageError, naming the argument, if a Python scalar is too large for the integers that it meets."""
    if spec.narrow is None:
        return
    low, high = limits(spec.narrow)
    if not low <= value <= high:
        raise UsageError(
            f"argument {path.removeprefix('argument ')}: {value} is no {spec.narrow!r}, the type of what it meets",
            where(),
        )


def told_apart(value: object) -> Hashable:
    """Return a key for a static value that differs where Python calls values equal.

    1, True and 1.0 have three keys, 0.0 and -0.0 two, and NaN one.
    """
    kind = type(value)
    if isinstance(value, float | complex):
        return kind, repr(value)
    if isinstance(value, tuple):
        return kind, tuple(told_apart(v) for v in value)
    if isinstance(value, frozenset):
        return kind, frozenset(told_apart(v) for v in value)
    return kind, value


_ARRAYS = {Array}
FAST = frozenset({Array, np.ndarray})
"""The types of arguments that have a cheap key."""


def fast_key(args: Sequence[Any]) -> tuple[Hashable, ...] | None:
    """Return a cheap key of a call on NumPy arrays and Arrays alone, None for any other call."""
    alike = kinds_of(args) if args and type(args[0]) is Array else None
    return _mixed_key(args) if alike is None else alike


def kinds_of(args: Sequence[Any]) -> tuple[Hashable, ...] | None:
    """Return the key of a call on Arrays alone, None for any other call, or one without arguments."""
    return tuple([a.kind for a in args]) if set(map(type, args)) == _ARRAYS else None


def _mixed_key(args: Sequence[Any]) -> tuple[Hashable, ...] | None:
    key: list[Any] = []
    for value in args:
        kind = type(value)
        if kind is np.ndarray:
            key += (value.dtype, value.shape)
        elif kind is Array:
            key.append(value.kind)
        else:
            return None
    return tuple(key)


def differences(
    new: Sequence[ArgumentSpec], old: Sequence[ArgumentSpec], names: Sequence[str]
) -> list[str]:
    """Say in words how each argument differs, where its specs do."""
    return [f"{name} is {a}, was {b}" for name, a, b in zip(names, new, old, strict=True) if a != b]


def argument_structures(structure: tree.Structure) -> tuple[tree.Container, tree.Container]:
    """Return the structures of the positional and the named arguments of a call."""
    assert isinstance(structure, tree.Container)
    args, kwargs = structure.children
    assert isinstance(args, tree.Container) and isinstance(kwargs, tree.Container)
    return args, kwargs


def argument_paths(structure: tree.Structure, names: Sequence[str]) -> list[str]:
    """Return what each leaf of the arguments is called: `x`, `params["w"]`, ..."""
    args, kwargs = argument_structures(structure)
    found = []
    for i, child in enumerate(args.children):
        name = names[i] if i < len(names) else f"argument {i}"
        found += [f"{name}{path}" for path in tree.paths(child)]
    for key, child in zip(kwargs.keys or (), kwargs.children):
        found += [f"{key}{path}" for path in tree.paths(child)]
    return found
