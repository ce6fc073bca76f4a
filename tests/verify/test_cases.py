"""Values of one form in each case: irregular parts, stencils on their own result, edges, permutations of ranks."""

import pytest
from depth import some
from verify import by_cases
from verify.mutants import computes_the_same, mutants, verdict
from verify.pairs import compared

from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.verification.cases.ranges import partition
from meshweave.verification.terms.indices import Expr, Var, inside, of_var, plus, substitute, times
from meshweave.verification.terms.ranks import Placing, Ranks, index_var

PROGRAMS = by_cases.traced()
INDEX, RANK = Var("i", "0", 4), Var("x", "x", 3)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_what_has_one_form_in_each_case_is_proven(name: str) -> None:
    assert compared(*PROGRAMS[name]).status == 0


@pytest.mark.parametrize("name", some(["irregular sum", "permuted", "edges", "stencil"], 2))
def test_no_mutant_that_computes_something_else_is_proven(name: str) -> None:
    for mutant in mutants(10, 3, {f"case {name}": PROGRAMS[name]}):
        found = verdict(mutant)
        assert found != "proven" or computes_the_same(mutant), f"{mutant.change}:\n{mutant.local}"


@pytest.mark.parametrize(
    "right, wrong",
    [("sources = [2, 0, 1, 3]", "sources = [2, 1, 0, 3]"), ("[2, 0, 1, 3]", "[1, 2, 0, 3]")],
)
def test_another_permutation_is_refuted(right: str, wrong: str) -> None:
    whole, local = by_cases.PERMUTED
    assert compared(whole, local.replace(right, wrong)).status == 1


@pytest.mark.parametrize("at", range(1, 12))
def test_a_cut_leaves_no_place_out_and_takes_none_twice(at: int) -> None:
    """After some cuts each part lies on one side."""
    expr = plus(times(of_var(RANK), 4), of_var(INDEX))
    todo, places = [expr], []
    while todo:
        here = todo.pop()
        parts = partition((here, at))
        if parts is not None:
            todo += [substitute(here, values) for values in parts]
            continue
        places.append(here)
        assert inside(here, at) or inside(plus(here, Expr(-at)), 12 - at)
    assert sum(_count(e) for e in places) == 12


def _count(expr: Expr) -> int:
    sizes = [v.size for v, _ in expr.terms if isinstance(v, Var)]
    return sizes[0] * sizes[1] if len(sizes) == 2 else sizes[0] if sizes else 1


def test_where_a_rank_is_known_an_irregular_part_is_a_run() -> None:
    placing = Placing(Ranks(Mesh(x=4)), Layout.parse("[x{1,3,0,2}]"), (6,))
    (index,), place = placing.indices, index_var(0, 3)
    second = substitute(index, {Var("x", "x", 4): Expr(1)})
    assert second == plus(of_var(place), Expr(1))
    empty = substitute(index, {Var("x", "x", 4): Expr(2)})
    assert empty == Expr(6)  # beyond the end


def test_a_slice_at_a_number_that_no_rule_computes_is_not_proven() -> None:
    """What it puts is covered by later slices, but where it puts it lies beyond the tensor."""
    loop = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %b = arith.constant FIRST : index
  %n = arith.constant 4 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %r = scf.for %k = %b to %n step %one iter_args(%to = %e) -> (tensor<4xf32>) {
    %q = arith.divui %k, %two : index
    %m = arith.remui %k, %two : index
    %d = arith.muli %q, %two : index
    %p = arith.addi %d, %m : index
    %s = tensor.extract_slice %a[%p] [1] [1] : tensor<4xf32> to tensor<1xf32>
    %i = tensor.insert_slice %s into %to[%p] [1] [1] : tensor<1xf32> into tensor<4xf32>
    scf.yield %i : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}"""
    whole = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"
    assert compared(whole, loop.replace("FIRST", "0")).status == 0
    assert compared(whole, loop.replace("FIRST", "-1")).status == 3
