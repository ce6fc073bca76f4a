"""Write special functions as formulas over any arrays, of `mw` or of torch, in f64: one set for all faces.

`m` is what has the functions of arrays: `where`, `abs`, `exp`, `log`, `log1p`, `sqrt`, `sin`, `cos`, `floor`, `erf`.
Results are right to some units in the last place where a function is not near one of its zeros, which `docs/api.md`
names. Coefficients are computed here, from what defines them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

Array = Any
"""An array of f64 with Python's operators; the faces have types of their own."""
Namespace = Any
"""A module with functions of such arrays."""
_PI = math.pi


def polynomial(numbers: Sequence[float], x: Array) -> Array:
    """Compute a polynomial, its terms from the highest power on."""
    found = x * numbers[0] + numbers[1]
    for number in numbers[2:]:
        found = found * x + number
    return found


def chebyshev(numbers: Sequence[float], t: Array) -> Array:
    """Compute a sum of Chebyshev's polynomials of t, for t between -1 and 1 [Clenshaw 1955]."""
    later, last = t * 0 + numbers[-1], t * 0
    for number in reversed(numbers[1:-1]):
        later, last = 2 * t * later - last + number, later
    return t * later - last + numbers[0]


def fitted(function: Callable[[float], float], count: int) -> list[float]:
    """Return the Chebyshev series that has a function's values at `count` nodes between -1 and 1."""
    turns = [math.cos(_PI * k / (2 * count)) for k in range(4 * count)]
    values = [function(turns[2 * j + 1]) for j in range(count)]
    terms = [
        2
        / count
        * math.fsum(v * turns[(2 * j + 1) * k % (4 * count)] for j, v in enumerate(values))
        for k in range(count)
    ]
    return [terms[0] / 2, *terms[1:]]


# Gamma


def _zeta_less_one(n: int) -> float:
    """Return zeta(n) - 1 for n > 1, by Euler and Maclaurin's formula behind 20 terms."""
    head = math.fsum(k**-n for k in range(2, 20))
    tail = 20 ** (1 - n) / (n - 1) + 0.5 * 20**-n
    rising = float(n)
    for j, number in enumerate(_BERNOULLI[:8], 1):
        tail += number / math.factorial(2 * j) * rising * 20.0 ** (-n - 2 * j + 1)
        rising *= (n + 2 * j - 1) * (n + 2 * j)
    return float(head + tail)


_BERNOULLI = [
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330,
    854513 / 138, -236364091 / 2730,
]  # fmt: skip
"""Bernoulli's numbers from the second on, those that are not 0."""
_STIRLING = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:8], 1)]
_FAR = 8.5
"""Stirling's series holds from here on."""
_EULER = 0.5772156649015329
_NEAR_TWO = [*[(-1) ** k * _zeta_less_one(k) / k for k in range(30, 1, -1)], 1 - _EULER, 0.0]
"""log gamma(2 + z) for z up to 1/2, by powers of z."""


def _down(m: Namespace, x: Array) -> tuple[Array, Array]:
    """Return numbers up to 8.5 less whole ones, at most 2.5, and the product of what is left away."""
    rest, product = x, m.where(x == x, 1.0, x)
    for _ in range(6):
        more = rest > 2.5
        rest = m.where(more, rest - 1, rest)
        product = m.where(more, product * rest, product)
    return rest, product


def _stirling(x: Array) -> Array:
    """Return what log gamma has besides (x - 1/2) log(x) - x + log(2 pi) / 2."""
    inverse = 1 / x
    return polynomial(_STIRLING[::-1], inverse * inverse) * inverse


def sine(m: Namespace, x: Array) -> tuple[Array, Array]:
    """Return the sine and the cosine of pi times what x is above the nearest whole number."""
    part = (x - m.floor(x + 0.5)) * _PI
    return m.sin(part), m.cos(part)


def gammaln(m: Namespace, x: Array) -> Array:
    """Compute log |gamma(x)|: by its series around 2, behind 8.5 by Stirling's, below -1/2 by reflection."""
    mirrored = x < -0.5
    y = m.where(mirrored, 1 - x, x)
    small, low = y < 0.5, y < 1.5
    near, product = _down(m, m.where(y < _FAR, y, 2.0))
    near = m.where(small, y - 1, m.where(low, near - 1, near - 2))  # 2 + z, less 1 or 2
    near = m.where(small, near + 1, near)
    found = polynomial(_NEAR_TWO, near) + m.log(product)
    found = m.where(low, found - m.log1p(m.where(low, near, 0.0)), found)
    found = m.where(small, found - m.log(m.where(small, m.abs(y), 1.0)), found)
    far = m.where(y < _FAR, _FAR, y)
    found = m.where(y < _FAR, found, (far - 0.5) * (m.log(far) - 1) + _HALF_LOG + _stirling(far))
    found = m.where(y == math.inf, math.inf, found)
    above, _ = sine(m, x)
    other = m.log(_PI / m.abs(above)) - found
    found = m.where(mirrored, m.where(x == m.floor(x), math.inf, other), found)
    return m.where(x == 0, math.inf, found)


