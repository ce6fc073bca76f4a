"""Scatters of JAX, on one rank and sharded: windows that lie outside in part, and every mode, as jax.jit has them."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import meshweave as mw

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
RNG = np.random.default_rng(11)
Numbers = lax.ScatterDimensionNumbers
KINDS = {
    "add": lax.scatter_add,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
    "mul": lax.scatter_mul,
}
MODES = ("fill", "clip", "promise_in_bounds")
SHARDED = {
    "x=4": (["[x, _]", "[_*x, _]", "[_, x]", None], ["[x, _]", None]),
    "x=2, y=2": (["[x, y]", "[y, x]", "[x*y, _]", "[_, y]", None], ["[y, x]", "[x, _]", None]),
}


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


FORMS: dict[str, Any] = {  # dimension numbers, operand, extent of the indices, updates, where indices end
    "rows": (Numbers((1,), (0,), (0,)), normal(8, 6), (5, 1), normal(5, 6), 8),
    "columns": (Numbers((0,), (1,), (1,)), normal(8, 6), (5, 1), normal(8, 5), 6),
    "points": (Numbers((), (0, 1), (0, 1)), normal(8, 6), (5, 2), normal(5), 6),
    "one_window": (Numbers((0, 1), (), (0, 1)), normal(8, 6), (2,), normal(3, 2), 5),
    "windows": (Numbers((1, 2), (), (0, 1)), normal(8, 6), (4, 2), normal(4, 3, 2), 5),
    "parts_of_rows": (Numbers((1,), (0,), (0, 1)), normal(8, 6), (5, 2), normal(5, 3), 4),
    "turned": (Numbers((1,), (0,), (1, 0)), normal(8, 6), (5, 2), normal(5, 6), 1),
    "batched": (Numbers((), (1,), (1,), (0,), (0,)), normal(8, 6), (8, 3, 1), normal(8, 3), 6),
}  # fmt: skip


def agree(function: Callable[..., Any], args: Any, **options: Any) -> None:
    wanted = jax.jit(function)(*args)
    with mw.from_jax(function, *args, **options) as compiled:
        np.testing.assert_allclose(compiled(*args), wanted, rtol=1e-5, atol=1e-6)


def indices(shape: Any, end: int, mode: str) -> Any:
    """Indices of which some windows lie outside, wholly and in part, where the mode says what happens then."""
    low, high = (0, end) if mode == "promise_in_bounds" else (-2, end + 3)
    return RNG.integers(low, high, shape).astype(np.int32)


@pytest.mark.parametrize("form", FORMS)
def test_every_mode_on_one_rank(form: str) -> None:
    numbers, operand, shape, updates, end = FORMS[form]
    for (_, scatter), mode in product(KINDS.items(), MODES):
        args = operand, indices(shape, end, mode), updates
        agree(lambda o, i, u: scatter(o, i, u, numbers, mode=mode), args)  # noqa: B023


@pytest.mark.parametrize("mesh", SHARDED)
@pytest.mark.parametrize("form", ["rows", "windows", "turned", "batched"])
def test_operands_indices_and_updates_over_axes(form: str, mesh: str) -> None:
    numbers, operand, shape, updates, end = FORMS[form]
    laid, others = SHARDED[mesh]
    for number, layout in enumerate(laid):
        kind = list(KINDS)[number % len(KINDS)]
        args = operand, indices(shape, end, "fill"), updates
        asked = [
            other if np.ndim(a) == 2 else None for a, other in zip(args[1:], others, strict=False)
        ]
        agree(
            lambda o, i, u: KINDS[kind](o, i, u, numbers, mode="fill"), args,  # noqa: B023
            in_shardings=(layout, *asked), mesh=mesh,
        )  # fmt: skip


def test_a_window_that_lies_outside_in_part_is_dropped_whole() -> None:
    operand, updates = np.zeros(6, np.float32), np.ones((4, 3), np.float32)
    starts = np.array([[-1], [0], [4], [3]], np.int32)
    with mw.from_jax(
        lambda o, i, u: lax.scatter_add(o, i, u, Numbers((1,), (), (0,)), mode="fill"),
        operand, starts, updates,
    ) as compiled:  # fmt: skip
        assert compiled(operand, starts, updates).numpy().tolist() == [1, 1, 1, 1, 1, 1]
