"""Write transforms of a few numbers, which are in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshweave.lowering.writer import Value


class Pair(NamedTuple):
    """Hold a complex number, or a vector of them."""

    re: Value
    im: Value

    def __add__(self, other: Pair) -> Pair:  # type: ignore[override]
        return Pair(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Pair) -> Pair:
        return Pair(self.re - other.re, self.im - other.im)

    def scaled(self, factor: float) -> Pair:
        """Multiply by a real number."""
        return self if factor == 1.0 else Pair(self.re * factor, self.im * factor)

    def times(self, other: Pair) -> Pair:
        """Multiply two complex numbers."""
        w = self.re.writer
        re = w.fma(self.re, other.re, negative(self.im * other.im))
        return Pair(re, w.fma(self.re, other.im, self.im * other.re))


def negative(value: Value) -> Value:
    """Return a number with the other sign."""
    return value.writer.let(f"arith.negf {value.name} : {value.type}", value.type)


def transform(numbers: Sequence[Pair]) -> list[Pair]:
    """Return the discrete Fourier transform of a few numbers."""
    count = len(numbers)
    if count == 1:
        return list(numbers)
    if count == 2:
        return [numbers[0] + numbers[1], numbers[0] - numbers[1]]
    if count == 4:
        return _of_four(*numbers)
    first = 4 if count % 4 == 0 else _smallest_factor(count)
    return _of_prime(numbers) if first == count else _split(numbers, first)


def _of_four(a: Pair, b: Pair, c: Pair, d: Pair) -> list[Pair]:
    even, odd, left, right = a + c, b + d, a - c, b - d
    # -i times `right` is (right.im, -right.re).
    one = Pair(left.re + right.im, left.im - right.re)
    three = Pair(left.re - right.im, left.im + right.re)
    return [even + odd, one, even - odd, three]


def _smallest_factor(count: int) -> int:
    return next(k for k in range(2, count + 1) if count % k == 0)


def _split(numbers: Sequence[Pair], outer: int) -> list[Pair]:
    """Transform every `outer`-th number, then across."""
    count, inner = len(numbers), len(numbers) // outer
    parts = [transform(numbers[k::outer]) for k in range(outer)]
    made: list[Pair | None] = [None] * count
    for k in range(inner):
        turned = [_turned(part[k], i * k, count) for i, part in enumerate(parts)]
        made[k::inner] = transform(turned)
    return [pair for pair in made if pair is not None]


def _turned(number: Pair, power: int, count: int) -> Pair:
    """Multiply by e^(-2 pi i power / count), a constant."""
    eighths, rest = divmod(8 * power, count)
    if rest:
        angle = -2.0 * math.pi * power / count
        c, s = math.cos(angle), math.sin(angle)
        w = number.re.writer
        cosine = w.constant(c, number.re.type)
        re = w.fma(number.re, cosine, negative(number.im * s))
        return Pair(re, w.fma(number.im, cosine, number.re * s))
    eighths %= 8
    if eighths >= 4:
        half = _turned(number, power - count // 2, count)
        return Pair(negative(half.re), negative(half.im))
    if eighths == 0:
        return number
    if eighths == 2:
        return Pair(number.im, negative(number.re))
    both, less = number.re + number.im, number.im - number.re
    if eighths == 1:
        return Pair(both, less).scaled(math.sqrt(0.5))
    return Pair(less * math.sqrt(0.5), both * -math.sqrt(0.5))


def _of_prime(numbers: Sequence[Pair]) -> list[Pair]:
    """Transform an odd number of numbers, by the sums and differences of those that mirror each other."""
    count, first = len(numbers), numbers[0]
    mirrored = [(numbers[k], numbers[count - k]) for k in range(1, (count + 1) // 2)]
    sums, less = [a + b for a, b in mirrored], [a - b for a, b in mirrored]
    total = first
    for pair in sums:
        total = total + pair
    made = [total, *[first] * (count - 1)]
    for j in range(1, (count + 1) // 2):
        angles = [2.0 * math.pi * (j * k % count) / count for k in range(1, (count + 1) // 2)]
        even = _weighted(first, sums, [math.cos(a) for a in angles])
        odd = _weighted(None, less, [math.sin(a) for a in angles])
        made[j] = Pair(even.re + odd.im, even.im - odd.re)
        made[count - j] = Pair(even.re - odd.im, even.im + odd.re)
    return made


def _weighted(start: Pair | None, numbers: Sequence[Pair], weights: Sequence[float]) -> Pair:
    """Add numbers up, each times its weight."""
    total = start
    for number, weight in zip(numbers, weights, strict=True):
        if total is None:
            total = number.scaled(weight)
            continue
        w = number.re.writer
        factor = w.constant(weight, number.re.type)
        total = Pair(w.fma(number.re, factor, total.re), w.fma(number.im, factor, total.im))
    assert total is not None, "a prime is at least 3"
    return total
