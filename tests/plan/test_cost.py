"""Costs: bytes and seconds of each op by hand, and their laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshweave.errors import PlanError
from meshweave.layout import Axis, Link, Mesh
from meshweave.plan import cost
from meshweave.plan.steps import OPS


@pytest.mark.parametrize(
    "op, unit, ranks, elements",
    [
        ("all_gather", 10, 4, 30),
        ("reduce_scatter", 10, 4, 30),
        ("all_to_all", 10, 4, 30),
        ("permute", 10, 4, 10),
        ("all_reduce", 12, 4, 18),
        ("all_reduce", 10, 4, 16),  # chunks of 3: 9 to reduce the own one, 7 of the others
        ("all_reduce", 1, 4, 3),
        ("all_slice", 10, 4, 0),
        ("local", 10, 4, 0),
    ],
)
def test_received(op, unit, ranks, elements):
    assert cost.received(op, unit, ranks) == elements


@given(st.sampled_from(OPS), st.integers(0, 1000), st.integers(1, 9))
def test_a_group_of_one_moves_nothing_and_no_unit_moves_nothing(op, unit, ranks):
    assert cost.received(op, unit, 1) == 0 == cost.received(op, 0, ranks)
    assert cost.seconds(op, 0, 1, Link(1.0, 1.0)) == 0.0


@given(st.integers(1, 1000), st.integers(2, 9))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(pieces, ranks):
    halves = cost.received("reduce_scatter", pieces, ranks)
    halves += cost.received("all_gather", pieces, ranks)
    assert cost.received("all_reduce", pieces * ranks, ranks) == halves


def test_seconds():
    link, profile = Link(2.0, 3.0), cost.Profile(Link(0.0, 0.0), launch=100.0, copy_beta=0.5)
    assert cost.seconds("all_gather", 10, 4, link, profile) == 100 + 3 * 2 + 30
    assert cost.seconds("all_reduce", 10, 4, link, profile) == 100 + 6 * 2 + 30
    assert cost.seconds("permute", 10, 4, link, profile) == 100 + 2 + 30
    assert cost.copy_seconds(10, profile) == 10


def test_seconds_of_an_exchange_and_of_local_steps():
    link, profile = Link(2.0, 3.0), cost.Profile(Link(0.0, 0.0), launch=100.0, copy_beta=0.5)
    assert cost.received("exchange", 10, 4) == 10
    moved = 100 + 2 * 2 + int(32 * cost.EXCHANGE_SLOWDOWN) * 3
    assert cost.exchange_seconds(32, 0, 2, link, profile) == moved + 0.25
    assert cost.exchange_seconds(32, 7, 2, link, profile) == moved + 2.0
    assert cost.local_seconds("local", 7, 2, profile) == 4.0
    assert cost.local_seconds("relayout", 7, 2, profile) == 24.0


def test_launches_of_small_tensors_do_not_outweigh_their_bytes():
    steady = cost.steady(cost.SHARED_MEMORY, 512, 0)
    once = steady.launch + steady.link.alpha
    assert once == pytest.approx(512 * steady.link.beta * cost.SMALL_LAUNCH)
    assert cost.halvings(cost.SHARED_MEMORY, 0) == cost.halvings(cost.SHARED_MEMORY, 512) == 0
    assert cost.steady(cost.Profile(Link(0.0, 1.0), 0.0, 0.0), 8, 0).launch == 0.0


@given(st.integers(1 << 19, 1 << 50))
def test_launches_of_large_tensors_are_about_what_they_are(nbytes):
    halved = cost.halvings(cost.SHARED_MEMORY, nbytes)
    ratio = cost.steady(cost.SHARED_MEMORY, nbytes, halved).launch / cost.SHARED_MEMORY.launch
    assert 0.7 < ratio < 1.42


def test_a_group_waits_for_its_slowest_link():
    mesh = Mesh(Axis("x", 2, Link(1.0, 5.0)), Axis("y", 2, Link(3.0, 2.0)), Axis("z", 2))
    assert cost.link_of(mesh, ("x", "y")) == Link(3.0, 5.0)
    assert cost.link_of(mesh, ("z",)) == cost.SHARED_MEMORY.link


def test_what_is_refused():
    with pytest.raises(PlanError, match="no step is called 'broadcast'"):
        cost.received("broadcast", 1, 2)
    with pytest.raises(PlanError, match="all_gather: a group needs at least 1 rank, got 0"):
        cost.received("all_gather", 1, 0)
