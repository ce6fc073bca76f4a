"""Define NumPy's statistics that the standard lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import (
    DEFAULT_INT,
    DTypeLike,
    accumulator,
    float64,
    floating,
    limits,
)
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic, reduce
from meshweave.frontends.python.functions.create import arange, iota, zeros
from meshweave.frontends.python.functions.elementwise import alike, named
from meshweave.frontends.python.functions.index import (
    FEW_EDGES,
    MOST_COMPARED,
    searchsorted,
    take,
    take_along_axis,
)
from meshweave.frontends.python.functions.linalg import diagonal
from meshweave.frontends.python.functions.manipulate import (
    axes_of,
    broadcast_to,
    concat,
    expand_dims,
    moveaxis,
    reshape,
    reshaped,
    squeeze,
    unstack,
)
from meshweave.frontends.python.functions.sort import argsort, sort
from meshweave.frontends.python.functions.update import Reach, put_at
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Axes,
    Tracer,
    is_weak,
    operands,
    tensor,
)


def ptp(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
    """Return the largest less the smallest element along `axis`."""
    ends = [f(x, axis=axis, keepdims=keepdims) for f in (reduce.max, reduce.min)]
    return e.subtract(*ends)


def average(x: ArrayLike, /, axis: int | None = None, weights: ArrayLike | None = None) -> Tracer:
    """Compute the mean along `axis` (None: of all), weighted where weights of x's shape, or along `axis`, are given."""
    value = tensor(x)
    if weights is None:
        return reduce.mean(value, axis=axis)
    share = tensor(weights)
    if share.shape != value.shape:
        if axis is None or share.ndim != 1:
            fail(f"average: weights of shape {share.shape}, that of x {value.shape} is right")
        ((dim,), rest) = axes_of("average", axis, value.ndim), value.ndim
        share = reshape(share, [share.size if d == dim else 1 for d in range(rest)])
        share = broadcast_to(share, value.shape)
    value, share = alike(value, share)
    share = e.astype(share, floating(share.dtype))
    return e.divide(reduce.sum(e.multiply(value, share), axis=axis), reduce.sum(share, axis=axis))


