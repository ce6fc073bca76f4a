"""Values of one form in each case: irregular parts, stencils on their own result, edges, permutations of ranks."""

from typing import Any

import pytest
from depth import some
from verify import by_cases
from verify.mutants import computes_the_same, mutants, verdict
from verify.pairs import compared

from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.verification import check
from meshweave.verification.cases.keys import Keys
from meshweave.verification.cases.ranges import partition
from meshweave.verification.cases.resolve import Resolver, StepLimit
from meshweave.verification.terms.indices import Expr, Var, inside, of_var, plus, substitute, times
from meshweave.verification.terms.ranks import Placing, Ranks, index_var
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import LimitError, Node, Term, Terms

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


def test_products_of_sums_take_steps_for_all_that_they_multiply() -> None:
    terms = Terms(1000, apply)

    def total(first: int) -> Term:
        made = Term(terms.put(Node("argument", (first,), (), "f32"), ()))
        for k in range(first + 1, first + 20):
            other = Term(terms.put(Node("argument", (k,), (), "f32"), ()))
            made = Term(terms.put(Node("arith.addf", (), (made, other), "f32"), ()))
        return made

    made = Node("product", (1, 1), (total(0), total(100)), "f32")
    both, steps = Term(terms.put(made, ())), StepLimit(1000)
    Keys(Resolver(terms, steps), ()).of(both)
    assert 20 * 20 // 8 < 1000 - steps.left < 250
    with pytest.raises(LimitError):
        Keys(Resolver(terms, StepLimit(1000 - steps.left - 1)), ()).of(both)


def test_a_sum_of_many_has_one_number_whatever_its_variables_are_called() -> None:
    terms, size = Terms(1000, apply), 12
    every = tuple([Expr(0, ((Var("h", str(k), 0), 1),)) for k in range(3)])
    table = terms.put(Node("argument", (0,), (), "f32"), (size, size))
    rows = tuple([Term(table, (every[k], every[1]), (None, None)) for k in (0, 2)])
    both = terms.put(Node("product", (1, 1), rows, "f32"), (size,) * 3)
    row = of_var(Var("i", "0", size))
    bound = [of_var(Var("b", str(k), size)) for k in range(2)]

    def total(*places: Expr) -> int:
        body = Term(both, places, (None,) * 3)
        node = terms.put(Node("reduce", ("sum", (size, size)), (body,), "f32"), (size,))
        return keys.of(Term(node, (row,), (None,)))

    keys = Keys(Resolver(terms, StepLimit(1000)), (), written=0)
    right = total(every[0], bound[0], bound[1])  # t[i, p] * t[q, p]
    assert right == total(bound[1], bound[0], every[0])  # t[q, p] * t[i, p]
    assert right == total(every[0], bound[1], bound[0])
    for wrong in ((bound[0], every[0], bound[1]), (every[0], bound[0], bound[0])):
        assert right != total(*wrong)


def test_what_is_proven_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %e = math.exp %a : tensor<4xf32>
  %t = arith.addf ONE, TWO : tensor<4xf32>
  %p = arith.mulf %t, %b : tensor<4xf32>
  %q = arith.mulf %p, %a : tensor<4xf32>
  return %e, %q : tensor<4xf32>, tensor<4xf32>
}"""
    asked, compare = [], check._Check._result

    def result(one: Any, walk: Any, what: str, *rest: Any) -> None:
        asked.append(what)
        compare(one, walk, what, *rest)

    monkeypatch.setattr(check._Check, "_result", result)
    whole = text.replace("ONE", "%a").replace("TWO", "%b")
    local = whole.replace("%p = arith.mulf %t, %b", "%p = arith.mulf %t, %a")
    local = local.replace("%q = arith.mulf %p, %a", "%q = arith.mulf %p, %b")
    assert (
        compared(
            '"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()\n' + whole, local
        ).status
        == 0
    )
    assert asked == ["@main result 0", "@main result 1", "@main result 1"]
