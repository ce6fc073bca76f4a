"""Layouts in windows: what ranks hold of a block and its neighbours, and how they get it."""

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from meshweave.errors import LayoutError
from meshweave.exchange.table import Table
from meshweave.layout.digits import scatter
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.ownership import ownership_text
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.simulate import simulate
from tests.strategies import any_layouts

MESH = Mesh(x=2, y=3)


def _moved(
    source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]
) -> tuple[int, tuple[str, ...]]:
    """Check a plan on element numbers; return its bytes of a byte each, and its steps."""
    value = np.arange(float(np.prod(shape))).reshape(shape)
    plan = plan_redistribute(source, target, mesh, shape, 1)
    made = simulate(plan.steps, scatter(value, mesh, source), mesh, shape)
    for one, wanted in zip(made.shards, scatter(value, mesh, target), strict=True):
        known = ~np.isnan(wanted)
        assert np.array_equal(one[known], wanted[known])
    assert [8 * s.nbytes for s in plan.steps] == list(made.busiest)
    return plan.nbytes, tuple(step.op for step in plan.steps)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[x*_{5,-1,7}, _]", ["[0:6, :]", "[4:10, :]"]),
        ("[x*_{2,8,2}, _]", ["[8:10, :]", "-"]),
        ("[_{0,7,2}, _]", ["[7:9, :]", "[7:9, :]"]),
    ],
)
def test_a_rank_holds_its_window(text: str, what: list[str]) -> None:
    mesh, layout = Mesh(x=2), Layout.parse(text)
    assert str(layout) == text
    found = [ownership_text(layout, mesh, (10, 3), rank) for rank in range(2)]
    assert [f if "-" not in f else "-" for f in found] == what


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[_{2,0,3}*x]", "behind axes alone"),
        ("[x*_*_{2,0,3}]", "at most one can be what is left"),
        ("[x*2*_{2,0,3}]", "behind axes alone"),
        ("[x{1,2}*_{2,0,3}]", "behind axes alone"),
        ("[x*_{2,0}]", 'expected ","'),
        ("[x*_{2,0,0}]", "at least 1"),
    ],
)
def test_what_is_no_window_is_refused(text: str, error: str) -> None:
    with pytest.raises(LayoutError, match=error):
        Layout.parse(text)


def test_a_block_and_its_neighbours_take_one_launch_and_the_edges() -> None:
    source, target = Layout.parse("[x, y]"), Layout.parse("[x*_{50,-1,52}, y*_{40,-2,44}]")
    nbytes, steps = _moved(source, target, MESH, (100, 120))
    assert (nbytes, steps) == (51 * 44 - 50 * 40, ("exchange",))


def test_a_window_of_few_rows_brings_them_alone() -> None:
    assert _moved(Layout.parse("[x, _]"), Layout.parse("[_{0,70,2}, _]"), MESH, (100, 5)) == (
        10,
        ("exchange",),
    )
    assert _moved(Layout.parse("[_, _]"), Layout.parse("[x*_{3,1,4}, _]"), MESH, (100, 5)) == (
        0,
        ("relayout",),
    )


def test_what_no_window_covers_bounds_no_sum() -> None:
    source, target = Layout.parse("[x] +sum(y)"), Layout.parse("[_{0,0,1}]")
    plan = plan_redistribute(source, target, MESH, (6,), 4)
    assert plan.nbytes >= plan.lower_bound == 8


@given(
    data=st.data(),
    axes=st.sampled_from([(), ("x",), ("y",), ("x", "y"), ("y", "x")]),
    window=st.tuples(st.integers(0, 6), st.integers(-9, 9), st.integers(1, 12)),
    shape=st.tuples(st.integers(0, 17), st.integers(1, 4)),
    dim=st.integers(0, 1),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_plan_brings_each_rank_its_window(
    data: st.DataObject,
    axes: tuple[str, ...],
    window: tuple[int, int, int],
    shape: tuple[int, int],
    dim: int,
) -> None:
    source = data.draw(any_layouts(MESH, shape, kinds=("sum",)))
    step, low, size = window
    rows = ["_", "_"]
    rows[dim] = "*".join([*axes, f"_{{{step},{low},{size}}}"])
    target = Layout.parse(f"[{', '.join(rows)}]")
    _moved(source, target, MESH, shape)
    _check_messages(Table(source.without_partial(), target, MESH, shape))


def _check_messages(table: Table) -> None:
    """Check that ranks send what others receive, in the same order."""
    ranks = range(MESH.nranks)
    sent = {(a, p.peer, p._replace(peer=0)) for a in ranks for p in table.sends(a)}
    got = {(p.peer, b, p._replace(peer=0)) for b in ranks for p in table.receives(b)}
    assert sent == {piece for piece in got if piece[0] != piece[1]}
