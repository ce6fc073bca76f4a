"""Scatters of JAX, on one rank and sharded: windows that lie outside in part, and every mode, as jax.jit has them."""

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from depth import sampled, some, thinned

import meshweave as mw
from meshweave.lowering.buffers import bufferize

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


@sampled(4)
@pytest.mark.parametrize("form", some(FORMS, 2))
def test_every_mode_on_one_rank(form: str) -> None:
    numbers, operand, shape, updates, end = FORMS[form]
    for (_, scatter), mode in thinned(product(KINDS.items(), MODES), 2):
        args = operand, indices(shape, end, mode), updates
        agree(lambda o, i, u: scatter(o, i, u, numbers, mode=mode), args)  # noqa: B023


@sampled(4)
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


GRID = ("[x, _]", "[_, y]", "[x, y]", "[y*x, _]", "[_*x, _]")


@sampled(4)
@pytest.mark.parametrize("form", some(FORMS, 2))
def test_each_layout_of_each_argument_on_a_grid(form: str) -> None:
    numbers, operand, shape, updates, end = FORMS[form]
    cases = thinned(product(range(3), GRID), 2)
    for turn, (which, layout) in enumerate(cases):
        kind, mode = list(KINDS)[turn % len(KINDS)], MODES[turn % len(MODES)]
        args = operand, indices(shape, end, mode), updates
        if np.ndim(args[which]) != 2:
            continue
        asked: list[str | None] = [None, None, None]
        asked[which] = layout
        if which and turn % 2:
            asked[0] = GRID[(turn + 1) % len(GRID)]
        agree(
            lambda o, i, u: KINDS[kind](o, i, u, numbers, mode=mode), args,  # noqa: B023
            in_shardings=tuple(asked), mesh="x=2, y=2",
        )  # fmt: skip


def test_a_window_that_lies_outside_in_part_is_dropped_whole() -> None:
    operand, updates = np.zeros(6, np.float32), np.ones((4, 3), np.float32)
    starts = np.array([[-1], [0], [4], [3]], np.int32)
    with mw.from_jax(
        lambda o, i, u: lax.scatter_add(o, i, u, Numbers((1,), (), (0,)), mode="fill"),
        operand, starts, updates,
    ) as compiled:  # fmt: skip
        assert compiled(operand, starts, updates).numpy().tolist() == [1, 1, 1, 1, 1, 1]


def bytes_of(compiled: Any) -> int:
    """What the busiest rank receives in a call, of a program that is proven."""
    said = compiled.explain()
    assert "unproven" not in said and "refuted" not in said
    return int(re.search(r"busiest rank ([\d,]+) bytes", said)[1].replace(",", ""))


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def picked_by_pairs(logits: Any, labels: Any) -> Any:
    return -jax.nn.log_softmax(logits)[jnp.arange(logits.shape[0]), labels].mean()


def max_pool(x: Any) -> Any:
    padding = ((0, 0), (0, 0), (1, 1), (1, 0))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: jax.vjp(lambda x: function(x, *rest[:-1]), x)[1](rest[-1])[0]


LABELS = RNG.integers(-1, 40, 12).astype(np.int32)
IMAGES = normal(3, 4, 9, 8)
MOST: dict[str, Any] = {  # function, arguments, and for layouts of these on a mesh the most that a rank may receive
    "cross entropy": (jax.grad(cross_entropy), (normal(12, 40), LABELS), {
        "x=2": {("[x, _]", "[x]"): 0, ("[_, x]", None): 200},
        "x=5": {("[x, _]", "[x]"): 0},
        "x=2, y=2": {("[x, y]", "[x]"): 100},
    }),
    "one of each row": (lambda x, j: x[jnp.arange(6), j], (normal(6, 7, 5), RNG.integers(-9, 9, 6)), {
        "x=2": {("[x, _, _]", "[x]"): 0, ("[_, _, x]", None): 0}, "x=4": {("[x, _, _]", "[x]"): 0},
    }),
    "some of each row": (
        lambda x, i: x[jnp.arange(6)[:, None], :, i], (normal(6, 7, 5), RNG.integers(-9, 9, (6, 4))), {
        "x=4": {("[x, _, _]", "[x, _]"): 0}, "x=2, y=2": {("[x, y, _]", "[x, _]"): 0},
    }),
    "a diagonal": (lambda x: x[jnp.arange(6), jnp.arange(6)], (normal(6, 7, 5),), {"x=2": {("[x, _, _]",): 0}}),
    "some rows": (lambda x, j: x[jnp.arange(3), j], (normal(6, 7), RNG.integers(-9, 9, 3)), {
        "x=2": {("[x, _]", "[x]"): 7 * 6 * 4},
    }),
    "cross entropy by pairs": (jax.grad(picked_by_pairs), (normal(12, 40), LABELS), {
        "x=2": {("[x, _]", "[x]"): 0}, "x=2, y=2": {("[x, y]", "[x]"): 100},
    }),
    "embedding": (gradient(lambda t, i: t[i]), (normal(7, 6), RNG.integers(-7, 7, (64, 3)), normal(64, 3, 6)), {
        "x=2": {(None, "[x, _]", "[x, _, _]"): 7 * 6 * 4, ("[_, x]", None, "[_, _, x]"): 0},
        "x=2, y=2": {("[y, _]", "[x, _]", "[x, _, _]"): 7 * 6 * 4},
    }),
    "embedding of few": (gradient(lambda t, i: t[i]), (normal(70, 6), RNG.integers(-7, 7, 4), normal(4, 6)), {
        "x=2": {("[x, _]", None, None): 0, ("[x, _]", "[x]", "[x, _]"): 100},
    }),
    "max pooling": (gradient(max_pool), (IMAGES, normal(3, 4, 5, 4)), {
        "x=2": {("[x, _, _, _]",) * 2: 0, ("[_, x, _, _]",) * 2: 0},
        "x=2, y=2": {("[x, y, _, _]",) * 2: 0},
    }),
}  # fmt: skip


