"""Define NumPy's elementwise functions that the standard lacks."""

from __future__ import annotations

import math
from collections.abc import Callable

from meshweave.frontends.python.control import while_loop
from meshweave.frontends.python.dtypes import accumulator, finfo, float64, floating, int32, limits
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.elementwise import Binary, Unary, alike, named
from meshweave.frontends.python.functions.manipulate import broadcast_to
from meshweave.frontends.python.functions.reduce import all as every
from meshweave.frontends.python.functions.reduce import any as some
from meshweave.frontends.python.tracer import ArrayLike, Tracer, broadcast_shapes, tensor


def _unary(name: str, doc: str, of: Callable[[Tracer], Tracer], floats: bool = True) -> Unary:
    """Make a function of one array by others; floats: it computes with floats, also of integers."""

    def function(x: ArrayLike, /) -> Tracer:
        value = tensor(x)
        return of(e.astype(value, floating(value.dtype)) if floats else value)

    return named(function, name, f"{doc}, elementwise.")


def _binary(name: str, doc: str, of: Callable[[Tracer, Tracer], Tracer]) -> Binary:
    """Make a function of two arrays of one dtype by others."""

    def function(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
        return of(*alike(x1, x2))

    return named(function, name, f"{doc}, elementwise.")


def _root(x: Tracer) -> Tracer:
    size = e.abs(x)
    first = e.pow(size, 1.0 / 3.0)
    better = e.subtract(
        first, e.divide(e.subtract(first, e.divide(size, e.multiply(first, first))), 3.0)
    )
    ended = logic.logical_or(logic.equal(first, 0), logic.isinf(first))
    return e.copysign(e.where(ended, first, better), x)


def _infinite(sign: int) -> Callable[[Tracer], Tracer]:
    def of(x: Tracer) -> Tracer:
        e.checked("isposinf" if sign > 0 else "isneginf", [x])
        end = limits(x.dtype)[sign > 0] if x.dtype.kind == "f" else None
        return logic.isinf(x) if end is None else logic.equal(x, end)

    return of


def _other_if_nan(extreme: Binary) -> Callable[[Tracer, Tracer], Tracer]:
    def of(a: Tracer, b: Tracer) -> Tracer:
        return e.where(logic.isnan(a), b, e.where(logic.isnan(b), a, extreme(a, b)))

    return of


def _sinc(x: Tracer) -> Tracer:
    zero = logic.equal(x, 0)
    angle = e.multiply(e.where(zero, 1, x), math.pi)
    return e.where(zero, 1, e.divide(e.sin(angle), angle))


def _heaviside(x: Tracer, at_zero: Tracer) -> Tracer:
    step = e.where(logic.less(x, 0), 0.0, e.where(logic.equal(x, 0), at_zero, 1.0))
    return e.where(logic.isnan(x), x, step)


def _truncated_rest(a: Tracer, b: Tracer) -> Tracer:
    if a.dtype.kind == "f":
        return e.copysign(e.remainder(e.abs(a), e.abs(b)), a)
    rest = e.remainder(a, b)
    across = logic.logical_and(
        logic.not_equal(rest, 0), logic.not_equal(logic.less(rest, 0), logic.less(a, 0))
    )
    return e.where(across, e.subtract(rest, b), rest)


cbrt = _unary("cbrt", "Compute the cube root", _root)
deg2rad = _unary("deg2rad", "Convert degrees to radians", lambda x: e.multiply(x, math.pi / 180))
rad2deg = _unary("rad2deg", "Convert radians to degrees", lambda x: e.multiply(x, 180 / math.pi))
sinc = _unary("sinc", "Compute sin(pi x) / (pi x), 1 at 0", _sinc)
angle = _unary("angle", "Compute the angle of complex numbers, in radians",
               lambda x: e.atan2(e.imag(x), e.real(x)))  # fmt: skip
isposinf = _unary("isposinf", "Tell whether x is infinite and positive; bool", _infinite(1), False)
isneginf = _unary("isneginf", "Tell whether x is infinite and negative; bool", _infinite(-1), False)
isreal = _unary("isreal", "Tell whether the imaginary part is 0; bool",
                lambda x: logic.equal(e.imag(x), 0), False)  # fmt: skip
iscomplex = _unary("iscomplex", "Tell whether the imaginary part is not 0; bool",
                   lambda x: logic.not_equal(e.imag(x), 0), False)  # fmt: skip
fmax = _binary("fmax", "Return the larger of x1 and x2, of a NaN and a number the number",
               _other_if_nan(e.maximum))  # fmt: skip
fmin = _binary("fmin", "Return the smaller of x1 and x2, of a NaN and a number the number",
               _other_if_nan(e.minimum))  # fmt: skip
fmod = _binary("fmod", "Compute the remainder of x1 / x2 with the sign of x1", _truncated_rest)
heaviside = _binary(
    "heaviside", "Return 0 where x1 is negative, x2 where it is 0, else 1", _heaviside
)
logaddexp2 = _binary("logaddexp2", "Compute log2(2**x1 + 2**x2) without intermediate overflow",
    lambda a, b: e.divide(
        e.logaddexp(e.multiply(a, math.log(2)), e.multiply(b, math.log(2))), math.log(2)
    ))  # fmt: skip


def gcd(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute the greatest common divisor of integers, elementwise, by Euclid's rounds until all are done."""
    a, b = _integers("gcd", x1, x2)
    shape = broadcast_shapes(a.shape, b.shape)

    def step(state: tuple[Tracer, Tracer]) -> tuple[Tracer, Tracer]:
        large, small = state
        none = logic.equal(small, 0)
        rest = e.remainder(large, e.where(none, 1, small))
        return e.where(none, large, small), e.where(none, small, rest)

    begin = tuple([broadcast_to(v if v.dtype.kind == "u" else e.abs(v), shape) for v in (a, b)])
    return while_loop(lambda state: some(logic.not_equal(state[1], 0)), step, begin)[0]


def lcm(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute the least common multiple of integers, elementwise; 0 where one is 0."""
    a, b = _integers("lcm", x1, x2)
    common = gcd(a, b)
    a, b = (v if v.dtype.kind == "u" else e.abs(v) for v in (a, b))
    return e.multiply(e.floor_divide(a, e.where(logic.equal(common, 0), 1, common)), b)


def _integers(name: str, x1: ArrayLike, x2: ArrayLike) -> tuple[Tracer, Tracer]:
    a, b = alike(x1, x2)
    e.checked(name, [a], "i")
    return a, b


def frexp(x: ArrayLike, /) -> tuple[Tracer, Tracer]:
    """Split numbers into a part from 1/2 to below 1, with the sign of x, and a power of two, as int32, elementwise."""
    value = e.astype(tensor(x), floating(tensor(x).dtype))
    wide = e.abs(e.astype(value, float64))
    plain = logic.logical_and(logic.isfinite(wide), logic.not_equal(wide, 0))
    size = e.where(plain, wide, 1.0)
    tiny = logic.less(size, 2.0**-1000)
    size = e.where(tiny, e.multiply(size, 2.0**600), size)
    power = e.astype(e.floor(e.log2(size)), int32)
    part = ldexp(size, e.negative(power))  # the logarithm may be one off
    power = e.add(power, e.where(logic.less(part, 1), 0, 1))
    part = e.where(logic.less(part, 1), part, e.multiply(part, 0.5))
    low = logic.less(part, 0.5)
    part, power = (
        e.where(low, e.multiply(part, 2.0), part),
        e.where(low, e.subtract(power, 1), power),
    )
    power = e.where(tiny, e.subtract(power, 600), power)
    part = e.astype(e.where(plain, part, wide), value.dtype)
    return e.copysign(part, value), e.astype(e.where(plain, power, 0), int32)


def bitwise_count(x: ArrayLike, /) -> Tracer:
    """Count the bits that are 1 in integers, of negative ones in their magnitude, elementwise, as uint8."""
    value = tensor(x)
    e.checked("bitwise_count", [value], "i")
    value = value if value.dtype.kind == "u" else e.abs(value)
    found = e.multiply(e.astype(value, "uint8"), 0)
    for bit in range(value.dtype.bits):
        one = logic.bitwise_and(logic.bitwise_right_shift(value, bit), 1)
        found = e.add(found, e.astype(one, "uint8"))
    return found


def spacing(x: ArrayLike, /) -> Tracer:
    """Compute the step from x to the next number away from 0, with the sign of x, elementwise."""
    value = e.astype(tensor(x), floating(tensor(x).dtype))
    following = logic.nextafter(value, e.where(logic.less(value, 0), -math.inf, math.inf))
    return e.subtract(following, value)


def float_power(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute x1 to the power of x2 in float64, elementwise."""
    return e.pow(e.astype(x1, float64), e.astype(x2, float64))


def ldexp(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute x1 * 2**x2, elementwise, also where 2**x2 alone is no number of x1's dtype."""
    value = tensor(x1)
    out = floating(value.dtype)
    wide = accumulator(out)
    third = e.floor_divide(x2, 3)
    made = e.astype(value, wide)
    for power in (third, third, e.subtract(x2, e.multiply(third, 2))):
        made = e.multiply(made, e.exp2(e.astype(power, wide)))
    return e.astype(made, out)


def divmod(x1: ArrayLike, x2: ArrayLike, /) -> tuple[Tracer, Tracer]:
    """Compute `floor_divide` and `remainder`, elementwise."""
    return e.floor_divide(x1, x2), e.remainder(x1, x2)


def modf(x: ArrayLike, /) -> tuple[Tracer, Tracer]:
    """Split numbers into what is behind the point and the whole part, both with the sign of x, elementwise."""
    value = e.astype(tensor(x), floating(tensor(x).dtype))
    whole = e.trunc(value)
    rest = e.where(logic.isinf(value), 0, e.subtract(value, whole))
    return e.copysign(rest, value), whole


def nan_to_num(
    x: ArrayLike, /, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tracer:
    """Replace NaN by `nan`, infinities by `posinf` and `neginf` (None: the largest and the least number)."""
    value = tensor(x)
    if e.checked("nan_to_num", [value], "fib").kind != "f":
        return value
    ends = finfo(value.dtype)
    value = e.where(logic.isnan(value), nan, value)
    value = e.where(isposinf(value), ends.max if posinf is None else posinf, value)
    return e.where(isneginf(value), ends.min if neginf is None else neginf, value)


def isclose(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    *,
    equal_nan: bool = False,
) -> Tracer:
    """Tell whether |x1 - x2| is at most atol + rtol * |x2|, elementwise; infinities are close to themselves.

    equal_nan: whether two NaNs are close.
    """
    a, b = (e.astype(v, floating(v.dtype)) for v in alike(x1, x2))
    bound = e.add(e.multiply(e.abs(b), rtol), atol)
    finite = logic.logical_and(logic.isfinite(a), logic.isfinite(b))
    near = logic.logical_and(finite, logic.less_equal(e.abs(e.subtract(a, b)), bound))
    near = logic.logical_or(near, logic.equal(a, b))
    return (
        logic.logical_or(near, logic.logical_and(logic.isnan(a), logic.isnan(b)))
        if equal_nan
        else near
    )


def allclose(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    *,
    equal_nan: bool = False,
) -> Tracer:
    """Tell whether all elements are close, as `isclose` has it; bool."""
    return every(isclose(x1, x2, rtol, atol, equal_nan=equal_nan))


def array_equal(x1: ArrayLike, x2: ArrayLike, /, *, equal_nan: bool = False) -> Tracer:
    """Tell whether shapes and all elements are equal; bool. equal_nan: whether two NaNs are equal."""
    a, b = alike(x1, x2)
    if a.shape != b.shape:
        return tensor(False)
    same = logic.equal(a, b)
    if equal_nan:
        same = logic.logical_or(same, logic.logical_and(logic.isnan(a), logic.isnan(b)))
    return every(same)
