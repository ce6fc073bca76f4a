"""Numbers of 16 bits: f64 is rounded to them once, to nearest even; bf16 is moved about as bits."""

import numpy as np
import pytest
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


@pytest.mark.parametrize("start", ["0xFF80", "-2.5", "1.0"])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8, 17])
def test_bf16_that_padding_replaces(columns: int, start: str) -> None:
    x = whole(6, columns) * np.float32(0.5) - 2
    x[0, -1], x[5, 0] = np.nan, np.inf
    text = LARGEST.replace("COLUMNS", str(columns)).replace("START", start)
    (found,) = run_text("x=4", text, x)
    first = np.float32(-np.inf if start.startswith("0x") else float(start))
    np.testing.assert_array_equal(found, np.maximum(x.max(0), first))
