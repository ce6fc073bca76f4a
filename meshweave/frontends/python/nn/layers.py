"""Define normalisations, dropout, one-hot vectors and attention."""

from __future__ import annotations

import math

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import (
    DEFAULT_INT,
    DTypeLike,
    accumulator,
    bool_,
    default_floating,
    floating,
    uint32,
)
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic, reduce
from meshweave.frontends.python.functions.create import arange, iota
from meshweave.frontends.python.functions.manipulate import (
    axes_of,
    axis_of,
    broadcast_to,
    expand_dims,
    moveaxis,
    reshape,
)
from meshweave.frontends.python.random.distributions import bernoulli
from meshweave.frontends.python.tracer import ArrayLike, Axes, Tracer, dtype_of, tensor


def _wide(x: ArrayLike) -> Tracer:
    """Return x in float32 or wider."""
    value = tensor(x)
    return e.astype(value, accumulator(floating(value.dtype)))


def standardize(x: ArrayLike, /, axis: Axes = -1, *, epsilon: float = 1e-5) -> Tracer:
    """Subtract the mean along `axis` and divide by the root of the variance + epsilon."""
    value = _wide(x)
    dims = axes_of("standardize", axis, value.ndim)
    apart = e.subtract(value, reduce.mean(value, axis=dims, keepdims=True))
    variance = reduce.mean(e.multiply(apart, apart), axis=dims, keepdims=True)
    made = e.multiply(apart, e.rsqrt(e.add(variance, epsilon)))
    return e.astype(made, floating(tensor(x).dtype))


def layer_norm(
    x: ArrayLike,
    /,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    axis: Axes = -1,
    epsilon: float = 1e-5,
) -> Tracer:
    """Compute `standardize`, times `weight` plus `bias`, which broadcast to x, in float32 or wider."""
    out = floating(tensor(x).dtype)
    made = standardize(_wide(x), axis, epsilon=epsilon)
    return e.astype(_scaled(made, weight, bias), out)


def _scaled(made: Tracer, weight: ArrayLike | None, bias: ArrayLike | None) -> Tracer:
    made = made if weight is None else e.multiply(made, _wide(weight))
    return made if bias is None else e.add(made, _wide(bias))


def rms_norm(
    x: ArrayLike, /, weight: ArrayLike | None = None, *, axis: Axes = -1, epsilon: float = 1e-6
) -> Tracer:
    """Divide by the root of the mean of squares along `axis` + epsilon, times `weight`, in float32 or wider."""
    value = _wide(x)
    dims = axes_of("rms_norm", axis, value.ndim)
    squares = reduce.mean(e.multiply(value, value), axis=dims, keepdims=True)
    made = e.multiply(value, e.rsqrt(e.add(squares, epsilon)))
    return e.astype(_scaled(made, weight, None), floating(tensor(x).dtype))


def batch_norm(
    x: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    /,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Tracer:
    """Normalise each channel, a place along `axis`, by its mean and variance: vectors, as weight and bias are.

    They are those of `batch_statistics` in training, and kept averages of these in inference.
    """
    value = _wide(x)
    dim = axis_of("batch_norm", axis, value.ndim)
    shape = [n if d == dim else 1 for d, n in enumerate(value.shape)]

    def along(vector: ArrayLike) -> Tracer:
        if tensor(vector).shape != (value.shape[dim],):
            fail(
                f"batch_norm: a vector of shape {tensor(vector).shape}, {value.shape[dim]} channels"
            )
        return reshape(_wide(vector), shape)

    made = e.multiply(e.subtract(value, along(mean)), e.rsqrt(e.add(along(variance), epsilon)))
    own = [None if v is None else along(v) for v in (weight, bias)]
    return e.astype(_scaled(made, *own), floating(tensor(x).dtype))


def batch_statistics(x: ArrayLike, /, *, axis: int = -1) -> tuple[Tracer, Tracer]:
    """Return the mean and the variance of each channel, a place along `axis`, over all other dims, float32 or wider."""
    value = _wide(x)
    dim = axis_of("batch_statistics", axis, value.ndim)
    rest = tuple([d for d in range(value.ndim) if d != dim])
    return reduce.mean(value, axis=rest), reduce.var(value, axis=rest)


def one_hot(
    x: ArrayLike, num_classes: int, /, *, dtype: DTypeLike | None = None, axis: int = -1
) -> Tracer:
    """Make vectors along a new dim `axis`, each with a one at the place that x says; none where x is outside."""
    value = tensor(x)
    e.checked("one_hot", [value], "ib")
    hot = logic.equal(expand_dims(e.astype(value, DEFAULT_INT), -1), arange(num_classes))
    made = e.astype(hot, dtype_of("one_hot", dtype, default_floating()))
    return moveaxis(made, -1, axis)


def dropout(x: ArrayLike, mask: ArrayLike, rate: float, /) -> Tracer:
    """Return x / (1 - rate) where the mask holds, else 0.

    mask: bools that broadcast to x, or a key of `mw.random`, by which they are drawn. rate: the share that is left out,
    from 0 to below 1.
    """
    value, kept = tensor(x), tensor(mask)
    if not 0 <= rate < 1:
        fail(f"dropout: rate={rate}, from 0 to below 1 is right")
    if kept.dtype is uint32 and kept.shape == (2,):
        kept = bernoulli(kept, 1 - rate, value.shape)
    if kept.dtype is not bool_:
        fail(f"dropout: a mask of {kept.dtype!r}, bools or a key are right")
    return e.where(kept, e.divide(value, 1 - rate), 0)


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    /,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Tracer:
    """Compute softmax(query keyᵀ * scale + bias) value for each head, where the mask holds.

    query: [.., places, heads, size]; key, value: [.., other places, heads or a divisor of them, size]. bias, mask: [..,
    heads, places, other places], or what broadcasts to that. scale: by default 1 / sqrt(size). is_causal: place k sees
    those up to its own only. Products are added up, and the softmax is computed, in float32 or wider.
    """
    q, k, v = (moveaxis(tensor(x), -2, -3) for x in (query, key, value))
    out = floating(q.dtype)
    if q.ndim < 3 or q.ndim != k.ndim or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        shapes = ", ".join("x".join(map(str, tensor(x).shape)) for x in (query, key, value))
        fail(f"dot_product_attention: query, key and value of shapes {shapes}")
    heads, groups = q.shape[-3], k.shape[-3]
    if heads % max(groups, 1):
        fail(f"dot_product_attention: {heads} heads of query, {groups} of key: no divisor")
    if heads != groups:
        k, v = (_shared(x, heads // groups) for x in (k, v))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = e.multiply(_wide(q) @ _wide(k).mT, factor)
    scores = scores if bias is None else e.add(scores, _wide(bias))
    if is_causal:
        rows, columns = (iota(scores.shape[-2:], d, DEFAULT_INT) for d in (0, 1))
        scores = e.where(logic.greater_equal(rows, columns), scores, -math.inf)
    if mask is not None:
        scores = e.where(mask, scores, -math.inf)
    return moveaxis(e.astype(reduce.softmax(scores, axis=-1) @ _wide(v), out), -3, -2)


def _shared(x: Tracer, times: int) -> Tracer:
    """Repeat each head for the query's heads that share it."""
    *batch, heads, rows, size = x.shape
    wide = broadcast_to(expand_dims(x, -3), (*batch, heads, times, rows, size))
    return reshape(wide, (*batch, heads * times, rows, size))
