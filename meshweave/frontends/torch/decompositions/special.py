"""Decompose special functions that torch-mlir does not take: erfc, lgamma and its derivatives, computed in f64."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def decompositions() -> dict[object, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.erfc.default: lambda x: _wide(_erfc, x),
        aten.lgamma.default: lambda x: _wide(_lgamma, x),
        aten.digamma.default: lambda x: _wide(_digamma, x),
        aten.polygamma.default: lambda n, x: _wide(_trigamma, x) if n == 1 else NotImplemented,
        aten.fmod.Scalar: lambda x, y: torch.fmod(
            x, torch.full((), y, dtype=torch.result_type(x, y))
        ),
        aten.put.default: _put,
        aten.view_copy.default: lambda x, size: x.reshape(size).clone(),
        aten.permute_copy.default: lambda x, dims: x.permute(dims).clone(),
        aten.unbind_copy.int: lambda x, dim=0: [row.clone() for row in x.unbind(dim)],
        aten.empty_strided.default: lambda size, stride, **how: torch.empty(size, **how),
        aten.narrow_copy.default: lambda x, dim, start, length: x.narrow(
            dim, start, length
        ).clone(),
        # Strides, which gradients of convolutions have, are the same elements.
        torch.ops.prims.copy_strided.default: lambda x, strides: x.clone(),
    }


def _wide(compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Compute in f64; return the dtype that torch has for the function."""
    return compute(x.double()).to(x.dtype if x.dtype.is_floating_point else torch.float32)


def _erfc(x: Tensor) -> Tensor:
    """Compute t exp(-x^2 + P(t)) with t = 2 / (2 + |x|), P by Chebyshev's polynomials: small results are right too."""
    size = x.abs()
    t = 2 / (2 + size)
    twice, later, last = 4 * t - 2, torch.zeros_like(t), torch.zeros_like(t)
    for coefficient in reversed(_OF_ERFC[1:]):
        later, last = twice * later - last + coefficient, later
    found = t * torch.exp(-size * size + _OF_ERFC[0] + twice / 2 * later - last)
    return torch.where(x < 0, 2 - found, found)


def _exponent(t: float) -> float:
    """Return log(erfc(z) / t) + z^2 at t = 2 / (2 + z)."""
    z = 2 / t - 2
    if z < 20:
        return math.log(math.erfc(z) / t) + z * z
    terms = [1.0]  # the asymptotic series of sqrt(pi) z exp(z^2) erfc(z)
    for k in range(1, 8):
        terms.append(-terms[-1] * (2 * k - 1) / (2 * z * z))
    return math.log(sum(terms) / (math.sqrt(math.pi) * z * t))


def _chebyshev(count: int) -> list[float]:
    """Return the coefficients of the polynomial through `count` nodes, for -1 .. 1 as t runs from 0 to 1."""
    nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    values = [_exponent((float(node) + 1) / 2) for node in nodes]
    return [float(c) for c in np.polynomial.chebyshev.chebfit(nodes, values, count - 1)]


_OF_ERFC = _chebyshev(28)
_STIRLING = [1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156]
_BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6]
_SHIFT = 8  # series hold from here on


def _lgamma(x: Tensor) -> Tensor:
    """Compute log |gamma(x)| by Stirling's series behind 8, there by gamma(x + 1) = x gamma(x), and by reflection."""
    mirrored = x < 0.5
    y = torch.where(mirrored, 1 - x, x)
    product, shifted = torch.ones_like(y), y
    for _ in range(_SHIFT):
        small = shifted < _SHIFT
        product = torch.where(small, product * shifted, product)
        shifted = torch.where(small, shifted + 1, shifted)
    inverse, series = 1 / shifted, torch.zeros_like(y)
    for coefficient in reversed(_STIRLING):
        series = series * (inverse * inverse) + coefficient
    found = (shifted - 0.5) * torch.log(shifted) - shifted + 0.5 * math.log(2 * math.pi)
    found = found + series * inverse - torch.log(product)
    found = torch.where(shifted == math.inf, math.inf, found)
    # sin(pi x) of the part behind the point: exact for numbers far from 0
    sine = torch.sin(math.pi * (x - torch.floor(x)))
    other = math.log(math.pi) - torch.log(sine.abs()) - found
    other = torch.where(x == torch.floor(x), math.inf, other)
    return torch.where(mirrored, other, found)


def _digamma(x: Tensor) -> Tensor:
    """Compute the derivative of lgamma by the derivative of Stirling's series, and reflection."""
    mirrored = x < 0.5
    y = torch.where(mirrored, 1 - x, x)
    found, shifted = torch.zeros_like(y), y
    for _ in range(_SHIFT):
        small = shifted < _SHIFT
        found = torch.where(small, found - 1 / shifted, found)
        shifted = torch.where(small, shifted + 1, shifted)
    square, series = 1 / (shifted * shifted), torch.zeros_like(y)
    for k in range(len(_BERNOULLI), 0, -1):
        series = (series + _BERNOULLI[k - 1] / (2 * k)) * square
    found = found + torch.log(shifted) - 0.5 / shifted - series
    part = math.pi * (x - torch.floor(x))
    other = found - math.pi * torch.cos(part) / torch.sin(part)
    other = torch.where(x == torch.floor(x), math.nan, other)
    other = torch.where(x == 0, torch.where(1 / x < 0, math.inf, -math.inf), other)
    return torch.where(mirrored, other, found)


def _trigamma(x: Tensor) -> Tensor:
    """Compute the second derivative of lgamma, in the same way."""
    mirrored = x < 0.5
    y = torch.where(mirrored, 1 - x, x)
    found, shifted = torch.zeros_like(y), y
    for _ in range(_SHIFT):
        small = shifted < _SHIFT
        found = torch.where(small, found + 1 / (shifted * shifted), found)
        shifted = torch.where(small, shifted + 1, shifted)
    inverse, series = 1 / shifted, torch.zeros_like(y)
    for coefficient in reversed(_BERNOULLI):
        series = series * (inverse * inverse) + coefficient
    found = found + inverse + 0.5 * inverse * inverse + series * inverse * inverse * inverse
    sine = torch.sin(math.pi * (x - torch.floor(x)))
    other = (math.pi / sine) * (math.pi / sine) - found
    other = torch.where(x == torch.floor(x), math.inf, other)
    return torch.where(mirrored, other, found)


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write or add to places of the tensor as if it had one dim."""
    flat, places = x.reshape(-1), index.reshape(-1)
    places = torch.where(places < 0, places + flat.shape[0], places)
    values = source.reshape(-1)
    if accumulate:
        return flat.scatter_add(0, places, values).reshape(x.shape)
    return flat.scatter(0, places, values).reshape(x.shape)
