"""Define random numbers of distributions, computed from random bits as JAX computes them.

Gradients flow back to what bounds the numbers, not to keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.frontends.python.builder import Body, fail
from meshweave.frontends.python.dtypes import (
    DTYPES,
    INTEGERS,
    DType,
    DTypeLike,
    accumulator,
    bool_,
    default_floating,
    finfo,
    int32,
    limits,
    uint8,
)
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.create import arange
from meshweave.frontends.python.functions.index import searchsorted, take, take_along_axis
from meshweave.frontends.python.functions.manipulate import (
    axis_of,
    sizes_of,
)
from meshweave.frontends.python.functions.reduce import argmax, cumulative_sum
from meshweave.frontends.python.functions.sort import argsort, top_k
from meshweave.frontends.python.random.bits import drawn, split
from meshweave.frontends.python.tape import primitive, stop_gradient
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Shape,
    Tracer,
    broadcast_shapes,
    dtype_of,
    pointwise,
    splat,
    tensor,
    tracing,
)


def uniform(
    key: ArrayLike,
    /,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
) -> Tracer:
    """Draw floats from minval up to but without maxval; these may be arrays that broadcast to the shape."""
    return _uniform("uniform", key, shape, dtype, minval, maxval)


def _uniform(
    name: str,
    key: ArrayLike,
    shape: Shape,
    dtype: DTypeLike | None,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
) -> Tracer:
    wanted = _floating(name, dtype)
    sizes = sizes_of(f"random.{name}", shape)
    low, high = (e.astype(v, wanted) for v in (minval, maxval))
    _check_shape(name, sizes, low, high)
    unit = _unit(name, key, sizes, wanted)
    return e.maximum(low, scaled(unit, e.subtract(high, low), low))


@primitive
def scaled(x: Tracer, times: Tracer, more: Tracer) -> Tracer:
    """Compute x * times + more, rounded once, as JAX's compiler makes it of a product and a sum."""
    if x.dtype.bits < 32:
        return e.add(e.multiply(x, times), more)
    return e.apply([x, times, more], lambda b, t, *v: b.op("math.fma", t, *v), x.dtype, x.dtype)


def _floating(name: str, dtype: DTypeLike | None) -> DType:
    wanted = dtype_of(f"random.{name}", dtype, default_floating())
    if wanted.kind != "f":
        fail(f"random.{name}: dtype {wanted!r}, a floating one is right")
    if wanted.bits < 16:
        fail(f"random.{name}: dtype {wanted!r}, a floating one of 16 bits or more is right")
    return wanted


def _check_shape(name: str, shape: tuple[int, ...], *bounds: Tracer) -> None:
    if broadcast_shapes(shape, *[b.shape for b in bounds]) != shape:
        sides = " and ".join("x".join(map(str, b.shape)) or "a scalar" for b in bounds)
        fail(f"random.{name}: {sides} do not broadcast to the shape {shape}")


def _unit(name: str, key: ArrayLike, shape: tuple[int, ...], dtype: DType) -> Tracer:
    """Draw floats from 0 up to but without 1: random bits are the mantissa of one from 1 to 2."""
    mantissa = round(-math.log2(finfo(dtype).eps))
    width = dtype.bits if mantissa >= 8 else 8
    whole = DTYPES[f"ui{dtype.bits}"]
    one = {"f64": 0x3FF0 << 48, "f32": 0x3F80 << 16, "f16": 0x3C00, "bf16": 0x3F80}[dtype.name]

    def body(b: Body, number: str) -> str:
        wide = b.cast(number, uint8 if width == 8 else whole, whole)
        shifted = b.op("arith.shrui", whole, wide, b.constant(width - mantissa, whole))
        made = b.op("arith.ori", whole, shifted, b.constant(one, whole))
        value = b.let(f"arith.bitcast {made} : {whole.element} to {dtype}")
        return b.op("arith.subf", dtype, value, b.constant(1, dtype))

    return pointwise([drawn(name, key, shape, width)], dtype, body)


def normal(key: ArrayLike, /, shape: Shape = (), dtype: DTypeLike | None = None) -> Tracer:
    """Draw floats of mean 0 and variance 1."""
    wanted = _floating("normal", dtype)
    low = -1.0 + finfo(wanted).eps / 2
    u = _uniform("normal", key, shape, wanted, low, 1.0)
    return e.multiply(erf_inv(u), math.sqrt(2))


