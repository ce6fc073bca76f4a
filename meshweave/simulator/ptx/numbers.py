"""Compute what NumPy lacks.

That is bf16, fused multiply-add with one rounding, directed rounding, the high half of 64-bit products. All functions
take and return arrays.
"""

from __future__ import annotations

import numpy as np

_HALF_WAY = np.uint64(0x10000000)  # of the 29 bits by which f64 exceeds f32
_LOW = np.uint64(0x1FFFFFFF)
_HALF_OF_LEAST = 2.0**-150  # of the least f32
_TINY = {np.dtype("f4"): np.float32(2.0**-126), np.dtype("f2"): np.float16(2.0**-14)}


def widen(bits: np.ndarray) -> np.ndarray:
    """Convert bf16 (its bits as u16) to f32."""
    out: np.ndarray = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return out


def narrow(values: np.ndarray) -> np.ndarray:
    """Round f32 to bf16 (bits as u16), to nearest even; every NaN becomes 0x7FFF, as on the device."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + (odd + np.uint32(0x7FFF))) >> np.uint32(16)).astype(np.uint16)
    missing = np.isnan(values)
    out: np.ndarray = np.where(missing, np.uint16(0x7FFF), rounded) if missing.any() else rounded
    return out


def flush(values: np.ndarray) -> np.ndarray:
    """Replace subnormal f32 by zero of the same sign (`.ftz`); other types stay."""
    if values.dtype != np.float32:
        return values
    small = np.abs(values) < _TINY[values.dtype]
    return np.where(small, np.copysign(np.float32(0), values), values) if small.any() else values


def saturate(values: np.ndarray) -> np.ndarray:
    """Clamp to [0, 1], NaN to 0 (`.sat`)."""
    return np.where(np.isnan(values), 0, np.clip(values, 0, 1)).astype(values.dtype)


def two_sum(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded sum and its error, which together are exact [Knuth]."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def to_odd(total: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Round total + error to odd in f64 [Boldo, Melquiond 2008].

    One more rounding to a narrower type is then right.
    """
    bits = np.ascontiguousarray(total).view(np.uint64)
    even = (bits & np.uint64(1)) == 0
    inexact = (error != 0) & np.isfinite(error) & np.isfinite(total)
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(even & inexact, np.nextafter(total, towards), total)


def fma32(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Compute x * y + z in f32 with one rounding.

    In f64 the product is exact and the sum is rounded once; rounding that to f32 is wrong only
    where it lies half-way between two f32: these lanes are done again by way of rounding to odd.
    """
    product = np.multiply(x, y, dtype=np.float64)
    total = product + z
    result = total.astype(np.float32)
    doubtful = (total.view(np.uint64) & _LOW) == _HALF_WAY
    doubtful |= np.abs(total - result) == _HALF_OF_LEAST  # half-way between subnormal ones
    if np.count_nonzero(doubtful):
        lanes = np.flatnonzero(doubtful)
        products = np.broadcast_to(product, total.shape)[lanes]
        added = np.broadcast_to(z, total.shape)[lanes].astype(np.float64)
        result[lanes] = to_odd(*two_sum(products, added)).astype(np.float32)
    out: np.ndarray = result
    return out


def fma_small(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Compute x * y + z of f16 or bf16 values, as f64 rounded to odd.

    One more rounding to f16 or bf16 gives the fused result.
    """
    product = np.multiply(x, y, dtype=np.float64)
    return to_odd(*two_sum(product, np.asarray(z, np.float64)))


def two_product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded f64 product and its error [Dekker, Veltkamp]; right while nothing overflows."""
    factor = 134217729.0  # 2^27 + 1
    product = x * y
    high_x = x * factor - (x * factor - x)
    high_y = y * factor - (y * factor - y)
    low_x, low_y = x - high_x, y - high_y
    error = ((high_x * high_y - product) + high_x * low_y + low_x * high_y) + low_x * low_y
    return product, error


def fma64(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Compute x * y + z in f64 with one rounding [Boldo, Melquiond 2008].

    There are two roundings where a factor is over 2^996 or the product under 2^-960, which Dekker's product does not
    reach.
    """
    x, y, z = np.broadcast_arrays(x, y, z)
    product, low = two_product(x, y)
    high, rest = two_sum(z, low)
    total, error = two_sum(product, high)
    result = total + to_odd(*two_sum(error, rest))
    size = np.abs(product)
    fine = np.isfinite(low) & np.isfinite(result) & (size > 2.0**-960)
    out: np.ndarray = np.where(fine, result, product + z)
    return out


def direct(result: np.ndarray, error: np.ndarray, mode: str) -> np.ndarray:
    """Move a result rounded to nearest to the one that `mode` ("rz", "rm", "rp") asks.

    error: the exact value less the result, or anything of its sign.
    """
    up = np.nextafter(result, np.array(np.inf, result.dtype))
    down = np.nextafter(result, np.array(-np.inf, result.dtype))
    if mode == "rm":
        return np.where(error < 0, down, result)
    if mode == "rp":
        return np.where(error > 0, up, result)
    past = np.where(result > 0, error < 0, error > 0) & (result != 0)
    return np.where(past, np.where(result > 0, down, up), result)


def high_half(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the high 64 bits of the product of two u64."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    xl, xh, yl, yh = x & mask, x >> half, y & mask, y >> half
    middle = xh * yl + (xl * yl >> half)
    other = xl * yh + (middle & mask)
    out: np.ndarray = xh * yh + (middle >> half) + (other >> half)
    return out


def high_half_signed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the high 64 bits of the product of two s64 given as u64."""
    top = np.uint64(63)
    out: np.ndarray = high_half(x, y) - (x >> top) * y - (y >> top) * x
    return out
