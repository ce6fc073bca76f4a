"""Shapes and places: reshape, permute_dims, concat, stack, flip, roll, tile, repeat and the like, of the array API
standard.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from meshweave.trace.builder import affine_map, broadcast_map, fail, tensor_type
from meshweave.trace.tracer import (
    Tracer,
    broadcast_shapes,
    operand_dtype,
    operands,
    tensor,
    tracing,
)


def axis_of(name: str, axis: Any, ndim: int) -> int:
    """A dim counted from 0. CompileError at the user's line when there is none."""
    try:
        number = operator.index(axis)
    except TypeError:
        fail(f"{name}: axis {axis!r} is no integer")
    if not -ndim <= number < ndim:
        fail(f"{name}: there is no dim {number} of {ndim} dims")
    return number % ndim


def axes_of(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Dims counted from 0, each once; None means all."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    dims = tuple([axis_of(name, a, ndim) for a in given])
    if len(set(dims)) != len(dims):
        fail(f"{name}: a dim stands twice in {given}")
    return dims


def sizes_of(name: str, shape: Any) -> tuple[int, ...]:
    """A shape given as an integer or integers."""
    given = shape if isinstance(shape, tuple | list) else (shape,)
    try:
        return tuple([operator.index(n) for n in given])
    except TypeError:
        fail(f"{name}: shape {shape!r}, integers are right")


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Tracer:
    """The same elements, in row-major order, in another shape; one size may be -1: what is left.

    copy: values of programs do not change, so that a copy and the value are the same.
    """
    value, sizes = tensor(x), list(sizes_of("reshape", shape))
    if sizes.count(-1) > 1 or any(n < -1 for n in sizes):
        fail(f"reshape: shape {tuple(sizes)}: one size may be -1, the others not negative")
    if -1 in sizes:
        rest = prod(n for n in sizes if n != -1)
        if rest == 0 or value.size % rest:
            fail(f"reshape: {value.size} elements do not divide into {tuple(sizes)}")
        sizes[sizes.index(-1)] = value.size // rest
    if prod(sizes) != value.size:
        fail(
            f"reshape: {_by(value.shape)} has {value.size} elements, {_by(sizes)} has {prod(sizes)}"
        )
    return _reshaped(value, tuple(sizes))


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _reshaped(value: Tracer, shape: tuple[int, ...]) -> Tracer:
    if value.shape == shape:
        return value
    if value.size == 0:
        from meshweave.trace.create import zeros

        return zeros(shape, dtype=value.dtype)
    groups = _groups(value.shape, shape)
    value = _collapsed(value, [g[0] for g in groups])
    return _expanded(value, [g[1] for g in groups], shape)


def _groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Runs of dims of `a` and of `b` with equally many elements, as short as can be, each side's in order.

    Dims of extent 1 go with a neighbour, so that no run is empty where the shapes have dims.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        left: list[int] = []
        right: list[int] = []
        m = n = 1
        while (m != n or not left or not right) and (i < len(a) or j < len(b)):
            if (m < n or not left or j == len(b)) and i < len(a):
                left.append(i)
                m, i = m * a[i], i + 1
            else:
                right.append(j)
                n, j = n * b[j], j + 1
        groups.append((left, right))
    if len(groups) > 1 and not (groups[-1][0] and groups[-1][1]):
        left, right = groups.pop()  # ones at the end
        groups[-1] = (groups[-1][0] + left, groups[-1][1] + right)
    return groups


def _collapsed(value: Tracer, groups: list[list[int]]) -> Tracer:
    """Each group of dims as one; all groups empty: without dims already."""
    if all(len(g) <= 1 for g in groups):
        return value
    kept = [g for g in groups if g]
    return _view(
        "collapse_shape", value, kept, tuple(prod(value.shape[d] for d in g) for g in kept)
    )


def _expanded(value: Tracer, groups: list[list[int]], shape: tuple[int, ...]) -> Tracer:
    if value.shape == shape:
        return value
    if not shape:  # all dims are 1
        return _view("collapse_shape", value, [], shape)
    if not value.shape:
        return _view("expand_shape", value, [], shape)
    return _view("expand_shape", value, groups, shape)


def _view(op: str, value: Tracer, groups: list[list[int]], shape: tuple[int, ...]) -> Tracer:
    trace = tracing(value)
    result = tensor_type(shape, value.dtype)
    sizes = f" output_shape [{', '.join(map(str, shape))}]" if op == "expand_shape" else ""
    text = f"tensor.{op} {trace.name(value)} {groups}{sizes} : {value.type} into {result}"
    return Tracer(trace, trace.let(text), shape, value.dtype)


def mapped(value: Tracer, shape: tuple[int, ...], reads: Sequence[str]) -> Tracer:
    """A copy: element (d0, d1, ..) of the result is the value's at `reads`, affine in d0, d1, .."""
    trace = tracing(value)
    type_ = tensor_type(shape, value.dtype)
    maps = [affine_map(len(shape), tuple(reads)), broadcast_map(shape, shape)]
    kinds = ["parallel"] * len(shape)
    empty = trace.empty(type_)
    name = trace.generic(maps, kinds, [value], empty, type_, lambda b, ins, out: ins[0])
    return Tracer(trace, name, shape, value.dtype)


def permute_dims(x: Any, /, axes: Sequence[int]) -> Tracer:
    """The dims in the order `axes`."""
    value = tensor(x)
    order = axes_of("permute_dims", tuple(axes), value.ndim)
    if len(order) != value.ndim:
        fail(f"permute_dims: {len(order)} dims in {tuple(axes)}, x has {value.ndim}")
    if order == tuple(range(value.ndim)):
        return value
    reads = [f"d{order.index(d)}" for d in range(value.ndim)]
    return mapped(value, tuple(value.shape[d] for d in order), reads)


def moveaxis(x: Any, source: Any, destination: Any, /) -> Tracer:
    """Dims `source` put to the places `destination`, the others in their order."""
    value = tensor(x)
    sources = axes_of("moveaxis", source, value.ndim)
    places = axes_of("moveaxis", destination, value.ndim)
    if len(sources) != len(places):
        fail(f"moveaxis: {len(sources)} dims to {len(places)} places")
    rest = iter([d for d in range(value.ndim) if d not in sources])
    at = dict(zip(places, sources))
    return permute_dims(value, [at[d] if d in at else next(rest) for d in range(value.ndim)])


def expand_dims(x: Any, /, axis: Any = 0) -> Tracer:
    """A new dim of extent 1 at each place of the result that `axis` names."""
    value = tensor(x)
    given = axis if isinstance(axis, tuple | list) else (axis,)
    places = axes_of("expand_dims", tuple(given), value.ndim + len(given))
    rest = iter(value.shape)
    shape = tuple(1 if d in places else next(rest) for d in range(value.ndim + len(given)))
    return _reshaped(value, shape)


def squeeze(x: Any, /, axis: Any) -> Tracer:
    """Without the dims `axis`, which must have extent 1."""
    value = tensor(x)
    dims = axes_of("squeeze", axis, value.ndim)
    for d in dims:
        if value.shape[d] != 1:
            fail(f"squeeze: dim {d} has size {value.shape[d]}, 1 is right")
    return _reshaped(value, tuple(n for d, n in enumerate(value.shape) if d not in dims))


def broadcast_to(x: Any, /, shape: Any) -> Tracer:
    """x repeated along dims that it has not, or has with extent 1."""
    value, sizes = tensor(x), sizes_of("broadcast_to", shape)
    if value.shape == sizes:
        return value
    if any(n < 0 for n in sizes) or broadcast_shapes(value.shape, sizes) != sizes:
        fail(f"broadcast_to: {_by(value.shape)} does not broadcast to {_by(sizes)}")
    trace = tracing(value)
    type_ = tensor_type(sizes, value.dtype)
    maps = [broadcast_map(value.shape, sizes), broadcast_map(sizes, sizes)]
    kinds = ["parallel"] * len(sizes)
    empty = trace.empty(type_)
    name = trace.generic(maps, kinds, [value], empty, type_, lambda b, ins, out: ins[0])
    return Tracer(trace, name, sizes, value.dtype)


def broadcast_arrays(*arrays: Any) -> list[Tracer]:
    """All in the shape that they broadcast to."""
    values = [tensor(x) for x in arrays]
    shape = broadcast_shapes(*[v.shape for v in values])
    return [broadcast_to(v, shape) for v in values]


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Tracer:
    """The arrays one after the other along `axis`; None: all their elements in one row."""
    from meshweave.trace.elementwise import astype

    given = operands(list(arrays))
    if not given:
        fail("concat: no arrays")
    dtype = operand_dtype(given)
    values = [astype(tensor(v), dtype) for v in given]
    if axis is None:
        values, axis = [_reshaped(v, (v.size,)) for v in values], 0
    dim = axis_of("concat", axis, values[0].ndim)
    shape = list(values[0].shape)
    for value in values[1:]:
        fits = value.ndim == len(shape) and all(
            n == m for d, (n, m) in enumerate(zip(value.shape, shape)) if d != dim
        )
        if not fits:
            fail(f"concat: {_by(value.shape)} beside {_by(shape)}: only dim {dim} may differ")
    shape[dim] = sum(v.shape[dim] for v in values)
    values = [v for v in values if v.shape[dim]] or values[:1]
    if len(values) == 1:
        return values[0]
    trace = tracing(*values)
    names = ", ".join([trace.name(v) for v in values])
    types = ", ".join([v.type for v in values])
    result = tensor_type(tuple(shape), dtype)
    name = trace.let(f"tensor.concat dim({dim}) {names} : ({types}) -> {result}")
    return Tracer(trace, name, shape, dtype)


def stack(arrays: Sequence[Any], /, axis: int = 0) -> Tracer:
    """The arrays, of one shape, along a new dim at `axis`."""
    values = [tensor(x) for x in arrays]
    if not values:
        fail("stack: no arrays")
    dim = axis_of("stack", axis, values[0].ndim + 1)
    for value in values[1:]:
        if value.shape != values[0].shape:
            fail(f"stack: shapes {_by(value.shape)} and {_by(values[0].shape)} must be equal")
    return concat([expand_dims(v, dim) for v in values], dim)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tracer, ...]:
    """The slices along `axis`, without that dim."""
    value = tensor(x)
    dim = axis_of("unstack", axis, value.ndim)
    return tuple(value[(slice(None),) * dim + (i,)] for i in range(value.shape[dim]))


