"""Decompose elementwise functions of complex numbers: those of `frontends.python`, that hold for huge and tiny ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meshweave.frontends.torch.decompositions.of_complex.parts import is_complex, pair, parts

torch.library.define("meshweave::of_complex", "(Tensor[] parts, str name) -> Tensor[]")
torch.library.register_fake(
    "meshweave::of_complex",
    lambda given, name: [torch.empty_like(given[0]) for _ in range(1 if name == "abs" else 2)],
)
NAMES = (
    "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh",
    "asin", "acos", "atan", "asinh", "acosh", "atanh", "log2", "log10",
)  # fmt: skip
"""Functions that torch calls as `frontends.python` does."""


def function(name: str, *values: Tensor | complex) -> Tensor:
    """Compute a function of complex numbers; "abs" gives real ones."""
    given = [one for value in values for one in parts(value)]
    kind = next(one.dtype for one in given if isinstance(one, Tensor))
    for one in given:
        if isinstance(one, Tensor):
            kind = torch.promote_types(kind, one.dtype)
    tensors = [
        one.to(kind) if isinstance(one, Tensor) else torch.full((), float(one), dtype=kind)
        for one in given
    ]
    made = torch.ops.meshweave.of_complex(list(torch.broadcast_tensors(*tensors)), name)
    return made[0] if name == "abs" else pair(*made)


def rules() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    named = {getattr(aten, name).default: _of_one(name) for name in NAMES}
    return {
        **named,
        aten.abs.default: lambda z: function("abs", z),
        aten.angle.default: lambda z: torch.atan2(*parts(z)[::-1]),
        aten.sgn.default: lambda z: function("sign", z),
        aten.sign.default: lambda z: function("sign", z),
        aten.exp2.default: lambda z: function("exp", z * math.log(2)),
        aten.sigmoid.default: lambda z: _divide(1.0, function("exp", -z) + 1),
        aten.silu.default: lambda z: _divide(z, function("exp", -z) + 1),
        aten.reciprocal.default: lambda z: _divide(1.0, z),
        aten.square.default: lambda z: multiply(z, z),
        aten.mul.Tensor: multiply,
        aten.mul.Scalar: multiply,
        aten.div.Tensor: _divide,
        aten.div.Scalar: _divide,
        aten.add.Tensor: lambda x, y, *, alpha=1: _added(x, y, alpha),
        aten.add.Scalar: lambda x, y, alpha=1: _added(x, y, alpha),
        aten.sub.Tensor: lambda x, y, *, alpha=1: _added(x, y, -alpha),
        aten.sub.Scalar: lambda x, y, alpha=1: _added(x, y, -alpha),
        aten.rsub.Tensor: lambda x, y, *, alpha=1: _added(y, x, -alpha),
        aten.rsub.Scalar: lambda x, y, alpha=1: _added(y, x, -alpha),
        aten.pow.Tensor_Tensor: _power,
        aten.pow.Tensor_Scalar: _power,
        aten.pow.Scalar: _power,
        aten.eq.Tensor: _equal,
        aten.eq.Scalar: _equal,
        aten.ne.Tensor: lambda x, y: torch.logical_not(_equal(x, y)),
        aten.ne.Scalar: lambda x, y: torch.logical_not(_equal(x, y)),
        aten.isnan.default: lambda z: torch.isnan(parts(z)[0]) | torch.isnan(parts(z)[1]),
        aten.isinf.default: lambda z: torch.isinf(parts(z)[0]) | torch.isinf(parts(z)[1]),
        aten.isfinite.default: lambda z: torch.isfinite(parts(z)[0]) & torch.isfinite(parts(z)[1]),
        aten.isclose.default: _isclose,
        aten.logical_not.default: lambda z: torch.logical_not(nonzero(z)),
        aten.logical_and.default: lambda x, y: nonzero(x) & nonzero(y),
        aten.logical_or.default: lambda x, y: nonzero(x) | nonzero(y),
        aten.logical_xor.default: lambda x, y: nonzero(x) ^ nonzero(y),
        aten._conj.default: conjugate,
        aten._conj_physical.default: conjugate,
        aten.conj_physical.default: conjugate,
        aten.resolve_conj.default: _same,
        aten.resolve_neg.default: _same,
        aten.view_as_real.default: lambda z: torch.stack(parts(z), -1),
        aten._to_copy.default: _converted,
    }  # fmt: skip


def made_of_real() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of ops that make complex numbers of real ones."""
    aten = torch.ops.aten
    return {
        aten.view_as_complex.default: lambda x: pair(x.select(-1, 0), x.select(-1, 1)),
        aten.complex.default: pair,
        aten.polar.default: lambda size, angle: pair(
            size * torch.cos(angle), size * torch.sin(angle)
        ),
        # Of real tensors that are parts of conjugates.
        aten._neg_view.default: torch.neg,
        aten.resolve_neg.default: _same,
    }


