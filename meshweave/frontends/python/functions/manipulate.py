"""Define the functions of the array API standard that change shapes and move elements."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod

from meshweave.errors import DimError, ShapeError
from meshweave.frontends.python.builder import affine_map, broadcast_map, fail, tensor_type
from meshweave.frontends.python.functions.elementwise import astype
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Axes,
    Shape,
    Tracer,
    broadcast_shapes,
    operand_dtype,
    operands,
    parallel,
    splat,
    tensor,
    tracing,
)


def axis_of(name: str, axis: object, ndim: int) -> int:
    """Return an axis counted from 0. Raises CompileError at the user's line when there is none."""
    try:
        number = operator.index(axis)  # type: ignore[arg-type]  # the error says what is wrong
    except TypeError:
        fail(f"{name}: axis {axis!r} is no integer")
    if not -ndim <= number < ndim:
        fail(f"{name}: there is no dim {number} of {ndim} dims", DimError)
    return number % ndim


def axes_of(name: str, axis: Axes, ndim: int) -> tuple[int, ...]:
    """Return axes counted from 0, each once; None means all."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    dims = tuple([axis_of(name, a, ndim) for a in given])
    if len(set(dims)) != len(dims):
        fail(f"{name}: a dim is named twice in {given}")
    return dims


def sizes_of(name: str, shape: Shape) -> tuple[int, ...]:
    """Return a shape given as one integer or several."""
    given = shape if isinstance(shape, tuple | list) else (shape,)
    try:
        return tuple([operator.index(n) for n in given])
    except TypeError:
        fail(f"{name}: shape {shape!r}, integers are right")


def reshape(x: ArrayLike, /, shape: Shape, *, copy: bool | None = None) -> Tracer:
    """Give the same elements, in row-major order, another shape; one size may be -1 and is computed.

    copy: has no effect, since values of programs never change.
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
    return reshaped(value, tuple(sizes))


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


@primitive
def reshaped(value: Tracer, shape: tuple[int, ...]) -> Tracer:
    """Give a tensor another shape of as many elements."""
    if value.shape == shape:
        return value
    if value.size == 0:
        return splat(tracing(value), shape, 0, value.dtype)
    groups = _groups(value.shape, shape)
    merged, split = [left for left, _ in groups if left], [right for _, right in groups]
    if any(len(dims) > 1 for dims in merged):
        sizes = tuple(prod(value.shape[d] for d in dims) for dims in merged)
        value = _view("collapse_shape", value, merged, sizes)
    if value.shape == shape:
        return value
    if not shape:  # all dims are 1
        return _view("collapse_shape", value, [], shape)
    return _view("expand_shape", value, split if value.shape else [], shape)


def _groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Group the dims of `a` and `b` into the shortest runs with equally many elements, both in order.

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


def _view(op: str, value: Tracer, groups: list[list[int]], shape: tuple[int, ...]) -> Tracer:
    trace = tracing(value)
    result = tensor_type(shape, value.dtype)
    sizes = f" output_shape [{', '.join(map(str, shape))}]" if op == "expand_shape" else ""
    text = f"tensor.{op} {trace.name(value)} {groups}{sizes} : {value.type} into {result}"
    return Tracer(trace, trace.let(text), shape, value.dtype)


def mapped(value: Tracer, shape: tuple[int, ...], reads: Sequence[str]) -> Tracer:
    """Copy elements: (d0, d1, ...) of the result is the element at `reads`, which are affine in d0, d1, ..."""
    maps = [affine_map(len(shape), tuple(reads))]
    return parallel([value], maps, shape, value.dtype, lambda b, ins: ins[0])


@primitive
def permute_dims(x: ArrayLike, /, axes: Sequence[int]) -> Tracer:
    """Put the dims in the order `axes`."""
    value = tensor(x)
    order = axes_of("permute_dims", tuple(axes), value.ndim)
    if len(order) != value.ndim:
        fail(f"permute_dims: {len(order)} dims in {tuple(axes)}, x has {value.ndim}")
    if order == tuple(range(value.ndim)):
        return value
    reads = [f"d{order.index(d)}" for d in range(value.ndim)]
    return mapped(value, tuple(value.shape[d] for d in order), reads)


def moveaxis(x: ArrayLike, source: Axes, destination: Axes, /) -> Tracer:
    """Move the dims `source` to the places `destination`; the others keep their order."""
    value = tensor(x)
    sources = axes_of("moveaxis", source, value.ndim)
    places = axes_of("moveaxis", destination, value.ndim)
    if len(sources) != len(places):
        fail(f"moveaxis: {len(sources)} dims to {len(places)} places")
    rest = iter([d for d in range(value.ndim) if d not in sources])
    at = dict(zip(places, sources))
    return permute_dims(value, [at[d] if d in at else next(rest) for d in range(value.ndim)])


