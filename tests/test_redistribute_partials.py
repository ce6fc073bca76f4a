"""Pending reductions in plans: scattered as they are reduced, in their order, and made pending for nothing.

The ranks hold operands that all differ here, so that none can be dropped or counted twice unseen.
"""

from itertools import product

import numpy as np
import pytest
from depth import DEEP, examples, thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.engines import run_cases
from plan.sweep import check, sample
from strategies import KINDS, all_layouts, any_layouts, meshes, shapes

from meshweave.errors import PlanError
from meshweave.layout import Layout, Mesh, gather
from meshweave.plan import cache_clear, cache_info, plan_redistribute
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import BLOCK_OPS

X2Y2, X2Y3, CUBE = Mesh(x=2, y=2), Mesh(x=2, y=3), Mesh(x=2, y=2, z=2)
SETTINGS = [
    (X2Y2, (16, 8)),
    (X2Y2, (1024, 1024)),
    (X2Y2, (7, 5)),
    (X2Y3, (12, 6)),
    (X2Y3, (6, 7)),
]
P = Layout.parse


def operands(mesh, layout, shape):
    """An allocation for each rank; ranks that hold the same elements agree."""
    random = np.random.default_rng(0)
    held = [ref for dim in range(layout.ndim) for ref in layout.axes_of(dim)]
    own = {}
    for rank in range(mesh.nranks):
        at = tuple(mesh.coordinate(rank, ref) for ref in (*held, *layout.partial_axes()))
        if at not in own:
            buffer = layout.allocation_shape(mesh, shape)
            own[at] = random.integers(1, 5, buffer).astype("f8")
        yield own[at].copy()


def check_operands(mesh, shape, source, target):
    """The value that the operands stand for is the same after the plan."""
    shards = list(operands(mesh, source, shape))
    made = plan_redistribute(source, target, mesh, shape, 8)
    ran = simulate(made.steps, shards, mesh, shape).shards
    with np.errstate(all="ignore"):
        before, after = gather(shards, mesh, source, shape), gather(ran, mesh, target, shape)
    assert np.allclose(before, after, rtol=1e-12), (shape, str(source), str(target), str(made))


def test_every_operand_counts_once():
    for mesh, shape, source, target in thinned(sample(2 if DEEP else 1, seed=2), 2):
        if source.partial and not any(
            ":" in a for d in range(len(shape)) for a in source.axes_of(d)
        ):
            check_operands(mesh, shape, source, target)


@settings(max_examples=examples(300))
@given(st.data(), meshes(), st.integers(0, 2))
def test_every_operand_of_any_layout_counts_once(data, mesh, ndim):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=KINDS)) for _ in range(2))
    check_operands(mesh, shape, source, target)


def plans(mesh, shape):
    every = all_layouts(mesh, 2)
    for source, target in product(every, every):
        yield plan_redistribute(source, target, mesh, shape, 4)


@pytest.mark.parametrize("mesh, shape", SETTINGS)
def test_reduce_scatter_before_gathers(mesh, shape):
    for made in plans(mesh, shape):
        ops = [step.op for step in made]
        if "reduce_scatter" in ops and not made.steps[-1].target.partial:
            last = len(ops) - 1 - ops[::-1].index("reduce_scatter")
            assert "all_gather" not in ops[:last], str(made)


@pytest.mark.parametrize("mesh, shape", SETTINGS)
def test_never_all_reduce_and_slice(mesh, shape):
    """What every rank of a group has just reduced is never thrown away by some of them."""
    for made in plans(mesh, shape):
        reduced = set()
        for step in made:
            assert not (step.op == "all_slice" and reduced & set(step.axes)), str(made)
            if step.op == "all_reduce":
                reduced |= set(step.axes)


@pytest.mark.parametrize(
    "source, target, ops",
    [
        ("[_, _] +sum(x)", "[x, _]", ["reduce_scatter"]),
        ("[_, _] +sum(x, y)", "[_, x*y]", ["reduce_scatter"]),
        ("[_, _] +sum(x, y)", "[y, x]", ["reduce_scatter", "reduce_scatter"]),
        ("[_, _] +sum(x)", "[_, y]", ["all_slice", "all_reduce"]),
        ("[y, _] +sum(x)", "[x, _]", ["reduce_scatter", "all_gather", "permute"]),
    ],
)
def test_how_sums_are_scattered(source, target, ops):
    made = plan_redistribute(P(source), P(target), X2Y2, (16, 8), 4, ops=BLOCK_OPS)
    assert sorted(step.op for step in made) == sorted(ops)


