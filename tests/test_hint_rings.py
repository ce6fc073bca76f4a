"""Collectives in slices: run slice by slice, or as a ring of permutes."""

from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hint_programs import (
    HINTED,
    STRIPPED,
    built,
    check,
    constrain,
    data,
    function,
    laid_out,
    matmul,
    moves,
    region,
    run,
    tensor,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave as mw


def gathered_on_k(m: int, k: int, n: int, ranks: int, slices: int, where: str = "a0") -> str:
    """a b with the rows of both over x: b is needed whole, and the sum runs in slices."""
    A, B, C = tensor(m, k), tensor(k, n), tensor(m, n)
    types = {"a0": (A, "[x, t]"), "a1": (B, "[t, _]")}
    body = constrain("p", where, *types[where])
    body += matmul("c", *(("p", "a1") if where == "a0" else ("a0", "p")), m, k, n)
    inside = region("r", body, "%c", C, f'slice = "t={slices}"')
    given = [laid_out(A, "[x, _]"), laid_out(B, "[x, _]")]
    return function(given, [laid_out(C, "[x, _]")], f"{inside}return %r : {C}", f"x={ranks}")


def gathered_on_m(m: int, k: int, n: int, ranks: int, slices: int) -> str:
    """a b with the rows of a and the columns of b over x: a is needed whole, and its rows run in slices."""
    A, B, C = tensor(m, k), tensor(k, n), tensor(m, n)
    body = matmul("c", "a0", "a1", m, k, n) + constrain("d", "c", C, "[t, x]")
    inside = region("r", body, "%d", C, f'slice = "t={slices}"')
    given = [laid_out(A, "[x, _]"), laid_out(B, "[_, x]")]
    return function(given, [laid_out(C, "[_, x]")], f"{inside}return %r : {C}", f"x={ranks}")


@sampled(4)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("kind", ["K", "K said of the gathered operand", "M"])
def test_a_gather_in_as_many_slices_becomes_a_ring(kind: str, ranks: int) -> None:
    """The same bytes as the gather, in n - 1 permutes, and the right product."""
    m, k, n = 4 * ranks, 3 * ranks, 8 * ranks
    if kind == "M":
        text, shard = gathered_on_m(m, k, n, ranks, ranks), 4 * k * 4
    else:
        where = "a0" if kind == "K" else "a1"
        text, shard = gathered_on_k(m, k, n, ranks, ranks, where), 3 * n * 4
    a, b = data(m, k), data(k, n)
    np.testing.assert_allclose(run(text, [a, b])[0], a @ b, rtol=1e-4, atol=1e-4)
    assert moves(text) == [("permute", shard)] * (ranks - 1)
    gathered = moves(text.replace(f'slice = "t={ranks}"', f'slice = "t={ranks + 1}"'))
    assert sum(b for _, b in gathered) == shard * (ranks - 1) and len(gathered) == 1
    stripped = built(text, STRIPPED)[0].manifest.collectives
    assert sum(c.bytes for c in stripped) == shard * (ranks - 1)
    assert f"{ranks - 1} permutes around x" in built(text)[1].report()


def test_the_ring_holds_two_shards_not_the_gathered_matrix() -> None:
    m, k, n, ranks = 512, 256, 64, 4
    ring = built(gathered_on_k(m, k, n, ranks, ranks))[0].manifest.arena_bytes
    whole = built(gathered_on_k(m, k, n, ranks, ranks), STRIPPED)[0].manifest.arena_bytes
    assert whole >= k * n * 4
    assert ring <= 2.1 * k * n * 4 / ranks


@settings(max_examples=examples(20), deadline=None)
@given(
    st.sampled_from(["K", "M"]), st.integers(2, 4), st.integers(1, 13), st.integers(1, 13),
    st.integers(1, 13), st.integers(1, 6),
)  # fmt: skip
def test_random_gathers_in_slices(kind: str, ranks: int, m: int, k: int, n: int, t: int) -> None:
    make = gathered_on_k if kind == "K" else gathered_on_m
    a, b = data(m, k), data(k, n)
    text = make(m, k, n, ranks, t).replace(
        f'slice = "t={t}"', f'slice = {{value = "t={t}", strength = "preferred"}}'
    )
    np.testing.assert_allclose(run(text, [a, b])[0], a @ b, rtol=1e-4, atol=1e-4)


def test_a_ring_under_bit_exact_where_nothing_is_added_up() -> None:
    text = gathered_on_m(16, 12, 32, 4, 4)
    exact = text.replace('"t=4"', '"t=4", numerics = "bit_exact"')
    pipeline = HINTED.replace("hint-slice", "hint-slice,select-kernels")
    inputs = [data(16, 12), data(12, 32)]
    np.testing.assert_array_equal(
        run(exact, inputs, pipeline)[0],
        run(exact.replace('"t=4"', '"t=1"'), inputs, pipeline)[0],
    )
    bundle, ledger, _ = built(exact, pipeline)
    assert [c.op for c in bundle.manifest.collectives] == ["permute"] * 3
    assert "3 permutes around x" in ledger.report()


def test_slices_over_all_ranks_of_two_axes_go_round_too() -> None:
    A, B, C = tensor(32, 12), tensor(12, 6), tensor(32, 6)
    body = constrain("p", "a0", A, "[x, t]") + matmul("c", "p", "a1", 32, 12, 6)
    inside = region("r", body, "%c", C, 'slice = "t=4"')
    given = [laid_out(A, "[x, _]"), laid_out(B, "[x*y, _]")]
    text = function(given, [laid_out(C, "[x, _]")], f"{inside}return %r : {C}", "x=2, y=2")
    a, b = data(32, 12), data(12, 6)
    np.testing.assert_allclose(run(text, [a, b])[0], a @ b, rtol=1e-4, atol=1e-5)
    assert [op for op, _ in moves(text)] == ["permute"] * 3


def test_a_sum_over_ranks_is_reduced_slice_by_slice() -> None:
    """a b with k over x: each slice of rows is reduced on its own, as many bytes in all."""
    A, B, C = tensor(8, 12), tensor(12, 6), tensor(8, 6)
    body = matmul("c", "a0", "a1", 8, 12, 6) + constrain("d", "c", C, "[t, _]")
    given = [laid_out(A, "[_, x]"), laid_out(B, "[x, _]")]

    def make(hints: str) -> str:
        inside = region("r", body, "%d", C, f'slice = "t=4", {hints}')
        return function(given, [laid_out(C, "[_, _]")], f"{inside}return %r : {C}", "x=2")

    a, b = data(8, 12), data(12, 6)
    check(make, [a, b], [a @ b], ('order = "dfs"', 'order = "bfs"'))
    text = make('order = "dfs"')
    once = sum(c.bytes for c in built(text, STRIPPED)[0].manifest.collectives)
    assert sum(b for _, b in moves(text)) == once and len(moves(text)) >= 1


def on_two_time_axes(kind: str, ranks: int, sizes: tuple[int, int, int], slices: str) -> str:
    """`gathered_on_k` or `gathered_on_m` with a second time axis u on another dim of the product."""
    m, k, n = sizes
    text = gathered_on_k(m, k, n, ranks, 1) if kind == "K" else gathered_on_m(m, k, n, ranks, 1)
    layouts = ("[x, t]", "[x*u, t]") if kind == "K" else ("[t, x]", "[t, x*u]")
    return text.replace(*[f'layout<"{layout}">' for layout in layouts]).replace("t=1", slices)


@settings(max_examples=examples(15), deadline=None)
@given(st.sampled_from("KM"), st.integers(2, 4), st.integers(1, 3), st.booleans())
def test_a_ring_along_one_of_two_time_axes(kind: str, ranks: int, u: int, first: bool) -> None:
    """All slices of u run while a shard is here: as many permutes as with one time axis."""
    m, k, n = 4 * ranks, 3 * ranks, 6 * ranks
    axes = [f"t={ranks}", f"u={u}"]
    text = on_two_time_axes(kind, ranks, (m, k, n), ", ".join(axes if first else axes[::-1]))
    a, b = data(m, k), data(k, n)
    np.testing.assert_allclose(run(text, [a, b])[0], a @ b, rtol=1e-4, atol=1e-4)
    shard = (3 * n if kind == "K" else 4 * k) * 4
    assert moves(text) == [("permute", shard)] * (ranks - 1)


@settings(max_examples=examples(15), deadline=None)
@given(
    st.sampled_from("KM"), st.integers(2, 4), st.tuples(*[st.integers(1, 13)] * 3),
    st.integers(1, 5), st.integers(1, 3),
)  # fmt: skip
def test_random_gathers_on_two_time_axes(
    kind: str, ranks: int, sizes: tuple[int, int, int], t: int, u: int
) -> None:
    m, k, n = sizes
    text = on_two_time_axes(kind, ranks, sizes, f"t={t}, u={u}")
    text = text.replace(
        f'slice = "t={t}, u={u}"', f'slice = {{value = "t={t}, u={u}", strength = "preferred"}}'
    )
    a, b = data(m, k), data(k, n)
    np.testing.assert_allclose(run(text, [a, b])[0], a @ b, rtol=1e-4, atol=1e-4)


def program_of(text: str) -> Any:
    return built(text)[2]


def test_the_gather_stays_one_where_slices_are_not_the_shards() -> None:
    for slices in (2, 3, 8):
        text = program_of(gathered_on_k(32, 16, 6, 4, slices))
        assert text.count("dist.all_gather") == 1 and "dist.permute" not in text


@pytest.mark.parametrize(
    "text, reason",
    [
        (gathered_on_k(32, 16, 6, 4, 3), "3 slices along t, and 4 shards over x"),
        (gathered_on_k(8, 5, 6, 4, 4), "the shards over x are not of one size"),
        (
            gathered_on_k(32, 16, 6, 4, 4).replace('"t=4"', '"t=4", order = "bfs"'),
            "a ring hands shards on from slice to slice, and several are in flight",
        ),
    ],
)
def test_the_ledger_says_why_a_gather_is_no_ring(text: str, reason: str) -> None:
    _, ledger, program = built(text)
    assert f"behind a gather that is no ring: {reason}" in ledger.report()
    assert "dist.permute" not in program


def test_there_is_no_ring_where_slices_exchange_along_it() -> None:
    """A member of a ring is at another slice than the others, so that a gather of slices over it would mix them up."""

    def f(a: Any, b: Any) -> Any:
        with mw.hint(slice="t=2"):
            return a @ ((b * 2) @ (b * 2).T)

    a, b = data(8, 8), data(8, 8)
    program = mw.jit(f, mesh="x=2, y=2", in_layouts=("[_, _]", "[y, x]"))
    right = a @ ((b * 2) @ (b * 2).T)
    np.testing.assert_allclose(program(a, b), right, rtol=1e-4, atol=1e-4)
    said = " ".join(program.explain().replace("│", " ").split())
    assert "slices need dist.all_gather over y" in said and "permutes around" not in said