def flip(x: Any, /, axis: Any = None) -> Tracer:
    """The elements in reverse order along `axis` (None: along every dim)."""
    value = tensor(x)
    dims = axes_of("flip", axis, value.ndim)
    if value.size == 0 or all(value.shape[d] == 1 for d in dims):
        return value
    reads = [
        f"{n - 1} - d{d}" if d in dims and n > 1 else f"d{d}" for d, n in enumerate(value.shape)
    ]
    return mapped(value, value.shape, reads)


def roll(x: Any, /, shift: Any, axis: Any = None) -> Tracer:
    """Each element moved on by `shift` places along `axis`, those at the end to the front; None: of all elements in a
    row.
    """
    value = tensor(x)
    if axis is None:
        return _reshaped(roll(_reshaped(value, (value.size,)), shift, 0), value.shape)
    given = axis if isinstance(axis, tuple | list) else (axis,)
    shifts = sizes_of("roll", shift)
    shifts = shifts * len(given) if len(shifts) == 1 else shifts
    if len(shifts) != len(given):
        fail(f"roll: {len(shifts)} shifts for {len(given)} dims")
    for a, places in zip(given, shifts):
        dim = axis_of("roll", a, value.ndim)
        size = value.shape[dim]
        cut = -places % size if size else 0
        if cut:
            before = (slice(None),) * dim
            last, first = (*before, slice(cut, None)), (*before, slice(cut))
            value = concat([value[last], value[first]], dim)
    return value


