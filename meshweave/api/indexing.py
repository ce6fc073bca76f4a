"""Index Arrays and assign to their elements, outside of traced functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshweave.api.alike import QUIET, made
from meshweave.api.eager import eager, quick
from meshweave.api.outside import whole
from meshweave.api.redistribution import redistribute
from meshweave.errors import UsageError
from meshweave.frontends.python.builder import STATE
from meshweave.frontends.python.dtypes import as_dtype, promoted, weak_kind
from meshweave.frontends.python.functions import index, update
from meshweave.frontends.python.place import constrain
from meshweave.frontends.python.scopes import OPEN
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor
from meshweave.layout.digits import dim_indices
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.elements import narrow
from meshweave.runtime.job.current import check_same


def _indexed(x: ArrayLike, key: tuple[ArrayLike, ...]) -> Tracer:
    return index.getitem(tensor(x), key)  # type: ignore[arg-type]  # of arrays, slices, numbers


_by_program = eager(_indexed, "getitem")


_DIRECT: dict[Any, Any] = {}


def getitem(array: Array, key: Any) -> Any:
    """Return `array[key]`, as NumPy has it: also by masks. Raises IndexError for what is out of range.

    Its attributes `direct` and `open` are those of `eager`.
    """
    if STATE.trace is not None:
        return tensor(array)[key]
    kind = array.kind
    if kind.is_plain:
        if kind not in _DIRECT:
            later = lambda how, slow: how.of_move(None, kind, slow)  # noqa: E731
            quick("getitem", _DIRECT, kind, _of_plain, later)
        return _of_plain(array, key)
    keys = _keys(key)
    np.broadcast_to(np.int8(0), array.shape)[keys]  # raises IndexError
    if any(isinstance(k, bool | np.bool_) for k in keys):  # a dim of size 0 or 1 more: for NumPy
        return whole(array.numpy()[keys], array.mesh, array.dtype_name)
    if all(map(_is_place, keys)):
        keys = _with_numbers(array.shape, keys)
    return _by_program(array, tuple(part for k in keys for part in _places(k)))


def _with_numbers(shape: tuple[int, ...], keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the parts of an index with integers as arrays, not negative: one program serves all of them."""
    count = sum(k is not None and k is not ... for k in keys)
    found, dim = list[Any](), 0
    for key in keys:
        if key is ...:
            dim += len(shape) - count
        elif key is not None:
            key = key if isinstance(key, slice) else np.asarray(int(key) % shape[dim])
            dim += 1
        found.append(key)
    return tuple(found)


getitem.__dict__.update(direct=_DIRECT, open=OPEN)


def _of_plain(array: Array, key: Any) -> Array:
    """Index an Array that one rank has the whole of."""
    found = (array._held or array.held)[0][key if _is_basic(key) else _keys(key)]
    if type(found) is not np.ndarray:  # one element: NumPy gives a scalar
        found = np.array(found)
    else:
        found = found.copy()  # Arrays share no elements
    return made(array.kind.of_shape(found.shape), (found,))


def _is_basic(key: Any) -> bool:
    """Tell whether NumPy takes an index as it is: an integer, or a slice between integers."""
    if type(key) is slice:
        return type(key.start) in _ENDS and type(key.stop) in _ENDS and type(key.step) in _ENDS
    return type(key) is int


_ENDS = frozenset({int, type(None)})


def _keys(key: Any) -> tuple[Any, ...]:
    """Return the parts of an index, with NumPy arrays in place of others."""
    return tuple([_plain(k) for k in (key if isinstance(key, tuple) else (key,))])


