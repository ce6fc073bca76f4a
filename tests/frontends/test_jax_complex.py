"""Programs of JAX on complex numbers, against JAX: whole and cut, call after call."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from depth import sampled

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import meshweave as mw  # noqa: E402

CASES: dict[str, Callable[..., Any]] = {
    "sums and products": lambda a, i: (a + 2j) * a - a.conj(),
    "quotient": lambda a, i: a / (a + 1),
    "parts": lambda a, i: a.real - a.imag,
    "size and angle": lambda a, i: jnp.abs(a) + jnp.angle(a),
    "exp and log": lambda a, i: jnp.exp(a) + jnp.log(a),
    "sqrt": lambda a, i: jnp.sqrt(a) + lax.rsqrt(a),
    "circular": lambda a, i: jnp.sin(a) + jnp.cos(a) + jnp.tan(a),
    "hyperbolic": lambda a, i: jnp.sinh(a) + jnp.tanh(a),
    "power": lambda a, i: a**a + a**3,
    "sign": lambda a, i: jnp.sign(a) + jnp.log1p(a) + jnp.expm1(a),
    "equal": lambda a, i: a == a.conj(),
    "chosen": lambda a, i: jnp.where(a.real > 0, a, 0),
    "sum": lambda a, i: a.sum(0) + a.mean(),
    "product": lambda a, i: a.prod(0),
    "matmul": lambda a, i: a @ a.T,
    "by rows": lambda a, i: jnp.einsum("ij,ij->i", a, a.conj()),
    "side by side": lambda a, i: jnp.concatenate([a.T, a.T * 2]),
    "reversed": lambda a, i: a[::-1],
    "padded": lambda a, i: jnp.pad(a, ((1, 0), (0, 2)), constant_values=1j),
    "sliced": lambda a, i: a[1:4, ::2].reshape(-1),
    "gathered": lambda a, i: a[i],
    "scattered": lambda a, i: a.at[i].add(1j).at[0].set(2.0),
    "updated": lambda a, i: lax.dynamic_update_slice(a, a[:2], (i[0], jnp.int32(0))),
    "cumulative": lambda a, i: jnp.cumsum(a, 0) + jnp.cumprod(a, 1),
    "sorted": lambda a, i: jnp.sort(a, 0),
    "sorted by others": lambda a, i: lax.sort((jnp.abs(a), a, a.T.T * 2), dimension=1)[1],
    "loop": lambda a, i: lax.fori_loop(0, 3, lambda _, c: c * a, a),
    "scan": lambda a, i: lax.scan(lambda c, b: (c + b, c * b), a[0], a)[1],
    "branch": lambda a, i: lax.cond(a.real.sum() > 0, lambda b: b * 2, lambda b: b, a),
    "constant": lambda a, i: a + jnp.asarray(np.arange(6) * 1j, a.dtype),
    "splat": lambda a, i: a * jnp.full((5, 6), 1 + 2j, a.dtype),
    "gradient": jax.grad(lambda a, i: (jnp.abs(a) ** 2).sum()),
    "converted": lambda a, i: a.real.astype(a.dtype) * 1j,
    "transforms": lambda a, i: jnp.fft.ifft2(jnp.fft.fft2(a) * a),
    "real transforms": lambda a, i: jnp.fft.irfftn(jnp.fft.rfftn(a.real), s=(5, 6)),
    "columns": lambda a, i: jnp.fft.fft(a, axis=0),
    "gradient of a transform": jax.grad(lambda a, i: (jnp.abs(jnp.fft.fft(a)) ** 2).sum()),
}
PLACES = (None, ("x=2", "[x, _]"), ("x=3", "[_, x]"), ("x=2, y=2", "[y, x]"))
VALUES = np.random.default_rng(3).standard_normal((2, 5, 6)).astype(np.float32)
A, PLACED = (VALUES[0] + 1j * VALUES[1]).astype(np.complex64), np.array([2, 0, 2], np.int32)


@sampled(7)
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_jax(name: str, place: tuple[str, str] | None) -> None:
    fn = CASES[name]
    placed = {} if place is None else {"mesh": place[0], "in_shardings": (place[1], None)}
    right = np.asarray(jax.jit(fn)(A, PLACED))
    with mw.from_jax(fn, A, PLACED, **placed) as program:
        assert not program.program.bundle.manifest.certificate.unproven
        for _ in range(2):
            made = np.asarray(program(A, PLACED))
    assert made.dtype == right.dtype
    np.testing.assert_allclose(made, right, rtol=3e-5, atol=3e-5)


def test_ports_are_complex() -> None:
    with mw.from_jax(lambda a: a.T, A, mesh="x=2", in_shardings=("[x, _]",)) as program:
        (given,), (made,) = program.program.inputs, program.program.outputs
        assert (given.dtype, given.global_shape, given.layout) == ("complex<f32>", (5, 6), "[x, _]")
        assert (made.dtype, made.global_shape) == ("complex<f32>", (6, 5))
        assert "complex64" in program.explain() or "complex<f32>" in program.explain()


def test_double_precision_and_no_elements() -> None:
    wide = A.astype(np.complex128)
    with mw.from_stablehlo(_wide()) as program:
        (made,) = program(wide)
    np.testing.assert_allclose(made, np.fft.fft(wide) * wide, rtol=1e-13)
    none = np.zeros((0, 4), np.complex64)
    with mw.from_jax(lambda a: jnp.fft.fft(a).sum(0), none) as program:
        assert np.asarray(program(none)).tolist() == [0] * 4


def _wide() -> str:
    type_ = "tensor<5x6xcomplex<f64>>"
    return (
        f"func.func public @main(%a: {type_}) -> {type_} {{\n"
        f"  %0 = stablehlo.fft %a, type = FFT, length = [6] : ({type_}) -> {type_}\n"
        f"  %1 = stablehlo.multiply %0, %a : {type_}\n  return %1 : {type_}\n}}"
    )


def test_infinities_and_nans() -> None:
    parts = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]
    values = np.array([complex(a, b) for a in parts for b in parts], np.complex64)

    def fn(a: Any) -> Any:
        return jnp.abs(a), a.conj(), jnp.isfinite(a), a + 1, -a

    with mw.from_jax(fn, values) as program:
        # a length with an infinite part is infinite, as in C and NumPy; XLA says NaN beside NaN
        for made, right in zip(program(values), (np.abs(values), *fn(values)[1:])):
            np.testing.assert_array_equal(np.asarray(made), np.asarray(right))


@np.errstate(all="ignore")
def test_functions_hold_near_the_unit_circle_and_far_out() -> None:
    """Where formulas of squares and angles keep no digit: the values are NumPy's of longer numbers."""
    z = np.array([-1, -1e3, 1e-3 + 1j, 3e38 + 3e38j, complex(np.inf, np.nan)], np.complex64)
    program = mw.jax.jit(lambda x: (jnp.sqrt(x), jnp.log(x), jnp.abs(x), jnp.sign(x)))
    root, log, size, sign = [np.asarray(v) for v in program(z)]
    wide = z.astype(np.complex128)
    assert root[0] == 1j and root[1].real == 0
    np.testing.assert_allclose(root[:4], np.sqrt(wide[:4]).astype(z.dtype), rtol=1e-6)
    np.testing.assert_allclose(log.real[:4], np.log(wide[:4]).real, rtol=1e-6)
    assert size[4] == np.inf and abs(sign[3] - np.sqrt(0.5) * (1 + 1j)) < 1e-6
