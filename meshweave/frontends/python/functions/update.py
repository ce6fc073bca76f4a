"""Update elements of tensors: at slices and masks by choosing or inserting, at integer arrays by `mw.scatter`.

A value of a program never changes: an update makes another. A scalar at slices and what a mask chooses moves nothing
between ranks, and along dims that no index array names neither does a scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshweave.frontends.python.builder import Body, affine_map, fail
from meshweave.frontends.python.dtypes import INTEGERS, DType, bool_, int64, promoted, weak_kind
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import computed
from meshweave.frontends.python.functions.index import (
    _complete,
    _expanded,
    _extract,
    _number,
    _signed,
    _slice,
    in_range,
)
from meshweave.frontends.python.functions.manipulate import axis_of, broadcast_to, flip, reshaped
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Index,
    Tracer,
    broadcast_shapes,
    parallel,
    tensor,
    tracing,
)

Combine = Callable[[Tracer, Tracer], Tracer]
UPDATES: dict[str, Combine] = {
    "set": lambda old, new: broadcast_to(new, old.shape),
    "add": e.add,
    "subtract": e.subtract,
    "multiply": e.multiply,
    "divide": e.divide,
    "min": e.minimum,
    "max": e.maximum,
}
"""How `x.at[..]` combines what is there with what is given."""
_OPS = {
    "add": "addf i:addi c:add b:ori", "subtract": "subf i:subi c:sub", "multiply": "mulf i:muli c:mul b:andi",
    "divide": "divf c:div", "min": "minimumf i:minsi u:minui b:andi", "max": "maximumf i:maxsi u:maxui b:ori",
}  # fmt: skip
"""The same, by an op for floats and for each other kind of dtype."""


def _element(b: Body, how: str, dtype: DType, old: str, new: str) -> str:
    """Combine one element with another."""
    if how == "set":
        return new
    floats, *others = _OPS[how].split()
    by_kind = {"f": floats} | dict(text.split(":") for text in others)
    op = by_kind.get(dtype.kind) or by_kind.get("i" if dtype.kind == "u" else "")
    if op is None:
        e.refuse(f"x.at[..].{how}", dtype, "another one")
    return b.op(f"{'complex' if dtype.kind == 'c' else 'arith'}.{op}", dtype, old, new)


def updated(x: ArrayLike, key: Index, value: ArrayLike, how: str = "set") -> Tracer:
    """Return x with the elements at `key` set to `value`, or combined with it.

    how: a name of UPDATES. Updates at one place come in the order of the index arrays; those at a traced place out of
    range are left out.
    """
    whole, keys = tensor(x), key if isinstance(key, tuple) else (key,)
    given = _taken(whole, value, how)
    keys = tuple(k for part in keys for k in _expanded(part))
    if any(isinstance(k, Tracer) and k.dtype is bool_ for k in keys):
        return _masked(whole, keys, given, how)
    if any(not isinstance(k, int | slice | type(None) | type(...)) for k in keys):
        return _at_arrays(whole, keys, given, how)
    return _at_slices(whole, keys, given, how)


def _taken(whole: Tracer, value: ArrayLike, how: str) -> Tracer:
    """Return the new elements in the dtype of x. Raises CompileError where x's dtype does not hold them."""
    own, weak = whole.dtype, weak_kind(value)
    if isinstance(value, Tracer) and value.weak:
        weak = value.dtype.kind
    if how == "divide" and own.kind not in "fc":
        fail(f"x.at[..].divide: dtype {own!r}, a floating one is right")
    fits = promoted([own], [weak]) if weak else promoted([own, (given := tensor(value)).dtype], [])
    if fits != own:
        said = type(value).__name__ if weak else repr(given.dtype)
        fail(f"x[...] = y: x is {own!r}, y {said}: y of x's dtype is right")
    return e.astype(tensor(value, own) if weak and not isinstance(value, Tracer) else value, own)


