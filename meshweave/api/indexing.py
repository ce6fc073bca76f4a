"""Index Arrays and assign to their elements, outside of traced functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshweave.api.alike import made
from meshweave.api.eager import eager
from meshweave.api.outside import whole
from meshweave.errors import UsageError
from meshweave.frontends.python.builder import STATE
from meshweave.frontends.python.dtypes import as_dtype, promoted, weak_kind
from meshweave.frontends.python.functions import index
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.elements import narrow
from meshweave.runtime.arrays.kind import kind_of


def _indexed(x: ArrayLike, key: tuple[ArrayLike, ...]) -> Tracer:
    return index.getitem(tensor(x), key)  # type: ignore[arg-type]  # of arrays, slices, numbers


_by_program = eager(_indexed, "getitem")


def getitem(array: Array, key: Any) -> Any:
    """Return `array[key]`, as NumPy has it: also by masks. Raises IndexError for what is out of range."""
    if STATE.trace is not None:
        return tensor(array)[key]
    keys = tuple(_plain(k) for k in (key if isinstance(key, tuple) else (key,)))
    if array.kind.is_plain:
        found = np.array(array.held[0][keys], order="C")  # a copy: Arrays share no elements
        layout = array.layout.replicated(found.ndim)
        return made(kind_of(array.mesh, layout, found.shape, array.dtype_name), (found,))
    np.broadcast_to(np.int8(0), array.shape)[keys]  # raises IndexError
    if any(isinstance(k, bool | np.bool_) for k in keys):  # a dim of size 0 or 1 more: for NumPy
        return whole(array.numpy()[keys], array.mesh, array.dtype_name)
    return _by_program(array, tuple(part for k in keys for part in _places(k)))


def _plain(key: Any) -> Any:
    """Return a part of an index with NumPy arrays in place of others."""
    if isinstance(key, slice):
        ends = (key.start, key.stop, key.step)
        return slice(*[v if v is None else v.__index__() for v in ends])
    if isinstance(key, Array):
        return key.numpy() if key.ndim else key.item()
    return np.asarray(key) if isinstance(key, list) else key


def _places(key: Any) -> tuple[Any, ...]:
    """Return the places where a mask holds, one array for each of its dims; other parts of an index as they are."""
    if not isinstance(key, np.ndarray) or key.dtype != bool:
        return (key,)
    return np.nonzero(key)


def setitem(array: Array, key: Any, value: Any) -> None:
    """Do `array[key] = value`: this Array changes, no other that shares its memory does.

    Raises UsageError for values of a dtype that the array's does not hold.
    """
    if STATE.trace is not None:
        raise UsageError(
            "x[...] = y: an Array from outside does not change in a traced function: give it in"
        )
    keys = tuple(_plain(k) for k in (key if isinstance(key, tuple) else (key,)))
    taken = _taken(array, value)
    if array.kind.is_plain:
        shard = array.held[0].copy()
        shard[keys] = narrow(taken, array.dtype_name) if array.dtype_name == "bf16" else taken
        array.become(made(array.kind, (shard,)))
        return
    value = array.numpy()
    value[keys] = taken
    laid = Array.from_numpy(value, mesh=array.mesh, layout=array.layout, dtype=array.dtype_name)
    array.become(laid)


def _taken(array: Array, value: Any) -> Any:
    """Return a value as NumPy assigns it."""
    own, weak = as_dtype(array.dtype_name), weak_kind(value)
    given = value.numpy() if isinstance(value, Array) else np.asarray(value)
    if weak is None and not isinstance(value, list | tuple):
        name = value.dtype_name if isinstance(value, Array) else given.dtype
        fits = promoted([own, as_dtype(name)], []) == own
    else:
        fits = promoted([own], [weak or given.dtype.kind]) == own
    if not fits:
        raise UsageError(f"x[...] = y: x is {own!r}, y {given.dtype}: y of x's dtype is right")
    if own.name == "bf16":
        return given.astype(np.float32)
    return given.astype(own.numpy) if weak is None else value
