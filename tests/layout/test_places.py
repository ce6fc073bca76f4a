"""Places: ranks and addresses of elements, both ways, for all that the notation can say."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, any_layouts, meshes, numbered, shapes, valid_count

from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh, dim_indices, scatter
from meshweave.layout.places import address, element, is_run, locate, owners, run_at

P = Layout.parse
SMALL = (0, 1, 2, 3, 5, 6, 8)


@given(meshes(), st.data(), st.integers(0, 2))
def test_every_element_is_where_the_shards_have_it(mesh, data, ndim):
    value = numbered(data.draw(shapes(ndim, SMALL)))
    layout = data.draw(any_layouts(mesh, value.shape, kinds=()))
    shards = [shard.reshape(-1) for shard in scatter(value, mesh, layout)]
    for index in product(*map(range, value.shape)):
        place = address(layout, mesh, value.shape, index)
        holders = owners(layout, mesh, value.shape, index)
        assert list(holders) == sorted(set(holders))
        for rank, shard in enumerate(shards):
            assert (shard == value[index]).any() == (rank in holders)
        for rank in holders:
            assert shards[rank][place] == value[index]
            assert element(layout, mesh, value.shape, rank, place) == index


@given(meshes(), st.data(), st.integers(0, 2))
def test_what_is_not_an_element_is_padding(mesh, data, ndim):
    shape = data.draw(shapes(ndim, SMALL))
    layout = data.draw(any_layouts(mesh, shape, kinds=KINDS))
    for rank in range(mesh.nranks):
        size = int(np.prod(layout.local_shape(mesh, shape)))
        found = [element(layout, mesh, shape, rank, place) for place in range(size)]
        inside = [index for index in found if index is not None]
        assert len(inside) == len(set(inside)) == valid_count(layout, mesh, shape, rank)
        assert all(address(layout, mesh, shape, i) == found.index(i) for i in inside)


@given(meshes(), st.data())
def test_locating_undoes_indexing(mesh, data):
    shape = data.draw(shapes(1))
    layout = data.draw(any_layouts(mesh, shape, kinds=()))
    for rank in range(mesh.nranks):
        indices = dim_indices(layout, mesh, shape, 0, rank)
        here = np.flatnonzero(indices >= 0)
        coordinates, places = locate(layout, mesh, shape, 0, indices[here])
        assert places.tolist() == here.tolist()
        for name, values in zip(layout.axes_of(0), coordinates):
            assert (values == mesh.coordinate(rank, name)).all()
        if is_run(layout, mesh, shape, 0):
            start, end = run_at(layout, mesh, shape, 0, rank)
            assert indices[here].tolist() == list(range(int(start), int(end)))
            assert here.tolist() == list(range(len(here)))


def test_nested_sizes_leave_padding_within_what_a_rank_holds():
    layout, mesh = P("[x*y*3*_] uneven(nested)"), Mesh(x=2, y=2)
    assert dim_indices(layout, mesh, (14,), 0, 1).tolist() == [4, -1, 5, -1, 6, -1]
    assert not is_run(layout, mesh, (14,), 0)
    assert is_run(P("[x*y] uneven(nested)"), mesh, (14,), 0)


def test_places_by_hand():
    mesh, layout = Mesh(x=2, y=2), P("[_*x, _] order(1, 0)")
    assert owners(layout, mesh, (4, 3), (3, 1)) == (2, 3)
    assert address(layout, mesh, (4, 3), (3, 1)) == 3
    assert element(layout, mesh, (4, 3), 2, 3) == (3, 1)
    assert owners(P("[x:(2)2]"), Mesh(x=4), (4,), (3,)) == (1, 3)
    assert element(P("[x]"), Mesh(x=4), (5,), 2, 1) is None


def test_what_is_not_there_is_refused():
    with pytest.raises(LayoutError, match=r"index 4 of dim 0 is not in 0\.\.3"):
        owners(P("[x]"), Mesh(x=2), (4,), (4,))
    with pytest.raises(LayoutError, match=r"has 1 dims, index \(1, 2\) has not"):
        address(P("[x]"), Mesh(x=2), (4,), (1, 2))
    with pytest.raises(LayoutError, match="an allocation has 2 places, got place 2"):
        element(P("[x]"), Mesh(x=2), (4,), 0, 2)