def tile(x: Any, repetitions: Any, /) -> Tracer:
    """x laid out `repetitions` times along each dim; missing dims are put in front."""
    value, counts = tensor(x), sizes_of("tile", repetitions)
    if any(n < 0 for n in counts):
        fail(f"tile: repetitions {counts} must not be negative")
    counts = (1,) * (value.ndim - len(counts)) + counts
    shape = (1,) * (len(counts) - value.ndim) + value.shape
    value = _reshaped(value, shape)
    apart = tuple(size for n, d in zip(counts, shape) for size in (n, d))
    wide = tuple(size for d in shape for size in (1, d))
    spread = broadcast_to(_reshaped(value, wide), apart)
    return _reshaped(spread, tuple(n * d for n, d in zip(counts, shape)))


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Tracer:
    """Each element `repeats` times in a row along `axis`; None: of all elements in a row.

    repeats: a number, or one for each place along `axis`, known when tracing: the result's size depends on them.
    """
    value = tensor(x)
    if axis is None:
        value, axis = _reshaped(value, (value.size,)), 0
    dim = axis_of("repeat", axis, value.ndim)
    counts = _counts(repeats, value.shape[dim])
    if len(counts) > 1:
        from meshweave.trace.index import take

        return take(value, np.repeat(np.arange(len(counts)), counts), axis=dim)
    count = counts[0]
    before, after = value.shape[: dim + 1], value.shape[dim + 1 :]
    spread = broadcast_to(_reshaped(value, (*before, 1, *after)), (*before, count, *after))
    return _reshaped(spread, (*value.shape[:dim], value.shape[dim] * count, *after))


def _counts(repeats: Any, size: int) -> tuple[int, ...]:
    """How often `repeat` takes each of `size` places, or one number for all. CompileError at the user's line."""
    if isinstance(repeats, Tracer):
        fail("repeat: repeats is known only when the program runs, and so is the result's size")
    given = repeats.tolist() if isinstance(repeats, np.ndarray) else repeats
    counts = sizes_of("repeat: repeats as", given)
    if len(counts) not in (1, size) or any(n < 0 for n in counts):
        fail(f"repeat: repeats={given!r:.60}, one number or {size} that are not negative are right")
    return counts
