"""Plans: every one is exact and says truly what it moves; what they should be, by hand; how much work they are."""

import sys
from functools import partial
from itertools import product
from statistics import median

import numpy as np
import pytest
from depth import examples, sampled, thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import KINDS, all_layouts, any_layouts, layouts, meshes, numbered, shapes

from benchmarks.redistribute import HARD, forget, questions
from meshweave.errors import LayoutError, PlanError
from meshweave.layout import Axis, Layout, Link, Mesh, dim_indices, gather, scatter
from meshweave.plan.cost import SHARED_MEMORY
from meshweave.plan.moves import Moves, State
from meshweave.plan.redistribute import cache_clear, cache_info, plan_redistribute
from meshweave.plan.search import Search
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import BLOCK_OPS, COLLECTIVES, PlanStep

X2Y2 = Mesh(x=2, y=2)
X2Y3 = Mesh(x=2, y=3)
CUBE = Mesh(x=2, y=2, z=2)


def plan(source, target, mesh=X2Y2, shape=(16, 8), itemsize=4, **options):
    return plan_redistribute(
        Layout.parse(source), Layout.parse(target), mesh, shape, itemsize, **options
    )


def check_exact(source, target, mesh, shape):
    """Run the plan on the simulator: every element in its place, and the bytes as stated."""
    value = numbered(shape)
    made = plan_redistribute(source, target, mesh, shape, value.itemsize)
    ran = simulate(made.steps, scatter(value, mesh, source), mesh, shape)
    story = (str(mesh), shape, str(source), str(target), list(map(str, made)))
    with np.errstate(all="ignore"):
        assert np.array_equal(gather(ran.shards, mesh, target, shape), value), story
    for rank in range(mesh.nranks) if not target.partial else ():
        begin = target.offsets(mesh, shape, rank)
        sizes = target.valid_shape(mesh, shape, rank)
        mine = value[tuple(slice(b, b + s) for b, s in zip(begin, sizes))]
        held = ran.shards[rank][tuple(map(slice, sizes))]
        assert np.array_equal(held, mine), (rank, story)
    assert ran.busiest == tuple(step.nbytes for step in made), story
    assert sum(ran.busiest) == made.nbytes >= made.lower_bound, story
    assert made.launches == sum(step.op in COLLECTIVES for step in made)
    return made


@pytest.mark.parametrize("mesh", [Mesh(x=2), Mesh(x=4), X2Y2, X2Y3], ids=str)
def test_every_plan_of_one_dim_is_exact(mesh):
    every = all_layouts(mesh, 1, ("sum", "max"))
    for source, target, size in product(every, every, thinned((7, 1, 0, 2, 6, 5, 10, 8), 2)):
        check_exact(source, target, mesh, (size,))


@pytest.mark.parametrize("mesh", [Mesh(x=2), Mesh(x=4), X2Y2, X2Y3], ids=str)
def test_every_plan_of_two_dims_is_exact(mesh):
    every = all_layouts(mesh, 2)
    for source, target, shape in product(
        every, every, thinned(((6, 7), (8, 10), (2, 0), (5, 1)), 2)
    ):
        check_exact(source, target, mesh, shape)


@settings(max_examples=examples(400))
@given(st.data(), meshes(), st.integers(0, 3))
def test_any_plan_is_exact(data, mesh, ndim):
    source = data.draw(layouts(mesh, ndim, kinds=KINDS))
    target = data.draw(layouts(mesh, ndim, kinds=KINDS))
    check_exact(source, target, mesh, data.draw(shapes(ndim)))


@settings(max_examples=examples(300))
@given(st.data())
def test_any_plan_over_three_axes_is_exact(data):
    source, target = data.draw(layouts(CUBE, 2)), data.draw(layouts(CUBE, 2))
    check_exact(source, target, CUBE, data.draw(shapes(2)))


@given(st.data(), meshes(), st.integers(1, 2))
def test_the_plan_that_is_always_there_is_exact(data, mesh, ndim):
    source, target = data.draw(layouts(mesh, ndim)), data.draw(layouts(mesh, ndim))
    shape = data.draw(shapes(ndim))
    start, end = State.of(source, mesh, shape), State.of(target, mesh, shape)
    value, state = numbered(shape), start
    shards = scatter(value, mesh, start.layout(mesh))
    for move in Moves(mesh, shape, end).certain(start):
        fields = {"dim": move.dim, "kind": move.kind}
        step = PlanStep(
            move.op, move.axes, state.layout(mesh), move.state.layout(mesh), 0, **fields
        )
        shards = simulate([step], shards, mesh, shape).shards
        state = move.state
    assert state == end
    with np.errstate(all="ignore"):
        assert np.array_equal(gather(shards, mesh, target, shape), value)