@sampled(4)
@pytest.mark.parametrize("name", MOST)
def test_no_more_moves_than_must(name: str) -> None:
    function, args, placed = MOST[name]
    wanted = jax.jit(function)(*args)
    for mesh, layouts in placed.items():
        for asked, most in layouts.items():
            with mw.from_jax(function, *args, mesh=mesh, in_shardings=asked) as compiled:
                np.testing.assert_allclose(compiled(*args), wanted, rtol=1e-5, atol=1e-6)
                assert bytes_of(compiled) <= most, asked


@sampled(4)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8", "int32", "uint32"])
def test_sums_and_extremes_of_every_type(dtype: str) -> None:
    numbers, operand, shape, updates, end = FORMS["rows"]
    whole, rows = [jnp.array(np.abs(a) * 3 // 1, dtype) for a in (operand, updates)]
    i = indices(shape, end, "fill")
    for kind in ("add", "max"):

        def scattered(o: Any, i: Any, u: Any, kind: str = kind) -> Any:
            return KINDS[kind](o, i, u, numbers, mode="fill").astype(np.float32)

        options = {"mesh": "x=2", "in_shardings": ("[_, _]", "[x, _]", "[x, _]")}
        agree(scattered, (whole, i, rows), **options)


def test_ties_and_numbers_that_are_none_in_a_pooled_window() -> None:
    x = np.array([[0.0, -0.0, np.nan, 1.0, 1.0, 1.0, np.nan, np.nan]], np.float32)
    rise = normal(1, 4)

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")

    agree(gradient(pool), (x, rise))


@sampled(1)
@pytest.mark.parametrize("layout", ["[x, y]", "[x, _]", "[y, x]"])
def test_windows_of_one_row_beside_padding_are_proven(layout: str) -> None:
    """Rows that are not read are told by guards alone: the check of the program still settles them."""

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (2, 2), ((1, 2), (0, 2)))

    x = normal(6, 9)
    compiled = mw.from_jax(pool, x, in_shardings=(layout,), mesh="x=2, y=2")
    np.testing.assert_array_equal(compiled(x), pool(x))
    assert compiled.program.bundle.manifest.certificate.unproven == ()


@sampled(5)
@pytest.mark.parametrize("mesh", ["", "x=2"])
@pytest.mark.parametrize("shape", [(1, 5), (1, 1), (3, 5)])
@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "bool", "uint8"])
def test_a_number_put_where_all_is_known(dtype: str, shape: tuple[int, int], mesh: str) -> None:
    def put(x: Any, i: Any) -> Any:
        part = lax.dynamic_slice(x, (i, i - 1), shape)
        one = jnp.ones((), x.dtype)
        return part.at[0:1, :].set(one), part.at[-1, 0].set(one)

    x = (np.arange(32).reshape(4, 8) % 3).astype(jnp.dtype(dtype))
    options = {"mesh": mesh, "in_shardings": ("[x, _]", "[]")} if mesh else {}
    agree(put, (x, np.int32(1)), **options)


def test_rows_that_swap_in_a_loop_are_not_copied_in_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """JAX writes the pivots of LU as a permutation so: a round reads what the loop around started from."""
    tries = {"copy_starts": 0, "copy_given": 0}
    for name in tries:
        monkeypatch.setattr(
            bufferize, name, partial(_counted, tries, name, getattr(bufferize, name))
        )

    def permute(pivots: Any) -> Any:
        return jax.lax.linalg.lu_pivots_to_permutation(pivots, 5)

    pivots = np.stack([RNG.integers(k, 5, 30) for k in range(5)], 1).astype(np.int32)
    agree(permute, (pivots,))
    agree(permute, (pivots,), mesh="x=2", in_shardings=("[x, _]",))
    assert tries["copy_starts"] and not tries["copy_given"]


def _counted(tries: dict[str, int], name: str, does: Callable[[Any], Any], function: Any) -> Any:
    tries[name] += 1
    return does(function)
