"""Convolutions by panels: right for every order of dims, stride, dilation, group and type, and for gradients."""

import itertools
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshweave as mw
from meshweave.api.program import Program, build
from meshweave.lowering.cpu import target
from meshweave.lowering.cpu.products import depthwise, panels
from meshweave.plan.machine import Vectors
from meshweave.runtime.local.engine import LocalEngine

MACHINES = [Vectors(64, 32), Vectors(32, 16), Vectors(16, 16)]
DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Case:
    """A convolution: sizes by loop (n batch, g groups, o results, c channels, p places, k window), and the dims.

    Dim p0 of the first operand, the image, is walked by p0 * stride + k0 * dilation.
    """

    sizes: dict[str, int]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    operands: tuple[tuple[str, ...], ...]
    dtype: str = "f32"
    adds: bool = False

    @property
    def loops(self):
        return list(self.sizes)

    @property
    def sum_dtype(self):
        return self.dtype if self.dtype in ("f32", "f64") else "f32"

    def shape(self, number):
        if number == 0:
            return tuple(self.extent(d) for d in self.operands[0])
        return tuple(self.sizes[d] for d in self.operands[number])

    def extent(self, dim):
        if dim[0] != "p":
            return self.sizes[dim]
        k = int(dim[1])
        places, taps = self.sizes[dim], self.sizes[f"k{k}"]
        return (places - 1) * self.stride[k] + (taps - 1) * self.dilation[k] + 1

    def map(self, number):
        def form(dim):
            if number or dim[0] != "p":
                return dim
            k = int(dim[1])
            return f"{dim} * {self.stride[k]} + k{k} * {self.dilation[k]}"

        dims = ", ".join(form(d) for d in self.operands[number])
        return f"affine_map<({', '.join(self.loops)}) -> ({dims})>"

    def type(self, number):
        dtype = self.sum_dtype if number == 2 else self.dtype
        return f"tensor<{'x'.join(map(str, self.shape(number)))}x{dtype}>"

    def text(self):
        a, b, c = (self.type(k) for k in range(3))
        kinds = ", ".join(
            '"parallel"' if d in self.operands[2] else '"reduction"' for d in self.loops
        )
        wide, dtype = self.sum_dtype, self.dtype
        lines = ""
        if wide != dtype:
            lines = "".join(f"%{n}w = arith.extf %{n} : {dtype} to {wide}\n" for n in "xy")
        x, y = ("%xw", "%yw") if lines else ("%x", "%y")
        return f"""func.func @main(%a: {a}, %b: {b}, %c: {c}) -> {c} {{
  %z = arith.constant 0.0 : {wide}
  %e = tensor.empty() : {c}
  %s = linalg.fill ins(%z : {wide}) outs(%e : {c}) -> {c}
  %r = linalg.generic {{indexing_maps = [{", ".join(self.map(k) for k in range(3))}],
      iterator_types = [{kinds}]}} ins(%a, %b : {a}, {b}) outs({"%c" if self.adds else "%s"} : {c}) {{
    ^bb0(%x: {dtype}, %y: {dtype}, %w: {wide}):
    {lines}%p = arith.mulf {x}, {y} : {wide}
    %q = arith.addf %w, %p : {wide}
    linalg.yield %q : {wide}
  }} -> {c}
  return %r : {c}
}}"""

    def expected(self, a, b, c):
        """The result in float64: for each place in the window, a product of what it meets."""
        a, b = a.astype(np.float64), b.astype(np.float64)
        total = c.astype(np.float64) if self.adds else np.zeros(self.shape(2))
        letters = dict(zip(self.loops, "abcdefghijkl"))
        specs = ["".join(letters[d] for d in dims if d[0] != "k") for dims in self.operands]
        window = [range(self.sizes[f"k{k}"]) for k in range(len(self.stride))]
        for taps in itertools.product(*window):
            met = tuple(self.met(d, taps) for d in self.operands[0])
            _, right, out = (
                tuple(taps[int(d[1])] if d[0] == "k" else slice(None) for d in dims)
                for dims in self.operands
            )
            product = np.einsum(f"{specs[0]},{specs[1]}->{specs[2]}", a[met], b[right])
            total[out] += product
        return total

    def met(self, dim, taps):
        """What of a dim of the image these taps of the window meet."""
        if dim[0] != "p":
            return slice(None)
        k = int(dim[1])
        start, step = taps[k] * self.dilation[k], self.stride[k]
        return slice(start, start + (self.sizes[dim] - 1) * step + 1, step)


