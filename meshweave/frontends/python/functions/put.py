"""Define what puts elements where others were read: the transposes of slices and of lookups, for gradients."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.frontends.python.builder import Body, affine_map, fail, tensor_type
from meshweave.frontends.python.dtypes import accumulator, op_of
from meshweave.frontends.python.functions.elementwise import astype
from meshweave.frontends.python.functions.index import clamped
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import Tracer, splat, tracing


@primitive
def insert(
    value: Tracer, shape: tuple[int, ...], starts: Sequence[int], steps: Sequence[int]
) -> Tracer:
    """Put a tensor into zeros of a shape: its element i at starts + steps * i."""
    trace = tracing(value)
    if 0 in value.shape:
        return splat(trace, shape, 0, value.dtype)
    zeros, result = splat(trace, shape, 0, value.dtype), tensor_type(shape, value.dtype)
    steps = [1 if n == 1 else s for n, s in zip(value.shape, steps)]
    name = trace.let(
        f"tensor.insert_slice {trace.name(value)} into {zeros.name}{list(starts)} {list(value.shape)} "
        f"{steps} : {value.type} into {result}"
    )
    return Tracer(trace, name, shape, value.dtype)


@primitive
def add_rows(value: Tracer, indices: Tracer, dim: int, size: int) -> Tracer:
    """Add up slices at the places along a dim of `size` that `take` read them from; the dims of indices go."""
    k, n = indices.ndim, value.ndim
    shape = (*value.shape[:dim], size, *value.shape[dim + k :])
    rows = [tuple(range(dim, dim + k)), tuple(range(n))]
    to = (*range(dim), n, *range(dim + k, n))
    return _added(value, indices, rows, to, shape, dim)


@primitive
def add_along(value: Tracer, indices: Tracer, dim: int, shape: tuple[int, ...]) -> Tracer:
    """Add up elements at the places along a dim that `take_along_axis` read them from."""
    n = value.ndim
    if indices.shape != value.shape:
        fail(f"add_along: indices of shape {indices.shape} for elements of {value.shape}")
    to = tuple(n if d == dim else d for d in range(n))
    return _added(value, indices, [tuple(range(n)), tuple(range(n))], to, shape, dim)


def _added(
    value: Tracer,
    indices: Tracer,
    rows: Sequence[tuple[int, ...]],
    to: Sequence[int],
    shape: tuple[int, ...],
    dim: int,
) -> Tracer:
    """Write an `mw.scatter` that adds; rows, to: the loops of each tensor, and one behind them for the place."""
    trace, dtype = tracing(value), value.dtype
    wide = accumulator(dtype)
    start = splat(trace, shape, 0, wide)
    if 0 in value.shape or 0 in shape:
        return splat(trace, shape, 0, dtype)
    loops, size = value.ndim, shape[dim]
    lines = Body(trace.loc())
    place = clamped(lines, "%at", indices.dtype, size)
    new = lines.op(op_of("add", wide), wide, "%old", lines.cast("%new", dtype, wide))
    yes = lines.let("arith.constant true")
    ends = f'"mw.yield"({yes}, {place}, {new}) : (i1, index, {wide.element}) -> ()'
    arguments = [f"%d{k}: index" for k in range(loops)]
    arguments += [
        f"%at: {indices.dtype.element}",
        f"%new: {dtype.element}",
        f"%old: {wide.element}",
    ]
    maps = [affine_map(loops, tuple(f"d{d}" for d in row)) for row in rows]
    maps.append(affine_map(loops + 1, tuple(f"d{d}" for d in to)))
    names = ", ".join([trace.name(indices), trace.name(value), start.name])
    body = "".join([f"  {line}\n" for line in lines.lines])
    name = trace.let(
        f'"mw.scatter"({names}) ({{\n^bb0({", ".join(arguments)}):\n{body}  {ends}{trace.loc()}\n'
        f"}}) {{maps = [{', '.join(maps)}]}} : ({indices.type}, {value.type}, {start.type}) -> {start.type}"
    )
    return astype(Tracer(trace, name, shape, wide), dtype)
