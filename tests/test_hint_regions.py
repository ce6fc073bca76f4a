"""Regions in regions, in loops and around loops, on several time axes; results of several types; loop indices."""

import numpy as np
import pytest
from depth import sampled
from hint_programs import (
    HINTED,
    REDUCE,
    STRIPPED,
    built,
    check,
    constrain,
    data,
    function,
    matmul,
    region,
    run,
    tensor,
)


@pytest.mark.parametrize("second", ["order", "bfs"])
def test_nested_regions(second: str) -> None:
    T, C = tensor(8, 10), tensor(8, 12)
    inner = region("i", matmul("c", "e", "a1", 8, 10, 12) + constrain("d", "c", C, "[_, u]"), "%d", C,
                   'slice = "u=3"' + (', order = "bfs"' if second == "bfs" else ""))  # fmt: skip
    body = f"%e = math.exp %a0 : {T}\n{inner}%f = arith.addf %i, %i : {C}\n"

    def make(hints: str) -> str:
        inside = region("r", body, "%f", C, f'slice = "t=4", {hints}')
        return function([T, tensor(10, 12)], [C], f"{inside}return %r : {C}")

    a, b = data(8, 10), data(10, 12)
    check(make, [a, b], [2 * (np.exp(a) @ b)])


def test_results_of_several_types() -> None:
    T, R = tensor(8, 5), tensor(8)
    body = f"%1 = math.exp %a0 : {T}\n" + REDUCE.format(
        name="s", value="1", m=8, n=5, op="arith.addf", init="0.0"
    )

    def make(hints: str) -> str:
        inside = (
            f'%r:2 = "hint.region"() ({{\n{body}"hint.yield"(%1, %s) : ({T}, {R}) -> ()\n}}) '
            f'{{hints = {{slice = "t=4", {hints}}}}} : () -> ({T}, {R})\n'
        )
        return function([T], [T, R], f"{inside}return %r#0, %r#1 : {T}, {R}")

    a = data(8, 5)
    check(make, [a], [np.exp(a), np.exp(a).sum(1)])


def test_a_region_in_a_loop() -> None:
    T = tensor(8, 6)
    inside = f"%1 = math.exp %x : {T}\n%2 = arith.mulf %1, %h : {T}\n"

    def make(hints: str) -> str:
        within = region("r", inside, "%2", T, f'slice = "t=4", {hints}')
        return function(
            [T],
            [T],
            "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n"
            "%c3 = arith.constant 3 : index\n"
            f"%h = arith.constant dense<0.5> : {T}\n"
            f"%l = scf.for %i = %c0 to %c3 step %c1 iter_args(%x = %a0) -> ({T}) {{\n"
            f"{within}scf.yield %r : {T}\n}}\nreturn %l : {T}",
        )

    a = data(8, 6)
    wanted = a
    for _ in range(3):
        wanted = np.exp(wanted) * np.float32(0.5)
    check(make, [a], [wanted])


def test_a_loop_in_a_region() -> None:
    T = tensor(8, 6)
    body = (
        "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n"
        "%c3 = arith.constant 3 : index\n"
        f"%l = scf.for %i = %c0 to %c3 step %c1 iter_args(%x = %a0) -> ({T}) {{\n"
        f"%y = arith.addf %x, %a1 : {T}\nscf.yield %y : {T}\n}}\n%m = math.exp %l : {T}\n"
    )

    def make(hints: str) -> str:
        within = region("r", body, "%m", T, f'slice = "t=4", {hints}')
        return function([T, T], [T], f"{within}return %r : {T}")

    a, b = data(8, 6), data(8, 6, seed=2) * np.float32(0.1)
    check(make, [a, b], [np.exp(a + b + b + b)])


def test_loop_indices_count_over_all_slices() -> None:
    T = tensor(10, element="i32")
    body = f"""%0 = tensor.empty() : {T}
%1 = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
  iterator_types = ["parallel"]}} ins(%a0 : {T}) outs(%0 : {T}) {{
^bb0(%x: i32, %o: i32):
  %i = linalg.index 0 : index
  %j = arith.index_cast %i : index to i32
  %y = arith.addi %x, %j : i32
  linalg.yield %y : i32
}} -> {T}
"""

    def make(hints: str) -> str:
        inside = region("r", body, "%1", T, f'slice = "t=4", {hints}')
        return function([T], [T], f"{inside}return %r : {T}")

    a = np.arange(10, dtype=np.int32) * 3
    check(make, [a], [a + np.arange(10, dtype=np.int32)])


