"""Convolutions of every kind: what JAX gives, on one rank and on meshes, proven to be the whole program's."""

import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.frontends.windows import WindowDim, phases

jax = pytest.importorskip("jax")
lax = jax.lax
DTYPES = [np.float32, np.float32, np.float16, ml_dtypes.bfloat16, np.int32]
LARGEST = {1: 17, 2: 9, 3: 5}
"""Extent of an image, by the number of dims."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A convolution that JAX makes, and the shapes of its operands."""

    shapes: tuple[list[int], list[int]]
    options: dict[str, Any]

    def __call__(self, x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, **self.options)

    def gradients(self, x: Any, w: Any, slope: Any) -> Any:
        return jax.vjp(self, x, w)[1](slope)


def drawn(seed: int) -> Kind:
    """A convolution with everything that there is: dims in any order, padding that cuts off, dilation of both."""
    r = random.Random(seed)
    ndim = r.choice([1, 2, 2, 3])
    channels, batches = r.choice([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)])
    image = [r.choice([1, 2]) * batches, r.choice([1, 2, 5]) * channels]
    image += [r.randint(3, LARGEST[ndim]) for _ in range(ndim)]
    window = [r.choice([1, 2, 9]) * channels * batches, image[1] // channels]
    window += [r.randint(1, 4) for _ in range(ndim)]
    orders = [r.sample(range(ndim + 2), ndim + 2) for _ in range(3)]

    def steps(largest: int) -> list[int]:
        return [r.choice([1, 1, *range(2, largest + 1)]) for _ in range(ndim)]

    options = {
        "window_strides": steps(3),
        "padding": [(r.randint(-1, 4), r.randint(-1, 4)) for _ in range(ndim)],
        "lhs_dilation": steps(3),
        "rhs_dilation": steps(3),
        "dimension_numbers": lax.ConvDimensionNumbers(*map(tuple, orders)),
        "feature_group_count": channels,
        "batch_group_count": batches,
    }
    shapes = tuple(
        [s[order.index(d)] for d in range(ndim + 2)] for s, order in zip((image, window), orders)
    )
    return Kind(shapes, options)


def values(shape: Any, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)


def agree(function: Any, args: Any, tolerance: float = 1e-5, **options: Any) -> Any:
    wanted = jax.jit(function)(*args)
    with mw.from_jax(function, *args, **options) as compiled:
        got = compiled(*args)
        certificate = compiled.program.bundle.manifest.certificate
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        ours, theirs = (np.asarray(v).astype(np.float64) for v in (ours, theirs))
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max(initial=1)
        )
    return certificate


@sampled(4)
@pytest.mark.parametrize("seed", range(24))
def test_every_kind(seed: int) -> None:
    kind, dtype = drawn(seed), DTYPES[seed % len(DTYPES)]
    tolerance = 2e-2 if np.dtype(dtype).itemsize == 2 else 1e-4
    agree(kind, [values(shape, dtype, seed) for shape in kind.shapes], tolerance)


@sampled(4)
@pytest.mark.parametrize("seed", range(100, 108))
def test_gradients(seed: int) -> None:
    kind = drawn(seed)
    kind = Kind(kind.shapes, {**kind.options, "batch_group_count": 1})
    if kind.options["feature_group_count"] == 1:
        lhs, rhs, _ = kind.options["dimension_numbers"]
        kind.shapes[1][rhs[1]] = kind.shapes[0][lhs[1]]
    x, w = (values(shape) for shape in kind.shapes)
    slope = values(jax.eval_shape(kind, x, w).shape)
    agree(kind.gradients, [x, w, slope], 1e-4)


IMAGE, WINDOW = (5, 7, 9, 6), (3, 3, 6, 10)
DIMS = ("NHWC", "HWIO", "NHWC")


def strided(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=DIMS)


def slopes(x: Any, w: Any, y: Any) -> Any:
    return jax.vjp(strided, x, w)[1](y)


def transposed(x: Any, w: Any) -> Any:
    return lax.conv_transpose(x, w, (2, 3), "SAME", dimension_numbers=DIMS)


