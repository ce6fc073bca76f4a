"""The gradient of each function of mw is JAX's, and every primitive has a rule or a reason why not."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from depth import sampled, some, thinned

import meshweave as mw
from meshweave.frontends.python import extras, functions, nn, place, random, special, tape
from meshweave.frontends.python.gradients.rules import REFUSED, RULES

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
DTYPES = some([np.float64, np.float32], 2)
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray[Any, Any], ...]]


def test_every_primitive_has_a_rule_or_a_reason() -> None:
    modules = [
        importlib.import_module(f"{room.__name__}.{m.name}")
        for room in (functions, extras, nn, random, special)
        for m in pkgutil.iter_modules(room.__path__)
    ]
    known = {
        value.primitive
        for module in (*modules, place, tape)
        for value in vars(module).values()
        if isinstance(getattr(value, "primitive", None), str)
    }
    assert len(known) > 80
    assert {*RULES, *REFUSED} == known
    assert not set(RULES) & set(REFUSED)


def numbers(seed: int, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(low, high, shape)


def compare(
    cases: dict[str, Case],
    dtype: Any,
    rtol: float,
    mesh: str = "",
    layout: Callable[[int], str] | None = None,
    part: int = 6,
) -> None:
    """Compare pullbacks of random cotangents with JAX's: all cases are one program.

    `make test` takes each `part`-th, from the first on.
    """
    cases = dict(thinned(cases.items(), part))

    def pulled(vjp: Any, side: int, given: Any) -> Any:
        return {n: _pulled(vjp, case[side], *given[n]) for n, case in cases.items()}

    with jax.enable_x64(True):
        given = {name: _given(case, dtype) for name, case in cases.items()}
        wanted = jax.jit(partial(pulled, jax.vjp, 1))(given)

    lies = None if layout is None else (jax.tree.map(lambda v: layout(v.ndim), given),)
    made = mw.jit(partial(pulled, mw.vjp, 0), mesh=mesh, in_layouts=lies)(given)
    for name, slopes in wanted.items():
        for number, (ours, theirs) in enumerate(zip(made[name], slopes, strict=True)):
            assert ours.dtype == theirs.dtype, (name, number)
            near = rtol * (1 + np.abs(np.asarray(theirs)).max(initial=0))
            np.testing.assert_allclose(
                np.asarray(ours), np.asarray(theirs), rtol, near, err_msg=f"{name} {number}"
            )


def _given(case: Case, dtype: Any) -> tuple[Any, Any]:
    """Return the arguments of a case in a dtype, and cotangents."""
    args = tuple(a.astype(dtype) if a.dtype.kind == "f" else a for a in case[2])
    made = jax.eval_shape(case[1], *args)
    return args, jax.tree.map(lambda v: numbers(7, *v.shape).astype(v.dtype), made)


def _pulled(vjp: Any, function: Any, args: Any, cotangents: Any) -> Any:
    """Return the cotangents of the floating arguments."""
    chosen = [n for n, a in enumerate(args) if str(a.dtype)[0] in "fc"]

    def called(*values: Any) -> Any:
        found = list(args)
        for n, v in zip(chosen, values):
            found[n] = v
        return function(*found)

    return vjp(called, *[args[n] for n in chosen])[1](cotangents)


X, Y = numbers(1, 3, 5), numbers(2, 3, 5)
POSITIVE, SMALL, ABOVE = (
    numbers(3, 3, 5, low=0.2),
    numbers(4, 3, 5, low=-0.9, high=0.9),
    numbers(5, 3, 5, low=1.1, high=3),
)
TIES = np.array([[0.0, 1.0, -1.0, 2.0, 0.5], [1.0, 1.0, 1.0, -2.0, 0.0], [-0.5] * 5])
OTHER = np.array([[0.0, 1.0, 1.0, -2.0, 0.25], [1.0, 0.0, 1.0, -2.0, 0.0], [-0.5] * 5])
ROW = numbers(6, 5)

UNARY = {
    **{
        name: (getattr(mw, name), getattr(jnp, other), (X,))
        for name, other in (
            *((n, n) for n in ("exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "square")),
            *(("atan", "arctan"), ("asinh", "arcsinh"), ("negative", "negative"), ("positive", "positive")),
            *((n, n) for n in ("ceil", "floor", "trunc", "round", "real", "conj")),
        )
    },
    **{
        name: (getattr(mw, name), getattr(jnp, name), (POSITIVE,))
        for name in ("log", "log1p", "log2", "log10", "sqrt", "reciprocal")
    },
    "rsqrt": (mw.rsqrt, jax.lax.rsqrt, (POSITIVE,)),
    "asin": (mw.asin, jnp.arcsin, (SMALL,)),
    "acos": (mw.acos, jnp.arccos, (SMALL,)),
    "atanh": (mw.atanh, jnp.arctanh, (SMALL,)),
    "acosh": (mw.acosh, jnp.arccosh, (ABOVE,)),
    "erf": (mw.erf, jax.scipy.special.erf, (X,)),
    "sigmoid": (mw.sigmoid, jax.nn.sigmoid, (X,)),
    "relu": (mw.relu, jax.nn.relu, (TIES,)),
    "abs": (mw.abs, jnp.abs, (TIES,)),
    "sign": (mw.sign, jnp.sign, (X,)),
    "imag": (lambda x: mw.imag(x) + x, lambda x: jnp.imag(x) + x, (X,)),
    "clip": (lambda x: mw.clip(x, -0.5, 1.0), lambda x: jnp.clip(x, -0.5, 1.0), (TIES,)),
    "cube": (lambda x: x**3, lambda x: x**3, (X,)),
    "inverse": (lambda x: x**-2, lambda x: x**-2, (POSITIVE,)),
    "root": (lambda x: x**0.5, lambda x: x**0.5, (POSITIVE,)),
    "one": (lambda x: x**1 + x**0, lambda x: x**1 + x**0, (X,)),
    "narrow": (lambda x: mw.astype(x, "f32") * 2, lambda x: x.astype("float32") * 2, (X,)),
    "whole": (lambda x: mw.astype(mw.astype(x, "i32"), "f32") + mw.astype(x, "f32"),
              lambda x: x.astype("int32").astype("float32") + x.astype("float32"), (X,)),
}  # fmt: skip
BINARY = {
    **{
        name: (getattr(mw, name), getattr(jnp, name), args)
        for name, args in {
            "add": (X, ROW), "subtract": (ROW, X), "multiply": (X, ROW), "divide": (X, POSITIVE),
            "floor_divide": (X, POSITIVE), "remainder": (X, Y), "logaddexp": (X, Y), "hypot": (X, Y),
            "maximum": (TIES, OTHER), "minimum": (TIES, OTHER), "copysign": (X, Y),
        }.items()
    },
    "atan2": (mw.atan2, jnp.arctan2, (X, Y)),
    "pow": (mw.pow, jnp.power, (POSITIVE, Y)),
    "pow of numbers": (lambda x: 2.0**x, lambda x: 2.0**x, (X,)),
    "infinite": (mw.logaddexp, jnp.logaddexp, (np.array([np.inf, -np.inf, 0.0]), np.array([1.0, 0.0, 2.0]))),
    "where": (lambda x, y: mw.where(x > 0.1, y * x, y), lambda x, y: jnp.where(x > 0.1, y * x, y), (X, ROW)),
    "column": (lambda x, y: x * y + y / 2, lambda x, y: x * y + y / 2, (X, numbers(9, 3, 1))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise(dtype: Any) -> None:
    compare({**UNARY, **BINARY}, dtype, 1e-12 if dtype is np.float64 else 2e-5)


A3, B3 = numbers(11, 3, 4), numbers(12, 4, 5)
BATCH, SQUARE = numbers(13, 2, 3, 4), numbers(14, 2, 3, 3) + 3 * np.eye(3)
ZEROS = np.array([[0.0, 2.0, -3.0], [0.0, 0.0, 1.5], [1.0, -2.0, 0.5]])
PLACES = np.array([[2, 0, -1], [1, 1, 1]], np.int32)
ALONG = np.array([[0, 2, 0, 4], [1, 1, -1, 0], [3, 3, 3, 3]], np.int64)


def both(f: Callable[..., Any], *args: np.ndarray[Any, Any]) -> Case:
    """Make a case of a function that takes the module, mw or jnp."""
    return (lambda *v: f(mw, *v), lambda *v: f(jnp, *v), args)


MOVES = {
    "reshape": both(lambda m, x: m.reshape(x, (5, 3)) * 2, X),
    "permute": both(lambda m, x: m.permute_dims(x, (2, 0, 1)) * 1, BATCH),
    "moveaxis": both(lambda m, x: m.moveaxis(x, 0, -1) * 1, BATCH),
    "matrix_transpose": both(lambda m, x: x.mT * 1, BATCH),
    "flip": both(lambda m, x: m.flip(x, axis=1) * 1, X),
    "flip all": both(lambda m, x: m.flip(x) * 1, X),
    "roll": both(lambda m, x: m.roll(x, 2, axis=1) * 1, X),
    "tile": both(lambda m, x: m.tile(x, (2, 3)) * 1, X),
    "repeat": both(lambda m, x: m.repeat(x, 2, axis=1) * 1, X),
    "expand": both(lambda m, x: m.expand_dims(x, 1) * m.squeeze(m.expand_dims(x, 0), 0), X),
    "broadcast": both(lambda m, x: m.broadcast_to(x, (4, 3, 5)) * 1, X),
    "broadcast one": both(lambda m, x: m.broadcast_to(x, (2, 3, 5)) * 1, numbers(8, 3, 1)),
    "concat": both(lambda m, x, y: m.concat([x, y * 2, x], axis=1), X, numbers(8, 3, 2)),
    "concat flat": (
        lambda x, y: mw.concat([x, y], axis=None),
        lambda x, y: jnp.concatenate([x, y], axis=None),
        (X, numbers(8, 2, 2)),
    ),
    "stack": both(lambda m, x, y: m.stack([x, y], axis=1) * 1, X, Y),
    "unstack": both(lambda m, x: m.unstack(x, axis=0)[1] * 1, X),
    "slice": both(lambda m, x: x[1:, 1:4] * 1, X),
    "steps": both(lambda m, x: x[::2, ::-2] * 1, X),
    "integer": both(lambda m, x: x[1] * x[:, 2:3][0], X),
    "none": both(lambda m, x: x[:, None, ..., 1] * 1, X),
    "take": both(lambda m, x, i: m.take(x, i, axis=1) * 1, BATCH, PLACES),
    "take first": both(lambda m, x, i: m.take(x, i, axis=0) * 1, numbers(8, 6, 5), PLACES),
    "array index": both(lambda m, x, i: x[:, i] * 1, BATCH, PLACES),
    "two arrays": both(lambda m, x, i: x[i, 0, i] * 1, numbers(8, 3, 2, 3), PLACES),
    "mask": both(lambda m, x: x[np.array([True, False, True])] * 1, X),
    "along": both(lambda m, x, i: m.take_along_axis(x, i, axis=1) * 1, X, ALONG),
    "diff": both(lambda m, x: m.diff(x, axis=1, n=2), X),
    "tril": both(lambda m, x: m.tril(x, k=-1) + m.triu(x, k=1) * 2, SQUARE),
    "meshgrid": both(lambda m, x: m.meshgrid(x, x * 2)[1] * 1, ROW),
    "full": both(lambda m, x: m.full((2, 3), x[0]) * 1, ROW),
    "linspace": both(lambda m, x: m.linspace(0, 1, 5, dtype=x.dtype) * x, ROW),
    "sort": both(lambda m, x: m.sort(x, axis=1) * 1, X),
    "sort ties": both(lambda m, x: m.sort(x, axis=1) * 1, TIES),
    "argsort": both(lambda m, x: m.take_along_axis(x, m.argsort(x, axis=0), axis=0) * 1, X),
    "top_k": (lambda x: mw.top_k(x, 2)[0] * 1, lambda x: jax.lax.top_k(x, 2)[0] * 1, (X,)),
    "stop": (lambda x: x * mw.stop_gradient(x), lambda x: x * jax.lax.stop_gradient(x), (X,)),
}
PRODUCTS = {
    "matmul": both(lambda m, x, y: x @ y, A3, B3),
    "matvec": both(lambda m, x, y: x @ y, A3, numbers(8, 4)),
    "vecmat": both(lambda m, x, y: x @ y, numbers(8, 3), A3),
    "dot": both(lambda m, x, y: x @ y, ROW, numbers(8, 5)),
    "batched": both(lambda m, x, y: x @ y, BATCH, B3),
    "broadcast": both(lambda m, x, y: x @ y, numbers(8, 2, 1, 3, 4), numbers(9, 3, 4, 2)),
    "square": both(lambda m, x: x @ x, SQUARE),
    "einsum": both(lambda m, x, y: m.einsum("abc,cd->bda", x, y), BATCH, B3),
    "einsum sums": both(lambda m, x, y: m.einsum("abc,cd->b", x, y), BATCH, B3),
    "einsum three": both(lambda m, x, y, z: m.einsum("ij,jk,kl->il", x, y, z), A3, B3, numbers(8, 5, 2)),
    "einsum attention": both(lambda m, q, k: m.einsum("...qd,...kd->...qk", q, k), BATCH, BATCH + 1),
    "tensordot": both(lambda m, x, y: m.tensordot(x, y, axes=1), A3, B3),
    "outer": both(lambda m, x, y: m.outer(x, y), ROW, numbers(8, 3)),
    "vecdot": both(lambda m, x, y: m.vecdot(x, y), X, Y),
    "sum": both(lambda m, x: m.sum(x, axis=0) * m.sum(x), X),
    "sum keep": both(lambda m, x: m.sum(x, axis=(0, 2), keepdims=True), BATCH),
    "mean": both(lambda m, x: m.mean(x, axis=1), X),
    "var": both(lambda m, x: m.var(x, axis=1, correction=1), X),
    "std": both(lambda m, x: m.std(x), X),
    "prod": both(lambda m, x: m.prod(x, axis=1), ZEROS),
    "prod all": both(lambda m, x: m.prod(x), POSITIVE),
    "prod two": both(lambda m, x: m.prod(x, axis=(0, 2)), BATCH),
    "max": both(lambda m, x: m.max(x, axis=1), TIES),
    "min": both(lambda m, x: m.min(x, axis=(0, 1), keepdims=True), TIES),
    "argmax": both(lambda m, x: x * m.argmax(x, axis=1, keepdims=True), X),
    "all any": both(lambda m, x: m.where(m.any(x > 1.5), x, 2 * x) * m.all(x > -9), X),
    "cumsum": both(lambda m, x: m.cumulative_sum(x, axis=1, include_initial=True), X),
    "cumprod": both(lambda m, x: m.cumulative_prod(x, axis=1), ZEROS),
    "cumprod rows": both(lambda m, x: m.cumulative_prod(x, axis=0, include_initial=True), X),
    "softmax": (mw.softmax, jax.nn.softmax, (X,)),
    "softmax rows": (lambda x: mw.softmax(x, axis=0), lambda x: jax.nn.softmax(x, axis=0), (X,)),
    "log_softmax": (mw.log_softmax, jax.nn.log_softmax, (X,)),
    "logsumexp": (lambda x: mw.logsumexp(x, axis=1), lambda x: jax.nn.logsumexp(x, axis=1), (X,)),
    "logsumexp all": (mw.logsumexp, jax.nn.logsumexp, (X,)),
    "searchsorted": both(lambda m, x: x * m.searchsorted(m.sort(x), x), ROW),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_moves(dtype: Any) -> None:
    compare(MOVES, dtype, 1e-13 if dtype is np.float64 else 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_and_reductions(dtype: Any) -> None:
    compare(PRODUCTS, dtype, 1e-12 if dtype is np.float64 else 1e-5)


def _spd(m: Any, x: Any) -> Any:
    return x @ x.mT + m.eye(3, dtype=x.dtype)


TALL, WIDE = numbers(15, 4, 3), numbers(16, 2, 3, 5)
MATRICES = {
    "cholesky": both(lambda m, x: m.linalg.cholesky(_spd(m, x)), SQUARE),
    "cholesky upper": both(lambda m, x: m.linalg.cholesky(_spd(m, x), upper=True), SQUARE),
    "qr": both(lambda m, x: tuple(m.linalg.qr(x)), SQUARE),
    "qr tall": both(lambda m, x: tuple(m.linalg.qr(x)), TALL),
    "svd": both(lambda m, x: tuple(m.linalg.svd(x, full_matrices=False)), SQUARE),
    "svd tall": both(lambda m, x: tuple(m.linalg.svd(x, full_matrices=False)), TALL),
    "svd wide": both(lambda m, x: tuple(m.linalg.svd(x, full_matrices=False)), WIDE),
    "svdvals": both(lambda m, x: m.linalg.svdvals(x), WIDE),
    "eigh": both(lambda m, x: tuple(m.linalg.eigh(_spd(m, x))), SQUARE),
    "eigvals": both(lambda m, x: m.abs(m.linalg.eigvals(x)) ** 3, SQUARE),
    "eigvalsh": both(lambda m, x: m.linalg.eigvalsh(_spd(m, x)), SQUARE),
    "inv": both(lambda m, x: m.linalg.inv(x), SQUARE),
    "solve": both(lambda m, x, y: m.linalg.solve(x, y), SQUARE, numbers(8, 2, 3, 2)),
    "solve broadcast": both(lambda m, x, y: m.linalg.solve(x, y), SQUARE[0], numbers(8, 2, 3, 2)),
    "solve vector": both(lambda m, x, y: m.linalg.solve(x, y), SQUARE, numbers(8, 3)),
    "det": both(lambda m, x: m.linalg.det(x), SQUARE),
    "slogdet": both(lambda m, x: m.linalg.slogdet(x)[1] * 2, SQUARE),
    "pinv": both(lambda m, x: m.linalg.pinv(x), TALL),
    "matrix_power": both(lambda m, x: m.linalg.matrix_power(x, -3), SQUARE),
    "diagonal": both(lambda m, x: m.linalg.diagonal(x, offset=1) * 1, BATCH),
    "trace": both(lambda m, x: m.linalg.trace(x, offset=-1), BATCH),
    "cross": both(lambda m, x, y: m.linalg.cross(x, y), numbers(8, 4, 3), numbers(9, 4, 3)),
    "vector_norm": both(lambda m, x: m.linalg.vector_norm(x, axis=1), X),
    "vector_norm 3": both(lambda m, x: m.linalg.vector_norm(x, axis=1, ord=3), X),
    "matrix_norm": both(lambda m, x: m.linalg.matrix_norm(x), BATCH),
    "nuclear": both(lambda m, x: m.linalg.matrix_norm(x, ord="nuc"), BATCH),
}
COMPLEX = (X + 1j * Y).astype(np.complex128)
FOURIER = {
    "abs": both(lambda m, x: m.abs(x), COMPLEX),
    "parts": both(lambda m, x: m.real(x) * m.imag(x) + m.real(m.conj(x) * x), COMPLEX),
    "exp": both(lambda m, x: m.exp(x) * m.sin(x) / (x + 2), COMPLEX),
    "matmul": both(lambda m, x: x @ x.T, COMPLEX),
    "sums": both(lambda m, x: m.sum(x, axis=0) * m.mean(x), COMPLEX),
    "fft": both(lambda m, x: m.fft.fft(x, axis=0), COMPLEX),
    "ifft": both(lambda m, x: m.fft.ifft(x, n=7), COMPLEX),
    "rfft": both(lambda m, x: m.fft.rfft(x), X),
    "rfft even": both(lambda m, x: m.fft.rfft(x, n=4, axis=1, norm="ortho"), X),
    "irfft": both(lambda m, x: m.fft.irfft(x, n=8), COMPLEX),
    "irfft odd": both(lambda m, x: m.fft.irfft(x, n=9), COMPLEX),
    "fftn": both(lambda m, x: m.abs(m.fft.fftn(x)), X),
    "hfft": both(lambda m, x: m.fft.hfft(x), COMPLEX),
    "shift": both(lambda m, x: m.fft.fftshift(x) * 1, X),
}


def test_matrices() -> None:
    compare(MATRICES, np.float64, 1e-9)


def test_complex_numbers_and_fourier_transforms() -> None:
    compare(FOURIER, np.float64, 1e-11)


IMAGE, KERNEL = numbers(21, 2, 7, 6, 4), numbers(22, 3, 2, 2, 6)


def _conv(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return lax.conv_general_dilated(
        x, w, stride, padding, rhs_dilation=dilation, feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


def _max_pool(x: Any, window: Any, stride: Any, padding: str) -> Any:
    sizes, steps = (1, *window, 1), (1, *stride, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, sizes, steps, padding)


WINDOWS = {
    "conv": (
        lambda x, w: mw.nn.conv(x, w, stride=(2, 1), padding=[(1, 0), (2, 1)], groups=2),
        lambda x, w: _conv(x, w, (2, 1), [(1, 0), (2, 1)], (1, 1), 2),
        (IMAGE, KERNEL),
    ),
    "conv dilated": (
        lambda x, w: mw.nn.conv(x[..., :2], w, stride=2, padding="VALID", dilation=2),
        lambda x, w: _conv(x[..., :2], w, (2, 2), "VALID", (2, 2), 1),
        (IMAGE, KERNEL),
    ),
    "max_pool": (
        lambda x: mw.nn.max_pool(x, (3, 2), stride=(2, 2), padding="SAME"),
        lambda x: _max_pool(x, (3, 2), (2, 2), "SAME"),
        (np.round(IMAGE),),
    ),
    "avg_pool": (
        lambda x: mw.nn.avg_pool(x, 2, stride=1),
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID") / 4,
        (IMAGE,),
    ),
}


def test_windows() -> None:
    compare(WINDOWS, np.float64, 1e-11, part=1)


LAID = {
    **{n: UNARY[n] for n in ("tanh", "abs")},
    **{n: BINARY[n] for n in ("where", "maximum")},
    **{n: MOVES[n] for n in ("slice", "steps", "concat", "take first", "along", "roll", "sort", "diff")},
    **{n: PRODUCTS[n] for n in ("matmul", "mean", "max", "softmax", "cumsum", "prod", "var", "einsum sums")},
}  # fmt: skip


@sampled(3)
@pytest.mark.parametrize(
    ("mesh", "first", "last"), [("x=2, y=2", "y", "x"), ("x=2", "x", "_"), ("x=2", "_", "x")]
)
def test_uneven_layouts(mesh: str, first: str, last: str) -> None:
    def layout(ndim: int) -> str:
        dims = [first, *["_"] * (ndim - 2), last] if ndim > 1 else [first] * ndim
        return f"[{', '.join(dims)}]"

    compare(LAID, np.float64, 1e-11, mesh, layout, part=2)


NETS = {
    **{
        name: (getattr(mw.nn, name), getattr(jax.nn, name), (X,))
        for name in ("gelu", "silu", "softplus", "elu", "leaky_relu", "log_sigmoid")
    },
    "layer_norm": (
        lambda x, w, b: mw.nn.layer_norm(x, w, b),
        lambda x, w, b: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b,
        (X, ROW, ROW),
    ),
    "attention": (
        lambda q, k, v: mw.nn.dot_product_attention(q[:, :, None], k[:, :, None], v[:, :, None])[:, :, 0],
        lambda q, k, v: jax.nn.softmax(q @ k.mT / 2.0) @ v,
        (BATCH, BATCH + 1, BATCH * 2),
    ),
}  # fmt: skip


def _special(name: str, x: np.ndarray, *before: Any) -> Case:
    of = importlib.import_module("jax.scipy.special")
    return (
        lambda v: getattr(mw.special, name)(*before, v),
        lambda v: getattr(of, name)(*before, v),
        (x,),
    )


UNIT, FAR = np.linspace(0.1, 0.9, 5), np.linspace(-2.3, 3.1, 7)
SPECIAL = {
    **{
        n: _special(n, FAR)
        for n in ("gammaln", "gamma", "erfc", "ndtr", "log_ndtr", "i0", "i0e", "i1", "i1e")
    },
    **{n: _special(n, UNIT) for n in ("digamma", "erfinv", "ndtri", "entr", "logit")},
    "polygamma": _special("polygamma", UNIT, 2),
    "zeta": _special("zeta", UNIT + 1, 2.5),
    "gammainc": _special("gammainc", UNIT, 2.5),
    "gammaincc": _special("gammaincc", UNIT * 9, 2.5),
    "xlogy": _special("xlogy", UNIT, 0.5),
    "betaln": _special("betaln", UNIT, 0.5),
    "kl_div": _special("kl_div", UNIT, 0.5),
    "erfcx": (
        lambda x: mw.special.erfcx(x),
        lambda x: jax.numpy.exp(x * x) * jax.scipy.special.erfc(x),
        (UNIT,),
    ),
    "erfcinv": (
        lambda x: mw.special.erfcinv(x),
        lambda x: jax.scipy.special.erfinv(1 - x),
        (UNIT,),
    ),
}


def test_special_functions() -> None:
    compare(SPECIAL, np.float64, 1e-11)


def test_parts_of_networks() -> None:
    compare(NETS, np.float64, 1e-6, part=1)