def _masked(whole: Tracer, keys: tuple[Any, ...], value: Tracer, how: str) -> Tracer:
    """Update where a mask holds, whose dims are the first ones: `value` is for all of its places."""
    mask = keys[0]
    if len(keys) > 1 or mask.shape != whole.shape[: mask.ndim]:
        fail(
            f"x[mask] = y: a mask of shape {keys[0].shape if hasattr(keys[0], 'shape') else '-'} alone, for the first "
            f"dims of x, {whole.shape}, is right: where it holds is known only when the program runs"
        )
    rest = whole.shape[mask.ndim :]
    if not _goes_to(value.shape, rest):
        fail(
            f"x[mask] = y: y of shape {value.shape}, {rest} or a number is right: mw.where takes y for all of x"
        )
    mask = reshaped(mask, (*mask.shape, *[1] * len(rest)))
    return e.where(mask, UPDATES[how](whole, value), whole)


class _Range(NamedTuple):
    """Hold the places of a slice along a dim: start, number, and step, which is positive."""

    start: int
    length: int
    step: int


def _at_slices(whole: Tracer, keys: tuple[Any, ...], value: Tracer, how: str) -> Tracer:
    ranges, shape, flipped = list[_Range](), list[int](), list[int]()
    for key in _complete(whole, keys):
        if key is None:
            shape.append(1)
        elif isinstance(key, slice):
            start, count, step, reverse = _slice(key, whole.shape[len(ranges)])
            flipped += [len(ranges)] if reverse else []
            shape.append(count)
            ranges.append(_Range(start, count, step))
        else:
            dim = len(ranges)
            ranges.append(_Range(_number(key, whole.shape[dim], dim), 1, 1))
    _check_shape(value, tuple(shape))
    sizes = [r.length for r in ranges]
    if 0 in sizes:
        return whole
    if not value.ndim or value.size == 1:
        return _one_at_slices(whole, ranges, reshaped(value, ()), how)
    new = reshaped(broadcast_to(value, tuple(shape)), tuple(sizes))
    new = flip(new, tuple(flipped)) if flipped else new
    starts, steps = [r.start for r in ranges], [r.step for r in ranges]
    if how != "set":
        new = UPDATES[how](_extract(whole, starts, sizes, steps), new)
    return new if new.shape == whole.shape else put_slice(whole, new, starts, steps)


@primitive
def put_slice(whole: Tracer, new: Tracer, starts: Sequence[int], steps: Sequence[int]) -> Tracer:
    """Put a tensor into another one: its element i at starts + steps * i."""
    trace, sizes = tracing(whole), list(new.shape)
    steps = [1 if n == 1 else s for n, s in zip(sizes, steps)]
    name = trace.let(
        f"tensor.insert_slice {trace.name(new)} into {trace.name(whole)}{list(starts)} {sizes} {steps}"
        f" : {new.type} into {whole.type}"
    )
    return Tracer(trace, name, whole.shape, whole.dtype)


def _check_shape(value: Tracer, shape: tuple[int, ...]) -> None:
    if not _goes_to(value.shape, shape):
        fail(f"x[...] = y: y of shape {value.shape} does not broadcast to {shape}")