def grouped(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w[:, :, :3], (1, 2), "SAME", feature_group_count=2, dimension_numbers=DIMS
    )


SHARDED = {
    "batch": ("[a, _, _, _]", None), "results": (None, "[_, _, _, b]"), "channels": ("[_, _, _, a]", "[_, _, a, _]"),
    "both": ("[a, _, _, _]", "[_, _, _, b]"), "space": ("[_, a, _, _]", None),
}  # fmt: skip


@sampled(4)
@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("function", [strided, slopes, transposed, grouped])
def test_on_meshes_with_uneven_parts(name: str, function: Any) -> None:
    args = [values(IMAGE), values(WINDOW), values((5, 4, 5, 10))][: 3 if function is slopes else 2]
    specs = [*SHARDED[name], None][: len(args)]
    certificate = agree(function, args, 1e-5, in_shardings=tuple(specs), mesh="a=3, b=2")
    assert certificate.proven and not certificate.unproven


def test_a_window_may_be_turned_round() -> None:
    text = """func.func @main(%x: tensor<1x6x2xf32>, %w: tensor<3x2x4xf32>) -> tensor<1x4x4xf32> {
      %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
        window = {reverse = [true]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<1x6x2xf32>, tensor<3x2x4xf32>) -> tensor<1x4x4xf32>
      return %0 : tensor<1x4x4xf32>
    }"""
    x, w = values((1, 6, 2)), values((3, 2, 4), seed=1)
    with mw.compile(text) as program:
        (got,) = program(x, w)
    wanted = sum(x[:, k : k + 4] @ w[2 - k] for k in range(3))
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-5)


def test_what_is_convolved_is_made_in_the_windows_that_are_read() -> None:
    """A product with a constant runs there, and is not moved to the windows of another reader."""
    jnp = jax.numpy
    window = jnp.full((2, 1, 2, 1), 0.3, np.float32)
    weights = np.cos(np.arange(10, dtype=np.float32)).reshape(1, 2, 5, 1)

    def f(x: Any) -> Any:
        image = (x[0] * x[1]).reshape(1, 1, -1, 1)
        return jnp.sum(lax.conv_general_dilated(image, window, (1, 1), "SAME") * weights)

    x = values((2, 5))
    slope = mw.jax.jit(jax.grad(f), mesh="y=2", in_shardings=("[_, y]",))
    np.testing.assert_allclose(np.asarray(slope(x)), jax.grad(f)(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("image, window, dtype", [((0, 5, 5, 2), (3, 3, 2, 4), np.float32),
                                                  ((2, 5, 5, 0), (3, 3, 0, 4), np.float32),
                                                  ((2, 5, 5, 2), (3, 3, 2, 4), np.uint8)])  # fmt: skip
def test_empty_ones_and_unsigned_numbers(image: Any, window: Any, dtype: Any) -> None:
    def plain(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=DIMS)

    agree(plain, [np.abs(values(image)).astype(dtype), np.abs(values(window)).astype(dtype)])


@pytest.mark.parametrize(
    "base, stride, dilation", [(2, 1, 1), (3, 2, 1), (2, 3, 3), (4, 2, 2), (3, 1, 2)]
)
def test_phases_meet_what_the_whole_meets(base: int, stride: int, dilation: int) -> None:
    axis = WindowDim(
        image=7, window=4, result=11, stride=stride, dilation=dilation, low=2, base=base
    )
    found = phases(axis)
    for place in range(axis.result):
        met = {
            ((place * stride + k * dilation - axis.low) // base, k)
            for k in range(axis.window)
            if (place * stride + k * dilation - axis.low) % base == 0
        }
        phase, turn = found[place % len(found)], place // len(found)
        assert phase.number == place % len(found)
        if phase.axis is None:
            assert not met
            continue
        one, (first, step) = phase.axis, phase.window
        assert met == {
            (turn * one.stride + k * one.dilation - one.low, first + k * step)
            for k in range(one.window)
        }