@pytest.mark.parametrize(
    "source, target, ops, nbytes",
    [
        ("[x, _]", "[x, _]", [], 0),
        ("[_, _]", "[x, y]", ["all_slice", "all_slice"], 0),
        ("[x, _]", "[_, _]", ["all_gather"], 256),
        ("[x*y, _]", "[_, _]", ["all_gather"], 384),
        ("[x*y, _]", "[x, _]", ["all_gather"], 128),
        ("[x, _]", "[_, x]", ["all_to_all"], 128),
        ("[x*y, _]", "[_, x*y]", ["all_to_all"], 96),
        ("[x*y, _]", "[y*x, _]", ["permute"], 128),
        ("[x, y]", "[y, x]", ["permute"], 128),
        ("[x, _]", "[_, y]", ["all_slice", "all_gather"], 128),
        ("[_, _] +sum(x)", "[_, _]", ["all_reduce"], 512),
        ("[_, _] +sum(x, y)", "[_, _]", ["all_reduce"], 768),
        ("[_, _] +max(x)", "[x, _]", ["reduce_scatter"], 256),
        ("[_, _] +sum(x)", "[_, x]", ["reduce_scatter"], 256),
        ("[_, y] +sum(x)", "[x, y]", ["reduce_scatter"], 128),
        ("[_, _] +sum(x, y)", "[x*y, _]", ["reduce_scatter"], 384),
        ("[_, _]", "[_, _] +sum(x)", ["local"], 0),
        ("[x, _] +sum(y)", "[y, _] +sum(x)", ["permute"], 256),
    ],
)
def test_plans_by_hand(source, target, ops, nbytes):
    made = plan(source, target)
    assert ([step.op for step in made], made.nbytes) == (ops, nbytes)


def test_an_axis_of_size_1_costs_no_step():
    mesh = Mesh(dp=4, tp=1)
    assert plan("[_, tp]", "[tp, _]", mesh).steps == ()
    made = plan("[dp*tp, _] +sum(tp)".replace("*tp", ""), "[_, tp]", mesh)
    assert [step.op for step in made] == ["all_gather"]
    assert str(made.steps[0].source) == "[dp, _] +sum(tp)"
    assert str(made.steps[0].target) == "[_, tp]"


def test_steps_form_a_chain():
    made = plan("[x*y, z]", "[z, y*x]", CUBE)
    assert str(made.steps[0].source) == "[x*y, z]" and str(made.steps[-1].target) == "[z, y*x]"
    for one, other in zip(made.steps, made.steps[1:]):
        assert one.target == other.source


def test_an_uneven_dim_is_never_cut_where_pieces_do_not_fit():
    # 6 rows over y=2 are 3 and 3, over y and x 2 2 2 0: no cut of [y] is [y*x].
    steps = plan("[y, _] +sum(x)", "[y*x, _]", shape=(6, 8)).steps
    assert all(
        not (step.op == "reduce_scatter" and str(step.target) == "[y*x, _]") for step in steps
    )


def test_what_a_plan_states():
    made = plan("[x, _]", "[_, y]")
    assert made.as_dict() == {
        "steps": [
            {"op": "all_slice", "axes": ["y"], "bytes": 0, "dim": 1},
            {"op": "all_gather", "axes": ["x"], "bytes": 128, "dim": 0},
        ],
        "bytes": 128,
        "lower_bound": 128,
        "launches": 1,
        "peak_bytes": 384,
        "staging_bytes": 128,
        "proved_minimal": True,
        "search_stopped": False,
    }
    assert "all_gather (x), dim=0: [x, y] -> [_, y], 128 bytes" in map(str, made)


@given(st.data(), meshes())
def test_the_lower_bound_counts_what_the_worst_rank_misses(data, mesh):
    shape = data.draw(shapes(2))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=())) for _ in range(2))
    worst = 0
    for rank in range(mesh.nranks):
        have, want = (
            [set(dim_indices(layout, mesh, shape, dim, rank).tolist()) - {-1} for dim in range(2)]
            for layout in (source, target)
        )
        held = len(have[0] & want[0]) * len(have[1] & want[1])
        worst = max(worst, len(want[0]) * len(want[1]) - held)
    assert plan_redistribute(source, target, mesh, shape, 4).lower_bound == 4 * worst


