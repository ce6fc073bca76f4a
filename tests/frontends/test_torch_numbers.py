"""Quotients, remainders and numbers of Python beside tensors are those of eager PyTorch to the bit."""

from collections.abc import Callable
from typing import Any

import pytest

import meshweave as mw

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Calls(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def check(function: Callable[..., Any], *args: Any) -> None:
    with mw.from_torch(Calls(function), args) as program:
        for got, wanted in zip(program(*args), function(*args), strict=True):
            assert torch.equal(got.nan_to_num(7, 8, 9), wanted.nan_to_num(7, 8, 9))


def operands(dtype: Any) -> tuple[Any, Any]:
    """Return random numbers, quotients near whole numbers, and what is infinite, zero or no number."""
    torch.manual_seed(0)
    x, y = 3 * torch.randn(12, 16), torch.randn(12, 16)
    x[0], y[0] = torch.arange(16) * 0.3, 0.3
    x[1], y[1] = torch.arange(16) * 0.1, -0.1
    y[2], x[3], x[4], x[5], x[6] = 0, 0, torch.inf, torch.nan, 1e4
    y[7], y[8] = torch.inf, -torch.inf
    return x.to(dtype), y.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_and_remainders(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        down = torch.div(x, y, rounding_mode="floor"), torch.div(x, 0.3, rounding_mode="floor")
        left = torch.fmod(x, y), torch.fmod(x, -0.7), x % y, torch.remainder(0.3, y)
        return *down, x // y, x // -0.7, torch.div(x, y, rounding_mode="trunc"), *left

    check(function, *operands(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_beside_short_floats(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        compared = x > 0.3, x >= 0.3, x == 0.3, x < 0.3, x <= 0.3, x != 0.3
        divided = x / 0.3, 0.3 / x, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)
        return x * 0.3, x + 0.1, 1 / 3 * x, torch.nn.functional.leaky_relu(x), *divided, *compared

    check(function, *operands(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_constants_beside_whole_numbers(dtype: Any) -> None:
    def function(x: Any) -> Any:
        constants = [torch.full((), value, dtype=dtype) for value in (0.3, -0.7, 1.5)]
        found = [(c < 0, c < -1, c <= 1, c > 1, c == 0, c != 1) for c in constants]
        return [torch.logical_xor(x < 0, one) for row in found for one in row]

    check(function, torch.tensor([0.5, -1.0]))
