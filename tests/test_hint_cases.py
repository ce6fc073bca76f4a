"""Programs in slices, by name: run on the local engine, compared with NumPy, and with each other bit by bit."""

from typing import Any

import numpy as np
import pytest
from depth import sampled
from hint_programs import (
    REDUCE,
    attention,
    built,
    check,
    constrain,
    data,
    function,
    matmul,
    np_softmax,
    region,
    run,
    softmax,
    tensor,
)

from meshweave.errors import CompileError


@sampled(4)
@pytest.mark.parametrize("n, slices", [(16, 4), (16, 16), (3, 3), (10, 4), (5, 4), (7, 2), (1, 1)])
def test_elementwise_chain(n: int, slices: int) -> None:
    T = tensor(n, 6)
    chain = f"%1 = arith.addf %a0, %a1 : {T}\n%2 = math.exp %1 : {T}\n%3 = arith.mulf %2, %a0 : {T}"

    def make(hints: str) -> str:
        inside = region("r", chain, "%3", T, f'slice = "t={slices}", {hints}')
        return function([T, T], [T], f"{inside}return %r : {T}")

    a, b = data(n, 6), data(n, 6, seed=1)
    check(make, [a, b], [np.exp(a + b) * a])


@pytest.mark.parametrize("hints", ['order = "dfs"', "width = 3 : i64"])
def test_ragged_slices_copy_no_whole_tensor(hints: str) -> None:
    """The last slice begins earlier: input and result are read and written where they are."""
    T = tensor(1000, 6)
    body = f"%1 = math.exp %a0 : {T}\n%2 = arith.mulf %1, %a0 : {T}"
    inside = region("r", body, "%2", T, f'slice = "t=7", {hints}')
    text = function([T], [T], f"{inside}return %r : {T}")
    bundle, _, program = built(text)
    assert "tensor.pad" not in program and program.count("arith.minui") >= 1
    assert bundle.manifest.arena_bytes <= 4 * 143 * 6 * 4
    a = data(1000, 6)
    np.testing.assert_allclose(run(text, [a])[0], np.exp(a) * a, rtol=2e-5)


@sampled(4)
@pytest.mark.parametrize("size, slices", [(4, 4), (5, 4), (16, 1), (100, 1)])
def test_slices_of_a_size(size: int, slices: int) -> None:
    T = tensor(16, 6)

    def make(hints: str) -> str:
        inside = region("r", f"%1 = math.exp %a0 : {T}", "%1", T, f'slice = "t:{size}", {hints}')
        return function([T], [T], f"{inside}return %r : {T}")

    a = data(16, 6)
    check(make, [a], [np.exp(a)])
    assert f"{slices} slices" in built(make('order = "dfs"'))[1].report()


@sampled(4)
@pytest.mark.parametrize("slices", [1, 2, 5, 8])
@pytest.mark.parametrize("along", ["[t, _]", "[_, t]", "K"])
def test_matmul(along: str, slices: int) -> None:
    m, k, n = 10, 16, 12
    A, C = tensor(m, k), tensor(m, n)
    placed = (
        constrain("p", "a0", A, "[_, t]")
        if along == "K"
        else "%p = tensor.cast %a0 : " + (f"{A} to {A}\n")
    )
    body = placed + matmul("c", "p", "a1", m, k, n)
    last = "c"
    if along != "K":
        body, last = body + constrain("d", "c", C, along), "d"

    def make(hints: str) -> str:
        inside = region("r", body, f"%{last}", C, f'slice = "t={slices}", {hints}')
        return function([A, tensor(k, n)], [C], f"{inside}return %r : {C}")

    a, b = data(m, k), data(k, n)
    check(make, [a, b], [a @ b])


def test_matmul_on_k_adds_in_place() -> None:
    """The accumulator is the result: no partial product is held."""
    A, B, C = tensor(8, 64), tensor(64, 8), tensor(8, 8)
    body = constrain("p", "a0", A, "[_, t]") + matmul("c", "p", "a1", 8, 64, 8)
    inside = region("r", body, "%c", C, 'slice = "t=8", order = "dfs"')
    bundle, _, text = built(function([A, B], [C], f"{inside}return %r : {C}"))
    assert text.count("= linalg.matmul") == 1 and "iter_args" in text
    assert bundle.manifest.arena_bytes <= 8 * 8 * 4


def test_what_reads_a_sum_runs_behind_the_loop() -> None:
    A, B, C = tensor(6, 16), tensor(16, 4), tensor(6, 4)
    body = constrain("p", "a0", A, "[_, t]") + matmul("c", "p", "a1", 6, 16, 4)
    body += f"%e = math.exp %c : {C}\n"

    def make(hints: str) -> str:
        inside = region("r", body, "%e", C, f'slice = "t=4", {hints}')
        return function([A, B], [C], f"{inside}return %r : {C}")

    a, b = data(6, 16), data(16, 4)
    check(make, [a, b], [np.exp(a @ b)])
    assert (
        "runs once, when all slices of t have been added up"
        in built(make('order="dfs"'))[1].report()
    )


