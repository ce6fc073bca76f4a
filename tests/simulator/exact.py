"""Floating-point results by exact arithmetic: the value as a fraction, rounded once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

FORMATS = {  # bits of the significand, least exponent of a normal number, of the greatest
    "f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023),
}  # fmt: skip


def rounded(value: Fraction, kind: str, mode: str = "rn") -> float:
    """A fraction in a format; zero is +0."""
    precision, low, high = FORMATS[kind]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = max(low, _exponent(size))
    unit = Fraction(2) ** (exponent - precision + 1)
    steps, rest = divmod(size, unit)
    up = {
        "rn": 2 * rest > unit or (2 * rest == unit and steps % 2 == 1),
        "rz": False,
        "rm": rest > 0 and value < 0,
        "rp": rest > 0 and value > 0,
    }[mode]
    size = (steps + up) * unit
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** high
    if size > largest:
        towards_zero = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        size = largest if towards_zero else math.inf
    return math.copysign(float(size), value)


def _exponent(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray, kind: str, mode: str = "rn") -> np.ndarray:
    """x y + z with one rounding where all is finite and not zero; NaN elsewhere."""
    out = np.full(x.shape, np.nan)
    for at, values in enumerate(zip(x.tolist(), y.tolist(), z.tolist())):
        if all(map(math.isfinite, values)):
            a, b, c = map(Fraction, values)
            out[at] = rounded(a * b + c, kind, mode) if a * b + c else np.nan
    return out
