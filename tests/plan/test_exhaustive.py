"""Any layout to any layout, on the simulator: a part of every case of sweep.py, the count printed;
and the cases that break others, by name.
"""

from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.sweep import cases, check
from strategies import KINDS, all_layouts, any_layouts, meshes, shapes

from meshweave.errors import LayoutError
from meshweave.layout import Layout, Link, Mesh
from meshweave.plan.cost import Profile
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.steps import BLOCK_OPS, COLLECTIVES

PART = 89
X2Y2, X4 = Mesh(x=2, y=2), Mesh(x=4)
P = Layout.parse


@pytest.mark.parametrize("first", range(0, PART, 15))
def test_all_layouts_to_all_layouts(first):
    count = 0
    for case in islice(cases(), first, None, PART):
        check(*case)
        count += 1
    print(f"{count} redistributions, no wrong element")
    assert count > 1600


@settings(max_examples=300)
@given(st.data(), meshes(), st.integers(0, 3))
def test_whatever_the_notation_can_say(data, mesh, ndim):
    shape = data.draw(shapes(ndim))
    source = data.draw(any_layouts(mesh, shape, kinds=KINDS))
    target = data.draw(any_layouts(mesh, shape, kinds=KINDS))
    check(mesh, shape, source, target)


@settings(max_examples=100)
@given(st.data(), meshes(), st.integers(1, 2))
def test_an_exchange_alone_meets_the_bound(data, mesh, ndim):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=())) for _ in range(2))
    made = check(mesh, shape, source, target, ops=("exchange", "relayout"))
    assert made.proved_minimal and made.launches <= 1