_HALF_LOG = 0.5 * math.log(2 * _PI) - 0.5
"""What is left of log(2 pi) / 2 where x - 1/2 stands for x."""


def gamma(m: Namespace, x: Array) -> Array:
    """Compute the gamma function; NaN at -1, -2 .."""
    mirrored = x < 0.5
    y = m.where(mirrored, 1 - x, x)
    low = y < 1.5
    near, product = _down(m, m.where(y < _FAR, y, 2.0))
    near = m.where(low, near - 1, near - 2)
    found = m.exp(polynomial(_NEAR_TWO, near)) * product
    found = m.where(low, found / (1 + near), found)
    far = m.where(y < _FAR, _FAR, y)
    half = far ** ((far - 0.5) * 0.5)
    large = half * m.exp(-far) * half * (math.sqrt(2 * _PI) * m.exp(_stirling(far)))
    large = m.where(far > 171.7, math.inf, large)
    found = m.where(y < _FAR, found, large)
    above, _ = sine(m, x)
    nearest = m.floor(x + 0.5)
    even = m.floor(nearest * 0.5) * 2 == nearest
    other = _PI / (m.where(even, above, -above) * found)
    other = m.where(x == m.floor(x), math.nan, other)
    found = m.where(mirrored, other, found)
    return m.where(x == 0, 1 / x, found)


def _reflected(m: Namespace, x: Array, order: int) -> tuple[Array, Array, Array]:
    """Return where x is below 1/2, there 1 - x, and the derivative of pi cot(pi x) of an order."""
    mirrored = x < 0.5
    above, beside = sine(m, x)
    cotangent = beside / above
    terms = np.array(
        [1.0, 0.0]
    )  # a polynomial in the cotangent, whose derivative is -1 less its square
    for _ in range(order):
        terms = -np.polymul(np.polyder(terms), [1.0, 0.0, 1.0])
    other = polynomial([float(n) * _PI ** (order + 1) for n in terms], cotangent)
    return mirrored, m.where(mirrored, 1 - x, x), other


_SHIFT = 8
"""The asymptotic series of derivatives of log gamma hold from here on."""


def digamma(m: Namespace, x: Array) -> Array:
    """Compute the derivative of log gamma, by that of Stirling's series, and reflection."""
    mirrored, y, turned = _reflected(m, x, 0)
    found, shifted = y * 0, y
    for _ in range(_SHIFT):
        small = shifted < _SHIFT
        found = m.where(small, found - 1 / m.where(small, shifted, 1.0), found)
        shifted = m.where(small, shifted + 1, shifted)
    square = 1 / (shifted * shifted)
    series = polynomial([b / (2 * k) for k, b in enumerate(_BERNOULLI[:11], 1)][::-1], square)
    found = m.where(
        y == math.inf, math.inf, found + m.log(shifted) - 0.5 / shifted - series * square
    )
    other = m.where(x == m.floor(x), math.nan, found - turned)
    other = m.where(x == 0, -1 / x, other)
    return m.where(mirrored, other, found)


def polygamma(m: Namespace, n: int, x: Array) -> Array:
    """Compute the derivative of digamma of order n, by zeta, and reflection."""
    if n == 0:
        return digamma(m, x)
    mirrored, y, turned = _reflected(m, x, n)
    sign = (-1.0) ** (n + 1)
    found = zeta(m, y * 0 + (n + 1.0), y) * (sign * math.factorial(n))
    other = found * (-1.0) ** n - turned
    return m.where(mirrored, m.where(x == m.floor(x), sign * math.inf, other), found)