@pytest.mark.parametrize(
    "target, ops, nbytes",
    [
        ("[_, _]", ["all_slice", "all_reduce", "all_gather"], 5 << 20),
        ("[y, _]", ["all_slice", "reduce_scatter", "all_gather"], 2 << 20),
    ],
)
def test_replicas_share_the_work_of_reducing(target, ops, nbytes):
    """Over an idle axis each replica reduces a part, and then they gather."""
    made = plan_redistribute(P("[_, _] +sum(y)"), P(target), Mesh(x=2, y=4), (1024, 1024), 4)
    assert [step.op for step in made] == ops and made.nbytes == nbytes


MIXED = [
    ("[_, _] +sum(x) +max(y)", "[_, _]"),
    ("[_, _] +max(y) +sum(x)", "[_, _]"),
    ("[_, _] +sum(x) +max(y)", "[x, y]"),
    ("[_, _] +sum(x) +max(y)", "[_, _] +max(y)"),
    ("[_, _] +sum(x) +max(y)", "[x, _] +max(y)"),
    ("[_, _] +sum(x) +max(y)", "[_, _] +max(y) +sum(x)"),
    ("[_, _] +avg(x) +prod(y)", "[y, x]"),
    ("[_, z] +sum(x) +max(y)", "[x*y, z]"),
    ("[_*z, _] +min(x) +sum(y)", "[x, _]"),
]


@pytest.mark.parametrize("source, target", MIXED)
def test_mixed_kinds_in_their_order(source, target):
    """A sum of maxima is no maximum of sums: the reductions happen in the order written."""
    check_operands(CUBE, (6, 7), P(source), P(target))
    check(CUBE, (8, 4), P(source), P(target))


def test_an_inner_reduction_is_never_left_for_later():
    made = plan_redistribute(P("[_] +sum(x) +max(y)"), P("[_] +sum(x)"), X2Y2, (8,), 4)
    reduced = [step.kind for step in made if step.op in ("all_reduce", "reduce_scatter")]
    assert reduced == ["sum", "max"]  # a maximum over y of sums: the sums first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", ["x", "x, y"])
def test_replicate_to_partial(kind, axes):
    source, target = P("[_, _]"), P(f"[_, _] +{kind}({axes})")
    made = check(X2Y2, (5, 4), source, target)
    assert [step.op for step in made] == ["local"] and made.nbytes == 0 == made.launches


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "avg"])
@pytest.mark.parametrize("shape", [(8, 4), (7, 3)])
def test_shard_to_partial_moves_nothing(kind, shape):
    made = check(X2Y2, shape, P("[x, y]"), P(f"[_, y] +{kind}(x)"))
    assert [step.op for step in made] == ["embed"] and made.nbytes == 0 == made.launches


@pytest.mark.parametrize("kind", KINDS)
def test_partials_compiled(kind):
    rows = [("[_, _]", "[_, _] +{}(x)"), ("[x, y]", "[_, y] +{}(x)"), ("[_, y] +{}(x)", "[x, _]")]
    asked = [(X2Y2, (6, 5), P(a.format(kind)), P(b.format(kind))) for a, b in rows]
    results = [wrong for _, wrong in run_cases(asked, "local")]
    assert results == [None] * len(asked)


def test_a_reduction_that_certain_steps_cannot_do_is_refused():
    with pytest.raises(PlanError, match=r"\[x\] \+sum\(y\) -> \[x\]: it takes"):
        plan_redistribute(P("[x] +sum(y)"), P("[x]"), X2Y2, (8,), 4, ops=("all_slice",))


def test_cache_info():
    cache_clear()
    assert cache_info().hits == 0 == cache_info().currsize
    one = plan_redistribute(P("[_] +sum(x)"), P("[x]"), X2Y2, (8,), 4)
    assert plan_redistribute(P("[_*1] +sum(x)"), P("[x*_]"), Mesh(x=2, y=2), [8], 4) is one
    assert (cache_info().hits, cache_info().misses, cache_info().currsize) == (1, 1, 1)
    plan_redistribute(P("[_] +sum(x)"), P("[x]"), X2Y2, (9,), 4)
    assert cache_info().misses == 2
    cache_clear()
    assert cache_info().currsize == 0
