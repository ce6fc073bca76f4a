"""Compute small ops on Arrays by NumPy, where the bits are the same: a compiled call costs a few times more.

Elementwise ops on Arrays that lie alike are computed shard by shard. Only what IEEE 754 or the width of an integer
fixes to the bit is here: sums, products, quotients, roots and comparisons, not functions. What moves, chooses or fills
in elements is computed for Arrays that one rank has the whole of.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from math import prod
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np

from meshweave.frontends.python.dtypes import DTYPES, limits
from meshweave.frontends.python.program import TracedProgram
from meshweave.frontends.python.tree import LEAF
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.kind import Kind, kind_of
from meshweave.runtime.local.direct import DirectCalls, NumberForm

LIMIT = 1 << 14  # bytes of all shards, above which compiled code is at least as quick
MOVED = 1 << 15  # the same for functions that move elements
_FLOATS, _INTEGERS = ("f32", "f64"), ("i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64")
_NUMBERS = (*_FLOATS, *_INTEGERS)
_WHOLE = (*_NUMBERS, "i1")
_ONE_RANK = Mesh()
_UFUNCS: dict[str, tuple[Any, tuple[str, ...], bool]] = {
    # name -> NumPy's function, the dtypes for which the bits are the same, is the result a bool?
    "add": (np.add, _NUMBERS, False),
    "subtract": (np.subtract, _NUMBERS, False),
    "multiply": (np.multiply, _NUMBERS, False),
    "divide": (np.divide, _FLOATS, False),
    "negative": (np.negative, _NUMBERS, False),
    "positive": (np.positive, _NUMBERS, False),
    "abs": (np.abs, _NUMBERS, False),
    "square": (np.square, _NUMBERS, False),
    "sqrt": (np.sqrt, _FLOATS, False),
    "floor": (np.floor, _FLOATS, False),
    "ceil": (np.ceil, _FLOATS, False),
    "trunc": (np.trunc, _FLOATS, False),
    "maximum": (np.maximum, _INTEGERS, False),
    "minimum": (np.minimum, _INTEGERS, False),
    "isnan": (np.isnan, _FLOATS, True),
    "isinf": (np.isinf, _FLOATS, True),
    "isfinite": (np.isfinite, _FLOATS, True),
    "equal": (np.equal, (*_NUMBERS, "i1"), True),
    "not_equal": (np.not_equal, (*_NUMBERS, "i1"), True),
    "less": (np.less, _NUMBERS, True),
    "less_equal": (np.less_equal, _NUMBERS, True),
    "greater": (np.greater, _NUMBERS, True),
    "greater_equal": (np.greater_equal, _NUMBERS, True),
    "bitwise_and": (np.bitwise_and, (*_INTEGERS, "i1"), False),
    "bitwise_or": (np.bitwise_or, (*_INTEGERS, "i1"), False),
    "bitwise_xor": (np.bitwise_xor, (*_INTEGERS, "i1"), False),
    "bitwise_invert": (np.invert, (*_INTEGERS, "i1"), False),
    "logical_and": (np.logical_and, ("i1",), True),
    "logical_or": (np.logical_or, ("i1",), True),
    "logical_not": (np.logical_not, ("i1",), True),
}


def _dims(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


_MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape),
    "concat": lambda arrays, axis=0: np.concatenate(arrays, axis),
    "expand_dims": lambda x, axis=0: np.expand_dims(x, _dims(axis)),
    "flip": lambda x, axis=None: np.flip(x, _dims(axis)),
    "matrix_transpose": methodcaller("swapaxes", -1, -2),
    "moveaxis": np.moveaxis,
    "permute_dims": lambda x, axes: np.transpose(x, axes),
    "reshape": lambda x, shape, copy=None: x.reshape(shape),
    "roll": lambda x, shift, axis=None: np.roll(x, shift, _dims(axis)),
    "squeeze": lambda x, axis=None: np.squeeze(x, _dims(axis)),
    "stack": lambda arrays, axis=0: np.stack(arrays, axis),
    "swapaxes": np.swapaxes,
    "tile": np.tile,
    "transpose": lambda x, axes=None: np.transpose(x, axes),
    "tril": lambda x, k=0: np.tril(x, max(-x.size, min(k, x.size))),
    "triu": lambda x, k=0: np.triu(x, max(-x.size, min(k, x.size))),
    "where": getattr(np.where, "__wrapped__", np.where),
}
"""Name -> what gives the same elements of the same arguments."""
_FILLED = {"zeros": np.zeros, "ones": np.ones, "zeros_like": np.zeros, "ones_like": np.ones}


class _Quiet(threading.local):
    """Run NumPy's functions in this thread without its warnings, which compiled code does not give either."""

    def __init__(self) -> None:
        context = contextvars.copy_context()
        context.run(lambda: np.seterr(all="ignore"))
        self.run = context.run