ADVERSARIAL = {
    "a dim of size 0": (X2Y2, (0, 4), "[x, _]", "[_, y*x]"),
    "a dim of size 1": (X2Y2, (1, 4), "[x*y, _]", "[_, x]"),
    "an axis of size 1": (Mesh(x=4, one=1), (8, 4), "[x*one, _]", "[one, x]"),
    "more ranks than elements": (Mesh(x=2, y=4), (3,), "[x*y]", "[y*x]"),
    "empty shards": (X4, (5, 2), "[x, _]", "[_, x]"),
    "2 1 1 1 to 2 2 1 0": (X2Y2, (5,), "[x*y] uneven(nested)", "[x*y]"),
    "2 2 1 0 to 2 1 1 1": (X2Y2, (5,), "[x*y]", "[x*y] uneven(nested)"),
    "two axes swapped": (X2Y2, (8, 8), "[x, y]", "[y, x]"),
    "two axes of one dim swapped": (Mesh(x=2, y=3), (12, 5), "[x*y, _]", "[y*x, _]"),
    "three axes swapped": (Mesh(x=2, y=2, z=2), (8, 8, 8), "[x, y, z]", "[z, x, y]"),
    "three axes of one dim swapped": (Mesh(x=2, y=3, z=2), (13,), "[x*y*z]", "[z*x*y]"),
    "FSDP over TP": (Mesh(dp=2, tp=2), (8, 4), "[tp*dp, _]", "[tp, _]"),
    "FSDP over TP, uneven": (Mesh(dp=2, tp=4), (10, 4), "[tp*dp, _] uneven(nested)", "[_, tp]"),
    "a partial sum and a shard": (X2Y2, (8, 6), "[y, _] +sum(x)", "[x, y]"),
    "a partial sum to a shard, uneven": (X2Y2, (7, 5), "[y, _] +sum(x)", "[y*x, _]"),
    "mixed reductions in order": (X2Y2, (4, 4), "[_, _] +sum(x) +max(y)", "[x, y]"),
    "replicated to partial": (X2Y2, (4, 4), "[_, _]", "[_, _] +sum(x, y)"),
    "blocks to partial over the same axis": (X2Y2, (7, 4), "[x, y]", "[_, y] +max(x)"),
    "cyclic to blocks": (X4, (10,), "[_*x]", "[x]"),
    "block-cyclic to cyclic": (X4, (22,), "[_*x*2]", "[_*x]"),
    "column-major to sharded rows": (X4, (6, 5), "[_, _] order(1, 0)", "[x, _]"),
    "sub-axes to the whole axis": (X4, (8, 8), "[x:(1)2, x:(2)2]", "[_, x]"),
    "irregular to even": (X4, (8,), "[x{5,0,1,2}]", "[x]"),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial(name):
    mesh, shape, source, target = ADVERSARIAL[name]
    check(mesh, shape, P(source), P(target))


@pytest.mark.parametrize(
    "mesh, shape, one, other",
    [
        (X4, (8,), "[x]", "[x{2,2,2,2}]"),
        (X4, (10,), "[x]", "[x{3,3,3,1}]"),
        (X4, (8,), "[x]", "[x*2]"),
        (X2Y2, (8,), "[x*y]", "[x*y] uneven(nested)"),
        (X4, (8, 1), "[x, _]", "[x*1*2, _] order(1, 0.0, 0.1, 0.2)"),
        (X4, (8,), "[x]", "[x:(1)2*x:(2)2]"),
        (Mesh(x=4, one=1), (8,), "[x] +sum(one)", "[x]"),
        (X4, (8, 6), "[x, _]", "[x, 2*_]"),
    ],
)
def test_another_spelling_of_a_layout_moves_no_bytes(mesh, shape, one, other):
    for source, target in ((one, other), (other, one)):
        made = check(mesh, shape, P(source), P(target))
        assert made.nbytes == 0 and made.launches == 0
        assert all(step.op == "relayout" for step in made), str(made)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(LayoutError, match='expected "sum" or "max"'):
        P("[_] +mean(x)")


def test_reductions_are_scattered_before_anything_is_gathered():
    every = all_layouts(X2Y2, 2)
    for source, target in product(every, every):
        ops = [step.op for step in plan_redistribute(source, target, X2Y2, (16, 8), 4)]
        for kept in ("reduce_scatter", "all_slice"):
            assert "all_reduce" not in ops or kept not in ops[ops.index("all_reduce") :]
        if "reduce_scatter" in ops and not target.partial:
            reduced = len(ops) - 1 - ops[::-1].index("reduce_scatter")
            assert not {"all_gather"} & set(ops[:reduced])


BEST = Profile(Link(0.0, 1.0), 0.0, 1e-12)
"""A machine on which only bytes count: the planner then finds the fewest that its steps can do."""


@pytest.mark.parametrize("shape", [(16, 8), (1024, 1024)])
def test_the_default_plan_keeps_to_the_fewest_bytes(shape):
    every = all_layouts(X2Y2, 2)
    assert len(every) ** 2 >= 256
    total = best = 0
    for source, target in product(every, every):
        made = plan_redistribute(source, target, X2Y2, shape, 4)
        fewest = plan_redistribute(source, target, X2Y2, shape, 4, profile=BEST).nbytes
        total, best = total + made.nbytes, best + fewest
        ends = [np.prod(la.local_shape(X2Y2, shape)) * 4 for la in (source, target)]
        assert made.peak_bytes == max(ends) + made.staging_bytes
        assert made.staging_bytes <= max(ends)
        if not source.partial and not target.partial:
            assert made.proved_minimal, (str(source), str(target))
            alone = plan_redistribute(source, target, X2Y2, shape, 4, ops=("exchange", "relayout"))
            assert alone.nbytes == made.lower_bound and alone.launches <= 1
    assert total <= 1.03 * best


def test_what_plans_of_the_collectives_alone_cost():
    """Without exchanges, two all_to_alls or a permute and one do what one exchange does."""
    made = plan_redistribute(P("[_, x*y]"), P("[y*x, _]"), X2Y2, (16, 8), 4, ops=BLOCK_OPS)
    assert [step.op for step in made] == ["all_to_all", "all_to_all"] and made.nbytes == 128
    made = plan_redistribute(P("[_, x*y]"), P("[y*x, _]"), X2Y2, (16, 8), 4)
    assert [step.op for step in made] == ["exchange"] and made.nbytes == 96
    assert sum(step.op in COLLECTIVES for step in made) == 1