def truncated_normal(
    key: ArrayLike,
    /,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
) -> Tracer:
    """Draw floats as `normal` does, between lower and upper; shape: by default that of these two."""
    wanted = _floating("truncated_normal", dtype)
    low, high = (e.astype(v, wanted) for v in (lower, upper))
    sizes = broadcast_shapes(low.shape, high.shape) if shape is None else shape
    root = splat(tracing(), (), math.sqrt(2), wanted)
    ends = [e.erf(e.divide(v, root)) for v in (low, high)]
    u = _uniform("truncated_normal", key, sizes, wanted, *ends)
    inside = [
        logic.nextafter(stop_gradient(v), splat(tracing(), (), to, wanted))
        for v, to in ((low, math.inf), (high, -math.inf))
    ]
    return e.clip(e.multiply(root, erf_inv(u)), *inside)


def bernoulli(key: ArrayLike, /, p: ArrayLike = 0.5, shape: Shape | None = None) -> Tracer:
    """Draw bools that hold with probability p; shape: by default that of p."""
    chance = tensor(p)
    if chance.dtype.kind != "f":
        fail(f"random.bernoulli: p is {chance!r}, floating numbers are right")
    sizes = chance.shape if shape is None else sizes_of("random.bernoulli", shape)
    _check_shape("bernoulli", sizes, chance)
    return logic.less(_uniform("bernoulli", key, sizes, chance.dtype), chance)


def exponential(key: ArrayLike, /, shape: Shape = (), dtype: DTypeLike | None = None) -> Tracer:
    """Draw floats of the exponential distribution of mean 1."""
    u = _uniform("exponential", key, shape, dtype)
    return e.negative(e.log1p(e.negative(u)))


def gumbel(key: ArrayLike, /, shape: Shape = (), dtype: DTypeLike | None = None) -> Tracer:
    """Draw floats of the standard Gumbel distribution: -log(-log(u))."""
    return _gumbel("gumbel", key, shape, _floating("gumbel", dtype))


def _gumbel(name: str, key: ArrayLike, shape: Shape, dtype: DType) -> Tracer:
    u = _uniform(name, key, shape, dtype, finfo(dtype).smallest_normal, 1.0)
    return e.negative(e.log(e.negative(e.log(u))))


def categorical(
    key: ArrayLike, logits: ArrayLike, /, axis: int = -1, shape: Shape | None = None
) -> Tracer:
    """Draw places along `axis` with probabilities softmax(logits), as int64.

    shape: of the result, which ends with that of logits without `axis`; by default it is that.
    """
    value = tensor(logits)
    if value.dtype.kind != "f":
        fail(f"random.categorical: logits are {value!r}, floating numbers are right")
    dim = axis_of("random.categorical", axis, value.ndim)
    batch = value.shape[:dim] + value.shape[dim + 1 :]
    sizes = batch if shape is None else sizes_of("random.categorical", shape)
    more = len(sizes) - len(batch)
    if more < 0 or any(n not in (1, m) for n, m in zip(batch, sizes[more:])):
        fail(f"random.categorical: shape {sizes}, it must end with {batch}")
    inner = list(sizes[more:])
    inner.insert(dim, value.shape[dim])
    noise = _gumbel("categorical", key, (*sizes[:more], *inner), value.dtype)
    return argmax(e.add(noise, value), axis=dim - value.ndim)


def randint(
    key: ArrayLike,
    /,
    shape: Shape,
    minval: ArrayLike,
    maxval: ArrayLike,
    dtype: DTypeLike | None = None,
) -> Tracer:
    """Draw integers from minval up to but without maxval; dtype: int32 by default.

    As in JAX, numbers are not quite alike where the range is no power of two: by (range / 2**bits) at most.
    """
    wanted = dtype_of("random.randint", dtype, int32)
    sizes = sizes_of("random.randint", shape)
    if wanted.kind not in INTEGERS:
        fail(f"random.randint: dtype {wanted!r}, one of integers is right")
    ends = [_whole("randint", v) for v in (minval, maxval)]
    _check_shape("randint", sizes, *ends)
    drawn_as = wanted
    if wanted.bits < 32:
        low, high = (int(v) for v in limits(wanted))
        drawn_as = int32
        ends = [e.clip(e.astype(v, int32), low, high + n) for n, v in enumerate(ends)]
    return e.astype(_randint(key, sizes, ends[0], ends[1], drawn_as), wanted)