def run(case, machine=None, kernels=None, arrays=None):
    """The result, the expected one, and how many kernels were panels."""
    made = []
    text_of = panels.panels_text
    rng = np.random.default_rng(sum(case.sizes.values()))
    dtypes = [DTYPES[case.dtype]] * 2 + [DTYPES[case.sum_dtype]]
    if arrays is None:
        arrays = [rng.standard_normal(case.shape(k)).astype(dtypes[k]) for k in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        if machine is not None:
            patch.setattr(panels, "vectors", lambda: machine)
        patch.setattr(
            "meshweave.lowering.cpu.target.panels_text",
            lambda *a: made.append(a) or text_of(*a),
        )
        bundle = build(case.text(), kernels=kernels)
    engine = Program(bundle, LocalEngine())
    result = np.array(engine(*arrays)[0])
    engine.close()
    return result, case.expected(*arrays), len(made)


def check(case, machine=None, kernels=None):
    result, expected, count = run(case, machine, kernels)
    depth = np.prod([n for d, n in case.sizes.items() if d not in case.operands[2]])
    tolerance = 1e-5 if case.sum_dtype == "f32" else 1e-13
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * 3 * depth**0.5)
    return count


SIZES = {
    "n": [1, 2, 3], "g": [1, 1, 2, 3], "o": [1, 2, 5, 8, 17, 40], "c": [1, 3, 4, 8, 19],
    "p": [1, 2, 5, 7, 9, 14, 16, 19, 35], "k": [1, 2, 3, 5],
}  # fmt: skip


LARGEST = {1: 35, 2: 19, 3: 7}
"""Places along a dim, by the number of dims."""


def last(dims):
    """The dims with the channels last."""
    return [d for d in dims if d[0] in "npk"] + [d for d in dims if d[0] in "gco"]


@st.composite
def cases(draw):
    ndim = draw(st.integers(1, 3))
    window, places = [f"k{k}" for k in range(ndim)], [f"p{k}" for k in range(ndim)]
    loops = draw(st.permutations(["n", "g", "o", "c", *places, *window]))
    sizes = {d: min(draw(st.sampled_from(SIZES[d[0]])), LARGEST[ndim]) for d in loops}
    image, weights = ["n", "g", "c", *places], ["g", "o", "c", *window]
    result = ["n", "g", "o", *places]
    order = draw(st.sampled_from([list, last, lambda dims: draw(st.permutations(dims))]))
    dims = [tuple(order(d)) for d in (image, weights, result)]
    if draw(st.booleans()):  # the gradient of the weights
        dims = [dims[0], dims[2], dims[1]]
    steps = st.tuples(*[st.integers(1, 3)] * ndim)
    dtype = draw(st.sampled_from(["f32", "f32", "f64", "f16", "bf16"]))
    return Case(sizes, draw(steps), draw(steps), tuple(dims), dtype, draw(st.booleans()))


@given(case=cases(), machine=st.sampled_from(MACHINES))
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_any_convolution(case, machine):
    check(case, machine)


SQUARE = {"n": 2, "o": 16, "c": 8, "p0": 9, "p1": 7, "k0": 3, "k1": 3}
DIMS = (("n", "p0", "p1", "c"), ("k0", "k1", "c", "o"), ("n", "p0", "p1", "o"))
PLAIN = Case(SQUARE, (1, 1), (1, 1), DIMS)


@pytest.mark.parametrize(
    "kernels, panels", [(None, 1), ("-blas", 1), ("-panels", 0), ("reference", 0)]
)
def test_hints_switch_panels(kernels, panels):
    assert check(PLAIN, kernels=kernels) == panels


def test_a_window_of_one_place_is_a_product_for_the_library():
    assert check(Case({**SQUARE, "k0": 1, "k1": 1}, (1, 1), (1, 1), DIMS)) == 0
    assert check(Case({**SQUARE, "k0": 1, "k1": 1}, (2, 2), (1, 1), DIMS)) == 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_small_floats_are_widened(dtype):
    assert check(Case(SQUARE, (1, 1), (1, 1), DIMS, dtype)) == 1


