"""The tracing API as users see it in `meshweave`; tables of functions with what NumPy calls them, and a way to run
many as one program."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import meshweave as mw

UNARY: dict[str, Any] = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor, "isfinite": np.isfinite,
    "isinf": np.isinf, "isnan": np.isnan, "log": np.log, "log10": np.log10, "log1p": np.log1p,
    "log2": np.log2, "negative": np.negative, "positive": np.positive,
    "reciprocal": lambda x: 1 / x, "relu": lambda x: np.maximum(x, 0), "round": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sign": np.sign, "signbit": np.signbit, "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt,
    "square": np.square, "tan": np.tan, "tanh": np.tanh, "trunc": np.trunc,
    "erf": lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x), "logical_not": np.logical_not,
}  # fmt: skip
BINARY: dict[str, Any] = {
    "add": np.add, "atan2": np.arctan2, "copysign": np.copysign, "divide": np.divide,
    "equal": np.equal, "floor_divide": np.floor_divide, "greater": np.greater,
    "greater_equal": np.greater_equal, "hypot": np.hypot, "less": np.less,
    "less_equal": np.less_equal, "logaddexp": np.logaddexp, "maximum": np.maximum,
    "minimum": np.minimum, "multiply": np.multiply, "not_equal": np.not_equal, "pow": np.power,
    "remainder": np.remainder, "subtract": np.subtract, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "nextafter": np.nextafter,
}  # fmt: skip
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")

Case = tuple[Callable[..., Any], Any]


def run_all(
    cases: Mapping[str, Callable[..., Any]], *arrays: Any, **options: Any
) -> dict[str, Any]:
    """The results of all functions on the arrays, from one compiled program."""

    def together(*values: Any) -> dict[str, Any]:
        return {name: function(*values) for name, function in cases.items()}

    compiled = mw.jit(together, **options)
    try:
        return {name: np.asarray(y) for name, y in compiled(*arrays).items()}
    finally:
        compiled.close()


def check(
    found: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float, **names: Any
) -> None:
    """Each result against NumPy's: shape, values, NaNs in the same places."""
    wrong = []
    for name, right in wanted.items():
        y, right = found[name], np.asarray(right)
        if y.shape != right.shape:
            wrong.append(f"{name}: shape {y.shape}, {right.shape} is right")
        elif not np.allclose(
            y.astype(float), right.astype(float), tolerance, tolerance, equal_nan=True
        ):
            wrong.append(f"{name}: {y.reshape(-1)[:8]}, {right.reshape(-1)[:8]} is right")
    assert not wrong, "\n".join(wrong)