@settings(max_examples=examples(60))
@given(st.data(), meshes())
def test_the_estimate_loses_no_cheaper_plan(data, mesh):
    shape = data.draw(shapes(2))
    source, target = (
        State.of(data.draw(layouts(mesh, 2, kinds=("sum",))), mesh, shape) for _ in range(2)
    )
    search = Search(Moves(mesh, shape, target), 4, SHARED_MEMORY, limit=20_000)
    quick = search.path(source, 1 << 40)
    search.rest = lambda state: 0.0
    slow = search.path(source, 1 << 40)
    assert sum(map(search.seconds, quick)) == pytest.approx(sum(map(search.seconds, slow)))


def test_a_slow_link_is_avoided():
    mesh = Mesh(Axis("x", 2, Link(1e-3, 1e-6)), Axis("y", 2, Link(1e-9, 1e-12)))
    assert plan("[_, _] +sum(x, y)", "[x, y]", mesh).steps[0].axes == ("y",)


def test_memory_is_kept():
    made = plan("[x, _]", "[_, x]")
    assert made.peak_bytes == 512
    assert plan("[x, _]", "[_, x]", memory_bytes=512) == made
    with pytest.raises(PlanError, match=r"\[x, _\] -> \[_, x\]: no plan found within 511 bytes"):
        plan("[x, _]", "[_, x]", memory_bytes=511)


@pytest.mark.parametrize(
    "source, target, error, message",
    [
        ("[x]", "[_, x]", LayoutError, r"layout \[x\] has 1 dims, the tensor 16x8 has 2"),
        ("[w, _]", "[_, x]", LayoutError, r'layout \[w, _\]: no axis "w" in mesh \(x=2, y=2\)'),
        ("[_*x, _]", "[_, x]", PlanError, "it takes exchange, of which none may be used"),
        ("[_, _]", "[_, _] order(1, 0)", PlanError, "it takes relayout, of which none may"),
    ],
)
def test_what_cannot_be_planned_is_said(source, target, error, message):
    with pytest.raises(error, match=message):
        plan(source, target, ops=BLOCK_OPS)


def test_plans_are_cached_by_value_and_the_same_every_time():
    cache_clear()
    made = plan("[x*y, _]", "[_, y]")
    assert plan("[x * y, _]", "[_, y*_]", Mesh(x=2, y=2)) is made
    assert cache_info().hits == 1 and cache_info().misses == 1
    cache_clear()
    assert plan("[x*y, _]", "[_, y]") == made


@sampled(4)
@pytest.mark.parametrize(
    "mesh, shape, pairs",
    list(questions()),
    ids=lambda it: None if isinstance(it, list) else str(it),
)
def test_planning_is_little_work(monkeypatch, mesh, shape, pairs):
    """Layouts whose moves are looked at, and the moves: at the median 15 and 150, at most 250 and 4000, however many
    ranks there are; nothing when it is asked again.
    """
    states, moves = [], []
    every_move = Moves.of

    def counted(self, state):
        states[-1] += 1
        for move in every_move(self, state):
            moves[-1] += 1
            yield move

    monkeypatch.setattr(Moves, "of", counted)
    for source, target in pairs:
        cache_clear()
        states.append(0)
        moves.append(0)
        made = plan(source, target, mesh, shape)
        looked_at = states[-1]
        assert plan(source, target, mesh, shape) is made and states[-1] == looked_at
    assert median(states) <= 15 and max(states) <= 250
    assert median(moves) <= 150 and max(moves) <= 4000


def test_planning_is_no_more_work_on_more_ranks():
    """The same layouts on 16 ranks and on 16384: not 1024 times as many calls of functions, but less than twice."""
    calls = []
    for mesh in (Mesh(a=2, b=2, c=2, d=2), Mesh(a=16, b=16, c=8, d=8)):
        calls.append(0)
        for source, target in HARD:
            forget()
            calls[-1] += called(partial(plan, source, target, mesh, (4097, 4001, 61, 63)))
    assert calls[1] < 2 * calls[0]


def called(action) -> int:
    """How many functions are called, of Python and of C."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def test_a_large_mesh_is_planned_exactly():
    mesh = Mesh(a=4, b=4, c=2, d=2)
    made = plan("[a*b, c, d, _]", "[d, b*a, _, c]", mesh, (64, 64, 64, 64))
    value = numbered((16, 16, 4, 4))
    source, target = made.steps[0].source, made.steps[-1].target
    made = plan_redistribute(source, target, mesh, value.shape, 8)
    ran = simulate(made.steps, scatter(value, mesh, source), mesh, value.shape)
    assert np.array_equal(gather(ran.shards, mesh, target, value.shape), value)