def test_in_slices_that_are_uneven():
    a, b, c = "tensor<10x9x9x8xf32>", "tensor<3x3x8x16xf32>", "tensor<10x7x7x16xf32>"
    bundle = build(f"""func.func @main(%a: {a}, %b: {b}, %c: {c}) -> {c} {{
      %r = "hint.region"() ({{
        %p = linalg.conv_2d_nhwc_hwcf ins(%a, %b : {a}, {b}) outs(%c : {c}) -> {c}
        %x = math.absf %p : {c}
        "hint.yield"(%x) : ({c}) -> ()
      }}) {{hints = {{slice = "t=4", order = "dfs"}}}} : () -> {c}
      return %r : {c}
    }}""")
    case = Case({**SQUARE, "n": 10, "p0": 7}, (1, 1), (1, 1), DIMS, adds=True)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(case.shape(k)).astype(np.float32) for k in range(3)]
    engine = Program(bundle, LocalEngine())
    result = np.array(engine(*arrays)[0])
    engine.close()
    np.testing.assert_allclose(result, abs(case.expected(*arrays)), rtol=1e-4, atol=1e-4)


def test_sums_of_several_panels_keep_what_was_there():
    deep = Case({**SQUARE, "c": 700}, (1, 1), (1, 1), DIMS, adds=True)
    assert check(deep) == 1


@pytest.mark.parametrize(
    "dims", [DIMS, (("n", "c", "p0", "p1"), ("o", "c", "k0", "k1"), ("n", "o", "p0", "p1"))]
)
def test_what_is_not_finite_goes_where_it_goes(dims):
    case = Case(SQUARE, (1, 1), (1, 1), dims)
    a, b, c = (np.ones(case.shape(k), np.float32) for k in range(3))
    a[(0,) * 4], a[(-1,) * 4] = np.nan, np.inf
    result, expected, count = run(case, arrays=[a, b, c])
    assert count == 1
    np.testing.assert_array_equal(result, expected)


@given(
    places=st.tuples(*[st.sampled_from([1, 2, 5, 8, 12, 28, 67])] * 2),
    window=st.tuples(*[st.integers(1, 4)] * 2),
    steps=st.tuples(*[st.integers(1, 3)] * 2),
    apart=st.tuples(*[st.integers(1, 2)] * 2),
    groups=st.sampled_from([2, 3, 8, 21]),
    order=st.sampled_from([list, last]),
    dtype=st.sampled_from(["f32", "f64"]),
    adds=st.booleans(),
    gradient=st.booleans(),
    machine=st.sampled_from(MACHINES),
)
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_depthwise(places, window, steps, apart, groups, order, dtype, adds, gradient, machine):
    sizes = {"n": 2, "g": groups}
    sizes |= dict(zip(("p0", "p1", "k0", "k1"), (*places, *window)))
    dims = ["n", "g", "p0", "p1"], ["g", "k0", "k1"], ["n", "g", "p0", "p1"]
    image, weights, result = (tuple(order(d)) for d in dims)
    operands = (image, result, weights) if gradient else (image, weights, result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(depthwise, "vectors", lambda: machine)
        check(Case(sizes, steps, apart, operands, dtype, adds))


@pytest.mark.parametrize("order", [list, last])
@pytest.mark.parametrize("step", [1, 2])
def test_depthwise_rows_stay_in_registers(monkeypatch, order, step):
    written = []
    write = depthwise.DepthwiseRows.write
    monkeypatch.setattr(
        depthwise.DepthwiseRows, "write", lambda rows: written.append(rows) or write(rows)
    )
    sizes = {"n": 2, "g": 16, "p0": 9, "p1": 14, "k0": 3, "k1": 3}
    dims = ["n", "g", "p0", "p1"], ["g", "k0", "k1"], ["n", "g", "p0", "p1"]
    check(Case(sizes, (step, step), (1, 1), tuple(tuple(order(d)) for d in dims)))
    assert len(written) == 1


STRIDED = {
    "columns of the left": lambda x, w: x[:, ::2] @ w,
    "rows of the left": lambda x, w: x[::2, :40] @ w,
    "columns of the right": lambda x, w: x[:, :40] @ w[:, ::3],
    "turned": lambda x, w: x[:, 39::-1] @ w,
    "of a third dim": lambda x, w: x.reshape(30, 40, 2)[:, :, 1] @ w,
    "turned and transposed": lambda x, w: x[::-1, ::2] @ w[::-1, ::-2],
}


@sampled(1)
@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("allowed", [True, False])
def test_operands_that_the_library_cannot_read(name, dtype, allowed, monkeypatch):
    written, inner = [], panels.panels_text
    monkeypatch.setattr(target, "panels_text", lambda *a: written.append(a) or inner(*a))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in ((30, 80), (40, 35)))
    f = STRIDED[name]
    with mw.kernels(panels=allowed):
        made = np.asarray(mw.jit(f)(x, w))
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(made, f(x, w), rtol=tolerance, atol=tolerance)
    assert bool(written) == (allowed and name != "rows of the left")