def _plain(key: Any) -> Any:
    """Return a part of an index with NumPy arrays in place of others."""
    if _is_basic(key):
        return key
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

    In a job every rank makes this call, with the same index and value; a value may be an Array of which each has its
    part. Raises UsageError for values of a dtype that the array's does not hold, RankError where ranks differ.
    """
    if STATE.trace is not None:
        raise UsageError(
            "x[...] = y: an Array from outside does not change in a traced function: give it in"
        )
    plain = array.kind.is_plain
    if plain and type(value) is float and _is_basic(key) and array.kind.element in ("f32", "f64"):
        own = array.in_place()
        if own is not None:
            QUIET.run(own.__setitem__, key, value)
            return
    given = key if isinstance(key, tuple) else (key,)
    if array.kind.rank is not None and (_is_apart(value) or not all(map(_is_place, given))):
        found = _by_update(array, given, value, "set")
        array.become(found if found.layout == array.layout else redistribute(found, array.layout))
        return
    keys = _keys(key)
    taken = _taken(array, value)
    if plain:
        own = array.in_place()
        shard = array.held[0].copy() if own is None else own
        shard[keys] = narrow(taken, array.dtype_name) if array.dtype_name == "bf16" else taken
        if own is None:
            array.become(made(array.kind, (shard,)))
        return
    if array.kind.rank is not None:
        index = np.frombuffer(repr(keys).encode(), np.uint8)
        check_same(array.mesh, {"y": np.asarray(taken), "the index": index}, "x[...] = y")
    if _by_ranks(array, keys, np.asarray(taken)):
        return
    if array.kind.rank is not None:
        array.become(redistribute(_by_update(array, given, value, "set"), array.layout))
        return
    value = array.numpy()
    value[keys] = taken
    laid = Array.from_numpy(value, mesh=array.mesh, layout=array.layout, dtype=array.dtype_name)
    array.become(laid)


def _is_place(key: Any) -> bool:
    """Tell whether a part of an index is an integer, a slice, None or an ellipsis."""
    number = isinstance(key, int | np.integer) and not isinstance(key, bool)
    return key is None or key is ... or number or isinstance(key, slice)


def _is_apart(value: Any) -> bool:
    """Tell whether a value is an Array of which this process has a part alone."""
    return isinstance(value, Array) and value.kind.rank is not None and not value.kind.is_everywhere


def _by_ranks(array: Array, keys: tuple[Any, ...], value: np.ndarray[Any, Any]) -> bool:
    """Assign at slices and integers: each rank to the elements that it holds. Tell whether that can be."""
    layout, mesh = array.layout, array.mesh
    if not all(map(_is_place, keys)) or layout.partial or layout.order is not None:
        return False
    chosen, shape = _chosen(array.shape, keys)
    if value.ndim > len(shape):
        return False  # NumPy knows when it leaves out dims of size 1 in front
    spread = np.broadcast_to(value, shape).reshape([len(row) for row in chosen])
    if array.dtype_name == "bf16":
        spread = narrow(spread, "bf16")
    shards = []
    for rank, held in enumerate(array.here, array.kind.rank or 0):
        shard, to, of = held.copy(), list[Any](), list[Any]()
        for dim, row in enumerate(chosen):
            places = np.full(array.shape[dim], -1)
            local = dim_indices(layout, mesh, array.shape, dim, rank)
            places[local[local >= 0]] = np.flatnonzero(local >= 0)
            mine = np.flatnonzero(places[row] >= 0)
            of.append(mine)
            to.append(places[row[mine]])
        shard[np.ix_(*to)] = spread[np.ix_(*of)]
        shards.append(shard)
    array.become(made(array.kind, tuple(shards)))
    return True


def _chosen(
    shape: tuple[int, ...], keys: tuple[Any, ...]
) -> tuple[list[np.ndarray[Any, Any]], tuple[int, ...]]:
    """Return the indices that slices and integers choose along each dim, and the shape of what they choose.

    Raises IndexError as NumPy does.
    """
    found = np.broadcast_to(np.int8(0), shape)[keys].shape
    count = sum(k is not None and k is not ... for k in keys)
    at = keys.index(...) if ... in keys else len(keys)
    every = [*keys[:at], *[slice(None)] * (len(shape) - count), *keys[at + 1 :]]
    own = [k for k in every if k is not None]
    return [np.atleast_1d(np.arange(n)[k]) for n, k in zip(shape, own)], found


def _updated(x: ArrayLike, key: Any, value: ArrayLike, how: str, layout: Any) -> Tracer:
    made = update.updated(tensor(x), key, value, how)
    return made if layout is None else constrain(made, layout)


_update = eager(_updated, "at")
_UFUNCS = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def at(array: Array) -> update.At:
    """Return `x.at` of an Array: what it makes is another Array, in the same layout."""
    return update.At(array, _changed)


def _changed(array: Array, key: Any, value: Any, how: str) -> Any:
    """Return an Array with other elements at `key`, set or combined with what is there."""
    if STATE.trace is not None:
        return update.updated(tensor(array), key, value, how)
    given = key if isinstance(key, tuple) else (key,)
    plain = array.kind.is_plain and array.dtype_name != "bf16"
    if how == "set" and all(not isinstance(k, Array) or plain for k in given):
        changed = array.copy()
        setitem(changed, key, value)
        return changed
    if plain and (how != "divide" or array.dtype.kind in "fc"):
        shard = array.held[0].copy()
        keys = tuple(_plain(k) for k in given)
        with np.errstate(all="ignore"):
            _UFUNCS[how].at(shard, keys, _taken(array, value))
        return made(array.kind, (shard,))
    return _by_update(array, given, value, how)


def _by_update(array: Array, given: tuple[Any, ...], value: Any, how: str) -> Any:
    """Return what a program makes of an Array, in its layout unless that has a pending reduction."""
    layout = None if array.layout.partial else array.layout
    parts = tuple(part for k in given for part in _mask_or_places(array, k, value, len(given) == 1))
    found = _update(array, parts[0] if len(parts) == 1 else parts, value, how, layout)
    return found if layout in (None, found.layout) else redistribute(found, layout)


def _mask_or_places(array: Array, key: Any, value: Any, alone: bool) -> tuple[Any, ...]:
    """Return a mask that chooses for one value as it is, and another one as the places where it holds."""
    if not isinstance(key, Array) or key.dtype != bool:
        return (np.asarray(key),) if isinstance(key, list) else (key,)
    if alone and np.ndim(value) <= array.ndim - key.ndim:
        return (key,)
    return np.nonzero(key.numpy())


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
