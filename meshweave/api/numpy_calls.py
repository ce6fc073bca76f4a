"""Take calls of NumPy's functions on Arrays: ours of the same meaning compute them on the ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from meshweave.api.outside import whole
from meshweave.errors import UsageError
from meshweave.frontends.python.builder import STATE
from meshweave.frontends.python.spelling import SYNONYMS
from meshweave.runtime.arrays.array import Array, dtype_name

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
_DECIDED = {"argwhere", "flatnonzero", "intersect1d", "setdiff1d", "setxor1d", "union1d", "unique"}
"""Functions whose results have sizes that the elements decide."""
_LIKE = {"empty_like", "full_like", "ones_like", "zeros_like"}
"""Functions that may be told another shape."""
_MEANS = {"mean", "nanmean", "nanstd", "nanvar", "std", "var"}
"""Functions whose option dtype says what they compute in; ours compute in the dtype that they are given."""
_HOW = {"optimize"}
"""Options that say how to compute, not what."""
_ON_SHAPES = {"ndim", "shape", "size"}
"""Functions that look at the shape alone: nothing is gathered, and a donated Array has a shape too."""


def numpy_ufunc(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Compute a universal function of NumPy's on Arrays. Raises UsageError for what there is none of ours for."""
    options = dict(options)
    outs = options.pop("out", None)
    where = options.pop("where", True) if outs is not None and method == "__call__" else True
    said = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    if method == "outer":
        method, inputs = "__call__", _crossed(*inputs)
    dtype = options.get("dtype")
    compares = all(kind.endswith("?") for kind in ufunc.types if "O" not in kind)
    if dtype is not None and method == "__call__" and ufunc.nout == 1 and not compares:
        inputs = _converted(inputs, options.pop("dtype"))
    if method in ("reduce", "accumulate"):
        options.setdefault("axis", 0)
    name = _own(ufunc.__name__) if method == "__call__" else _METHODS.get((ufunc.__name__, method))
    function = _function(name)
    more = () if function is None else options.keys() - _parameters(function)[0]
    if function is None or more or (options and method == "__call__"):
        raise UsageError(
            f"np.{said}{' with ' + ', '.join(options) if options else ''} does not work on Arrays: "
            f"np.asarray(a) is the value{_hint(said)}"
        )
    made = function(*inputs, **options)
    if method == "__call__" and dtype is not None and made.dtype != dtype:
        raise UsageError(f"np.{said} with dtype={dtype}: the result is {made.dtype}")
    if outs is None:
        return made
    several = isinstance(made, tuple)
    written = [_into(out, v, where) for out, v in zip(outs, made if several else (made,))]
    return tuple(written) if several else written[0]


def _crossed(left: Any, right: Any) -> tuple[Any, Any]:
    """Return operands of which each element of the first one meets all of the second one."""
    reshape = _function("reshape")
    assert reshape is not None
    return reshape(left, np.shape(left) + (1,) * np.ndim(right)), right


def _converted(inputs: Sequence[Any], dtype: Any) -> Sequence[Any]:
    """Return operands in the dtype that a call asks for."""
    astype = _function("astype")
    assert astype is not None
    return [astype(v, np.dtype(dtype)) for v in inputs]


def _into(out: Any, made: Any, where: Any) -> Any:
    """Give a result to the array that NumPy was told to write it to, at the places where it was told to."""
    if where is not True:
        choose = _function("where")
        assert choose is not None
        made = choose(where, made, out)
    if out is None:
        return made
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
    if name in _LIKE and kwargs.get("shape") is not None:
        return _of_shape(name, *args, **kwargs)
    if name in _DECIDED and STATE.trace is None:
        return _decided(function, args, kwargs)
    if name == "svd" and not kwargs.get("compute_uv", True):
        name, kwargs = "svdvals", {k: v for k, v in kwargs.items() if k != "compute_uv"}
    inner = function.__module__.removeprefix("numpy").strip(".")
    own = f"{inner}.{name}" if inner in ("linalg", "fft") else _own(name)
    found = _function(own)
    if found is None:
        raise UsageError(
            f"np.{name} does not work on Arrays: np.asarray(a) is the value{_hint(name)}"
        )
    args = _arrays_of_lists(found, args)
    takes, takes_any = _parameters(found)
    out = kwargs.get("out")
    kwargs = {k: v for k, v in kwargs.items() if k not in _HOW and k != "out"}
    if name in _MEANS and (dtype := kwargs.pop("dtype", None)) is not None:
        args = [*_converted(args[:1], dtype), *args[1:]]
    if not kwargs.keys() <= takes:
        kwargs = {k: v for k, v in kwargs.items() if k in takes or not _is_default(v)}
        more = ", ".join(k for k in kwargs if k not in takes)
        if more and not takes_any:
            raise UsageError(
                f"np.{name} with {more} does not work on Arrays: np.asarray(a) is the value"
            )
    made = found(*args, **kwargs)
    return made if out is None else _into(out, made, True)


def _of_shape(name: str, like: Array, *fill: Any, shape: Any, dtype: Any = None, **how: Any) -> Any:
    """Make an array of another shape than `like`, of its dtype and on its mesh."""
    how = {k: v for k, v in how.items() if k == "fill_value"}
    made = _function(name.removesuffix("_like"))
    assert made is not None
    return made(shape, *fill, dtype=dtype or like.dtype, device=like.mesh, **how)


def _decided(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Let NumPy find results whose sizes the elements decide; each rank of the mesh gets the whole."""
    values, named = _with(Array.numpy, args), _with(Array.numpy, list(kwargs.values()))
    made = function(*values, **dict(zip(kwargs, named)))
    mesh = max((a.mesh for a in _arrays([*args, *kwargs.values()])), key=lambda mesh: mesh.nranks)
    parts = made if isinstance(made, tuple) else (made,)
    arrays = [whole(np.asarray(v), mesh, dtype_name(np.asarray(v))) for v in parts]
    if not isinstance(made, tuple):
        return arrays[0]
    return type(made)(*arrays) if hasattr(made, "_fields") else tuple(arrays)


def _arrays(values: Any) -> list[Array]:
    """Return the Arrays among nested arguments."""
    if isinstance(values, list | tuple):
        return [a for v in values for a in _arrays(v)]
    return [values] if isinstance(values, Array) else []


def _arrays_of_lists(function: Callable[..., Any], args: Sequence[Any]) -> Sequence[Any]:
    """Return arguments with NumPy arrays in place of lists of numbers, where a function takes one array."""
    kinds = [str(p.annotation) for p in inspect.signature(function).parameters.values()]
    return [
        np.asarray(v)
        if isinstance(v, list | tuple)
        and not _arrays(v)
        and "ArrayLike" in kind
        and "Sequence" not in kind
        else v
        for v, kind in zip(args, kinds)
    ] + list(args[len(kinds) :])


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