@sampled(1)
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_off_its_dim(dim: int) -> None:
    T = tensor(8, 6)

    def make(hints: str) -> str:
        inside = region("r", softmax("s", "a0", T, dim), "%s", T, f'slice = "t=3", {hints}')
        return function([T], [T], f"{inside}return %r : {T}")

    a = data(8, 6)
    check(make, [a], [np_softmax(a, dim)])


def test_softmax_along_its_own_dim_is_refused_by_name() -> None:
    T = tensor(8, 6)
    body = constrain("p", "a0", T, "[_, t]") + softmax("s", "p", T, 1)
    inside = region("r", body, "%s", T, 'slice = "t=3"')
    text = function([T], [T], f"{inside}return %r : {T}")
    with pytest.raises(
        CompileError, match=r"'linalg.softmax' at .* needs dim 1 of .* whole, and t cuts it"
    ):
        built(text)


@sampled(4)
@pytest.mark.parametrize(
    "op, init, fold",
    [("arith.addf", "0.0", np.sum), ("arith.maximumf", "0xFF800000", np.max),
     ("arith.minimumf", "0x7F800000", np.min), ("arith.addf", "2.5", lambda x, a: x.sum(a) + 2.5)],
)  # fmt: skip
@pytest.mark.parametrize("n, slices", [(12, 4), (10, 4), (3, 3)])
def test_reductions_are_accumulated(op: str, init: str, fold: Any, n: int, slices: int) -> None:
    T, R = tensor(5, n), tensor(5)
    body = constrain("p", "a0", T, "[_, t]")
    body += REDUCE.format(name="s", value="p", m=5, n=n, op=op, init=init)

    def make(hints: str) -> str:
        inside = region("r", body, "%s", R, f'slice = "t={slices}", {hints}')
        return function([T], [R], f"{inside}return %r : {R}")

    a = data(5, n)
    check(make, [a], [fold(a, 1)])


def test_a_spelt_out_softmax_along_its_dim_is_refused_by_the_op_that_reads_the_sum() -> None:
    T, R = tensor(5, 12), tensor(5)
    body = constrain("p", "a0", T, "[_, t]")
    body += REDUCE.format(name="s", value="p", m=5, n=12, op="arith.addf", init="0.0")
    body += f"%b0 = tensor.empty() : {T}\n%b = linalg.broadcast ins(%s : {R}) outs(%b0 : {T}) "
    body += f"dimensions = [1]\n%q = arith.divf %p, %b : {T}\n"
    inside = region("r", body, "%q", T, 'slice = "t=4"')
    with pytest.raises(CompileError, match=r"reads the complete reduction of 'linalg.generic'"):
        built(function([T], [T], f"{inside}return %r : {T}"))


def test_the_same_value_twice() -> None:
    T = tensor(8, 6)
    body = f"%1 = arith.addf %a0, %a0 : {T}\n%2 = arith.mulf %1, %1 : {T}"

    def make(hints: str) -> str:
        inside = region("r", body, "%2", T, f'slice = "t=4", {hints}')
        return function([T], [T], f"{inside}return %r : {T}")

    a = data(8, 6)
    check(make, [a], [(a + a) ** 2])


def test_broadcast_of_an_operand_without_the_sliced_dim() -> None:
    T, V = tensor(8, 6), tensor(6)
    body = (
        f"%0 = tensor.empty() : {T}\n%e = math.exp %a1 : {V}\n"
        f"%1 = linalg.broadcast ins(%e : {V}) outs(%0 : {T}) dimensions = [0]\n"
        f"%2 = arith.addf %a0, %1 : {T}\n"
    ) + constrain("3", "2", T, "[t, _]")

    def make(hints: str) -> str:
        inside = region("r", body, "%3", T, f'slice = "t=4", {hints}')
        return function([T, V], [T], f"{inside}return %r : {T}")

    a, v = data(8, 6), data(6)
    check(make, [a, v], [a + np.exp(v)])
    _, ledger, text = built(make('order = "dfs"'))
    assert "runs once, before them" in ledger.report()
    assert text.index("math.exp") < text.index("scf.for")


def test_diamond() -> None:
    T = tensor(9, 6)
    body = (
        f"%1 = math.exp %a0 : {T}\n%2 = arith.addf %1, %a0 : {T}\n%3 = arith.mulf %1, %1 : {T}\n"
        f"%4 = arith.subf %3, %2 : {T}"
    )

    def make(hints: str) -> str:
        inside = region("r", body, "%4", T, f'slice = "t=4", {hints}')
        return function([T], [T], f"{inside}return %r : {T}")

    a = data(9, 6)
    e = np.exp(a)
    check(make, [a], [e * e - (e + a)])


