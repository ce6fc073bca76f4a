"""Define activations, elementwise functions of floats; integers become float32, as elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import accumulator, floating
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.elementwise import Unary, named
from meshweave.frontends.python.functions.manipulate import axis_of
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor


def in_floats(x: ArrayLike, of: Callable[[Tracer], Tracer]) -> Tracer:
    """Return what a function gives of x, computed in float32 or wider and rounded once."""
    value = tensor(x)
    out = floating(value.dtype)
    return e.astype(of(e.astype(value, accumulator(out))), out)


def _activation(name: str, doc: str, of: Callable[[Tracer], Tracer]) -> Unary:
    def function(x: ArrayLike, /) -> Tracer:
        return in_floats(x, of)

    return named(function, name, f"Compute {doc}, elementwise.")


def _below(x: Tracer, of: Callable[[Tracer], Tracer]) -> Tracer:
    """Return x where it is positive, else what a function gives of it, which never sees what is positive."""
    return e.where(logic.greater(x, 0), x, of(e.minimum(x, 0)))


def _log_sigmoid(x: Tracer) -> Tracer:
    return e.negative(e.logaddexp(e.negative(x), 0))


_LAMBDA, _ALPHA = 1.0507009873554805, 1.6732632423543772
silu = _activation("silu", "x * sigmoid(x)", lambda x: e.multiply(x, e.sigmoid(x)))
softplus = _activation("softplus", "log(1 + exp(x))", lambda x: e.logaddexp(x, 0))
log_sigmoid = _activation("log_sigmoid", "log(sigmoid(x))", _log_sigmoid)
soft_sign = _activation("soft_sign", "x / (1 + |x|)", lambda x: e.divide(x, e.add(e.abs(x), 1)))
mish = _activation("mish", "x * tanh(softplus(x))",
                   lambda x: e.multiply(x, e.tanh(e.logaddexp(x, 0))))  # fmt: skip
squareplus = _activation("squareplus", "(x + sqrt(x * x + 4)) / 2", lambda x: e.divide(
    e.add(x, e.sqrt(e.add(e.multiply(x, x), 4))), 2))  # fmt: skip
selu = _activation("selu", "a scaled `elu`, after which means and variances stay", lambda x: e.multiply(
    _below(x, lambda y: e.multiply(e.expm1(y), _ALPHA)), _LAMBDA))  # fmt: skip
relu6 = _activation("relu6", "x limited to the range from 0 to 6", lambda x: e.clip(x, 0, 6))
hard_tanh = _activation("hard_tanh", "x limited to the range from -1 to 1",
                        lambda x: e.clip(x, -1, 1))  # fmt: skip
hard_sigmoid = _activation("hard_sigmoid", "relu6(x + 3) / 6",
                           lambda x: e.divide(e.clip(e.add(x, 3), 0, 6), 6))  # fmt: skip
hard_silu = _activation("hard_silu", "x * hard_sigmoid(x)", lambda x: e.multiply(
    x, e.divide(e.clip(e.add(x, 3), 0, 6), 6)))  # fmt: skip


def gelu(x: ArrayLike, /, approximate: bool = True) -> Tracer:
    """Compute x times the share of a normal distribution below x, elementwise; approximate: by tanh, as JAX does."""

    def by_tanh(v: Tracer) -> Tracer:
        cubic = e.add(v, e.multiply(e.multiply(v, e.multiply(v, v)), 0.044715))
        share = e.add(e.tanh(e.multiply(cubic, math.sqrt(2 / math.pi))), 1)
        return e.multiply(e.multiply(v, 0.5), share)

    def by_erf(v: Tracer) -> Tracer:
        return e.multiply(e.multiply(v, 0.5), e.add(e.erf(e.multiply(v, math.sqrt(0.5))), 1))

    return in_floats(x, by_tanh if approximate else by_erf)


def leaky_relu(x: ArrayLike, /, negative_slope: ArrayLike = 0.01) -> Tracer:
    """Return x where it is not negative, else x times `negative_slope`, elementwise."""
    return in_floats(
        x, lambda v: e.where(logic.greater_equal(v, 0), v, e.multiply(v, negative_slope))
    )


def elu(x: ArrayLike, /, alpha: ArrayLike = 1.0) -> Tracer:
    """Return x where it is positive, else alpha * (exp(x) - 1), elementwise."""
    return in_floats(x, lambda v: _below(v, lambda y: e.multiply(e.expm1(y), alpha)))


def celu(x: ArrayLike, /, alpha: ArrayLike = 1.0) -> Tracer:
    """Return x where it is positive, else alpha * (exp(x / alpha) - 1), elementwise."""
    return in_floats(
        x, lambda v: _below(v, lambda y: e.multiply(e.expm1(e.divide(y, alpha)), alpha))
    )


def glu(x: ArrayLike, /, axis: int = -1) -> Tracer:
    """Multiply the first half along `axis` with the sigmoid of the second."""
    value = tensor(x)
    dim = axis_of("glu", axis, value.ndim)
    size = value.shape[dim]
    if size % 2:
        fail(f"glu: dim {dim} has size {size}, an even one is right")
    before = (slice(None),) * dim
    first, second = (*before, slice(None, size // 2)), (*before, slice(size // 2, None))
    return e.multiply(value[first], e.sigmoid(value[second]))