def _filled(name: str, doc: str, of: Callable[..., Tracer], start: Any) -> Callable[..., Tracer]:
    """Make a reduction that skips NaNs, in place of which it meets `start`, a number or one that a dtype has."""

    def function(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
        value = tensor(x)
        if value.dtype.kind not in ("f" if callable(start) else "fc"):
            return of(value, axis=axis, keepdims=keepdims)
        number = start if not callable(start) else start(value.dtype)
        full = of(e.where(logic.isnan(value), number, value), axis=axis, keepdims=keepdims)
        if not callable(start):
            return full
        none = reduce.all(logic.isnan(value), axis=axis, keepdims=keepdims)
        return e.where(none, math.nan, full)

    return named(function, name, f"{doc} along `axis`, NaNs left out.")


nansum = _filled("nansum", "Sum", reduce.sum, 0)
nanprod = _filled("nanprod", "Multiply", reduce.prod, 1)
nanmax = _filled("nanmax", "Return the largest element", reduce.max, lambda t: limits(t)[0])
nanmin = _filled("nanmin", "Return the smallest element", reduce.min, lambda t: limits(t)[1])


def nanmean(
    x: ArrayLike, /, axis: Axes = None, *, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tracer:
    """Compute the mean along `axis`, NaNs left out; NaN where there is nothing else. dtype: of the result."""
    given = tensor(x) if dtype is None else e.astype(x, dtype)
    value, count, total = _counted(given, axis)
    made = e.astype(e.divide(total, count), floating(given.dtype if dtype else value.dtype))
    return made if keepdims else squeeze(made, axes_of("nanmean", axis, value.ndim))


def _counted(x: ArrayLike, axis: Axes) -> tuple[Tracer, Tracer, Tracer]:
    """Return x, how many numbers it has along `axis`, and their sum, in float32 or wider with dims of extent 1."""
    value = tensor(x)
    wide = e.astype(value, accumulator(floating(value.dtype)))
    there = logic.logical_not(logic.isnan(wide))
    count = e.astype(reduce.sum(there, axis=axis, keepdims=True), wide.dtype)
    return wide, count, reduce.sum(e.where(there, wide, 0), axis=axis, keepdims=True)


def nanvar(
    x: ArrayLike,
    /,
    axis: Axes = None,
    *,
    dtype: DTypeLike | None = None,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Tracer:
    """Compute the variance along `axis`, NaNs left out, with the arguments of `var`. dtype: of the result."""
    e.checked("nanvar", [x], "fib")
    x = x if dtype is None else e.astype(x, dtype)
    value, count, total = _counted(x, axis)
    apart = e.subtract(value, e.divide(total, count))
    apart = e.where(logic.isnan(value), 0, apart)
    left = e.subtract(count, correction if ddof is None else ddof)
    left = e.where(logic.greater(left, 0), left, math.nan)
    made = e.divide(reduce.sum(e.multiply(apart, apart), axis=axis, keepdims=True), left)
    made = e.astype(made, floating(tensor(x).dtype))
    return made if keepdims else squeeze(made, axes_of("nanvar", axis, value.ndim))


def nanstd(
    x: ArrayLike,
    /,
    axis: Axes = None,
    *,
    dtype: DTypeLike | None = None,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Tracer:
    """Compute the square root of `nanvar`."""
    less = correction if ddof is None else ddof
    return e.sqrt(nanvar(x, axis, dtype=dtype, correction=less, keepdims=keepdims))


def _where_filled(
    name: str, doc: str, of: Callable[..., Tracer], end: int
) -> Callable[..., Tracer]:
    def function(x: ArrayLike, /, axis: int | None = None, *, keepdims: bool = False) -> Tracer:
        value = tensor(x)
        if value.dtype.kind == "f":
            value = e.where(logic.isnan(value), limits(value.dtype)[end], value)
        return of(value, axis=axis, keepdims=keepdims)

    return named(
        function,
        name,
        f"Return the index of the first {doc} element along `axis`, NaNs left out; int64.",
    )


nanargmax = _where_filled("nanargmax", "largest", reduce.argmax, 0)
nanargmin = _where_filled("nanargmin", "smallest", reduce.argmin, 1)


def _cumulative(
    name: str, doc: str, of: Callable[..., Tracer], start: int
) -> Callable[..., Tracer]:
    def function(
        x: ArrayLike, /, axis: int | None = None, *, dtype: DTypeLike | None = None
    ) -> Tracer:
        value = tensor(x) if dtype is None else e.astype(x, dtype)
        if axis is None:
            value, axis = reshaped(value, (value.size,)), 0
        return of(e.where(logic.isnan(value), start, value), axis=axis)

    return named(
        function,
        name,
        f"{doc} the first 1, 2, ... elements along `axis`, NaNs left out, as `dtype`.",
    )


nancumsum = _cumulative("nancumsum", "Sum", reduce.cumulative_sum, 0)
nancumprod = _cumulative("nancumprod", "Multiply", reduce.cumulative_prod, 1)

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantiles(name: str, doc: str, whole: int, skips: bool) -> Callable[..., Tracer]:
    """Make a function of shares of a whole; skips: NaNs."""

    def function(
        x: ArrayLike,
        /,
        q: ArrayLike,
        axis: Axes = None,
        *,
        method: str = "linear",
        keepdims: bool = False,
    ) -> Tracer:
        return _quantile(name, tensor(x), q, axis, method, keepdims, skips, whole)

    return named(function, name, doc)


quantile = _quantiles(
    "quantile",
    """Compute the quantiles q (from 0 to 1) along `axis`; the dims of q come first in the result.

    method: what is between two elements: "linear", "lower", "higher", "midpoint" or "nearest". NaN where x has one.
    """,
    1,
    False,
)
percentile = _quantiles(
    "percentile",
    "Compute the percentiles q (from 0 to 100) along `axis`, as `quantile`.",
    100,
    False,
)
nanquantile = _quantiles("nanquantile", "Compute quantiles as `quantile`, NaNs left out.", 1, True)
nanpercentile = _quantiles(
    "nanpercentile", "Compute percentiles as `percentile`, NaNs left out.", 100, True
)


def median(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
    """Compute the median along `axis`: of an even number of elements the mean of the two in the middle."""
    return _quantile("median", tensor(x), 0.5, axis, "midpoint", keepdims, False)


def nanmedian(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
    """Compute the median along `axis`, NaNs left out."""
    return _quantile("nanmedian", tensor(x), 0.5, axis, "midpoint", keepdims, True)


def _quantile(
    name: str,
    value: Tracer,
    share: ArrayLike,
    axis: Axes,
    method: str,
    keepdims: bool,
    skips: bool,
    whole: int = 1,
) -> Tracer:
    """Compute quantiles of shares of a whole; skips: NaNs, which sort last, do not count."""
    if method not in _METHODS:
        fail(f"{name}: method={method!r}: known are {', '.join(_METHODS)}")
    dims = axes_of(name, axis, value.ndim)
    size = math.prod(value.shape[d] for d in dims)
    q = _shares(share, whole, size)
    if q.ndim > 1:
        fail(f"{name}: q has {q.ndim} dims, a number or a vector is right")
    e.checked(name, [value], "fib")
    out, many = floating(value.dtype), q.ndim
    wide = e.astype(value, accumulator(out))
    rest = tuple([n for d, n in enumerate(value.shape) if d not in dims])
    if not size:
        fail(f"{name}: there are no elements along dims {dims}")
    row = moveaxis(wide, dims, tuple(range(len(rest), wide.ndim)))
    row = sort(reshape(row, (*rest, size)))
    lost = reduce.sum(logic.isnan(row), axis=-1, keepdims=True)
    last = e.astype(e.maximum(e.subtract(size - 1, lost if skips else 0), 0), q.dtype)
    at = e.multiply(reshape(q, (1,) * len(rest) + (q.size,)), last)
    found = _between(row, broadcast_to(at, (*rest, q.size)), method)
    wrong = logic.equal(lost, size) if skips else logic.greater(lost, 0)
    made = moveaxis(e.astype(e.where(wrong, math.nan, found), out), -1, 0)
    kept = [1 if d in dims else n for d, n in enumerate(value.shape)] if keepdims else rest
    return reshape(made, (*made.shape[:many], *kept))


def _shares(q: ArrayLike, whole: int, size: int) -> Tracer:
    """Return shares of a whole as parts of 1 in which places are computed, as in NumPy: Python numbers in float64.

    Arrays have their own precision, unless it does not tell the places of so many elements apart.
    """
    (given,) = operands([q])
    exact = is_weak(given) or size > 1 << 24
    own = e.astype(given, float64 if exact else accumulator(floating(tensor(given).dtype)))
    return own if whole == 1 else e.divide(own, whole)


def _between(row: Tracer, at: Tracer, method: str) -> Tracer:
    """Return what sorted rows have at places that may be between two elements."""
    if method == "nearest":
        return take_along_axis(row, e.astype(e.round(at), "i64"))
    below, above = (e.astype(f(at), "i64") for f in (e.floor, e.ceil))
    low, high = take_along_axis(row, below), take_along_axis(row, above)
    if method in ("lower", "higher"):
        return low if method == "lower" else high
    share = e.astype(e.subtract(at, e.floor(at)), row.dtype)
    share = e.where(logic.equal(share, 0), share, 0.5) if method == "midpoint" else share
    between = e.add(low, e.multiply(e.subtract(high, low), share))
    return e.where(logic.equal(low, high), low, e.where(logic.equal(share, 0), low, between))


def cov(x: ArrayLike, /, *, rowvar: bool = True, ddof: float = 1) -> Tracer:
    """Compute the covariances of variables, the rows of x (its columns unless `rowvar`). ddof: as in `var`."""
    value = tensor(x)
    if value.ndim > 2:
        fail(f"cov: x has {value.ndim} dims, 2 are right")
    rows = reshape(value, (1, -1)) if value.ndim < 2 else value if rowvar else value.mT
    rows = e.astype(rows, floating(rows.dtype))
    apart = e.subtract(rows, reduce.mean(rows, axis=1, keepdims=True))
    left = rows.shape[1] - ddof
    found = e.divide(apart @ e.conj(apart).mT, float(left) if left > 0 else math.nan)
    return found[0, 0] if rows.shape[0] == 1 else found


def corrcoef(x: ArrayLike, /, *, rowvar: bool = True) -> Tracer:
    """Compute the correlations of variables, the rows of x (its columns unless `rowvar`)."""
    found = cov(x, rowvar=rowvar)
    if not found.ndim:
        return e.divide(found, found)
    spread = e.sqrt(e.real(diagonal(found)))
    made = e.divide(e.divide(found, expand_dims(spread, 1)), expand_dims(spread, 0))
    return made if made.dtype.kind == "c" else e.clip(made, -1.0, 1.0)


def histogram(
    x: ArrayLike,
    /,
    bins: int | Tracer = 10,
    range: tuple[float, float] | None = None,
    *,
    weights: ArrayLike | None = None,
    density: bool = False,
) -> tuple[Tracer, Tracer]:
    """Count the elements within the edges `bins` (or so many bins of one width); return the counts and the edges.

    range: the ends of the bins, by default the least and the largest element. weights: what each element counts.
    density: divide by the whole and by the widths. The last bin has its upper edge, all others do not.
    """
    value = tensor(x)
    flat = reshape(value, (-1,))
    edges = _edges(flat, bins, range) if isinstance(bins, int) else tensor(bins)
    count = edges.size - 1
    edges, flat = alike(edges, flat)
    right = searchsorted(edges, flat, side="right")
    right = e.where(logic.equal(flat, edges[-1]), count, right)
    each = None if weights is None else reshape(weights, (-1,))
    found = _counted_at(e.subtract(right, 1), count, each)
    if density:
        shares = e.divide(found, reduce.sum(found))
        found = e.divide(shares, reduce.diff(edges))
    return found, edges


def _edges(flat: Tracer, bins: int, span: tuple[float, float] | None) -> Tracer:
    if bins < 1:
        fail(f"histogram: {bins} bins, 1 or more are right")
    wide = accumulator(floating(flat.dtype))
    low, high = [e.astype(v, wide) for v in (span or (reduce.min(flat), reduce.max(flat)))]
    half = e.where(logic.equal(low, high), e.astype(tensor(0.5), wide), e.astype(tensor(0), wide))
    low, high = e.subtract(low, half), e.add(high, half)
    at = e.divide(iota((bins + 1,), 0, wide), float(bins))
    made = e.add(e.multiply(e.subtract(high, low), at), low)
    return e.where(logic.equal(at, 1), high, made)


def digitize(x: ArrayLike, bins: ArrayLike, /, right: bool = False) -> Tracer:
    """Return the number of the bin of each element, by edges that rise; right: upper edges, not lower, are in it."""
    return searchsorted(bins, x, side="left" if right else "right")


def bincount(
    x: ArrayLike,
    /,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Tracer:
    """Count how often each of the numbers 0, 1, ... is in the vector x; weights: what each element counts.

    length: of the result; a traced function needs it, since nothing else says the size. Numbers outside count nowhere.
    """
    value = tensor(x)
    if value.ndim != 1 or value.dtype.kind not in "iub":
        fail(f"bincount: x is {value.dtype!r} of {value.ndim} dims, a vector of integers is right")
    if length is None:
        fail("bincount: the shape of the result depends on the elements: length=.. says it")
    each = None if weights is None else tensor(weights)
    return _counted_at(e.astype(value, DEFAULT_INT), max(length, minlength), each)


def _counted_at(places: Tracer, length: int, weights: Tracer | None) -> Tracer:
    """Count how often each place of a vector of this length is there, or add up weights there; others count nowhere.

    Few are compared with all places, many put where they belong.
    """
    each = broadcast_to(tensor(1) if weights is None else weights, places.shape)
    if places.size * length <= MOST_COMPARED or each.dtype.kind == "c":
        same = logic.equal(expand_dims(places, 1), arange(length))
        if weights is None:
            return reduce.sum(same, axis=0)
        return reduce.sum(e.where(same, expand_dims(weights, 1), 0), axis=0)
    kind = DEFAULT_INT if weights is None else reduce.summed_type(each.dtype)
    wide = accumulator(kind)
    inside = logic.logical_and(logic.greater_equal(places, 0), logic.less(places, length))
    reach = Reach((length,), places.shape, ((0,),), (0,))
    at = [e.where(inside, places, length)]
    made = put_at(zeros((length,), dtype=wide), e.astype(each, wide), at, reach, "add")
    return e.astype(made, kind)


def trapezoid(
    y: ArrayLike, /, x: ArrayLike | None = None, dx: float = 1.0, axis: int = -1
) -> Tracer:
    """Integrate y along `axis` by trapezoids; x: the places, by default `dx` apart."""
    value = moveaxis(y, axis, -1)
    value = e.astype(value, floating(value.dtype))
    steps: ArrayLike = dx
    if x is not None:
        places = tensor(x)
        steps = reduce.diff(places if places.ndim == 1 else moveaxis(places, axis, -1))
    pairs = e.add(value[..., 1:], value[..., :-1])
    return e.divide(reduce.sum(e.multiply(steps, pairs), axis=-1), 2.0)


def ediff1d(x: ArrayLike, /) -> Tracer:
    """Subtract neighbours of the flattened array."""
    return reduce.diff(reshape(x, (-1,)))


def gradient(x: ArrayLike, /, spacing: float = 1.0, axis: Axes = None) -> Any:
    """Compute differences of neighbours on both sides, at the ends of one side, over their distance, along `axis`.

    Of several dims a list; `spacing` is the distance of two neighbours.
    """
    value = tensor(x)
    value = e.astype(value, floating(value.dtype))
    made = []
    for dim in axes_of("gradient", axis, value.ndim):
        if value.shape[dim] < 2:
            fail(f"gradient: dim {dim} has size {value.shape[dim]}, at least 2 is right")
        row = moveaxis(value, dim, -1)
        inner = e.divide(e.subtract(row[..., 2:], row[..., :-2]), 2.0)
        ends = [
            e.subtract(row[..., k + 1 :][..., :1], row[..., k:][..., :1])
            for k in (0, row.shape[-1] - 2)
        ]
        joined = concat([ends[0], inner, ends[1]], axis=-1)
        made.append(moveaxis(e.divide(joined, spacing), -1, dim))
    return made[0] if len(made) == 1 else made


def interp(x: ArrayLike, xp: ArrayLike, fp: ArrayLike, /) -> Tracer:
    """Interpolate linearly between the points (xp, fp), whose xp rise; outside of them the first and the last fp."""
    places, values = tensor(xp), tensor(fp)
    if places.ndim != 1 or places.shape != values.shape or not places.size:
        fail(
            f"interp: xp of shape {places.shape} and fp of {values.shape}: two vectors of one size"
        )
    at, places, values = (e.astype(v, floating(v.dtype)) for v in alike(x, places, values))
    if places.size == 1:
        return e.where(logic.isnan(at), at, values[0])
    upper = e.clip(searchsorted(places, at, side="right"), 1, places.size - 1)
    lower = e.subtract(upper, 1)
    x0, x1, y0, y1 = (take(v, k) for v in (places, values) for k in (lower, upper))
    made = e.add(
        y0, e.multiply(e.divide(e.subtract(y1, y0), e.subtract(x1, x0)), e.subtract(at, x0))
    )
    made = e.where(logic.less(at, places[0]), values[0], made)
    return e.where(logic.greater_equal(at, places[-1]), values[-1], made)


def isin(x: ArrayLike, values: ArrayLike, /, *, invert: bool = False) -> Tracer:
    """Tell which elements of x are among `values`; invert: which are not."""
    value, among = alike(x, values)
    row = reshape(among, (-1,))
    if row.size > FEW_EDGES and value.size * row.size > MOST_COMPARED:
        # Sorted, an element that is not before another need be compared with the first alone.
        row = sort(row)
        found = logic.equal(take(row, searchsorted(row, value)), value)
    else:
        found = reduce.any(logic.equal(expand_dims(value, -1), row), axis=-1)
    return logic.logical_not(found) if invert else found


def unwrap(x: ArrayLike, /, axis: int = -1) -> Tracer:
    """Add multiples of 2 pi so that neighbouring angles along `axis` differ by at most pi."""
    value = moveaxis(x, axis, -1)
    value = e.astype(value, floating(value.dtype))
    gaps = reduce.diff(value)
    near = e.subtract(e.remainder(e.add(gaps, math.pi), 2 * math.pi), math.pi)
    edge = logic.logical_and(logic.equal(near, -math.pi), logic.greater(gaps, 0))
    near = e.where(edge, math.pi, near)
    mend = e.where(logic.less(e.abs(gaps), math.pi), 0, e.subtract(near, gaps))
    rest = e.add(value[..., 1:], reduce.cumulative_sum(mend, axis=-1))
    return moveaxis(concat([value[..., :1], rest], axis=-1), -1, axis)


def lexsort(keys: ArrayLike | Sequence[ArrayLike], /, axis: int = -1) -> Tracer:
    """Return the places that sort by several keys, the last of which counts first."""
    given = keys if isinstance(keys, list | tuple) else unstack(tensor(keys))
    columns = [tensor(k) for k in given]
    order = argsort(columns[0], axis=axis)
    for key in columns[1:]:
        order = take_along_axis(order, argsort(take_along_axis(key, order, axis), axis=axis), axis)
    return order