def zeta(m: Namespace, x: Array, q: Array) -> Array:
    """Compute the sum of (q + k)^-x over k from 0 on, by Euler and Maclaurin's formula behind 10 terms.

    It is NaN for x < 1 and for q < 0, infinite for x = 1 and q = 0.
    """
    found, base = q * 0, q
    for _ in range(10):
        found, base = found + base ** (-x), base + 1
    power = base ** (-x)
    found = found + power * base / (x - 1) + 0.5 * power
    rising, scale = x, power / base
    for j, number in enumerate(_BERNOULLI, 1):
        found = found + number / math.factorial(2 * j) * rising * scale
        rising = rising * (x + (2 * j - 1)) * (x + 2 * j)
        scale = scale / (base * base)
    found = m.where(
        q == math.inf, 0.0, m.where(x == math.inf, m.where(q > 1, 0.0, q ** (-x)), found)
    )
    found = m.where(q == 0, math.inf, m.where(x == 1, math.inf, found))
    return m.where(x < 1, math.nan, m.where(q < 0, math.nan, found))


# The error function


def _exponent(z: float) -> float:
    """Return erfc(z) e^(z^2) (2 + z) / 2, in which nothing overflows."""
    if z < 8:
        whole = round(z * 16) / 16  # its square is exact
        return (
            math.erfc(z)
            * math.exp(whole * whole)
            * math.exp((z - whole) * (z + whole))
            * (2 + z)
            / 2
        )
    if z == math.inf:
        return 0.5 / math.sqrt(_PI)
    terms = [1.0]  # the asymptotic series
    for k in range(1, 20):
        terms.append(-terms[-1] * (2 * k - 1) / (2 * z * z))
        if abs(terms[-1]) < 1e-18:
            break
    return math.fsum(terms) / (math.sqrt(_PI) * z) * (2 + z) / 2


_OF_ERFC = fitted(lambda u: _exponent(4 / (u + 1) - 2 if u > -1 else math.inf), 48)
"""erfc(z) e^(z^2) (2 + z) / 2 for t = 2 / (2 + z), as t goes from 0 to 1 where u goes from -1 to 1."""


def _scaled(size: Array) -> Array:
    """Return erfc(z) e^(z^2) for z not below 0."""
    t = 2 / (2 + size)
    return t * chebyshev(_OF_ERFC, 2 * t - 1)


def _square(m: Namespace, size: Array, sign: float) -> Array:
    """Return e to the power of a square, or of its negative: the square of a part of the number is exact."""
    part = m.floor(size * 16) * 0.0625
    return m.exp(part * part * sign) * m.exp((size - part) * (size + part) * sign)


def erfc(m: Namespace, x: Array) -> Array:
    """Compute 1 - erf(x), also where little is left."""
    size = m.where(m.abs(x) > 30, 30.0, m.abs(x))
    found = _scaled(size) * _square(m, size, -1.0)
    near = 1 - m.erf(x)
    return m.where(m.abs(x) < 0.25, near, m.where(x < 0, 2 - found, found))


def erfcx(m: Namespace, x: Array) -> Array:
    """Compute erfc(x) e^(x^2)."""
    size = m.abs(x)
    found = m.where(size == math.inf, 0.0, _scaled(m.where(size == math.inf, 1.0, size)))
    below = m.where(x < 0, m.where(size > 27, 27.0, size), 0.0)
    other = 2 * _square(m, below, 1.0) - found
    return m.where(x < 0, m.where(size > 26.7, math.inf, other), found)


def _inverse(m: Namespace, size: Array, rest: Array) -> Array:
    """Return y not below 0 with erf(y) = size and erfc(y) = rest: Winitzki's formula, and Halley's steps."""
    inner = m.log(rest) + m.log(2 - rest)  # of (1 - size) (1 + size)
    a = 2 / (_PI * 0.147) + inner / 2
    y = m.sqrt(m.abs(m.sqrt(a * a - inner / 0.147) - a))
    for _ in range(3):
        # (erf(y) - size) / erf'(y), by erfc(y) e^(y^2) where little is left
        scale = math.sqrt(_PI) / 2
        near = (m.erf(y) - size) * scale * m.exp(y * y * 1.0)
        bounded = m.where(y > 30, 30.0, y)
        far = (rest * _square(m, bounded, 1.0) - _scaled(bounded)) * scale
        step = m.where(size < 0.5, near, far)
        y = y - step / (1 + y * step)
    return y


def erfinv(m: Namespace, x: Array) -> Array:
    """Compute the number whose erf is x."""
    size = m.abs(x)
    inside = m.where(size < 1, size, 0.5)
    y = _inverse(m, inside, 1 - inside)
    y = m.where(inside < 1e-9, inside * (math.sqrt(_PI) / 2), y)
    y = m.where(size == 1, math.inf, m.where(size > 1, math.nan, y))
    return m.where(x != x, x, m.where(x < 0, -y, y))


