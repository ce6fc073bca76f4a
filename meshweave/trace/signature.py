"""What a call looks like to a compiled function: its leaves, and the value it is looked up by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.errors import UsageError
from meshweave.runtime.array import Array
from meshweave.trace import tree
from meshweave.trace.builder import where
from meshweave.trace.dtypes import as_dtype, promoted, weak_kind
from meshweave.trace.program import Spec


def leaf_spec(value: Any, path: str) -> Spec:
    """What the compiler has to know of an argument. UsageError, naming it, when it is no array."""
    if isinstance(value, Array):
        return Spec(tuple(value.shape), as_dtype(str(value.dtype)), layout=value.layout)
    kind = weak_kind(value)
    if kind is not None:
        dtype = promoted([], [kind])
        if kind == "i" and not -(1 << 63) <= value < 1 << 63:
            raise UsageError(f"argument {path}: {value:.10e} is no {dtype!r}", where())
        return Spec((), dtype, weak=True)
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
        return Spec(tuple(value.shape), as_dtype(value.dtype))
    except UsageError as error:
        raise UsageError(f"argument {path}: {error.message}", where()) from None


def check_fits(value: Any, spec: Spec, path: str) -> None:
    """UsageError, naming the argument, when a Python scalar is too large for the integers that it is used with."""
    if spec.narrow is None:
        return
    half = 1 << (spec.narrow.bits - 1)
    if not -half <= value < half:
        raise UsageError(
            f"argument {path}: {value} is no {spec.narrow!r}, the type of what it meets", where()
        )


def told_apart(value: Any) -> Any:
    """A key for a static value that Python does not hold for equal to others: 1, True and 1.0 are three, 0.0 and -0.0
    two, and NaN is one.
    """
    kind = type(value)
    if isinstance(value, float | complex):
        return kind, repr(value)
    if isinstance(value, tuple):
        return kind, tuple(told_apart(v) for v in value)
    if isinstance(value, frozenset):
        return kind, frozenset(told_apart(v) for v in value)
    return kind, value


def fast_key(args: Sequence[Any]) -> Any:
    """The key of a call on NumPy arrays and Arrays alone, None for any other: what costs nothing to look up."""
    key: list[Any] = []
    for value in args:
        kind = type(value)
        if kind is np.ndarray:
            key += (value.dtype, value.shape)
        elif kind is Array:
            key += (value.dtype, value.shape, value.layout, value.mesh)
        else:
            return None
    return tuple(key)


def differences(new: Sequence[Spec], old: Sequence[Spec], names: Sequence[str]) -> list[str]:
    """In words, one for each argument of which the specs differ."""
    return [f"{name} is {a}, was {b}" for name, a, b in zip(names, new, old, strict=True) if a != b]


def argument_paths(structure: tree.Structure, names: Sequence[str]) -> list[str]:
    """How each leaf of the arguments is called: `x`, `params["w"]`, .."""
    args, kwargs = structure[2]
    found = []
    for i, child in enumerate(args[2]):
        name = names[i] if i < len(names) else f"argument {i}"
        found += [f"{name}{path}" for path in tree.paths(child)]
    for key, child in zip(kwargs[1], kwargs[2]):
        found += [f"{key}{path}" for path in tree.paths(child)]
    return found
