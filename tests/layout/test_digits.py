"""Digits: which element lies where, by the table of the notation and as properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, any_layouts, layouts, meshes, numbered, shapes

from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh, dim_indices, gather, scatter


@pytest.mark.parametrize(
    "text, size, mesh, owned",
    [
        ("[x]", 10, "x=4", [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        ("[x]", 5, "x=4", [[0, 1], [2, 3], [4], []]),
        ("[x*y]", 4, "x=2, y=2", [[0], [1], [2], [3]]),
        ("[y*x]", 4, "x=2, y=2", [[0], [2], [1], [3]]),
        ("[x*y]", 5, "x=2, y=2", [[0, 1], [2, 3], [4], []]),
        ("[x*y] uneven(nested)", 5, "x=2, y=2", [[0, 1], [2], [3], [4]]),
        ("[_*x]", 7, "x=2", [[0, 2, 4, 6], [1, 3, 5]]),
        ("[_*x*4]", 13, "x=2", [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12]]),
        ("[2*x]", 8, "x=2", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("[x{5,1,2}]", 8, "x=3", [[0, 1, 2, 3, 4], [5], [6, 7]]),
        ("[x:(2)2]", 4, "x=4", [[0, 1], [2, 3], [0, 1], [2, 3]]),
        ("[x:(1)2]", 4, "x=4", [[0, 1], [0, 1], [2, 3], [2, 3]]),
        ("[_] +sum(x)", 2, "x=2", [[0, 1], [0, 1]]),
    ],
)
def test_owners(text, size, mesh, owned):
    layout, places = Layout.parse(text), Mesh.parse(mesh)
    for rank, expected in enumerate(owned):
        indices = dim_indices(layout, places, (size,), 0, rank)
        assert indices[indices >= 0].tolist() == expected
        assert len(indices) == layout.local_shape(places, (size,))[0]


def test_shards_by_hand():
    mesh, value = Mesh(x=2, y=2), numbered((3, 3), "i4")
    high = np.iinfo("i4").max
    shards = scatter(value, mesh, Layout.parse("[x, _] +sum(y)"))
    assert shards[0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert shards[1].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert shards[2].tolist() == [[7, 8, 9], [high, high, high]]
    shards = scatter(numbered((3,)), mesh, Layout.parse("[x] +max(y)"))
    assert shards[1].tolist() == [-np.inf, -np.inf] and np.isnan(shards[2][1])


@given(meshes(), st.data(), st.sampled_from(["f8", "i4", "f4", "u1"]))
def test_gather_undoes_scatter(mesh, data, dtype):
    value = numbered(data.draw(shapes(2)), dtype)
    layout = data.draw(layouts(mesh, 2, kinds=KINDS))
    shards = scatter(value, mesh, layout)
    assert {shard.shape for shard in shards} == {layout.local_shape(mesh, value.shape)}
    assert np.array_equal(gather(shards, mesh, layout, value.shape), value)


@given(meshes(), st.data(), st.integers(0, 3))
def test_gather_undoes_scatter_whatever_the_notation_says(mesh, data, ndim):
    value = numbered(data.draw(shapes(ndim)))
    layout = data.draw(any_layouts(mesh, value.shape, kinds=KINDS))
    shards = scatter(value, mesh, layout)
    assert {shard.shape for shard in shards} == {layout.allocation_shape(mesh, value.shape)}
    with np.errstate(all="ignore"):
        assert np.array_equal(gather(shards, mesh, layout, value.shape), value)


def test_logical_and_allocation_domain_differ():
    mesh, layout = Mesh(x=2), Layout.parse("[2*_] order(0.1, 0.0)")
    assert layout.local_shape(mesh, (6,)) == (6,)
    assert layout.allocation_shape(mesh, (6,)) == (3, 2)
    assert scatter(np.arange(6), mesh, layout)[0].reshape(-1).tolist() == [0, 3, 1, 4, 2, 5]
    columns = scatter(np.arange(6).reshape(2, 3), mesh, Layout.parse("[_, _] order(1, 0)"))[0]
    assert columns.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_pending_reductions_are_done_in_order():
    mesh, layout = Mesh(x=2, y=2), Layout.parse("[] +sum(x) +max(y)")
    shards = [np.array(v) for v in (1, 20, 5, 3)]  # ranks (x, y): 00 01 10 11
    assert gather(shards, mesh, layout, ()) == max(1 + 5, 20 + 3)
    layout = Layout.parse("[] +max(y) +sum(x)")
    assert gather(shards, mesh, layout, ()) == max(1, 20) + max(5, 3)


def test_the_average_of_integers_rounds_towards_zero():
    mesh, layout = Mesh(x=2), Layout.parse("[] +avg(x)")
    assert gather([np.array(-3), np.array(0)], mesh, layout, ()) == -1
    assert gather([np.array(3.0), np.array(0.0)], mesh, layout, ()) == 1.5


def test_wrong_shards_are_refused():
    mesh, layout = Mesh(x=2), Layout.parse("[x]")
    with pytest.raises(LayoutError, match=r"mesh \(x=2\) needs 2 shards, got 1"):
        gather([np.zeros(2)], mesh, layout, (4,))
    with pytest.raises(LayoutError, match=r"rank 1: .* needs a shard of shape \(2,\), got \(3,\)"):
        gather([np.zeros(2), np.zeros(3)], mesh, layout, (4,))
    with pytest.raises(LayoutError, match="max of complex128 is not defined"):
        scatter(np.zeros(2, complex), mesh, Layout.parse("[_] +max(x)"))
