"""Propagation over plain graphs: what spreads, what a decision costs, and what each op then needs."""

from itertools import pairwise

import pytest

from meshweave.layout.factors import PARALLEL, REDUCTION, WHOLE, Factor, Rule, SlidingWindow
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.propagation.propagate import (
    BOTH,
    FORWARD,
    Graph,
    Spec,
    decide,
    propagate,
    refine,
)

MESH = Mesh(x=2, y=2)


def fixed(text: str) -> Spec:
    layout = Layout.parse(text)
    return Spec(layout.block_axes(), (False,) * layout.ndim, fixed=True)


def matmul(m: int = 8, n: int = 6, k: int = 4, safe: bool = True) -> Rule:
    """c[m, n] += a[m, k] b[k, n]."""
    return Rule(
        (Factor(m), Factor(n), Factor(k, REDUCTION)),
        (((0,), (2,)), ((2,), (1,)), ((0,), (1,))),
        (((0,), (1,)),),
        ((m, k), (k, n), (m, n), (m, n)),
        (4 * m * k, 4 * k * n, 4 * m * n, 4 * m * n),
        reduction="sum",
        inits=(2,),
        padding_safe=safe,
    )


def elementwise(*shape: int) -> Rule:
    dims = tuple((d,) for d in range(len(shape)))
    return Rule(tuple(map(Factor, shape)), (dims,), (dims,), (shape, shape), (64, 64))


UNKNOWN = Spec.unknown(2)


def texts(layouts) -> list[str]:
    return [str(layout) for layout in layouts]


def test_rows_of_a_spread_to_rows_of_the_product():
    new = refine(matmul(), (fixed("[x, _]"), fixed("[_, y]"), None, UNKNOWN), MESH)
    assert str(new[3].layout()) == "[x, y]"


def test_forwards_only_leaves_operands_alone():
    specs = (UNKNOWN, UNKNOWN, None, fixed("[x, y]"))
    assert refine(matmul(), specs, MESH, FORWARD) == specs
    assert str(refine(matmul(), specs, MESH, BOTH)[0].layout()) == "[x, _]"


def test_a_closed_dim_takes_nothing():
    specs = (fixed("[x, _]"), fixed("[_, y]"), None, fixed("[_, _]"))
    assert refine(matmul(), specs, MESH) == specs


def test_an_open_dim_grows_but_not_over_axes_it_may_not_use():
    open_ = Spec(((), ()), (True, True), forbidden=("x",))
    new = refine(matmul(), (fixed("[x, _]"), fixed("[_, y]"), None, open_), MESH)
    assert str(new[3].layout()) == "[_, y]"


def test_an_axis_is_used_once_in_a_tensor():
    new = refine(matmul(), (fixed("[x, _]"), fixed("[_, x]"), None, UNKNOWN), MESH)
    assert sorted(texts([new[3].layout()])) in (["[_, x]"], ["[x, _]"])


def test_one_row_stays_on_the_rank_that_has_it():
    new = refine(elementwise(1, 8), (fixed("[_, x]"), UNKNOWN), MESH)
    assert str(new[1].layout()) == "[_, x]"
    assert str(refine(elementwise(1, 8), (fixed("[x, _]"), UNKNOWN), MESH)[1].layout()) == "[x, _]"


def test_a_dim_too_small_to_cut_stays_whole():
    """A slice of one row, of a tensor of many."""
    factors, dims = (Factor(1), Factor(8)), ((0,), (1,))
    sizes, window = ((16, 8), (1, 8)), (0, 0, SlidingWindow(low=3))
    rule = Rule(factors, (dims,), (dims,), sizes, (512, 32), windows=(window,))
    assert refine(rule, (fixed("[x, _]"), UNKNOWN), MESH)[1] == UNKNOWN


def test_priorities_wait_for_their_round():
    late = Spec((("x",), ()), (False, False), priority=(1, 0), fixed=True)
    specs = (late, UNKNOWN)
    assert refine(elementwise(8, 8), specs, MESH, BOTH, 0) == specs
    assert str(refine(elementwise(8, 8), specs, MESH, BOTH, 1)[1].layout()) == "[x, _]"


def test_a_contracted_axis_leaves_a_partial_sum():
    specs = (fixed("[x, y]"), fixed("[y, _]"), None, fixed("[x, _]"))
    decision = decide(matmul(k=64), specs, MESH)
    assert texts(decision.operands[:2]) == ["[x, y]", "[y, _]"]
    assert texts(decision.results) == ["[x, _] +sum(y)"]
    assert str(decision.operands[2]) == "[x, _] +sum(y)"  # its initial value counts once