def expand_dims(x: ArrayLike, /, axis: int | Sequence[int] = 0) -> Tracer:
    """Insert a dim of extent 1 at each place of the result that `axis` names."""
    value = tensor(x)
    given = axis if isinstance(axis, tuple | list) else (axis,)
    places = axes_of("expand_dims", tuple(given), value.ndim + len(given))
    rest = iter(value.shape)
    shape = tuple(1 if d in places else next(rest) for d in range(value.ndim + len(given)))
    return reshaped(value, shape)


def squeeze(x: ArrayLike, /, axis: Axes = None) -> Tracer:
    """Remove the dims `axis`, which must have extent 1; None: all that have."""
    value = tensor(x)
    ones = tuple([d for d, n in enumerate(value.shape) if n == 1])
    dims = ones if axis is None else axes_of("squeeze", axis, value.ndim)
    for d in dims:
        if value.shape[d] != 1:
            fail(f"squeeze: dim {d} has size {value.shape[d]}, 1 is right", ShapeError)
    return reshaped(value, tuple(n for d, n in enumerate(value.shape) if d not in dims))


@primitive
def broadcast_to(x: ArrayLike, /, shape: Shape) -> Tracer:
    """Repeat x along dims that it lacks, or has with extent 1."""
    value, sizes = tensor(x), sizes_of("broadcast_to", shape)
    if value.shape == sizes:
        return value
    if any(n < 0 for n in sizes) or broadcast_shapes(value.shape, sizes) != sizes:
        fail(f"broadcast_to: {_by(value.shape)} does not broadcast to {_by(sizes)}")
    maps = [broadcast_map(value.shape, sizes)]
    return parallel([value], maps, sizes, value.dtype, lambda b, ins: ins[0])


def broadcast_arrays(*arrays: ArrayLike) -> list[Tracer]:
    """Broadcast all arrays to their common shape."""
    values = [tensor(x) for x in arrays]
    shape = broadcast_shapes(*[v.shape for v in values])
    return [broadcast_to(v, shape) for v in values]


@primitive
def concat(arrays: Sequence[ArrayLike], /, axis: int | None = 0) -> Tracer:
    """Join arrays along `axis`; None: flatten them first."""
    given = operands(list(arrays))
    if not given:
        fail("concat: no arrays")
    dtype = operand_dtype(given)
    values = [astype(v, dtype) for v in given]
    if axis is None:
        values, axis = [reshaped(v, (v.size,)) for v in values], 0
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


def stack(arrays: Sequence[ArrayLike], /, axis: int = 0) -> Tracer:
    """Stack arrays of one shape along a new dim at `axis`."""
    values = [tensor(x) for x in arrays]
    if not values:
        fail("stack: no arrays")
    dim = axis_of("stack", axis, values[0].ndim + 1)
    for value in values[1:]:
        if value.shape != values[0].shape:
            fail(f"stack: shapes {_by(value.shape)} and {_by(values[0].shape)} must be equal")
    return concat([expand_dims(v, dim) for v in values], dim)


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Tracer, ...]:
    """Split x into its slices along `axis`, without that dim."""
    value = tensor(x)
    dim = axis_of("unstack", axis, value.ndim)
    return tuple(value[(slice(None),) * dim + (i,)] for i in range(value.shape[dim]))


@primitive
def flip(x: ArrayLike, /, axis: Axes = None) -> Tracer:
    """Reverse the order of the elements along `axis` (None: along every dim)."""
    value = tensor(x)
    dims = axes_of("flip", axis, value.ndim)
    if value.size == 0 or all(value.shape[d] == 1 for d in dims):
        return value
    reads = [
        f"{n - 1} - d{d}" if d in dims and n > 1 else f"d{d}" for d, n in enumerate(value.shape)
    ]
    return mapped(value, value.shape, reads)


def roll(x: ArrayLike, /, shift: Shape, axis: Axes = None) -> Tracer:
    """Shift the elements by `shift` places along `axis`, from the end to the front; None: in the flattened array."""
    value = tensor(x)
    if axis is None:
        return reshaped(roll(reshaped(value, (value.size,)), shift, 0), value.shape)
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


def tile(x: ArrayLike, repetitions: Shape, /) -> Tracer:
    """Repeat x as a whole `repetitions` times along each dim; missing dims are added in front."""
    value, counts = tensor(x), sizes_of("tile", repetitions)
    if any(n < 0 for n in counts):
        fail(f"tile: repetitions {counts} must not be negative")
    counts = (1,) * (value.ndim - len(counts)) + counts
    shape = (1,) * (len(counts) - value.ndim) + value.shape
    value = reshaped(value, shape)
    apart = tuple(size for n, d in zip(counts, shape) for size in (n, d))
    wide = tuple(size for d in shape for size in (1, d))
    spread = broadcast_to(reshaped(value, wide), apart)
    return reshaped(spread, tuple(n * d for n, d in zip(counts, shape)))