def test_loop_indices_within_a_loop_of_the_region() -> None:
    T = tensor(10, element="i32")
    body = f"""%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
%c3 = arith.constant 3 : index
%l = scf.for %n = %c0 to %c3 step %c1 iter_args(%q = %a0) -> ({T}) {{
  %0 = tensor.empty() : {T}
  %1 = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]}} ins(%q : {T}) outs(%0 : {T}) {{
  ^bb0(%x: i32, %o: i32):
    %i = linalg.index 0 : index
    %j = arith.index_cast %i : index to i32
    %y = arith.addi %x, %j : i32
    linalg.yield %y : i32
  }} -> {T}
  scf.yield %1 : {T}
}}
"""

    def make(hints: str) -> str:
        inside = region("r", body, "%l", T, f'slice = "t=4", {hints}')
        return function([T], [T], f"{inside}return %r : {T}")

    a = np.arange(10, dtype=np.int32) * 3
    check(make, [a], [a + 3 * np.arange(10, dtype=np.int32)])


EXP_PLUS = "%e = math.exp {x} : {T}\n%f = arith.addf %e, {x} : {T}\n"


@sampled(8)
@pytest.mark.parametrize("mesh", ["", "x=2"])
@pytest.mark.parametrize("layout", [None, "[_, u]", "[t, u]", "[u, _]", "[t*u, _]"])
@pytest.mark.parametrize("shape", [(8, 12), (7, 5), (3, 9)])
def test_a_region_whose_only_op_is_a_region(
    shape: tuple[int, int], layout: "str | None", mesh: str
) -> None:
    T = tensor(*shape)
    body = constrain("p", "a0", T, layout) if layout else ""
    body += EXP_PLUS.format(x="%p" if layout else "%a0", T=T)
    inner = region("i", body, "%f", T, 'slice = "u=2", order = "bfs"')

    def make(hints: str) -> str:
        inside = region("r", inner, "%i", T, f'slice = "t=2", {hints}')
        return function([T], [T], f"{inside}return %r : {T}", mesh)

    a = data(*shape)
    check(make, [a], [np.exp(a) + a], ('order = "dfs"', "width = 3", 'order = "bfs"'))


def test_a_sum_in_the_only_op_of_a_region() -> None:
    """Rows in the outer slices, the sum over k in the inner ones; and one region more around both."""
    A, B, C = tensor(10, 16), tensor(16, 6), tensor(10, 6)
    inner = constrain("p", "a0", A, "[_, u]") + matmul("c", "p", "a1", 10, 16, 6)
    body = region("i", inner, "%c", C, 'slice = "u=4"')
    body = region("m", body, "%i", C, 'bundle = "middle"')

    def make(hints: str) -> str:
        inside = region("r", body, "%m", C, f'slice = "t=3", {hints}')
        return function([A, B], [C], f"{inside}return %r : {C}")

    a, b = data(10, 16), data(16, 6)
    check(make, [a, b], [a @ b])
    report = built(make('order = "dfs"'))[1].report()
    assert "3 slices along t" in report and "4 slices along u" in report


@sampled(8)
@pytest.mark.parametrize("layout", ["[t, u]", "[u, t]", "[t*u, _]", "[_, u*t]", None])
@pytest.mark.parametrize("shape", [(8, 12), (9, 13)])
def test_two_time_axes(layout: "str | None", shape: tuple[int, int]) -> None:
    T = tensor(*shape)
    body = f"%1 = math.exp %a0 : {T}\n"
    body += constrain("2", "1", T, layout) if layout else f"%2 = arith.addf %1, %1 : {T}\n"

    def make(hints: str) -> str:
        inside = region("r", body, "%2", T, f'slice = "t=4, u=2", {hints}')
        return function([T], [T], f"{inside}return %r : {T}")

    a = data(*shape)
    check(make, [a], [np.exp(a) * (1 if layout else 2)])


def test_a_sum_over_one_of_two_time_axes() -> None:
    A, B, C = tensor(10, 16), tensor(16, 6), tensor(10, 6)
    body = constrain("p", "a0", A, "[u, t]") + matmul("c", "p", "a1", 10, 16, 6)

    def make(hints: str) -> str:
        inside = region("r", body, "%c", C, f'slice = "t=4, u=3", {hints}')
        return function([A, B], [C], f"{inside}return %r : {C}")

    a, b = data(10, 16), data(16, 6)
    check(make, [a, b], [a @ b])


def test_hints_of_a_program_without_regions_change_nothing() -> None:
    T = tensor(4)
    text = function([T], [T], f"%1 = math.exp %a0 : {T}\nreturn %1 : {T}")
    a = data(4)
    np.testing.assert_array_equal(run(text, [a], HINTED)[0], run(text, [a], STRIPPED)[0])