def erfcinv(m: Namespace, x: Array) -> Array:
    """Compute the number whose erfc is x."""
    upper = x > 1
    rest = m.where(upper, 2 - x, x)
    inside = m.where(rest > 0, rest, 0.5)
    y = _inverse(m, 1 - inside, inside)
    y = m.where(rest == 1, 0.0, m.where(rest == 0, math.inf, m.where(rest < 0, math.nan, y)))
    return m.where(x != x, x, m.where(upper, -y, y))


def ndtr(m: Namespace, x: Array) -> Array:
    """Compute the part of a normal distribution that is below x."""
    return 0.5 * erfc(m, x * -math.sqrt(0.5))


def log_ndtr(m: Namespace, x: Array) -> Array:
    """Compute the logarithm of `ndtr`, also where that is too small for a number."""
    scaled = x * -math.sqrt(0.5)
    low = x < -1
    tail = (
        m.log(0.5 * _scaled(m.where(low, m.where(scaled > 1e300, 1e300, scaled), 1.0)))
        - 0.5 * x * x
    )
    return m.where(low, tail, m.log1p(-0.5 * erfc(m, -m.where(low, 1.0, scaled))))


def ndtri(m: Namespace, p: Array) -> Array:
    """Compute the number that `ndtr` gives p for."""
    return -math.sqrt(2) * erfcinv(m, 2 * p)


# Bessel


def _bessel(order: int, x: float) -> float:
    """Return I of order 0 or 1, times e^-x, for x not below 0."""
    if x > 20:
        terms = [1.0]
        for k in range(1, 40):
            terms.append(-terms[-1] * (4 * order - (2 * k - 1) ** 2) / (8 * k * x))
            if abs(terms[-1]) < 1e-18:
                break
        return math.fsum(terms) / math.sqrt(2 * _PI * x)
    terms = [1.0 if order == 0 else 0.5]
    for k in range(1, 200):
        terms.append(terms[-1] * (x / 2) ** 2 / (k * (k + order)))
        if terms[-1] < 1e-18 * terms[0]:
            break
    return math.fsum(terms) * math.exp(-x) * (x if order else 1.0)


def _near_bessel(order: int, x: float) -> float:
    """Return I of an order, times e^-x (4 + x)^(order + 1/2), divided by x to the order: all about as large."""
    if x == 0:
        return 4.0 if order else 2.0
    shape = (4 + x) * math.sqrt(4 + x) / x if order else math.sqrt(4 + x)
    return _bessel(order, x) * shape


def _far_bessel(order: int, u: float) -> float:
    """Return I of an order, times e^-x sqrt(x), where 16 / x is u + 1."""
    x = 16 / (u + 1) if u > -1 else math.inf
    if x == math.inf:
        return 1 / math.sqrt(2 * _PI)
    return _bessel(order, x) * math.sqrt(x)


_NEAR_BESSEL = [
    fitted(partial(lambda order, u: _near_bessel(order, 4 * (u + 1)), n), 40) for n in (0, 1)
]
_FAR_BESSEL = [fitted(partial(_far_bessel, n), 32) for n in (0, 1)]


def bessel_ie(m: Namespace, order: int, x: Array) -> Array:
    """Compute the modified Bessel function of order 0 or 1, times e^-|x|."""
    size = m.abs(x)
    low = m.where(size < 8, size, 8.0)
    high = m.where(size < 8, 8.0, size)
    root = m.sqrt(low + 4)
    near = chebyshev(_NEAR_BESSEL[order], low * 0.25 - 1) / (root * (low + 4) if order else root)
    far = chebyshev(_FAR_BESSEL[order], 16 / high - 1) / m.sqrt(high)
    if order == 0:
        return m.where(size < 8, near, far)
    return m.where(size < 8, near * x, m.where(x < 0, -far, far))


def bessel_i(m: Namespace, order: int, x: Array) -> Array:
    """Compute the modified Bessel function of order 0 or 1."""
    half = m.exp(0.5 * m.abs(x))  # the whole overflows before the result does
    return half * bessel_ie(m, order, x) * half


# The incomplete gamma function


def gamma_power(m: Namespace, a: Array, x: Array) -> Array:
    """Compute x^a e^-x / gamma(a + 1), for which neither power nor gamma overflows."""
    large = a > 10
    few, many = m.where(large, 1.0, a), m.where(large, a, 10.0)
    small = m.exp(few * m.log(x) - x - gammaln(m, few + 1))
    share = (x - many) / many
    exponent = many * (m.log1p(share) - share)
    far = m.exp(exponent - _stirling(many)) / m.sqrt(2 * _PI * many)
    return m.where(x == 0, m.where(a == 0, 1.0, 0.0), m.where(large, far, small))
