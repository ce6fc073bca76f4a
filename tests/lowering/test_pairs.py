"""Products by the processor's instructions for pairs of bf16 or short integers.

They are right for every arrangement, size, and part that blocks leave.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshweave.api.program import Program, build
from meshweave.errors import MeshweaveError
from meshweave.lowering.cpu.products.pairs import loops as products
from meshweave.processor import AMX, features
from meshweave.runtime import processors
from meshweave.runtime.local.engine import LocalEngine

BF16 = ml_dtypes.bfloat16
UNITS = [
    unit
    for unit, needed in (("tiles", {*AMX, "avx512bw"}), ("dots", {"avx512_bf16", "avx512bw"}))
    if needed <= features()
]
here = pytest.mark.skipif(not UNITS, reason="this processor multiplies no bf16")


WIDE = pytest.mark.skipif("avx512bw" not in features(), reason="no pairs of integers here")
FLOATS = ("bf16", "bf16", "f32")
INTEGERS = [("i8", "i8", "i32"), ("i16", "i8", "i32"), ("i16", "i16", "i32")]


def text_of(maps, sizes, adds=False, kinds=FLOATS):
    """A program that adds up products over the loops that the result has not.

    maps: dims of a, b and the result; kinds: their types.
    """
    left, right, sums = kinds
    ext, mul, add = ("extf", "mulf", "addf") if sums == "f32" else ("extsi", "muli", "addi")
    loops = ", ".join(sizes)
    types = [
        f"tensor<{'x'.join(str(sizes[d]) for d in dims)}x{dtype}>"
        for dims, dtype in zip(maps, kinds)
    ]
    forms = ", ".join(f"affine_map<({loops}) -> ({', '.join(dims)})>" for dims in maps)
    kinds = ", ".join('"parallel"' if d in maps[2] else '"reduction"' for d in sizes)
    a, b, c = types
    return f"""func.func @main(%a: {a}, %b: {b}, %c: {c}) -> {c} {{
  %z = arith.constant {"0.0" if sums == "f32" else 0} : {sums}
  %e = tensor.empty() : {c}
  %s = linalg.fill ins(%z : {sums}) outs(%e : {c}) -> {c}
  %r = linalg.generic {{indexing_maps = [{forms}], iterator_types = [{kinds}]}}
      ins(%a, %b : {a}, {b}) outs({"%c" if adds else "%s"} : {c}) {{
    ^bb0(%x: {left}, %y: {right}, %w: {sums}):
    %xw = arith.{ext} %x : {left} to {sums}
    %yw = arith.{ext} %y : {right} to {sums}
    %p = arith.{mul} %xw, %yw : {sums}
    %q = arith.{add} %w, %p : {sums}
    linalg.yield %q : {sums}
  }} -> {c}
  return %r : {c}
}}"""


def run(maps, sizes, unit, adds=False, kernels=None, arrays=None, kinds=FLOATS):
    """The result, the expected one in f64, and how many kernels were such products."""
    rng = np.random.default_rng(sum(sizes.values()))
    made = []
    if arrays is None:
        arrays = [rng.standard_normal([sizes[d] for d in dims]).astype(BF16) for dims in maps]
        arrays[2] = arrays[2].astype(np.float32)
    write = products.product_text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "bf16_unit", lambda: unit)
        patch.setattr(
            "meshweave.lowering.cpu.target.product_text", lambda *a: made.append(a) or write(*a)
        )
        bundle = build(text_of(maps, sizes, adds, kinds), kernels=kernels)
    engine = Program(bundle, LocalEngine())
    result = np.array(engine(*arrays)[0])
    engine.close()
    letters = dict(zip(sizes, "abcdefgh"))
    spec = ["".join(letters[d] for d in dims) for dims in maps]
    expected = np.einsum(
        f"{spec[0]},{spec[1]}->{spec[2]}", *(x.astype(np.float64) for x in arrays[:2])
    )
    return result, expected + (arrays[2] if adds else 0), len(made)


def check(maps, sizes, unit, **options):
    result, expected, count = run(maps, sizes, unit, **options)
    depth = np.prod([n for d, n in sizes.items() if d not in maps[2]])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * depth**0.5)
    return count


WAYS = [(a, b) for a in ("mk", "km") for b in ("kn", "nk")]
SIZES = st.sampled_from([1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 79, 130])


@here
@given(
    way=st.sampled_from(WAYS),
    m=SIZES,
    n=SIZES,
    k=st.sampled_from([1, 8, 31, 32, 33, 64, 200, 544]),
    turned=st.booleans(),
    adds=st.booleans(),
    unit=st.sampled_from(UNITS or [""]),
)
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_any_product(way, m, n, k, turned, adds, unit):
    maps = (*way, "nm" if turned else "mn")
    count = check(maps, {"m": m, "n": n, "k": k}, unit, adds=adds)
    fills = unit == "tiles" or max(used(m, n, k), used(n, m, k)) >= products.LEAST_USED
    few = min(m, n, k) < products.FEWEST or products_of_few(m, n, k)
    assert count == (fills and not few)


def used(m, n, k):
    """Which part of blocks of 8 rows, 32 columns and 32 steps of depth such a product fills."""
    return np.prod(
        [size / (-(-size // block) * block) for size, block in ((m, 8), (n, 32), (k, 32))]
    )


def products_of_few(m, n, k):
    """Whether loops that read the weights once are chosen before."""
    few, many = sorted((m, n))
    return few <= 16 and many * k >= 1 << 17


LOOPS = [
    (("bmk", "bkn", "bmn"), {"b": 3, "m": 40, "n": 33, "k": 32}),
    (("bmhk", "bnhk", "bhmn"), {"b": 2, "h": 3, "m": 33, "n": 48, "k": 64}),
    (("bhmn", "bnhk", "bmhk"), {"b": 2, "h": 3, "m": 33, "n": 48, "k": 64}),
    (("mkl", "kln", "mn"), {"m": 34, "n": 50, "k": 3, "l": 64}),
    (("mlk", "lkn", "mn"), {"m": 34, "n": 50, "l": 3, "k": 64}),
    (("uvk", "kn", "uvn"), {"u": 3, "v": 32, "n": 50, "k": 64}),
    (("uvk", "kn", "uvn"), {"u": 5, "v": 28, "n": 33, "k": 64}),
    (("uvk", "nk", "nuv"), {"u": 7, "v": 7, "n": 40, "k": 96}),
    (("uvwk", "kn", "uvwn"), {"u": 2, "v": 3, "w": 5, "n": 64, "k": 544}),
    (("uvk", "kn", "vun"), {"u": 6, "v": 9, "n": 48, "k": 32}),
    (("uvk", "kxy", "uvxy"), {"u": 3, "v": 32, "x": 2, "y": 16, "k": 64}),
    (("mk", "kn", "mn"), {"m": 100, "n": 700, "k": 1100}),
    (("mk", "kn", "mn"), {"m": 16, "n": 64, "k": 64}),
    (("mk", "kn", "mn"), {"m": 17, "n": 1700, "k": 96}),
    (("mk", "kn", "mn"), {"m": 40, "n": 4000, "k": 160}),
]


@here
@pytest.mark.parametrize("unit", UNITS)
@sampled(3)
@pytest.mark.parametrize("maps, sizes", LOOPS)
def test_several_loops(maps, sizes, unit):
    assert check(tuple(tuple(m) for m in maps), sizes, unit) >= 1


def integers(maps, sizes, kinds, adds=False, kernels=None):
    """How many products of pairs a program of integers has; its result is that of int32, which wraps."""
    rng = np.random.default_rng(sum(sizes.values()))
    ends = [np.iinfo(f"i{int(kind[1:]) // 8}") for kind in kinds]
    shapes = [[sizes[d] for d in dims] for dims in maps]
    arrays = [
        rng.choice([end.min, end.min, end.max, -1, 7], shape).astype(end.dtype)
        for end, shape in zip(ends, shapes)
    ]
    result, _, count = run(maps, sizes, "", adds, kernels, arrays, kinds)
    spec = "->".join([",".join("".join(dims) for dims in maps[:2]), "".join(maps[2])])
    expected = np.einsum(spec, *(x.astype(np.int64) for x in arrays[:2]))
    expected += arrays[2] if adds else 0
    np.testing.assert_array_equal(result, expected.astype(ends[2].dtype))
    return count


@WIDE
@given(
    way=st.sampled_from(WAYS),
    m=SIZES,
    n=SIZES,
    k=st.sampled_from([1, 8, 31, 32, 33, 64, 200, 544]),
    turned=st.booleans(),
    adds=st.booleans(),
    kinds=st.sampled_from(INTEGERS),
)
@settings(
    max_examples=examples(45),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_any_product_of_integers(way, m, n, k, turned, adds, kinds):
    count = integers((*way, "nm" if turned else "mn"), {"m": m, "n": n, "k": k}, kinds, adds)
    fills = max(used(m, n, k), used(n, m, k)) >= products.LEAST_USED
    few = min(m, n, k) < products.FEWEST or products_of_few(m, n, k)
    assert count == (fills and not few)


@WIDE
@sampled(4)
@pytest.mark.parametrize("maps, sizes", LOOPS[1:])
def test_several_loops_of_integers(maps, sizes):
    assert integers(tuple(tuple(m) for m in maps), sizes, INTEGERS[0]) >= 1


@WIDE
@pytest.mark.parametrize(("kernels", "count"), [("-gemm_bf16", 1), ("reference", 0)])
def test_the_reference_multiplies_integers_as_written(kernels, count):
    sizes = {"m": 40, "n": 48, "k": 64}
    assert integers(("mk", "kn", "mn"), sizes, INTEGERS[0], kernels=kernels) == count


@WIDE
def test_what_is_no_product_of_pairs_is_multiplied_otherwise():
    """The types are not those of the instructions, or what has no sign is multiplied."""
    sizes = {"m": 40, "n": 48, "k": 64}
    assert integers(("mk", "kn", "mn"), sizes, ("i32", "i8", "i64")) == 0
    text = text_of(("mk", "kn", "mn"), sizes, kinds=INTEGERS[0]).replace("extsi %x", "extui %x")
    engine = Program(build(text), LocalEngine())
    x, w = np.full((40, 64), -1, np.int8), np.full((64, 48), 3, np.int8)
    result = np.array(engine(x, w, np.zeros((40, 48), np.int32))[0])
    engine.close()
    np.testing.assert_array_equal(result, np.full((40, 48), 255 * 3 * 64, np.int32))


FIRST = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
CONVOLUTION = """func.func @main(%x: tensor<{0}xbf16>, %w: tensor<{1}xbf16>) -> tensor<{2}xf32> {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{2}xf32>
  %s = linalg.fill ins(%z : f32) outs(%e : tensor<{2}xf32>) -> tensor<{2}xf32>
  %r = linalg.conv_2d_{5} {{strides = dense<{3}> : tensor<2xi64>, dilations = dense<{4}> : tensor<2xi64>}}
    ins(%x, %w : tensor<{0}xbf16>, tensor<{1}xbf16>) outs(%s : tensor<{2}xf32>) -> tensor<{2}xf32>
  return %r : tensor<{2}xf32>
}}"""


@sampled(1)
@here
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "image, size, channels, out, stride, dilation",
    [
        ((2, 28, 28), 3, 32, 64, 1, 1),
        ((1, 9, 7), 3, 64, 33, 1, 1),
        ((3, 13, 15), 5, 32, 16, 2, 1),
        ((1, 15, 14), 3, 96, 40, 1, 2),
        ((2, 7, 5), 1, 544, 48, 1, 1),
        ((2, 16, 19), 3, -33, 16, 1, 1),
        ((1, 9, 9), 3, -64, 40, 1, 1),
        ((3, 11, 18), 2, -32, 24, 1, 2),
        ((1, 30, 58), 3, -8, 65, 1, 1),
    ],
)
def test_convolutions_of_any_image(image, size, channels, out, stride, dilation, unit):
    first, channels = channels < 0, abs(channels)  # channels in front of the dims of space
    batch, *sides = image
    reach = dilation * (size - 1)
    ends = [(n - reach - 1) // stride + 1 for n in sides]
    shapes = ((batch, *sides, channels), (size, size, channels, out), (batch, *ends, out))
    rng = np.random.default_rng(channels)
    x, w = (rng.standard_normal(shape).astype(BF16) for shape in shapes[:2])
    if first:
        shapes = [[shape[d] for d in dims] for shape, dims in zip(shapes, FIRST)]
    made, write = [], products.product_text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "bf16_unit", lambda: unit)
        patch.setattr(
            "meshweave.lowering.cpu.target.product_text", lambda *a: made.append(a) or write(*a)
        )
        texts = ["x".join(map(str, shape)) for shape in shapes]
        name = "nchw_fchw" if first else "nhwc_hwcf"
        bundle = build(CONVOLUTION.format(*texts, stride, dilation, name))
    engine = Program(bundle, LocalEngine())
    given = [np.ascontiguousarray(v.transpose(d)) if first else v for v, d in zip((x, w), FIRST)]
    result = np.array(engine(*given)[0])
    engine.close()
    result = result.transpose(0, 2, 3, 1) if first else result
    expected = np.zeros(result.shape)
    for i, j in np.ndindex(size, size):
        rows, columns = (
            slice(k * dilation, k * dilation + (n - 1) * stride + 1, stride)
            for k, n in zip((i, j), ends)
        )
        window = x[:, rows, columns].astype(np.float64)
        expected += window @ w[i, j].astype(np.float64)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * (size**2 * channels) ** 0.5)
    assert made


@here
def test_what_is_not_finite_goes_where_it_goes():
    sizes = {"m": 33, "n": 34, "k": 35}
    a, b = np.ones((33, 35), BF16), np.ones((35, 34), BF16)
    a[0, 0], a[-1, -1] = np.nan, np.inf
    arrays = [a, b, np.zeros((33, 34), np.float32)]
    for unit in UNITS:
        result, expected, count = run(("mk", "kn", "mn"), sizes, unit, arrays=arrays)
        assert count == 1
        np.testing.assert_array_equal(result, expected)


@here
@pytest.mark.parametrize(
    "kernels, count", [(None, 1), ("-panels", 1), ("-gemm_bf16", 0), ("reference", 0)]
)
def test_hints_switch_it(kernels, count):
    sizes = {"m": 40, "n": 48, "k": 64}
    assert check(("mk", "kn", "mn"), sizes, UNITS[0], kernels=kernels) == count


def test_without_instructions_panels_do_it():
    assert check(("mk", "kn", "mn"), {"m": 40, "n": 48, "k": 64}, "") == 0


@here
def test_a_bundle_says_what_it_needs():
    bundle = build(text_of(("mk", "kn", "mn"), {"m": 40, "n": 48, "k": 64}))
    needed = set(bundle.manifest.features)
    assert "avx512bw" in needed and (UNITS[0] != "tiles" or needed >= AMX)
    assert not AMX & set(
        build(text_of(("mk", "kn", "mn"), {"m": 2, "n": 2, "k": 2})).manifest.features
    )


def test_code_for_another_processor_is_refused(monkeypatch):
    bundle = build(text_of(("mk", "kn", "mn"), {"m": 2, "n": 2, "k": 2}))
    manifest = replace(bundle.manifest, features=("avx2", "avx9", "zz"))
    monkeypatch.setattr(processors, "features", lambda: frozenset({"avx2"}))
    with pytest.raises(
        MeshweaveError, match=r"a processor with avx9, zz, which this one lacks: compile"
    ):
        LocalEngine().load(replace(bundle, manifest=manifest))


def test_tiles_that_the_system_does_not_give_are_named(monkeypatch):
    monkeypatch.setattr(processors, "features", lambda: AMX)
    monkeypatch.setattr(processors, "allow_tiles", lambda: False)
    processors.check_processor(())
    with pytest.raises(MeshweaveError, match=r"tiles \(AMX\), which the system does not let"):
        processors.check_processor(sorted(AMX))