def _of_one(name: str) -> Callable[[Tensor], Tensor]:
    return lambda z: function(name, z)


def _same(z: Tensor) -> Tensor:
    return pair(*parts(z)) if z.is_complex() else z.clone()


def conjugate(z: Tensor) -> Tensor:
    """Return the conjugates; real numbers are their own."""
    if not z.is_complex():
        return z
    re, im = parts(z)
    return pair(re, -im)


def multiply(x: Tensor | complex, y: Tensor | complex) -> Tensor:
    """Multiply complex numbers, or complex and real ones."""
    (a, b), (c, d) = parts(x), parts(y)
    if not is_complex(y):
        return pair(a * c, b * c)
    if not is_complex(x):
        return pair(a * c, a * d)
    return pair(a * c - b * d, a * d + b * c)


def _divide(x: Tensor | complex, y: Tensor | complex) -> Tensor:
    if is_complex(y):
        return function("div", x, y)
    re, im = parts(x)
    return pair(re / y, im / y)


def _added(x: Tensor | complex, y: Tensor | complex, alpha: complex) -> Tensor:
    (a, b), (c, d) = parts(x), parts(y)
    if alpha == -1:
        return pair(*_tensors(a - c, b - d))
    if alpha != 1:
        c, d = parts(multiply(y, alpha)) if isinstance(y, Tensor) else parts(y * alpha)
    return pair(*_tensors(a + c, b + d))


def _tensors(re: Any, im: Any) -> tuple[Tensor, Tensor]:
    """Return parts of which one may be a number as tensors."""
    kind = re.dtype if isinstance(re, Tensor) else im.dtype
    made = [v if isinstance(v, Tensor) else torch.full((), float(v), dtype=kind) for v in (re, im)]
    return made[0], made[1]


def _power(x: Tensor | complex, exponent: Tensor | complex) -> Tensor:
    """Multiply for small whole exponents, as torch does."""
    if isinstance(exponent, int | float) and isinstance(x, Tensor):
        if exponent == 2:
            return multiply(x, x)
        if exponent == 3:
            return multiply(multiply(x, x), x)
        if exponent == 0.5:
            return function("sqrt", x)
        if exponent == 1:
            return pair(*parts(x))
        if exponent == -1:
            return _divide(1.0, x)
    return function("pow", x, exponent)


def _equal(x: Tensor | complex, y: Tensor | complex) -> Tensor:
    (a, b), (c, d) = parts(x), parts(y)
    same: Tensor = (a == c) & (b == d)
    return same


def nonzero(x: Tensor) -> Tensor:
    """Tell which numbers are not 0."""
    re, im = parts(x)
    found: Tensor = (re != 0) | (im != 0)
    return found


def _isclose(
    x: Tensor, y: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Compare within a tolerance; what is infinite is close to itself alone."""
    apart = function("abs", x - y)
    near = _equal(x, y) | ((apart <= atol + rtol * y.abs()) & (apart < math.inf))
    return near | (torch.isnan(x) & torch.isnan(y)) if equal_nan else near


def _converted(x: Tensor, *, dtype: torch.dtype | None = None, **options: object) -> Tensor:
    re, im = parts(x)
    if dtype is None:
        return pair(re.clone(), im.clone())
    if dtype == torch.bool:
        return nonzero(x)
    if not dtype.is_complex:
        return re.to(dtype)
    real = dtype.to_real()
    return pair(re.to(real), im.to(real))
