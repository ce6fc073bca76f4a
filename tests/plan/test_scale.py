"""Plans of a new shape from those of another: the steps, bytes and certificate of a search at this very shape."""

from dataclasses import replace

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.sweep import check
from strategies import KINDS, any_layouts, layouts, meshes, shapes

from meshweave.layout import Axis, Layout, Link, Mesh
from meshweave.plan import redistribute as planner
from meshweave.plan.cost import SHARED_MEMORY, halvings
from meshweave.plan.redistribute import cache_clear, plan_redistribute, search_info
from meshweave.plan.scale import scaled
from meshweave.plan.steps import OPS

X2Y2 = Mesh(x=2, y=2)


def searched_here(source, target, mesh, shape, itemsize=planner.ELEMENT):
    """The plan of a search at this shape itself, by default of elements so large that nothing is rounded."""
    ask = planner._Question(mesh, shape, itemsize, SHARED_MEMORY, None, frozenset(OPS))
    halved = halvings(SHARED_MEMORY, max(map(ask.nbytes, (source, target))))
    steps = planner._cheapest(ask, source, target, halved)
    return planner._summed(steps, ask, source, target, ask)


def check_alike(source, target, mesh, shape):
    """What is planned from another shape is what is found at this one."""
    made = plan_redistribute(source, target, mesh, shape, planner.ELEMENT)
    found = searched_here(source, target, mesh, shape)
    assert made.seconds == pytest.approx(found.seconds, rel=1e-9)
    assert made.lower_bound == found.lower_bound
    if [(s.op, s.target) for s in made] == [(s.op, s.target) for s in found]:
        assert replace(made, seconds=0.0) == replace(found, seconds=0.0)


@settings(max_examples=examples(200))
@given(st.data(), meshes(), st.integers(0, 3))
def test_a_plan_of_blocks_is_the_one_found_at_its_shape(data, mesh, ndim):
    source, target = (data.draw(layouts(mesh, ndim, KINDS)) for _ in range(2))
    small = data.draw(shapes(ndim))
    times = data.draw(st.tuples(*[st.sampled_from((1, 2, 3, 12, 48))] * ndim))
    check_alike(source, target, mesh, tuple(n * k for n, k in zip(small, times, strict=True)))


@settings(max_examples=examples(100))
@given(st.data(), meshes(), st.integers(1, 2))
def test_what_was_planned_before_makes_no_difference(data, mesh, ndim):
    """Any layouts: whatever other shapes were planned, a plan is that of an empty cache, and true."""
    shape = tuple(n * data.draw(st.sampled_from((1, mesh.nranks))) for n in data.draw(shapes(ndim)))
    source, target = (data.draw(any_layouts(mesh, shape)) for _ in range(2))
    cache_clear()
    alone = plan_redistribute(source, target, mesh, shape, 8)
    cache_clear()
    listed = any("{" in str(layout) for layout in (source, target))
    for times in () if listed else (2, 3, mesh.nranks):
        other = tuple(n * times for n in shape)
        plan_redistribute(source, target, mesh, other, 4)
    assert check(mesh, shape, source, target) == alone


@settings(max_examples=examples(150))
@given(st.data(), meshes(), st.integers(1, 2))
def test_a_reused_plan_moves_every_element(data, mesh, ndim):
    source, target = (data.draw(layouts(mesh, ndim, KINDS)) for _ in range(2))
    small = data.draw(shapes(ndim, (1, 2, 3, 4)))
    check(mesh, tuple(n * mesh.nranks for n in small), source, target)
    before = search_info().misses
    check(mesh, tuple(n * mesh.nranks * 3 for n in small), source, target)
    assert search_info().misses == before
    odd = (axis for axis in range(ndim) if not source.axes_of(axis) + target.axes_of(axis))
    shape = [n * mesh.nranks for n in small]
    for dim in odd:
        shape[dim] += 1
    check(mesh, tuple(shape), source, target)


@pytest.mark.parametrize(
    "source, target, shape, expected",
    [
        ("[x, _]", "[_, y]", (16, 12), ((4, 4), (4, 4), 12, ())),
        ("[x, _]", "[_, x]", (6, 7), ((2, 7), (2, 7), 3, ())),
        ("[x, _]", "[_, x]", (0, 8), ((0, 2), (0, 2), 4, ())),
        ("[x, _, _]", "[_, x, _]", (4, 6, 7), ((2, 2, 2), (2, 2, 1), 42, (2,))),
        ("[_, _] +sum(x)", "[x, _]", (6, 8), ((6, 4), (6, 4), 2, ())),
        ("[_, x:(1)2]", "[_, x:(1)2]", (6, 8), ((2, 2), (2, 2), 12, ())),
        ("[_, _]", "[_, _]", (6, 8), ((1, 1), (1, 1), 48, ())),
        ("[_*x, _]", "[_, x]", (16, 12), None),
        ("[x{3,5}, _]", "[_, x]", (8, 12), None),
        ("[x, _] order(1, 0)", "[_, x]", (8, 12), None),
    ],
)
def test_the_smallest_shape_that_moves_alike(source, target, shape, expected):
    layouts = Layout.parse(source), Layout.parse(target)
    assert scaled(*layouts, X2Y2, shape) == expected


def test_dims_that_stay_whole_may_have_any_size():
    source, target = Layout.parse("[x, _, _]"), Layout.parse("[_, _, x]")
    cache_clear()
    for length in (8, 1, 7, 129):
        made = plan_redistribute(source, target, X2Y2, (4, length, 6), 4)
        assert ([step.op for step in made], made.nbytes) == (["all_to_all"], 4 * 6 * length)
        assert made == searched_here(source, target, X2Y2, (4, length, 6), 4)
    assert search_info().misses == 1


def test_steps_that_cut_a_dim_of_another_size_are_searched_for_it():
    source, target = Layout.parse("[_, _] +sum(x)"), Layout.parse("[_, _]")
    cache_clear()
    for rows in (8, 7):
        made = plan_redistribute(source, target, X2Y2, (rows, 1), planner.ELEMENT)
        found = searched_here(source, target, X2Y2, (rows, 1))
        assert made.nbytes == found.nbytes and made.seconds == pytest.approx(found.seconds)
    assert search_info().misses == 3


def test_one_search_serves_shapes_and_dtypes():
    source, target = Layout.parse("[x*y, _]"), Layout.parse("[_, y]")
    cache_clear()
    for size in (4, 8, 60, 100):
        for itemsize in (1, 4, 8):
            made = plan_redistribute(source, target, X2Y2, (size, size), itemsize)
            assert made.nbytes == size * size * itemsize * 3 // 8
    assert search_info().misses == 1 and search_info().hits == 11
    plan_redistribute(source, target, X2Y2, (6, 8), 4)  # 6 rows over 4 ranks: another question
    plan_redistribute(source, target, X2Y2, (1 << 14, 1 << 14), 4)  # launches weigh less in it
    assert search_info().misses == 3


def test_what_a_launch_costs_is_exact_where_it_is_said():
    """Links of a mesh, a profile or a cap of memory: every shape is searched by itself."""
    source, target = Layout.parse("[x, _]"), Layout.parse("[_, x]")
    cache_clear()
    linked = Mesh(Axis("x", 2, Link(1e-6, 1e-9)))
    plan_redistribute(source, target, linked, (8, 8), 4)
    plan_redistribute(source, target, X2Y2, (8, 8), 4, profile=SHARED_MEMORY)
    plan_redistribute(source, target, X2Y2, (8, 8), 4, memory_bytes=1 << 20)
    assert search_info().misses == 0
