"""Time axes and mesh axes together on one dim, and collectives a slice ahead."""

import numpy as np
import pytest
from depth import examples, sampled
from hint_programs import (
    HINTED,
    built,
    check,
    constrain,
    data,
    function,
    laid_out,
    local_view,
    matmul,
    moves,
    region,
    run,
    tensor,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from meshweave.errors import CompileError

EVEN, UNEVEN = [(16, 4, 2), (8, 2, 4)], [(10, 2, 3), (7, 4, 2), (3, 2, 2)]


def preferred(slices: int) -> str:
    """A hint that need not be obeyed where there are not so many rows."""
    return f'slice = {{value = "t={slices}", strength = "preferred"}}'


# A time axis and a mesh axis on one dim.


@sampled(4)
@pytest.mark.parametrize("layout", ["[t*x, _]", "[x*t, _]"])
@pytest.mark.parametrize("n, x, t", EVEN + UNEVEN)
def test_both_orders_on_one_dim(n: int, x: int, t: int, layout: str) -> None:
    T = tensor(n, 6)
    body = (
        constrain("1", "a0", T, layout) + f"%2 = arith.addf %1, %a1 : {T}\n%3 = math.exp %2 : {T}\n"
    )

    def make(hints: str) -> str:
        inside = region("r", body, "%3", T, f'slice = "t={t}", {hints}')
        return function([T, T], [T], f"{inside}return %r : {T}", f"x={x}")

    a, b = data(n, 6), data(n, 6, seed=2)
    check(make, [a, b], [np.exp(a + b)], ('order = "dfs"', 'order = "bfs"'))


@sampled(5)
@pytest.mark.parametrize(
    "layout", ["[t*x, _]", "[x*t, _]", "[_, t*x]", "[t*x, y]", "[t*x*y, _]", "[x*t*y, _]"]
)
@pytest.mark.parametrize("n", [16, 11])
def test_matmul_with_both_on_one_dim(n: int, layout: str) -> None:
    A, B, C = tensor(n, 5), tensor(5, n), tensor(n, n)
    body = matmul("c", "a0", "a1", n, 5, n) + constrain("d", "c", C, layout)

    def make(hints: str) -> str:
        inside = region("r", body, "%d", C, f'slice = "t=2", {hints}')
        return function([A, B], [C], f"{inside}return %r : {C}", "x=2, y=2")

    a, b = data(n, 5), data(5, n)
    check(make, [a, b], [a @ b], ('order = "dfs"',))


def test_slices_first_are_of_all_ranks() -> None:
    """[t*x, _] of 16 rows over x=4: a slice is 8 rows next to each other, 2 on each rank.

    Data moves at the border of the region, once each way; where it lies so already nothing moves.
    """
    T = tensor(16, 6)
    body = constrain("1", "a0", T, "[t*x, _]") + f"%2 = arith.addf %1, %1 : {T}\n"
    inside = region("r", body, "%2", T, 'slice = "t=2"')
    text = local_view(function([T], [T], f"{inside}return %r : {T}", "x=4"))
    assert (
        text.count("dist.exchange") == 2 and text.count('target = #dist.layout<"[2*x*_, _]">') == 1
    )
    lies = laid_out(T, "[2*x*_, _]")
    text = local_view(function([lies], [lies], f"{inside}return %r : {T}", "x=4"))
    assert "dist.exchange" not in text and "tensor<4x6xf32>" in text


INDEXED = """%0 = tensor.empty() : {T}
%2 = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
  iterator_types = ["parallel", "parallel"]}} ins(%1 : {T}) outs(%0 : {T}) {{
^bb0(%x: i32, %o: i32):
  %i = linalg.index 0 : index
  %j = arith.index_cast %i : index to i32
  %y = arith.addi %x, %j : i32
  linalg.yield %y : i32
}} -> {T}
"""


@pytest.mark.parametrize("n, x, t", EVEN + UNEVEN)
def test_loop_indices_count_rows_of_the_whole(n: int, x: int, t: int) -> None:
    T = tensor(n, 3, element="i32")
    body = constrain("1", "a0", T, "[t*x, _]") + INDEXED.format(T=T)

    def make(hints: str) -> str:
        inside = region("r", body, "%2", T, f'slice = "t={t}", {hints}')
        return function([T], [T], f"{inside}return %r : {T}", f"x={x}")

    a = np.arange(n * 3, dtype=np.int32).reshape(n, 3) * 5
    check(make, [a], [a + np.arange(n, dtype=np.int32)[:, None]], ('order = "dfs"',))


def on_k(n: int, layout: str, x: int) -> str:
    """a' b with the rows of a, over which it sums, in `layout`."""
    A, Q, C = tensor(n, 5), tensor(5, n), tensor(5, 6)
    body = constrain("p", "a0", A, layout) + (
        f"%e = tensor.empty() : {Q}\n"
        f"%q = linalg.transpose ins(%p : {A}) outs(%e : {Q}) permutation = [1, 0]\n"
    ) + matmul("c", "q", "a1", 5, n, 6)  # fmt: skip
    inside = region("r", body, "%c", C, 'slice = "t=2"')
    return function([A, tensor(n, 6)], [C], f"{inside}return %r : {C}", f"x={x}")


@sampled(4)
@pytest.mark.parametrize("layout", ["[t*x, _]", "[x*t, _]"])
@pytest.mark.parametrize("n, x", [(16, 4), (10, 4), (9, 8), (3, 2)])
def test_a_sum_over_a_dim_with_both(n: int, x: int, layout: str) -> None:
    a, b = data(n, 5), data(n, 6)
    text = on_k(n, layout, x)
    np.testing.assert_allclose(run(text, [a, b])[0], a.T @ b, rtol=1e-4, atol=1e-5)
    assert "all_gather" not in built(text)[2]  # it is the partial sums that meet, not the rows


KINDS = {
    "sum": ("arith.addf %p, %q", "0.0", lambda v: v.sum(0)),
    "largest": ("arith.maximumf %p, %q", "0xFF800000", lambda v: v.max(0)),
    "smallest": ("arith.minimumf %p, %q", "0x7F800000", lambda v: v.min(0)),
    "product": ("arith.mulf %p, %q", "1.0", lambda v: v.prod(0)),
    "sum from 3 on": ("arith.addf %p, %q", "3.0", lambda v: v.sum(0) + 3),
}


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_random_reductions_over_a_dim_with_both(draws: st.DataObject) -> None:
    """exp(a) reduced over its rows, in the body of the reduction or before it, for digits of the rows in any order."""
    op, init, fold = KINDS[draws.draw(st.sampled_from(sorted(KINDS)))]
    n, slices = draws.draw(st.integers(1, 20)), draws.draw(st.integers(1, 5))
    factors = draws.draw(st.permutations(draws.draw(st.sampled_from(["tx", "ty", "txy"]))))
    A, C = tensor(n, 3), tensor(3)
    inside = draws.draw(st.booleans())
    body = constrain("c", "a0", A, f"[{'*'.join(factors)}, _]")
    body += "" if inside else f"%e = math.exp %c : {A}\n"
    body += f"""%z = arith.constant {init} : f32
%0 = tensor.empty() : {C}
%1 = linalg.fill ins(%z : f32) outs(%0 : {C}) -> {C}
%r0 = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>],
  iterator_types = ["reduction", "parallel"]}} ins({"%c" if inside else "%e"} : {A}) outs(%1 : {C}) {{
^bb0(%x: f32, %q: f32):
  %p = {"math.exp %x" if inside else "arith.addf %x, %w"} : f32
  %y = {op} : f32
  linalg.yield %y : f32
}} -> {C}
"""
    text = function(
        [A], [C],
        f"%w = arith.constant 0.0 : f32\n{region('r', body, '%r0', C, preferred(slices))}"
        f"return %r : {C}", "x=2, y=2",
    )  # fmt: skip
    a = data(n, 3) * np.float32(0.2)
    np.testing.assert_allclose(run(text, [a])[0], fold(np.exp(a)), rtol=1e-4, atol=1e-5)


def test_an_op_that_needs_the_order_is_refused_by_name() -> None:
    T = tensor(16, 6)
    body = constrain("1", "a0", T, "[t*x, _]") + (
        f"%2 = tensor.empty() : {T}\n%3 = linalg.softmax dimension(0) ins(%1 : {T}) outs(%2 : {T}) -> {T}\n"
    )
    inside = region("r", body, "%3", T, 'slice = "t=2"')
    with pytest.raises(CompileError, match=r"dim 0 is needed whole by 'linalg.softmax'"):
        built(function([T], [T], f"{inside}return %r : {T}", "x=2"))


@pytest.mark.parametrize("layout", ["[t*x:(1)2, _]", "[t*x, _] +sum(y)"])
def test_what_cannot_stand_behind_a_time_axis_is_refused(layout: str) -> None:
    T = tensor(16, 6)
    body = constrain("1", "a0", T, layout) + f"%2 = math.exp %1 : {T}\n"
    inside = region("r", body, "%2", T, 'slice = "t=2"')
    with pytest.raises(CompileError):
        built(function([T], [T], f"{inside}return %r : {T}", "x=2, y=2"))


def test_two_constraints_of_one_dim_must_agree() -> None:
    T = tensor(16, 6)
    for other, right in (("[t*x, _]", True), ("[x*t, _]", False), ("[x, _]", False)):
        body = constrain("1", "a0", T, "[t*x, _]") + f"%2 = arith.addf %1, %1 : {T}\n"
        body += constrain("3", "2", T, other) + f"%4 = math.exp %3 : {T}\n"
        inside = region("r", body, "%4", T, 'slice = "t=2"')
        text = function([T], [T], f"{inside}return %r : {T}", "x=2")
        if right:
            a = data(16, 6)
            np.testing.assert_allclose(run(text, [a])[0], np.exp(a + a), rtol=1e-5)
        else:
            with pytest.raises(CompileError, match=r"which runs with one in|cut another way"):
                built(text)


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_random_layouts_of_both(draws: st.DataObject) -> None:
    """Digits in any order on the rows of an elementwise chain and a product with another matrix."""
    n, slices = draws.draw(st.integers(1, 20)), draws.draw(st.integers(1, 4))
    factors = draws.draw(st.permutations(["t", "x", "y"]))[: draws.draw(st.integers(1, 3))]
    if "t" not in factors:
        factors = [*factors, "t"]
    layout = f"[{'*'.join(factors)}, _]"
    A, B, C = tensor(n, 3), tensor(3, 4), tensor(n, 4)
    body = f"%e = math.exp %a0 : {A}\n" + matmul("c", "e", "a1", n, 3, 4)
    body += constrain("d", "c", C, layout) + f"%f = arith.addf %d, %d : {C}\n"
    inside = region("r", body, "%f", C, preferred(slices))
    text = function([A, B], [C], f"{inside}return %r : {C}", "x=2, y=2")
    a, b = data(n, 3), data(3, 4)
    np.testing.assert_allclose(run(text, [a, b])[0], 2 * (np.exp(a) @ b), rtol=1e-4, atol=1e-5)


def test_every_trip_of_a_loop_is_counted() -> None:
    T = tensor(8, 6)
    L = laid_out(T, "[x, _]")
    body = (
        "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n%c5 = arith.constant 5 : index\n"
        f"%l = scf.for %i = %c0 to %c5 step %c1 iter_args(%x = %a0) -> ({T}) {{\n"
        + constrain("g", "x", T, "[_, x]") + constrain("h", "g", T, "[x, _]")
        + f"%y = math.exp %g : {T}\n%z = arith.addf %h, %y : {T}\nscf.yield %z : {T}\n}}\nreturn %l : {T}"
    )  # fmt: skip
    once = moves(function([L], [L], body.replace("constant 5", "constant 1"), "x=2"))
    assert once and moves(function([L], [L], body, "x=2")) == once * 5


AHEAD = HINTED.replace("dist-overlap", "dist-overlap{everywhere=true}")


# dist-overlap.


def gathered_by_columns(ranks: int, slices: int) -> str:
    """a b with the rows of both over x, in slices of columns: each slice gathers its columns of b."""
    A, B, C = tensor(40, 16), tensor(16, 12), tensor(40, 12)
    body = matmul("c", "a0", "a1", 40, 16, 12) + constrain("d", "c", C, "[x, t]")
    inside = region("r", body, "%d", C, f'slice = "t={slices}"')
    given = [laid_out(A, "[x, _]"), laid_out(B, "[x, _]")]
    return function(given, [laid_out(C, "[x, _]")], f"{inside}return %r : {C}", f"x={ranks}")


@sampled(4)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("slices", [1, 2, 3, 5])
def test_collectives_a_trip_ahead_change_nothing(ranks: int, slices: int) -> None:
    """The same bits and bytes; the gather of a slice stands in front of the product before it."""
    text = gathered_by_columns(ranks, slices)
    inputs = [data(40, 16), data(16, 12)]
    (before,), (after,) = run(text, inputs), run(text, inputs, AHEAD)
    np.testing.assert_array_equal(after, before)
    np.testing.assert_allclose(after, inputs[0] @ inputs[1], rtol=1e-4, atol=1e-5)
    bundle, _, program = built(text, AHEAD)
    assert [(c.op, c.bytes) for c in bundle.manifest.collectives] == moves(text)
    if slices > 2:
        loop = program[program.index("scf.for") :]
        assert program.index("dist.all_gather") < program.index("scf.for")
        assert loop.index("dist.all_gather") < loop.index("linalg.matmul")


@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(2, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(0, 2)
)
def test_random_loops_with_collectives_ahead(
    ranks: int, trips: int, n: int, step: int, low: int
) -> None:
    """A loop that reads columns of an input at its counter, gathers and reduces them, and adds them up."""
    width = low + trips * step
    A, P, R = tensor(n, width), tensor(n, 1), tensor(n, width)
    layout = laid_out(A, "[x, _]")
    body = (
        f"%lo = arith.constant {low} : index\n%hi = arith.constant {width} : index\n"
        f"%st = arith.constant {step} : index\n"
        f"%l = scf.for %k = %lo to %hi step %st iter_args(%s = %a0) -> ({A}) {{\n"
        f"%p = tensor.extract_slice %a1[0, %k] [{n}, 1] [1, 1] : {A} to {P}\n"
        + constrain("g", "p", P, "[_, _]")
        + constrain("q", "g", P, "[x, _]")
        + f"%u = tensor.insert_slice %q into %s[0, %k] [{n}, 1] [1, 1] : {P} into {A}\n"
        f"%v = arith.addf %u, %u : {R}\nscf.yield %v : {A}\n}}\nreturn %l : {A}"
    )
    text = function([layout, layout], [layout], body, f"x={ranks}")
    a, b = data(n, width), data(n, width, seed=4)
    wanted = a.copy()
    for k in range(low, width, step):
        wanted[:, k] = b[:, k]
        wanted = wanted + wanted
    for pipeline in (HINTED, AHEAD):
        np.testing.assert_allclose(run(text, [a, b], pipeline)[0], wanted, rtol=1e-5)


def test_overlap_is_answered() -> None:
    for value, reason in (
        ("auto", "1 of 1 collectives run ahead: all_gather over x"),
        ("none", ""),
    ):
        text = gathered_by_columns(2, 3).replace('"t=3"', f'"t=3", overlap = "{value}"')
        lines = [e for e in built(text)[1].entries() if e.key == "overlap"]
        assert lines and all(e.outcome == "honoured" and reason in e.reason for e in lines)