def test_one_input_whole_and_sliced() -> None:
    """a @ a': rows of one side are cut, the other side is needed whole."""
    A, C = tensor(12, 5), tensor(12, 12)
    body = (
        f"%0 = tensor.empty() : {tensor(5, 12)}\n"
        f"%1 = linalg.transpose ins(%a0 : {A}) outs(%0 : {tensor(5, 12)}) permutation = [1, 0]\n"
    ) + matmul("c", "a0", "1", 12, 5, 12)

    def make(hints: str) -> str:
        inside = region("r", body, "%c", C, f'slice = "t=4", {hints}')
        return function([A], [C], f"{inside}return %r : {C}")

    a = data(12, 5)
    check(make, [a], [a @ a.T])


def test_an_intermediate_that_is_needed_whole_is_refused() -> None:
    """e @ e' with e made in the region: its rows are cut for one side and needed whole by the other."""
    A, C = tensor(12, 12), tensor(12, 12)
    body = f"%e = math.exp %a0 : {A}\n" + matmul("c", "e", "e", 12, 12, 12)
    inside = region("r", body, "%c", C, 'slice = "t=4"')
    text = function([A], [C], f"{inside}return %r : {C}")
    with pytest.raises(CompileError, match=r"'linalg.matmul' at .* needs dim . of .* whole"):
        built(text)


@pytest.mark.parametrize("layout", ["[x*t, _]", "[x, t]"])
def test_a_time_axis_and_a_mesh_axis(layout: str) -> None:
    T = tensor(16, 6)
    body = f"%1 = math.exp %a0 : {T}\n" + constrain("2", "1", T, layout)
    body += f"%3 = arith.addf %2, %2 : {T}\n"

    def make(hints: str) -> str:
        inside = region("r", body, "%3", T, f'slice = "t=2", {hints}')
        return function([T], [T], f"{inside}return %r : {T}", mesh="x=4")

    a = data(16, 6)
    check(make, [a], [2 * np.exp(a)])


@sampled(1)
@pytest.mark.parametrize("n", [10, 16])
def test_gather_inside_slices(n: int) -> None:
    """Rows over x; within the region they are needed whole, column slice by column slice."""
    T, C = tensor(n, 12), tensor(n, 12)
    L = '{dist.layout = #dist.layout<"[x, _]">}'
    body = constrain("g", "a0", T, "[_, t]")
    body += matmul("c", "a1", "g", n, n, 12)

    def make(hints: str) -> str:
        inside = region("r", body, "%c", C, f'slice = "t=3", {hints}')
        return function(
            [f"{T} {L}", f"{tensor(n, n)} {L}"], [f"{C} {L}"], f"{inside}return %r : {C}", "x=2"
        )

    a, b = data(n, 12), data(n, n)
    check(make, [a, b], [b @ a])


def test_an_intermediate_is_read_outside() -> None:
    T = tensor(10, 6)
    body = f"%1 = math.exp %a0 : {T}\n%2 = arith.mulf %1, %a0 : {T}\n"

    def make(hints: str) -> str:
        inside = region("r", body, "%1, %2", T, f'slice = "t=4", {hints}')
        return function(
            [T], [T, T], f"{inside}%s = arith.addf %r#0, %r#1 : {T}\nreturn %r#0, %s : {T}, {T}"
        )

    a = data(10, 6)
    e = np.exp(a)
    check(make, [a], [e, e + e * a])


@pytest.mark.parametrize("read", [False, True])
def test_an_intermediate_that_is_read_outside_counts_in_full(read: bool) -> None:
    """Without a reader outside a slice of it is all there ever is; with one, the whole tensor."""
    n = 1024
    T, R = tensor(n, 6), tensor(n)
    body = f"%1 = math.exp %a0 : {T}\n%2 = arith.mulf %1, %1 : {T}\n%3 = arith.addf %2, %1 : {T}\n"
    ends = region("r", body, "%3, %1" if read else "%3", T, 'slice = "t=16", order = "dfs"')
    names = ("r#0", "r#1") if read else ("r",)
    for i, name in enumerate(names):
        ends += REDUCE.format(name=f"s{i}", value=name, m=n, n=6, op="arith.addf", init="0.0")
    sums = [f"%s{i}" for i in range(len(names))]
    ends += f"return {', '.join(sums)} : {', '.join([R] * len(sums))}"
    bundle, _, _ = built(function([T], [R] * len(sums), ends))
    whole = n * 6 * 4
    assert len(sums) * whole <= bundle.manifest.arena_bytes <= (len(sums) + 0.2) * whole


def test_attention() -> None:
    q, k, v = data(6, 8, 4), data(6, 4, 8), data(6, 8, 4, seed=3)
    wanted = np_softmax(q @ k, 2) @ v

    def make(hints: str) -> str:
        return attention(6, 8, 4, f'slice = "t=6", {hints}')

    check(make, [q, k, v], [wanted])


def test_depth_first_holds_one_slice() -> None:
    """64 heads, depth-first against breadth-first: the planned bytes between inputs and output."""
    arenas = {
        order: built(attention(64, 64, 16, f'slice = "t=64", order = "{order}"'))[
            0
        ].manifest.arena_bytes
        for order in ("dfs", "bfs")
    }
    assert arenas["dfs"] * 50 <= arenas["bfs"], arenas