def _goes_to(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Tell whether a shape broadcasts to another."""
    last = shape[len(shape) - len(given) :]
    return len(given) <= len(shape) and all(n in (1, m) for n, m in zip(given, last))


def _one_at_slices(whole: Tracer, ranges: Sequence[_Range], value: Tracer, how: str) -> Tracer:
    """Combine one element with all in a range: each rank looks where its own are."""

    def body(b: Body) -> str:
        inside = ""
        for dim, (range_, size) in enumerate(zip(ranges, whole.shape)):
            for holds in _in_range_of(b, dim, range_, size):
                inside = b.op("arith.andi", bool_, inside, holds) if inside else holds
        return inside

    new = UPDATES[how](whole, value)
    if all(r == (0, n, 1) for r, n in zip(ranges, whole.shape)):
        return new
    return e.where(computed(whole.shape, bool_, body), new, whole)


def _in_range_of(b: Body, dim: int, range_: _Range, size: int) -> list[str]:
    """Return the conditions under which the index of a loop is in a range."""
    start, count, step = range_
    found, at = [], b.loop(dim)
    if start > 0:
        found.append(b.let(f"arith.cmpi sge, {at}, {b.index(start)} : index"))
    last = start + (count - 1) * step
    if last < size - 1:
        found.append(b.let(f"arith.cmpi sle, {at}, {b.index(last)} : index"))
    if step > 1 and count > 1:
        beyond = b.let(f"arith.subi {at}, {b.index(start)} : index")
        rest = b.let(f"arith.remsi {beyond}, {b.index(step)} : index")
        found.append(b.let(f"arith.cmpi eq, {rest}, {b.index(0)} : index"))
    return found


def _at_arrays(whole: Tracer, keys: tuple[Any, ...], value: Tracer, how: str) -> Tracer:
    """Update at integer arrays, which broadcast, among slices and None, where NumPy has their dims."""
    every = _complete(whole, keys)
    at = [i for i, k in enumerate(every) if k is not None and not isinstance(k, slice)]
    adjacent = at == list(range(at[0], at[0] + len(at)))
    arrays, ranges, dim = dict[int, Tracer](), dict[int, _Range](), 0
    reversed_, shape = list[int](), list[int]()
    for key in every:
        if key is None:
            continue
        if isinstance(key, slice):
            start, count, step, reverse = _slice(key, whole.shape[dim])
            reversed_ += [dim] if reverse else []
            ranges[dim] = _Range(start, count, step)
        else:
            arrays[dim] = _places(key, whole.shape[dim], dim)
        dim += 1
    batch = broadcast_shapes(*[a.shape for a in arrays.values()])
    first = sum(k is not None for k in every[: at[0]]) if adjacent else 0
    others = [d for d in range(whole.ndim) if d in ranges]
    before, after = others[:first], others[first:]
    order: list[int | None] = [*before, *[None] * len(batch), *after]  # the dim of each loop
    sizes = [*(ranges[d].length for d in before), *batch, *(ranges[d].length for d in after)]
    news, dims = [], 0
    for k in every:  # the shape of x[key], with its dims of size 1 that None adds
        if k is None:
            news.append(1)
        elif isinstance(k, slice):
            news.append(ranges[dims].length)
        dims += k is not None
    cut = at[0] if adjacent else 0
    shape = [*news[:cut], *batch, *news[cut:]]
    _check_shape(value, tuple(shape))
    if 0 in shape or 0 in whole.shape:
        return whole
    new = reshaped(broadcast_to(value, tuple(shape)), tuple(sizes))
    turned = [order.index(d) for d in reversed_]
    new = flip(new, tuple(turned)) if turned else new
    row = tuple(range(len(before), len(before) + len(batch)))
    inputs = [broadcast_to(a, batch) for a in arrays.values()]
    found: list[tuple[int, int, int] | int] = [0] * whole.ndim
    for k, array_dim in enumerate(arrays):
        found[array_dim] = k
    for loop, d in enumerate(order):
        if d is not None:
            found[d] = (loop, ranges[d].start, ranges[d].step)
    reach = Reach(whole.shape, tuple(sizes), (row,) * len(inputs), tuple(found))
    return put_at(whole, new, inputs, reach, how)


@dataclass(frozen=True)
class Reach:
    """Say where in a tensor of `shape` loops of these sizes get.

    rows: the loops of each tensor of places. dims: for each dim the number of its tensor of places, whose negative ones
    count from the end, or loop, start and step.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    dims: tuple[tuple[int, int, int] | int, ...]

    def mapped(self, size: int, apart: Sequence[bool]) -> Reach:
        """Return the same with a dim of this size and its loop in front. apart: which places differ along it."""
        rows = [(*((0,) * own), *(k + 1 for k in row)) for own, row in zip(apart, self.rows)]
        dims = [d if isinstance(d, int) else (d[0] + 1, *d[1:]) for d in self.dims]
        return Reach((size, *self.shape), (size, *self.sizes), tuple(rows), ((0, 0, 1), *dims))

    def loop_of(self, d: int) -> int | None:
        """Return the loop that a dim runs with, all of it; None where its place is computed."""
        found = self.dims[d]
        if isinstance(found, int) or found[1:] != (0, 1) or self.sizes[found[0]] != self.shape[d]:
            return None
        return found[0]

    def place(self, b: Body, d: int, loops: Sequence[str], places: Sequence[str]) -> str:
        """Return the place along a dim, of type index."""
        found = self.dims[d]
        if isinstance(found, int):
            negative = b.let(f"arith.cmpi slt, {places[found]}, {b.index(0)} : index")
            from_end = b.let(f"arith.addi {places[found]}, {b.index(self.shape[d])} : index")
            return b.let(f"arith.select {negative}, {from_end}, {places[found]} : index")
        loop, start, step = found
        times = b.let(f"arith.muli {loops[loop]}, {b.index(step)} : index")
        return b.let(f"arith.addi {times}, {b.index(start)} : index")


def _places(key: Any, size: int, dim: int) -> Tracer:
    """Return an index as a tensor of int64. One known when tracing is checked and counts from 0."""
    if not isinstance(key, Tracer):
        return tensor(np.asarray(in_range(key, size, dim), np.int64))
    if key.dtype.kind not in INTEGERS:
        fail(f"an index of dtype {key.dtype!r}, integers are right")
    return e.astype(_signed(key, size), int64)


@primitive
def put_at(whole: Tracer, new: Tracer, places: Sequence[Tracer], reach: Reach, how: str) -> Tracer:
    """Update a tensor where loops get, whose sizes are those of `new`; what is out of range is left out."""
    trace, count, loc = tracing(whole), len(reach.sizes), tracing(whole).loc()
    b, element = Body(loc), whole.dtype.element
    loops = [f"%l{k}" for k in range(count)]
    given = [_as_index(b, f"%i{k}", t.dtype) for k, t in enumerate(places)]
    computed_ = [d for d in range(whole.ndim) if reach.loop_of(d) is None]
    wheres = [reach.place(b, d, loops, given) for d in computed_]
    made, always = _element(b, how, whole.dtype, "%c", "%n"), b.constant(True, bool_)
    arguments = [f"{name}: index" for name in loops]
    arguments += [f"%i{k}: {t.dtype.element}" for k, t in enumerate(places)]
    arguments += [f"%n: {element}", f"%c: {element}"]
    read = [affine_map(count, tuple(f"d{k}" for k in row)) for row in reach.rows]
    read.append(affine_map(count, tuple(f"d{k}" for k in range(count))))
    ends = [
        count + computed_.index(d) if d in computed_ else reach.loop_of(d)
        for d in range(whole.ndim)
    ]
    maps = ", ".join([*read, affine_map(count + len(computed_), tuple(f"d{k}" for k in ends))])
    values = [*places, new, whole]
    names, types = ", ".join(map(trace.name, values)), ", ".join(v.type for v in values)
    kinds = ", ".join(["i1", *["index"] * len(wheres), element])
    name = trace.let(
        f'"mw.scatter"({names}) ({{\n^bb0({", ".join(arguments)}):\n'
        + "".join(f"  {line}\n" for line in b.lines)
        + f'  "mw.yield"({", ".join([always, *wheres, made])}) : ({kinds}) -> (){loc}\n'
        + f"}}) {{maps = [{maps}]}} : ({types}) -> {whole.type}"
    )
    return Tracer(trace, name, whole.shape, whole.dtype)


@primitive
def read_at(whole: Tracer, places: Sequence[Tracer], reach: Reach) -> Tracer:
    """Read a tensor where loops get: zeros where that is out of range."""
    source, count = tracing(whole).name(whole), len(reach.sizes)

    def body(b: Body, ins: list[str]) -> str:
        loops = [b.loop(k) for k in range(count)]
        given = [_as_index(b, name, t.dtype) for name, t in zip(ins, places)]
        at, inside = list[str](), b.constant(True, bool_)
        for d, size in enumerate(reach.shape):
            place = reach.place(b, d, loops, given)
            last = b.index(size - 1)
            low = b.let(f"arith.maxsi {place}, {b.index(0)} : index")
            near = b.let(f"arith.minsi {low}, {last} : index")
            same_ = b.let(f"arith.cmpi eq, {near}, {place} : index")
            inside = b.op("arith.andi", bool_, inside, same_)
            at.append(near)
        found = b.let(f"tensor.extract {source}[{', '.join(at)}] : {whole.type}")
        return b.select(inside, whole.dtype, found, b.constant(0, whole.dtype))

    maps = [affine_map(count, tuple(f"d{k}" for k in row)) for row in reach.rows]
    return parallel(places, maps, reach.sizes, whole.dtype, body)


def _as_index(b: Body, name: str, dtype: DType) -> str:
    return b.let(f"arith.index_cast {name} : {dtype.element} to index")


def put_along(x: ArrayLike, indices: ArrayLike, values: ArrayLike, axis: int) -> Tracer:
    """Return x with `values` at `indices` along `axis`, each at its own place along the other dims."""
    whole, places = tensor(x), tensor(indices)
    dim = axis_of("put_along_axis", axis, whole.ndim)
    if places.ndim != whole.ndim or places.dtype.kind not in INTEGERS:
        fail(
            f"put_along_axis: indices of {places.ndim} dims and dtype {places.dtype!r}, integers of {whole.ndim} "
            "dims are right"
        )
    sizes = tuple(places.shape[d] if d == dim else n for d, n in enumerate(whole.shape))
    given = _taken(whole, values, "set")
    _check_shape(given, sizes)
    if 0 in sizes or 0 in whole.shape:
        return whole
    at = broadcast_to(e.astype(_signed(places, whole.shape[dim]), int64), sizes)
    dims = tuple([0 if d == dim else (d, 0, 1) for d in range(whole.ndim)])
    reach = Reach(whole.shape, sizes, (tuple(range(whole.ndim)),), dims)
    return put_at(whole, broadcast_to(given, sizes), [at], reach, "set")


class At:
    """Hold an array and an index: `x.at[key].set(y)` is x with other elements there, and x stays as it is.

    get: what `x[key]` is. set, add, subtract, multiply, divide, min, max: combine what is there with a value; several
    updates at one place all count, and the last one is what is set.
    """

    def __init__(self, x: Any, made: Callable[..., Any], key: Any = ...) -> None:
        self._x, self._made, self._key = x, made, key

    def __getitem__(self, key: Any) -> At:
        return At(self._x, self._made, key)

    def get(self) -> Any:
        """Return `x[key]`."""
        return self._x[self._key]

    def set(self, value: Any) -> Any:
        """Return x with `value` there."""
        return self._made(self._x, self._key, value, "set")

    def add(self, value: Any) -> Any:
        """Return x with `value` added there."""
        return self._made(self._x, self._key, value, "add")

    def subtract(self, value: Any) -> Any:
        """Return x with `value` subtracted there."""
        return self._made(self._x, self._key, value, "subtract")

    def multiply(self, value: Any) -> Any:
        """Return x multiplied by `value` there."""
        return self._made(self._x, self._key, value, "multiply")

    def divide(self, value: Any) -> Any:
        """Return x divided by `value` there."""
        return self._made(self._x, self._key, value, "divide")

    def min(self, value: Any) -> Any:
        """Return x with the smaller one of what is there and `value`."""
        return self._made(self._x, self._key, value, "min")

    def max(self, value: Any) -> Any:
        """Return x with the larger one of what is there and `value`."""
        return self._made(self._x, self._key, value, "max")


def at(x: Tracer) -> At:
    """Return `x.at` of a traced value."""
    return At(x, updated)


def put_along_axis(x: ArrayLike, indices: ArrayLike, values: ArrayLike, /, axis: int) -> Tracer:
    """Set the elements of x at `indices` along `axis`, each at its own place along the other dims; return x.

    As NumPy's, it changes x itself; `put_along_axis(mw.copy(x), ..)` does not. Negative indices count from the end.
    """
    made = put_along(x, indices, values, axis)
    if isinstance(x, Tracer):
        x.become(made)
        return x
    return made
