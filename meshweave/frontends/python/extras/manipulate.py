"""Define NumPy's functions of shapes and places that the standard lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import INTEGERS
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.elementwise import alike, named
from meshweave.frontends.python.functions.index import take
from meshweave.frontends.python.functions.manipulate import (
    axis_of,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    reshape,
    sizes_of,
    tile,
)
from meshweave.frontends.python.functions.sort import argsort, sort
from meshweave.frontends.python.tracer import ArrayLike, Nested, Shape, Tracer, tensor


def ravel(x: ArrayLike, /) -> Tracer:
    """Return the elements as a vector, in row-major order."""
    return reshape(x, (-1,))


def transpose(x: ArrayLike, /, axes: Sequence[int] | None = None) -> Tracer:
    """Put the dims in the order `axes`; None: in reverse order."""
    return permute_dims(x, tuple(reversed(range(tensor(x).ndim))) if axes is None else axes)


def swapaxes(x: ArrayLike, axis1: int, axis2: int, /) -> Tracer:
    """Swap two dims."""
    value = tensor(x)
    order = list(range(value.ndim))
    i, j = (axis_of("swapaxes", a, value.ndim) for a in (axis1, axis2))
    order[i], order[j] = j, i
    return permute_dims(value, order)


def rollaxis(x: ArrayLike, axis: int, start: int = 0, /) -> Tracer:
    """Move the dim `axis` to in front of the dim `start`."""
    ndim = tensor(x).ndim
    dim, place = axis_of("rollaxis", axis, ndim), axis_of("rollaxis", start, ndim + 1)
    return moveaxis(x, dim, place - (dim < place))


def _at_least(name: str, ndim: int) -> Callable[..., Any]:
    def one(x: ArrayLike) -> Tracer:
        value = tensor(x)
        places = {
            (0, 1): (0,), (0, 2): (0, 1), (1, 2): (0,),
            (0, 3): (0, 1, 2), (1, 3): (0, 2), (2, 3): (2,),
        }.get((value.ndim, ndim))  # fmt: skip
        return value if places is None else expand_dims(value, places)

    def function(*arrays: ArrayLike) -> Any:
        made = [one(x) for x in arrays]
        return made[0] if len(made) == 1 else made

    return named(function, name, f"Return arrays with at least {ndim} dims; of several a list.")


atleast_1d = _at_least("atleast_1d", 1)
atleast_2d = _at_least("atleast_2d", 2)
atleast_3d = _at_least("atleast_3d", 3)


def vstack(arrays: Sequence[ArrayLike], /) -> Tracer:
    """Join arrays along their first dim; vectors become rows."""
    return concat([atleast_2d(x) for x in arrays], axis=0)


def hstack(arrays: Sequence[ArrayLike], /) -> Tracer:
    """Join arrays along their second dim, vectors along their only one."""
    values = [atleast_1d(x) for x in arrays]
    return concat(values, axis=0 if values and values[0].ndim == 1 else 1)


def dstack(arrays: Sequence[ArrayLike], /) -> Tracer:
    """Join arrays along their third dim."""
    return concat([atleast_3d(x) for x in arrays], axis=2)


def column_stack(arrays: Sequence[ArrayLike], /) -> Tracer:
    """Join arrays along their second dim; vectors become columns."""
    values = [tensor(x) for x in arrays]
    return concat([expand_dims(v, 1) if v.ndim == 1 else atleast_2d(v) for v in values], axis=1)


def block(arrays: ArrayLike | Nested, /) -> Tracer:
    """Join nested lists of arrays: the innermost lists along the last dim, those around them along the one before."""

    def depth(value: object) -> int:
        if not isinstance(value, list):
            return 0
        inner = {depth(v) for v in value}
        if len(inner) != 1:
            fail("block: lists of different depths, or an empty one")
        return 1 + inner.pop()

    levels = depth(arrays)

    def leaves(value: Any) -> list[Tracer]:
        return [v for x in value for v in leaves(x)] if isinstance(value, list) else [tensor(value)]

    ndim = max([levels, *(v.ndim for v in leaves(arrays))])

    def joined(value: Any, level: int) -> Tracer:
        if not isinstance(value, list):
            made = tensor(value)
            return reshape(made, (1,) * (ndim - made.ndim) + made.shape)
        return concat([joined(v, level - 1) for v in value], axis=ndim - level)

    return joined(arrays, levels)


def _plain(said: Any) -> Shape:
    """Return integers of NumPy's as Python's."""
    plain: Shape = said.tolist() if isinstance(said, np.ndarray | np.generic) else said
    return plain


def array_split(x: ArrayLike, indices_or_sections: Shape, /, axis: int = 0) -> list[Tracer]:
    """Split x along `axis` into so many parts, the first ones longer by one where they are uneven, or before places."""
    value, indices_or_sections = tensor(x), _plain(indices_or_sections)
    dim = axis_of("array_split", axis, value.ndim)
    size = value.shape[dim]
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1:
            fail(f"array_split: {indices_or_sections} parts, 1 or more are right")
        each, more = divmod(size, indices_or_sections)
        cuts = [k * each + min(k, more) for k in range(1, indices_or_sections)]
    else:
        cuts = list(sizes_of("array_split", tuple(indices_or_sections)))
    before = (slice(None),) * dim
    ends = zip([0, *cuts], [*cuts, None])
    cuts_along = [(*before, slice(start, stop)) for start, stop in ends]
    return [value[cut] for cut in cuts_along]


def split(x: ArrayLike, indices_or_sections: Shape, /, axis: int = 0) -> list[Tracer]:
    """Split x along `axis` into so many equal parts, or before each of the places."""
    value, indices_or_sections = tensor(x), _plain(indices_or_sections)
    size = value.shape[axis_of("split", axis, value.ndim)]
    if isinstance(indices_or_sections, int) and size % max(indices_or_sections, 1):
        fail(f"split: {size} places do not divide into {indices_or_sections}: see mw.array_split")
    return array_split(value, indices_or_sections, axis)


def _split_along(name: str, dim: int) -> Callable[..., list[Tracer]]:
    def function(x: ArrayLike, indices_or_sections: Shape, /) -> list[Tracer]:
        value = tensor(x)
        return split(value, indices_or_sections, 0 if value.ndim == 1 and dim == 1 else dim)

    return named(function, name, f"Split x along dim {dim}, as `split`.")


vsplit = _split_along("vsplit", 0)
hsplit = _split_along("hsplit", 1)
dsplit = _split_along("dsplit", 2)


def flipud(x: ArrayLike, /) -> Tracer:
    """Reverse the order along the first dim."""
    return flip(x, axis=0)


def fliplr(x: ArrayLike, /) -> Tracer:
    """Reverse the order along the second dim."""
    return flip(x, axis=1)


def rot90(x: ArrayLike, /, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Tracer:
    """Rotate by 90 degrees `k` times, from the first of the two `axes` to the second."""
    value = tensor(x)
    first, second = (axis_of("rot90", a, value.ndim) for a in axes)
    if first == second:
        fail(f"rot90: axes={axes}, two dims are right")
    turns = k % 4
    if turns == 0:
        return value
    if turns == 2:
        return flip(value, axis=(first, second))
    if turns == 1:
        return swapaxes(flip(value, axis=second), first, second)
    return flip(swapaxes(value, first, second), axis=second)


def partition(x: ArrayLike, kth: int | Sequence[int], /, axis: int | None = -1) -> Tracer:
    """Put elements along `axis` (None: all) so that the kth has its place in order: here all of them have."""
    value = _along("partition", x, kth, axis)
    return sort(value, axis=-1 if axis is None else axis)


def argpartition(x: ArrayLike, kth: int | Sequence[int], /, axis: int | None = -1) -> Tracer:
    """Return the indices that `partition` takes elements from, as int64."""
    value = _along("argpartition", x, kth, axis)
    return argsort(value, axis=-1 if axis is None else axis)


def _along(name: str, x: ArrayLike, kth: int | Sequence[int], axis: int | None) -> Tracer:
    """Return x, flat where no axis is named, whose size there has the places `kth`."""
    value = ravel(x) if axis is None else tensor(x)
    size = value.shape[axis_of(name, -1 if axis is None else axis, value.ndim)]
    for number in [kth] if isinstance(kth, int) else kth:
        if not -size <= number < size:
            fail(f"{name}: kth={number} of {size} elements, a place among them is right")
    return value


def append(x: ArrayLike, values: ArrayLike, /, axis: int | None = None) -> Tracer:
    """Join `values` behind x along `axis`; None: flatten both first."""
    return concat([x, values], axis=axis)


def _known(name: str, places: object) -> np.ndarray[Any, Any]:
    if isinstance(places, Tracer):
        fail(f"{name}: places known only when the program runs: the result's size depends on them")
    if isinstance(places, slice):
        fail(f"{name}: a slice: np.arange(..)[{places}] gives its places")
    return np.asarray(places)


def delete(x: ArrayLike, places: Any, /, axis: int | None = None) -> Tracer:
    """Leave out the `places` (integers or a mask, known when tracing) along `axis`; None: in the flattened array."""
    value = tensor(x)
    if axis is None:
        value, axis = ravel(value), 0
    dim = axis_of("delete", axis, value.ndim)
    try:
        kept = np.delete(np.arange(value.shape[dim]), _known("delete", places))
    except (IndexError, ValueError) as error:
        fail(f"delete: {error}")
    return take(value, kept, axis=dim)


def insert(x: ArrayLike, places: Any, values: ArrayLike, /, axis: int | None = None) -> Tracer:
    """Put `values` in front of the `places` (known when tracing) along `axis`; None: of the flattened array."""
    value = tensor(x)
    new = e.astype(values, value.dtype)
    if axis is None:
        value, axis = ravel(value), 0
    dim, at = axis_of("insert", axis, value.ndim), _known("insert", places)
    size = value.shape[dim]
    if at.ndim == 0:  # the values are one or several slices, all at this place
        new = moveaxis(reshape(new, (1,) * (value.ndim - new.ndim) + new.shape), 0, dim)
        count = new.shape[dim]
        at = np.full(count, int(at))
    try:
        order = np.insert(np.arange(size), at, size + np.arange(at.size))
    except (IndexError, ValueError) as error:
        fail(f"insert: {error}")
    shape = (*value.shape[:dim], at.size, *value.shape[dim + 1 :])
    return take(concat([value, broadcast_to(new, shape)], axis=dim), order, axis=dim)


def resize(x: ArrayLike, new_shape: Shape, /) -> Tracer:
    """Give x another shape, its elements repeated in order as often as needed."""
    value, shape = ravel(x), sizes_of("resize", new_shape)
    size = prod(shape)
    if not value.size:
        return broadcast_to(e.astype(tensor(0), value.dtype), shape)
    return reshape(tile(value, -(-size // value.size))[:size], shape)


def choose(x: ArrayLike, choices: Sequence[ArrayLike], /) -> Tracer:
    """Take each element from the array among `choices` whose number x gives; all broadcast."""
    chosen = tensor(x)
    if chosen.dtype.kind not in INTEGERS:
        fail(f"choose: x of dtype {chosen.dtype!r}, integers are right")
    conditions = [logic.equal(chosen, k) for k in range(len(choices))]
    return select(conditions, alike(*choices), False)


def select(
    condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], /, default: ArrayLike = 0
) -> Tracer:
    """Take each element from the array beside the first condition that holds, else `default`."""
    if len(condlist) != len(choicelist) or not len(condlist):
        fail(f"select: {len(condlist)} conditions and {len(choicelist)} choices")
    made: ArrayLike = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        made = e.where(condition, choice, made)
    return tensor(made)


def piecewise(x: ArrayLike, condlist: Sequence[ArrayLike], funclist: Sequence[Any], /) -> Tracer:
    """Compute x by the function (or take the number) beside the last condition that holds; one more is for the rest."""
    value = tensor(x)
    if len(funclist) - len(condlist) not in (0, 1):
        fail(f"piecewise: {len(condlist)} conditions and {len(funclist)} functions")
    rest = funclist[len(condlist)] if len(funclist) > len(condlist) else 0
    made: ArrayLike = _piece(rest, value)
    for condition, function in zip(condlist, funclist):
        made = e.where(condition, _piece(function, value), made)
    return tensor(made)


def _piece(function: Any, value: Tracer) -> Tracer:
    made = function(value) if callable(function) else function
    return broadcast_to(e.astype(made, value.dtype), value.shape)


def unravel_index(indices: ArrayLike, shape: Shape, /) -> tuple[Tracer, ...]:
    """Turn places in a flattened array of this shape into those along each dim."""
    value, sizes = tensor(indices), sizes_of("unravel_index", shape)
    places = []
    for size in reversed(sizes):
        places.append(e.remainder(value, size))
        value = e.floor_divide(value, size)
    return tuple(reversed(places))


def ravel_multi_index(places: Sequence[ArrayLike], shape: Shape, /) -> Tracer:
    """Turn places along each dim into those in a flattened array of this shape."""
    sizes = sizes_of("ravel_multi_index", shape)
    if len(places) != len(sizes):
        fail(f"ravel_multi_index: {len(places)} arrays of places for {len(sizes)} dims")
    found: ArrayLike = 0
    for place, size in zip(places, sizes):
        found = e.add(e.multiply(found, size), place)
    return tensor(found)