def _whole(name: str, value: ArrayLike) -> Tracer:
    found = tensor(value)
    if found.dtype.kind not in INTEGERS:
        fail(f"random.{name}: {found!r} as a bound, integers are right")
    return found


def _randint(
    key: ArrayLike, shape: tuple[int, ...], minval: Tracer, maxval: Tracer, dtype: DType
) -> Tracer:
    """Combine two draws of bits, the higher and the lower ones, modulo the range."""
    beyond = _above(maxval, dtype)
    low, high = (_clipped(v, dtype) for v in (minval, maxval))
    whole = DTYPES[f"ui{dtype.bits}"]
    keys = split(key)
    upper, lower = (drawn("randint", keys[k], shape, dtype.bits) for k in (0, 1))
    span = e.astype(e.subtract(high, low), whole)
    none = logic.less_equal(high, low)
    span = e.where(none, splat(tracing(), (), 1, whole), span)
    more = logic.logical_and(beyond, logic.logical_not(none))
    span = e.add(span, e.astype(more, whole))
    times = _modulo(splat(tracing(), (), 1 << dtype.bits // 2, whole), span)
    times = _modulo(e.multiply(times, times), span)

    def body(b: Body, upper: str, lower: str, span: str, times: str, low: str) -> str:
        none = b.compare("eq", whole, span, b.constant(0, whole))
        safe = b.select(none, whole, b.constant(1, whole), span)

        def modulo(x: str) -> str:
            return b.select(none, whole, x, b.op("arith.remui", whole, x, safe))

        high = b.op("arith.muli", whole, modulo(upper), times)
        offset = b.op("arith.addi", whole, high, modulo(lower))
        return b.op("arith.addi", whole, modulo(offset), low)

    return pointwise([upper, lower, span, times, low], dtype, body)


def _modulo(x: Tracer, span: Tracer) -> Tracer:
    """Return a remainder; a span of all numbers is 0, and leaves x as it is."""
    return e.where(logic.equal(span, 0), x, e.remainder(x, span))


def _above(value: Tracer, dtype: DType) -> Tracer:
    """Tell whether a bound is larger than all numbers of a dtype."""
    most, own = (int(limits(d)[1]) for d in (dtype, value.dtype))
    if most >= own:
        return splat(tracing(), value.shape, False, bool_)
    return logic.greater(value, splat(tracing(), (), most, value.dtype))


def _clipped(value: Tracer, dtype: DType) -> Tracer:
    """Convert integers; those that do not fit become the nearest that do."""
    (low, high), (least, most) = limits(dtype), limits(value.dtype)
    inside = [int(max(low, least)), int(min(high, most))]
    ends = [splat(tracing(), (), v, value.dtype) for v in inside]
    return e.astype(e.clip(value, *ends), dtype)


def permutation(
    key: ArrayLike, x: int | Tracer, /, axis: int = 0, *, independent: bool = False
) -> Tracer:
    """Put the slices of an array along `axis` in random order; of a number n the numbers 0 to n - 1, as int32.

    independent: each row has an order of its own.
    """
    if isinstance(x, int):
        return _shuffled(key, arange(x, dtype=int32), 0)
    value = tensor(x)
    dim = axis_of("random.permutation", axis, value.ndim)
    if independent or value.ndim == 1:
        return _shuffled(key, value, dim)
    return take(value, _shuffled(key, arange(value.shape[dim], dtype=int32), 0), axis=dim)


def _shuffled(key: ArrayLike, value: Tracer, dim: int) -> Tracer:
    """Sort by random numbers, as often as it takes that equal ones do not matter."""
    current = tensor(key)
    rounds = math.ceil(3 * math.log(max(1, value.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        keys = split(current)
        current = keys[0]
        numbers = drawn("permutation", keys[1], value.shape, 32)
        value = take_along_axis(value, argsort(numbers, axis=dim), axis=dim)
    return value


def choice(
    key: ArrayLike,
    a: int | Tracer,
    /,
    shape: Shape = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
) -> Tracer:
    """Draw slices of an array along `axis`, or of the numbers below a.

    replace: whether one may come again. p: a probability for each, by default all alike.
    """
    sizes = sizes_of("random.choice", shape)
    value = a if isinstance(a, int) else tensor(a)
    dim = 0 if isinstance(value, int) else axis_of("random.choice", axis, value.ndim)
    count = value if isinstance(value, int) else value.shape[dim]
    draws = math.prod(sizes)
    if count < 1 or (not replace and draws > count):
        fail(
            f"random.choice: {draws} of {count}, without replacement"
            if count
            else "random.choice: of nothing"
        )
    if p is None and not replace:
        order = permutation(key, value, axis=dim)
        places = order[(slice(None),) * dim + (slice(draws),)]
        return _shaped(places, dim, sizes)
    if p is None:
        places = randint(key, sizes, 0, count)
    else:
        places = _weighted(key, sizes, replace, tensor(p), count)
    return places if isinstance(value, int) else take(value, places, axis=dim)


def _shaped(value: Tracer, dim: int, sizes: Sequence[int]) -> Tracer:
    return value.reshape((*value.shape[:dim], *sizes, *value.shape[dim + 1 :]))


def _weighted(
    key: ArrayLike, sizes: tuple[int, ...], replace: bool, p: Tracer, count: int
) -> Tracer:
    if p.shape != (count,) or p.dtype.kind != "f":
        fail(f"random.choice: p is {p!r}, {count} floating numbers are right")
    if replace:
        sums = cumulative_sum(p)
        r = e.multiply(sums[-1], e.subtract(1, _uniform("choice", key, sizes, p.dtype)))
        return e.astype(searchsorted(sums, r), int32)
    noise = e.add(_gumbel("choice", key, (count,), p.dtype), e.log(p))
    return e.astype(top_k(noise, math.prod(sizes))[1], int32).reshape(sizes)


@primitive
def erf_inv(x: Tracer) -> Tracer:
    """Compute the inverse of the error function by polynomials in log(1 - x * x) [Giles, GPU Gems 2011]."""

    def emit(b: Body, t: DType, x: str) -> str:
        square = b.op("arith.mulf", t, x, x)
        w = b.op("arith.negf", t, b.op("math.log1p", t, b.op("arith.negf", t, square)))
        found = ""
        for limit, shift, numbers in reversed(_GILES[t.name]):
            at = w if limit == _GILES[t.name][0][0] else b.op("math.sqrt", t, w)
            part = _polynomial(b, t, b.op("arith.subf", t, at, b.constant(shift, t)), numbers)
            below = b.compare("olt", t, w, b.constant(limit, t))
            found = b.select(below, t, part, found) if found else part
        end = b.compare("oeq", t, b.op("math.absf", t, x), b.constant(1, t))
        return b.op("arith.mulf", t, x, b.select(end, t, b.constant(math.inf, t), found))

    return e.apply([x], emit, accumulator(x.dtype), x.dtype)


def _polynomial(b: Body, t: DType, x: str, numbers: Sequence[float]) -> str:
    found = b.constant(numbers[0], t)
    for number in numbers[1:]:
        found = b.op("math.fma", t, found, x, b.constant(number, t))
    return found


_GILES: dict[str, tuple[tuple[float, float, tuple[float, ...]], ...]] = {
    "f32": (
        (5.0, 2.5, (
            2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
            -0.00417768164, 0.246640727, 1.50140941,
        )),
        (math.inf, 3.0, (
            -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
            0.00943887047, 1.00167406, 2.83297682,
        )),
    ),
    "f64": (
        (6.25, 3.125, (
            -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18,
            1.115787767802518096e-17, -1.333171662854620906e-16, 2.0972767875968561637e-17,
            6.6376381343583238325e-15, -4.0545662729752068639e-14, -8.1519341976054721522e-14,
            2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
            1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08,
            4.2347877827932403518e-07, -1.3654692000834678645e-06, -1.3882523362786468719e-05,
            0.0001867342080340571352, -0.00074070253416626697512, -0.0060336708714301490533,
            0.24015818242558961693, 1.6536545626831027356,
        )),
        (16.0, 3.25, (
            2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07,
            1.8239629214389227755e-08, 1.5027403968909827627e-06, -4.013867526981545969e-06,
            2.9234449089955446044e-06, 1.2475304481671778723e-05, -4.7318229009055733981e-05,
            6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
            0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066,
            -0.0037512085075692412107, 0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
        )),
        (math.inf, 5.0, (
            -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
            -3.7894654401267369937e-09, 7.6157012080783393804e-09, -1.4960026627149240478e-08,
            2.9147953450901080826e-08, -6.7711997758452339498e-08, 2.2900482228026654717e-07,
            -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
            7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026,
            1.0103004648645343977, 4.8499064014085844221,
        )),
    ),
}  # fmt: skip
"""Dtype -> pieces: up to which w, what is subtracted from w (the first piece) or from its root, coefficients."""
