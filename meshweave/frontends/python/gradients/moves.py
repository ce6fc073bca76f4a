"""Hold the rules of what moves elements: shapes, slices, lookups; and of layouts, which their cotangents take too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import int64
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.create import full, iota, tril, triu, zeros_like
from meshweave.frontends.python.functions.index import (
    _extract,
    _gather,
    _signed,
    take_along_axis,
)
from meshweave.frontends.python.functions.manipulate import (
    axis_of,
    broadcast_to,
    expand_dims,
    flip,
    permute_dims,
    reshaped,
)
from meshweave.frontends.python.functions.put import add_along, add_rows, insert
from meshweave.frontends.python.functions.sort import put_back
from meshweave.frontends.python.functions.update import Reach, put_at, put_slice, read_at
from meshweave.frontends.python.place import constrain
from meshweave.frontends.python.tracer import Axes, Tracer
from meshweave.layout.spec import LayoutLike


def _permute_dims(g: Tracer, y: Tracer, x: Tracer, axes: Sequence[int]) -> Tracer:
    order = [axis_of("permute_dims", a, x.ndim) for a in axes]
    return permute_dims(g, [order.index(d) for d in range(x.ndim)])


def _flip(g: Tracer, y: Tracer, x: Tracer, axis: Axes = None) -> Tracer:
    return flip(g, axis=axis)


def _concat(
    g: Tracer, y: Tracer, arrays: Sequence[Tracer], axis: int | None = 0
) -> list[Tracer | None]:
    """Cut the cotangent where the arrays met."""
    dim, at, found = axis_of("concat", axis or 0, g.ndim), 0, list[Tracer | None]()
    for value in arrays:
        shape = getattr(value, "shape", ())
        size = shape[dim] if len(shape) == g.ndim else int(getattr(value, "size", 1))
        cut = g[(slice(None),) * dim + (slice(at, at + size),)]
        found.append(reshaped(cut, value.shape) if isinstance(value, Tracer) else None)
        at += size
    return found


def _extract_rule(
    g: Tracer, y: Tracer, x: Tracer, starts: list[int], sizes: list[int], steps: list[int]
) -> Tracer:
    return insert(g, x.shape, starts, steps)


def _insert(
    g: Tracer, y: Tracer, x: Tracer, shape: Sequence[int], starts: list[int], steps: list[int]
) -> Tracer:
    return _extract(g, list(starts), list(x.shape), list(steps))


def _gather_rule(g: Tracer, y: Tracer, x: Tracer, indices: Tracer, dim: int) -> Tracer:
    return add_rows(g, _signed(indices, x.shape[dim]), dim, x.shape[dim])


def _along(g: Tracer, y: Tracer, x: Tracer, indices: Tracer, axis: int = -1) -> Tracer:
    dim = axis_of("take_along_axis", axis, x.ndim)
    shape = (*y.shape[:dim], x.shape[dim], *y.shape[dim + 1 :])
    places = broadcast_to(_signed(indices, x.shape[dim]), y.shape)
    return add_along(g, places, dim, shape)


def _diagonal(g: Tracer, y: Tracer, x: Tracer, offset: int = 0) -> Tracer:
    """Put the cotangent on the diagonal of zeros."""
    if not g.size:
        return full(x.shape, 0, dtype=g.dtype)
    down = max(-offset, 0)
    rows = insert(g, (*g.shape[:-1], x.shape[-2]), [*[0] * (g.ndim - 1), down], [1] * g.ndim)
    row, column = (iota(x.shape, x.ndim - d, int64) for d in (2, 1))
    on = logic.equal(e.subtract(column, row), offset)
    return e.where(on, expand_dims(rows, -1), 0)


def _triangle(g: Tracer, y: Tracer, name: str, x: Tracer, k: int, predicate: str) -> Tracer:
    return (tril if name == "tril" else triu)(g, k=k)


def _constrain(
    g: Tracer, y: Tracer, x: Tracer, layout: LayoutLike, backward: LayoutLike | None = None
) -> Tracer:
    return constrain(g, layout if backward is None else backward)


def _slice_old(
    g: Tracer, y: Tracer, whole: Tracer, new: Tracer, starts: Sequence[int], steps: Sequence[int]
) -> Tracer:
    return put_slice(g, zeros_like(new), starts, steps)


def _slice_new(
    g: Tracer, y: Tracer, whole: Tracer, new: Tracer, starts: Sequence[int], steps: Sequence[int]
) -> Tracer:
    return _extract(g, list(starts), list(new.shape), list(steps))


def _put_old(
    g: Tracer,
    y: Tracer,
    whole: Tracer,
    new: Tracer,
    places: Sequence[Tracer],
    reach: Reach,
    how: str,
) -> Tracer:
    if how == "set":
        return put_at(g, zeros_like(new), places, reach, "set")
    return _added_alone(g, how)


def _put_new(
    g: Tracer,
    y: Tracer,
    whole: Tracer,
    new: Tracer,
    places: Sequence[Tracer],
    reach: Reach,
    how: str,
) -> Tracer:
    """Read the cotangent where each element went; of several that were set at one place the last one has it."""
    if how == "subtract":
        return e.negative(read_at(g, places, reach))
    found = read_at(_added_alone(g, how), places, reach)
    if how != "set":
        return found
    own = reshaped(iota((new.size,), 0, int64), new.shape)
    last = put_at(full(whole.shape, -1, dtype=int64), own, places, reach, "set")
    return e.where(logic.equal(read_at(last, places, reach), own), found, 0)


def _added_alone(g: Tracer, how: str) -> Tracer:
    if how not in ("set", "add", "subtract"):
        fail(
            f"mw.grad: x.at[..].{how} at index arrays has no derivative here: set and add have one"
        )
    return g


MOVES: dict[str, Any] = {
    "alias": (lambda g, y, x: g,),
    "reshaped": (lambda g, y, x, shape: reshaped(g, x.shape),),
    "permute_dims": (_permute_dims,),
    "broadcast_to": (lambda g, y, x, shape: g,),
    "flip": (_flip,),
    "concat": (_concat,),
    "extract": (_extract_rule,),
    "insert": (_insert,),
    "gather": (_gather_rule, None),
    "add_rows": (lambda g, y, x, indices, dim, size: _gather(g, indices, dim), None),
    "take_along_axis": (_along, None),
    "sorted": (lambda g, y, x, dim, descending: put_back(g[0], y[1], dim),),
    "put_back": (lambda g, y, x, places, dim: take_along_axis(g, places, axis=dim), None),
    "add_along": (
        lambda g, y, x, indices, dim, shape: take_along_axis(g, indices, axis=dim),
        None,
    ),
    "put_slice": (_slice_old, _slice_new),
    "put_at": (_put_old, _put_new, None),
    "read_at": (
        lambda g, y, x, places, reach: put_at(zeros_like(x), g, places, reach, "add"),
        None,
    ),
    "diagonal": (_diagonal,),
    "triangle": (None, _triangle),
    "constrain": (_constrain,),
}
"""Primitive -> for each argument what makes its cotangent."""