QUIET = _Quiet()


class Alike(NamedTuple):
    """Hold what computes a function on Arrays that lie alike, and what does so where it is called often, or None.

    run: None where only calls that are made often are computed so.
    """

    run: Callable[..., Any] | None
    direct: Callable[[DirectCalls, Callable[..., Any]], Callable[..., Any] | None]


def alike(name: str, leaves: Sequence[Any]) -> Alike | None:
    """Return what computes a function on leaves of these kinds shard by shard; None where a program has to."""
    found = _UFUNCS.get(name)
    arrays = [v for v in leaves if type(v) is Array]
    if found is None or not arrays or len(leaves) != found[0].nin:
        return None
    ufunc, elements, compares = found
    kind = arrays[0].kind
    if kind.element not in elements or any(a.kind is not kind for a in arrays):
        return None
    if kind.layout.partial or _nbytes(kind) > LIMIT:
        return None
    forms = [None if type(v) is Array else _form(v, kind.element) for v in leaves]
    if any(form is None and type(v) is not Array for v, form in zip(leaves, forms)):
        return None
    result = kind_of(kind.mesh, kind.layout, kind.shape, "i1", kind.rank) if compares else kind
    run = None
    if all(type(v) in (Array, float) for v in leaves):
        run = _run(ufunc, result, [type(v) is Array for v in leaves])
    if kind.mesh.nranks > 1 or not kind.is_plain:
        return None if run is None else _as_it_is(run)
    return Alike(run, lambda how, slow: how.of_loop(ufunc, kind.dtype, forms, result, slow))


def _form(value: object, element: str) -> NumberForm | None:
    """Return how a Python number beside these elements is taken in their dtype; None where that is not for sure."""
    if element in _FLOATS and type(value) in (float, int):
        return NumberForm(element, type(value))
    if element in _INTEGERS and type(value) is int and element != "ui64":
        low, high = limits(DTYPES[element])
        return NumberForm(element, int, (int(low), int(high)))
    return None


def whole(
    name: str,
    leaves: Sequence[Any],
    arguments: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]],
    program: TracedProgram,
) -> Alike | None:
    """Return what computes a traced program on leaves of these kinds that one rank has; None where code has to.

    arguments: makes those of the function from leaves. The program says what the result is, and what is refused.
    """
    known = name in _MOVES or name in _FILLED or name == "astype"
    if not known or program.structure != LEAF or not all(map(_is_plain, leaves)):
        return None
    (result,) = program.results
    element, shape = result.dtype.name, tuple(result.shape)
    kind = kind_of(_ONE_RANK, Layout.replicated(len(shape)), shape, element)
    if element not in _WHOLE or _nbytes(kind) > MOVED:
        return None
    dtype = kind.dtype
    if name in _FILLED:
        fill = _FILLED[name]
        return _as_it_is(lambda *_: made(kind, (fill(shape, dtype),)))
    if name == "astype":
        if not (leaves and _converts(leaves[0].dtype, dtype)):
            return None
        return Alike(
            lambda v: made(kind, (QUIET.run((v._held or v.held)[0].astype, dtype),)),
            lambda how, slow: how.of_move(lambda v: QUIET.run(v.astype, dtype), kind, slow),
        )
    move = _MOVES[name]

    def run(*values: Any) -> Any:
        args, kwargs = arguments(
            [(v._held or v.held)[0] if type(v) is Array else v for v in values]
        )
        return made(kind, (move(*args, **kwargs).copy(),))

    found = run(*leaves)._held[0]
    if found.dtype != kind.dtype or found.shape != shape:
        return None
    args, kwargs = arguments([_LEAF] * len(leaves))
    if args == (_LEAF,) * len(leaves) and not kwargs:
        return Alike(run, lambda how, slow: how.of_move(move, kind, slow))
    rest = args[1:]
    moved: Callable[..., Any]
    if args[:1] == (_LEAF,) and len(leaves) == 1:
        moved = lambda shard: move(shard, *rest, **kwargs)  # noqa: E731
    elif args[:1] in (([_LEAF] * len(leaves),), ((_LEAF,) * len(leaves),)):
        moved = lambda *shards: move(shards, *rest, **kwargs)  # noqa: E731
    else:
        return _as_it_is(run)
    return Alike(
        lambda *values: made(kind, (moved(*[(v._held or v.held)[0] for v in values]).copy(),)),
        lambda how, slow: how.of_move(moved, kind, slow),
    )


