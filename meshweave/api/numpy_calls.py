"""Take calls of NumPy's functions on Arrays: ours of the same meaning compute them on the ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from meshweave.errors import UsageError
from meshweave.frontends.python.spelling import SYNONYMS
from meshweave.runtime.arrays.array import Array

_METHODS = {
    ("add", "reduce"): "sum",
    ("multiply", "reduce"): "prod",
    ("maximum", "reduce"): "max",
    ("minimum", "reduce"): "min",
    ("logical_and", "reduce"): "all",
    ("logical_or", "reduce"): "any",
    ("add", "accumulate"): "cumulative_sum",
}
"""NumPy's function and its method -> ours."""
_ON_VALUES = {
    "allclose", "array_equal", "array_equiv", "array_repr", "array_str", "array2string", "can_cast", "copyto",
    "iscomplexobj", "isrealobj", "may_share_memory", "result_type", "save", "savetxt", "savez", "savez_compressed",
    "shares_memory",
}  # fmt: skip
"""Functions that look at the value or at what it is, and make no array of it: they get NumPy arrays."""
_ON_SHAPES = {"ndim", "shape", "size"}
"""Functions that look at the shape alone: nothing is gathered, and a donated Array has a shape too."""


def numpy_ufunc(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Compute a universal function of NumPy's on Arrays. Raises UsageError for what there is none of ours for."""
    options = dict(options)
    outs = options.pop("out", None)
    name = _own(ufunc.__name__) if method == "__call__" else _METHODS.get((ufunc.__name__, method))
    function = _function(name)
    if function is None or (options and method == "__call__"):
        said = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise UsageError(
            f"np.{said}{' with ' + ', '.join(options) if options else ''} does not work on Arrays: "
            f"np.asarray(a) is the value{_hint(said)}"
        )
    if method == "reduce" and "axis" not in options:
        options["axis"] = 0
    made = function(*inputs, **options)
    if outs is None:
        return made
    return _into(outs[0], made)


def _into(out: Any, made: Any) -> Any:
    """Give a result to the array that NumPy was told to write it to."""
    if isinstance(out, Array):
        out[...] = made
    else:
        np.copyto(out, made.numpy(), casting="same_kind")
    return out


def numpy_function(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Compute a function of NumPy's on Arrays. Raises UsageError for what there is none of ours for."""
    name = function.__name__
    if name in _ON_VALUES or name in _ON_SHAPES:
        of = Array.numpy if name in _ON_VALUES else _shaped
        return function(*_with(of, args), **dict(zip(kwargs, _with(of, tuple(kwargs.values())))))
    inner = function.__module__.removeprefix("numpy").strip(".")
    own = f"{inner}.{name}" if inner in ("linalg", "fft") else _own(name)
    found = _function(own)
    if found is None:
        raise UsageError(
            f"np.{name} does not work on Arrays: np.asarray(a) is the value{_hint(name)}"
        )
    takes, takes_any = _parameters(found)
    if not kwargs.keys() <= takes:
        kwargs = {k: v for k, v in kwargs.items() if k in takes or not _is_default(v)}
        more = ", ".join(k for k in kwargs if k not in takes)
        if more and not takes_any:
            raise UsageError(
                f"np.{name} with {more} does not work on Arrays: np.asarray(a) is the value"
            )
    return found(*args, **kwargs)


@cache
def _parameters(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """Return the names of the arguments of a function, and whether it takes any besides."""
    found = inspect.signature(function).parameters.values()
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found)
    return frozenset(p.name for p in found), takes_any


def _is_default(value: object) -> bool:
    """Tell whether an option of NumPy's says nothing."""
    return value is None or value is np._NoValue


def _own(name: str) -> str:
    return SYNONYMS.get(name, name)


def _function(name: str | None) -> Callable[..., Any] | None:
    """Return a public function by its name, with `linalg.` or `fft.` before it or not."""
    import meshweave

    found: Any = meshweave
    for part in (name or "-").split("."):
        found = getattr(found, part, None)
    return found if callable(found) else None


def _hint(name: str) -> str:
    own = _own(name)
    return f", mw.{own} a function like it" if _function(own) is not None else ""


def _with(of: Callable[[Array], Any], value: Any) -> Any:
    """Return nested arguments with what `of` gives in place of Arrays."""
    if isinstance(value, list | tuple):
        return type(value)([_with(of, v) for v in value])
    return of(value) if isinstance(value, Array) else value


def _shaped(array: Array) -> Any:
    """Return a NumPy array of the shape of an Array, which takes no memory."""
    return np.broadcast_to(np.zeros(()), array.shape)
