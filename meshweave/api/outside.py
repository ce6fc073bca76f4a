"""Compute outside of traced functions what is no program: arrays made of NumPy's, and results of any size."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from meshweave.errors import UsageError
from meshweave.frontends.python.builder import STATE
from meshweave.frontends.python.dtypes import INTEGERS, DType, as_dtype, limits, promoted, weak_kind
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array, as_mesh, as_numpy, dtype_name

_Function = Callable[..., Any]


def whole(value: np.ndarray[Any, Any], device: Mesh | str | None, dtype: str) -> Array:
    """Return an Array that each rank of a mesh holds the whole of. device: the mesh; None: one rank."""
    on, layout = as_mesh(device or ""), Layout.replicated(value.ndim)
    return Array.from_numpy(value, mesh=on, layout=layout, dtype=dtype)


def _asarray(function: _Function, made: _Function) -> _Function:
    @wraps(made)
    def asarray(
        value: Any,
        /,
        dtype: Any = None,
        *,
        device: Mesh | str | None = None,
        copy: bool | None = None,
    ) -> Any:
        if STATE.trace is not None:
            return made(value, dtype, device=device, copy=copy)
        if isinstance(value, Array):
            return _converted(value, dtype, device, copy)
        array, wanted = _numbers(value, None if dtype is None else as_dtype(dtype))
        if copy is False and not (isinstance(value, np.ndarray) and array is value):
            raise ValueError("asarray: copy=False, and a copy is needed")
        if copy is False:
            return Array([array], Mesh(), Layout.replicated(array.ndim), array.shape, wanted.name)
        return whole(array.copy() if array is value else array, device, wanted.name)

    return asarray


def _converted(value: Array, dtype: Any, device: Mesh | str | None, copy: bool | None) -> Any:
    import meshweave

    if device is not None and as_mesh(device) != value.mesh:
        value, copy = whole(value.numpy(), device, value.dtype_name), False
    if dtype is not None and as_dtype(dtype).name != value.dtype_name:
        return meshweave.astype(value, dtype)
    return value.copy() if copy else value


def _numbers(value: Any, dtype: DType | None) -> tuple[np.ndarray[Any, Any], DType]:
    """Return numbers of any kind as an array, and their dtype: that of an array, and of Python's the default one."""
    plain = isinstance(value, bool | int | float | complex | list | tuple)
    array = np.asarray(_listed(value)) if plain else as_numpy(value, "asarray")
    if plain and dtype is not None and dtype.name == "ui64" and array.dtype.kind == "f":
        # NumPy makes floats of integers on both sides of 2**63.
        exact = np.asarray(_listed(value), object)
        if array.size and all(isinstance(v, int) and 0 <= v < 1 << 64 for v in exact.flat):
            array = exact.astype(np.uint64)
    if array.dtype.kind not in "biufcV" or (array.dtype.kind == "V" and array.dtype.names):
        raise UsageError(f"asarray: a {type(value).__name__} is no array of numbers")
    if dtype is None:
        weak = plain and _is_weak(value)
        dtype = promoted([], [array.dtype.kind]) if weak else as_dtype(array.dtype)
    if dtype.kind in INTEGERS and array.size:
        whole = array.dtype.kind in INTEGERS
        if whole or (array.dtype.kind == "f" and plain):
            _check_range(array, dtype)
    target = np.dtype(np.float32) if dtype.name == "bf16" else dtype.numpy
    return (array if array.dtype.name == "bfloat16" else array.astype(target, copy=False)), dtype


def _check_range(array: np.ndarray[Any, Any], dtype: DType) -> None:
    least, most = limits(dtype)
    for end in (array.min(), array.max()):
        if not least <= end <= most:
            raise UsageError(f"asarray: {end} is no {dtype!r}")


def _listed(value: Any) -> Any:
    """Return lists with the Arrays in them as NumPy's."""
    if isinstance(value, list | tuple):
        return [_listed(v) for v in value]
    return value.numpy() if isinstance(value, Array) else value