def _as_it_is(run: Callable[..., Any]) -> Alike:
    return Alike(run, lambda _, slow: slow)


_LEAF = object()


def _converts(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Tell whether all numbers of a dtype have one right value in another one."""
    return np.can_cast(source, target) or source.kind == target.kind == "f"


def _is_plain(leaf: object) -> bool:
    """Tell whether NumPy takes a leaf as it is: an array that one rank has, or a number that takes its dtype."""
    return type(leaf) is float or is_small(leaf)


def is_small(value: object) -> bool:
    """Tell whether a value is a small Array of a dtype of NumPy's that one rank has."""
    if type(value) is not Array:
        return False
    kind = value.kind
    return (
        kind.mesh == _ONE_RANK
        and kind.is_plain
        and kind.element in _WHOLE
        and _nbytes(kind) <= LIMIT
    )


def _nbytes(kind: Kind) -> int:
    local = prod(kind.layout.allocation_shape(kind.mesh, kind.shape))
    return local * kind.mesh.nranks * kind.dtype.itemsize


def _run(ufunc: np.ufunc, kind: Kind, sharded: Sequence[bool]) -> Callable[..., Any]:
    if kind.mesh.nranks > 1 or not kind.shape:
        return _on_each(ufunc, kind, sharded)
    if sharded == [True, True]:
        return _of_two(ufunc, kind)
    if sharded == [True, False]:
        return lambda a, b: made(kind, (QUIET.run(ufunc, (a._held or a.held)[0], b),))
    if sharded == [False, True]:
        return lambda a, b: made(kind, (QUIET.run(ufunc, a, (b._held or b.held)[0]),))
    return lambda a: made(kind, (QUIET.run(ufunc, (a._held or a.held)[0]),))


def _of_two(ufunc: np.ufunc, kind: Kind) -> Callable[..., Any]:
    def run(a: Array, b: Array) -> Array:
        array = _NEW(Array)  # as `made` does, in a tenth of a microsecond less
        array._held, array.kind, array._alone = (
            (QUIET.run(ufunc, (a._held or a.held)[0], (b._held or b.held)[0]),),
            kind,
            True,
        )
        return array

    return run


def _on_each(ufunc: np.ufunc, kind: Kind, sharded: Sequence[bool]) -> Callable[..., Any]:
    """Return what computes the shard of each rank, also of arrays without dims, of which NumPy makes scalars."""
    parts = range(kind.nparts)

    def run(*values: Any) -> Any:
        rows = [[v.here[k] if local else v for v, local in zip(values, sharded)] for k in parts]
        return made(kind, tuple([np.asarray(QUIET.run(ufunc, *row)) for row in rows]))

    return run


_NEW = object.__new__


def made(kind: Kind, shards: tuple[Any, ...]) -> Array:
    """Return an Array of shards that are known to fit."""
    array = _NEW(Array)
    array._held, array.kind, array._alone = shards, kind, True
    return array
