"""Numbers of 16 bits: f64 is rounded to them once, to nearest even; bf16 is moved about as bits."""

import ml_dtypes
import numpy as np
import pytest
from depth import sampled
from executed import run as run_text
from executed import whole

import meshweave

PROGRAM = """
func.func @main(%a: tensor<{0}xf64>) -> tensor<{0}x{1}> {{
  %e = tensor.empty() : tensor<{0}x{1}>
  %r = linalg.map {{ arith.truncf }} ins(%a : tensor<{0}xf64>) outs(%e : tensor<{0}x{1}>)
  return %r : tensor<{0}x{1}>
}}
"""
RNG = np.random.default_rng(6)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300, 65519.99999999, 65520.0, 5e-8]


def values(bits: int) -> np.ndarray:
    """Random ones, and those just beside the middle between two numbers of so many bits, where rounding twice fails."""
    middles = 1 + (RNG.integers(0, 1 << (bits - 1), 200) + 0.5) / (1 << (bits - 1))
    beside = [middles * (1 + d * 2.0**-50) for d in (-1, 0, 1)]
    return np.concatenate([RNG.standard_normal(200) * 100, *beside, *np.negative(beside), SPECIAL])


def run(given: np.ndarray, element: str, engine: str) -> np.ndarray:
    if engine == "emulate":
        pytest.importorskip("llvmlite")
    with meshweave.compile(PROGRAM.format(len(given), element), engine=engine) as program:
        (result,) = program(given)
    return result


ENGINES = pytest.mark.parametrize("engine", ["local", "emulate"])


@ENGINES
@pytest.mark.filterwarnings("ignore:overflow")
def test_f16_is_numpys(engine: str) -> None:
    given = values(11)
    np.testing.assert_array_equal(run(given, "f16", engine), given.astype(np.float16))


@ENGINES
def test_bf16_is_rounded_once(engine: str) -> None:
    given = values(8)
    result = run(given, "bf16", engine).astype(np.float64)
    middle = np.abs(given) < 1e6
    middle &= np.abs(given) > 1e-6
    mantissa, exponent = np.frexp(given[middle])
    np.testing.assert_array_equal(result[middle], np.ldexp(np.rint(mantissa * 256) / 256, exponent))
    rest = [0.0, -0.0, np.inf, -np.inf, np.nan, np.inf, -np.inf, 0.0]
    np.testing.assert_array_equal(result[-len(SPECIAL) :][:8], rest)


INTEGERS = """
func.func @main(%a: tensor<{0}x{1}>) -> tensor<{0}x{2}> {{
  %e = tensor.empty() : tensor<{0}x{2}>
  %r = linalg.map {{ arith.sitofp }} ins(%a : tensor<{0}x{1}>) outs(%e : tensor<{0}x{2}>)
  return %r : tensor<{0}x{2}>
}}
"""


@sampled(1)
@ENGINES
@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("element, mantissa", [("f16", 11), ("bf16", 8)])
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_integers_are_rounded_once(engine: str, element: str, mantissa: int, bits: int) -> None:
    if engine == "emulate":
        pytest.importorskip("llvmlite")
    given = RNG.integers(-(1 << (min(bits, 40) - 1)), 1 << (min(bits, 40) - 1), 400).astype(
        f"i{bits // 8}"
    )
    steps = (1 << 12) + (1 << 3)  # just beside the middle of two numbers of bf16, and of f16
    given[:6] = [0, -1, 1, 127, steps % 128 if bits == 8 else steps, -128]
    if bits > 16:
        given[6:9] = [
            (1 << 24) + (1 << 16) + 1,
            (1 << 24) + (1 << 16) - 1,
            (1 << 24) + (1 << 13) + 1,
        ]
    text = INTEGERS.format(len(given), f"i{bits}", element)
    with meshweave.compile(text, engine=engine) as program:
        (result,) = program(given)
    number, exponent = np.frexp(given.astype("f8"))
    wanted = np.ldexp(np.rint(number * 2**mantissa) / 2**mantissa, exponent)
    if element == "f16":
        wanted = wanted.astype(np.float16)
    np.testing.assert_array_equal(result.astype("f8"), wanted.astype("f8"))


LARGEST = """
func.func @main(%x: tensor<6xCOLUMNSxbf16> {[x, _]}) -> tensor<COLUMNSxbf16> {
  %start = arith.constant START : bf16
  %e = tensor.empty() : tensor<COLUMNSxbf16>
  %f = linalg.fill ins(%start : bf16) outs(%e : tensor<COLUMNSxbf16>) -> tensor<COLUMNSxbf16>
  %m = linalg.reduce { arith.maximumf } ins(%x : tensor<6xCOLUMNSxbf16>)
    outs(%f : tensor<COLUMNSxbf16>) dimensions = [0]
  return %m : tensor<COLUMNSxbf16>
}
"""


@sampled(1)
@pytest.mark.parametrize("start", ["0xFF80", "-2.5", "1.0"])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8, 17])
def test_bf16_that_padding_replaces(columns: int, start: str) -> None:
    x = whole(6, columns) * np.float32(0.5) - 2
    x[0, -1], x[5, 0] = np.nan, np.inf
    text = LARGEST.replace("COLUMNS", str(columns)).replace("START", start)
    (found,) = run_text("x=4", text, x)
    first = np.float32(-np.inf if start.startswith("0x") else float(start))
    np.testing.assert_array_equal(found, np.maximum(x.max(0), first))


DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
SIGNS = """
func.func @main(%a: tensor<{0}x{1}>, %b: tensor<{0}x{1}>) -> (tensor<{0}x{1}>, tensor<{0}x{1}>, tensor<{0}x{1}>) {{
  %e = tensor.empty() : tensor<{0}x{1}>
  %s = linalg.map {{ math.absf }} ins(%a : tensor<{0}x{1}>) outs(%e : tensor<{0}x{1}>)
  %n = linalg.map {{ arith.negf }} ins(%a : tensor<{0}x{1}>) outs(%e : tensor<{0}x{1}>)
  %c = linalg.map {{ math.copysign }} ins(%a, %b : tensor<{0}x{1}>, tensor<{0}x{1}>) outs(%e : tensor<{0}x{1}>)
  return %s, %n, %c : tensor<{0}x{1}>, tensor<{0}x{1}>, tensor<{0}x{1}>
}}
"""


def bits_of(result: np.ndarray) -> np.ndarray:
    """The bits of numbers of 16 bits; those of bf16 are handed out in f32."""
    if result.dtype == np.float32:
        return (result.view(np.uint32) >> 16).astype(np.uint16)
    return result.view(np.uint16)


@sampled(1)
@pytest.mark.parametrize("count", [1, 2, 17, 1 << 16])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_signs_are_bits(element: str, count: int) -> None:
    """Every number of 16 bits, NaN with what it carries among them."""
    dtype = DTYPES[element]
    bits = RNG.permutation(1 << 16).astype(np.uint16)[:count]
    signs = RNG.integers(0, 1 << 16, count).astype(np.uint16)
    with meshweave.compile(SIGNS.format(count, element)) as program:
        results = program(bits.view(dtype), signs.view(dtype))
    size, negative, signed = (bits_of(result) for result in results)
    np.testing.assert_array_equal(size, bits & 0x7FFF)
    np.testing.assert_array_equal(negative, bits ^ 0x8000)
    np.testing.assert_array_equal(signed, bits & 0x7FFF | signs & 0x8000)


CONVERTED = """
func.func @main(%a: tensor<{0}x{1}>) -> tensor<{0}x{2}> {{
  %r = stablehlo.convert %a : (tensor<{0}x{1}>) -> tensor<{0}x{2}>
  return %r : tensor<{0}x{2}>
}}
"""
EDGES = [np.nan, np.inf, -np.inf, -0.0, -0.5, 1e30, -1e30] + [
    side * (limit + beside)
    for side in (1, -1)
    for limit in (127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1)
    for beside in (-0.5, 0, 0.5, 0.99)
]


@sampled(1)
@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("bits, signed", [(b, s) for b in (8, 16, 32) for s in (True, False)])
@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "f64"])
def test_floats_beyond_an_integer_are_its_limits(element: str, bits: int, signed: bool) -> None:
    given = np.concatenate([EDGES, RNG.standard_normal(500) * 300]).astype(DTYPES[element])
    text = CONVERTED.format(len(given), element, f"{'' if signed else 'u'}i{bits}")
    with meshweave.compile(text) as program:
        (result,) = program(given)
    limits = np.iinfo(f"{'i' if signed else 'u'}{bits // 8}")
    numbers = np.trunc(np.nan_to_num(given.astype("f8"), nan=0.0))
    wanted = np.clip(numbers, limits.min, limits.max).astype(limits.dtype)
    np.testing.assert_array_equal(result.view(limits.dtype), wanted)  # text has no unsigned results


WIDER = """
func.func @main(%a: tensor<bf16>, %b: tensor<9xbf16>) -> (tensor<i1>, tensor<f64>) {
  %zero = arith.constant 0.0 : f64
  %low = arith.constant dense<0xFFF0000000000000> : tensor<f64>
  %c = tensor.empty() : tensor<i1>
  %d = tensor.empty() : tensor<9xf64>
  %r = linalg.map ins(%a : tensor<bf16>) outs(%c : tensor<i1>) (%x: bf16, %o: i1) {
    %w = arith.extf %x : bf16 to f64
    %y = arith.cmpf une, %w, %zero : f64
    linalg.yield %y : i1
  }
  %w = linalg.map { arith.extf } ins(%b : tensor<9xbf16>) outs(%d : tensor<9xf64>)
  %s = linalg.reduce { arith.maximumf } ins(%w : tensor<9xf64>) outs(%low : tensor<f64>) dimensions = [0]
  return %r, %s : tensor<i1>, tensor<f64>
}
"""


@ENGINES
def test_bf16_is_compared_as_f64(engine: str) -> None:
    """LLVM compares in bf16 what was lengthened, for which it has no instruction."""
    if engine == "emulate":
        pytest.importorskip("llvmlite")
    b = RNG.standard_normal(9).astype(ml_dtypes.bfloat16)
    with meshweave.compile(WIDER, engine=engine) as program:
        for a in (0.0, 1e-30, np.nan):
            differs, largest = program(np.array(a, ml_dtypes.bfloat16), b)
            assert (bool(differs), float(largest)) == (a != 0, float(b.max()))