def _is_weak(value: Any) -> bool:
    """Tell whether all leaves of nested lists are Python's numbers."""
    if isinstance(value, list | tuple):
        return all(_is_weak(v) for v in value)
    return weak_kind(value) is not None and not isinstance(value, np.generic)


_FOUND: dict[str, _Function] = {"unique_values": lambda x: np.unique(x, equal_nan=False)}
"""What finds results where NumPy's function of the name gives them in no order."""


def _data_dependent(function: _Function, made: _Function) -> _Function:
    """Make a function whose result has a size that the elements decide: outside of programs NumPy finds it."""
    name = made.__name__

    @wraps(made)
    def found(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
        if STATE.trace is not None or size is not None:
            fill = {} if fill_value is None else {"fill_value": fill_value}
            return made(x, size=size, **fill)
        import meshweave

        array = x if isinstance(x, Array) else meshweave.asarray(x)
        values = _FOUND.get(name, getattr(np, name))(array.numpy())
        parts = values if isinstance(values, tuple) else (values,)
        wanted = [
            array.dtype_name if v.dtype == array.numpy().dtype else dtype_name(v) for v in parts
        ]
        arrays = [whole(v, array.mesh, w) for v, w in zip(parts, wanted)]
        if not isinstance(values, tuple):
            return arrays[0]
        return type(values)(*arrays) if hasattr(values, "_fields") else tuple(arrays)

    return found


def _bincount(function: _Function, made: _Function) -> _Function:
    """Let bincount find its length outside of programs."""

    @wraps(made)
    def bincount(
        x: Any, /, weights: Any = None, minlength: int = 0, *, length: int | None = None
    ) -> Any:
        if STATE.trace is None and length is None:
            value = np.asarray(x)
            length = max(int(value.max()) + 1 if value.size else 0, minlength)
        return made(x, weights, minlength, length=length)

    return bincount


def _repeat(function: _Function, made: _Function) -> _Function:
    """Read how often elements are repeated, which the size of the result depends on."""

    @wraps(made)
    def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Any:
        if STATE.trace is None and isinstance(repeats, Array):
            repeats = repeats.numpy()
        return made(x, repeats, axis=axis)

    return repeat


def _unstack(function: _Function, made: _Function) -> _Function:
    """Return no arrays where a dim has no places: programs give at least one."""

    @wraps(made)
    def unstack(x: Any, /, *, axis: int = 0) -> Any:
        sizes = () if STATE.trace is not None else np.shape(x)
        if -len(sizes) <= axis < len(sizes) and not sizes[axis]:
            return ()
        return made(x, axis=axis)

    return unstack


def _put_along_axis(function: _Function, made: _Function) -> _Function:
    """Change the Array that is given, as NumPy's function does."""

    @wraps(made)
    def put_along_axis(x: Any, indices: Any, values: Any, /, axis: int) -> Any:
        if STATE.trace is not None or not isinstance(x, Array):
            return made(x, indices, values, axis)
        x.become(_like(x, made(x, indices, values, axis)))
        return x

    return put_along_axis


def _where(function: _Function, made: _Function) -> _Function:
    """Return the places where a condition holds if there is nothing to choose from, as NumPy's function does."""

    @wraps(made)
    def where(condition: Any, /, *choices: Any) -> Any:
        if choices:
            return made(condition, *choices)
        import meshweave

        return meshweave.nonzero(condition)

    return where


def _like(x: Array, found: Array) -> Array:
    """Return an Array of x's shape and dtype in its layout."""
    from meshweave.api.redistribution import redistribute

    return found if found.layout == x.layout else redistribute(found, x.layout)


OUTSIDE: dict[str, Callable[[_Function, _Function], _Function]] = {
    "asarray": _asarray,
    "bincount": _bincount,
    "put_along_axis": _put_along_axis,
    "repeat": _repeat,
    "unstack": _unstack,
    "where": _where,
    **dict.fromkeys(
        ("nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"),
        _data_dependent,
    ),
}
"""Functions that compute in a way of their own outside of traced functions: given ours, and the one by programs."""