def test_a_maximum_may_count_its_initial_value_on_every_rank():
    rule = Rule(
        (Factor(8, REDUCTION),),
        (((0,),), ()),
        ((),),
        ((8,), (), ()),
        (32, 4, 4),
        reduction="max",
        inits=(1,),
    )
    decision = decide(rule, (fixed("[x]"), None, Spec.unknown(0)), MESH)
    assert texts(decision.results) == ["[] +max(x)"]
    assert str(decision.operands[1]) == "[]"


def test_an_unknown_reduction_is_gathered_never_guessed():
    rule = Rule((Factor(8, REDUCTION),), (((0,),),), ((),), ((8,), ()), (32, 4))
    decision = decide(rule, (fixed("[x]"), Spec.unknown(0)), MESH)
    assert texts(decision.operands + decision.results) == ["[_]", "[]"]


@pytest.mark.parametrize(
    ("rows", "want"),
    [(4096, ["[x, _]", "[_, _]"]), (2, ["[_, x]", "[x, _]"])],
    ids=["gather the small weight", "reduce the small result"],
)
def test_conflicts_move_the_fewest_bytes(rows: int, want: list[str]):
    """Rows of a and rows of b over one axis: the product runs over rows of a, or over the contracted dim."""
    rule = matmul(m=rows, n=64, k=64)
    decision = decide(rule, (fixed("[x, _]"), fixed("[x, _]"), None, UNKNOWN), MESH)
    assert texts(decision.operands[:2]) == want


def test_an_op_that_may_not_meet_padding_is_cut_evenly_or_not():
    uneven = matmul(m=7, safe=False)
    decision = decide(uneven, (fixed("[x, _]"), fixed("[_, y]"), None, fixed("[_, y]")), MESH)
    assert texts(decision.results) == ["[_, y]"]


def test_work_is_shared_where_the_bytes_are_equal():
    specs = (fixed("[_, x]"), fixed("[x, _]"), None, fixed("[_, _]"))
    decision = decide(matmul(m=64, n=64, k=64), specs, MESH)
    assert texts(decision.results) == ["[_, _] +sum(x)"]


def test_a_whole_factor_is_gathered():
    rule = Rule(
        (Factor(8, WHOLE), Factor(8, PARALLEL)),
        (((0,), (1,)),),
        (((0,), (1,)),),
        ((8, 8), (8, 8)),
        (256, 256),
    )
    decision = decide(rule, (fixed("[x, y]"), UNKNOWN), MESH)
    assert texts(decision.operands + decision.results) == ["[_, y]", "[_, y]"]


def test_a_chain_reaches_its_fixpoint_both_ways():
    graph = Graph(rules=[elementwise(8, 6)])
    values = [graph.add_value(UNKNOWN) for _ in range(5)]
    graph.specs[values[2]] = fixed("[x, y]")
    for a, b in pairwise(values):
        graph.add_op(0, (a, b))
    layouts, decisions = propagate(graph, MESH)
    assert texts(layouts) == ["[x, y]"] * 5
    assert all(texts(d.operands + d.results) == ["[x, y]"] * 2 for d in decisions)


def test_a_value_made_anew_carries_nothing_between_its_readers():
    graph = Graph(rules=[elementwise(8, 6)])
    free = graph.add_value(None)
    left, right = graph.add_value(fixed("[x, _]")), graph.add_value(UNKNOWN)
    graph.add_op(0, (free, left))
    graph.add_op(0, (free, right))
    layouts, _ = propagate(graph, MESH)
    assert layouts[free] is None
    assert texts(layouts[1:]) == ["[x, _]", "[_, _]"]


def test_an_axis_goes_to_a_dim_that_all_tensors_have() -> None:
    """From one that must be whole; not where another axis is there, or the dim is not even."""

    def sort(rows: int, columns: int, turns: bool = True) -> Rule:
        factors, sizes = (Factor(rows, WHOLE), Factor(columns)), ((rows, columns),) * 2
        dims = ((0,), (1,))
        return Rule(factors, (dims,), (dims,), sizes, (4 * rows * columns,) * 2, turns=turns)

    new = refine(sort(8, 6), (fixed("[x, _]"), UNKNOWN), MESH)
    assert texts(spec.layout() for spec in new) == ["[x, _]", "[_, x]"]
    assert texts(decide(sort(8, 6), new, MESH).operands) == ["[_, x]"]
    assert refine(sort(8, 6, False), (fixed("[x, _]"), UNKNOWN), MESH)[1] == UNKNOWN
    assert refine(sort(8, 5), (fixed("[x, _]"), UNKNOWN), MESH)[1] == UNKNOWN
    both = refine(sort(8, 6), (fixed("[x, y]"), UNKNOWN), MESH)
    assert texts([both[1].layout()]) == ["[_, y]"]
