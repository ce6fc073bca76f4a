"""Copies of boxes: the same shards as the steps of a plan leave."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, layouts, meshes, numbered, shapes

from meshweave.layout import Layout, Mesh, scatter
from meshweave.plan.boxes import copied
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.simulate import simulate


def held(layout, mesh, shape, shards):
    """What each rank holds of the tensor, without padding."""
    sizes = [layout.valid_shape(mesh, shape, rank) for rank in range(mesh.nranks)]
    return [shard[tuple(map(slice, size))] for shard, size in zip(shards, sizes, strict=True)]


@given(st.data(), meshes(), st.integers(0, 4))
def test_boxes_come_where_the_steps_bring_them(data, mesh, ndim):
    shape = data.draw(shapes(ndim, (0, 1, 2, 3, 5, 8)))
    source = data.draw(layouts(mesh, ndim, kinds=KINDS))
    target = data.draw(layouts(mesh, ndim, kinds=()))
    if set(target.used_axes) & set(source.partial_axes()):
        target = Layout.replicated(ndim)
    target = target.with_partial(source.partial)
    shards = scatter(numbered(shape), mesh, source)
    steps = plan_redistribute(source, target, mesh, shape, 8).steps
    want = simulate(steps, shards, mesh, shape).shards
    found = copied(source, target, mesh, shape, shards)
    assert [shard.shape for shard in found] == [shard.shape for shard in want]
    pairs = zip(*(held(target, mesh, shape, s) for s in (found, want)), strict=True)
    assert all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)


def test_padding_shows_and_no_memory_is_shared():
    mesh, value = Mesh(x=2), np.arange(6.0).reshape(2, 3)
    shards = scatter(value, mesh, Layout.parse("[x, _]"))
    found = copied(Layout.parse("[x, _]"), Layout.parse("[_, x]"), mesh, (2, 3), shards)
    assert np.isnan(found[1][:, 1]).all() and found[1][:, 0].tolist() == [2.0, 5.0]
    assert not any(np.shares_memory(one, other) for one in found for other in shards)


@pytest.mark.parametrize("target", ["[_*x]", "[x] +sum(y)"])
def test_only_blocks_with_the_same_reductions_are_copied(target):
    mesh = Mesh(x=2, y=2)
    shards = scatter(np.arange(4.0), mesh, Layout.parse("[x]"))
    with pytest.raises(AssertionError):
        copied(Layout.parse("[x]"), Layout.parse(target), mesh, (4,), shards)
