"""Layouts in the words of others: there and back, against how they cut, and what is refused."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import layouts, meshes

from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh, dim_indices
from meshweave.layout.algebra import same_placement
from meshweave.layout.interchange import (
    P,
    Pending,
    Replicate,
    Shard,
    Sharding,
    StridedShard,
    from_dtensor,
    from_shardy,
    from_spec,
    to_dtensor,
    to_shard_order,
    to_shardy,
    to_spec,
)

DP_TP = Mesh(dp=2, tp=4)
R, S0, S1 = Replicate(), Shard(0), Shard(1)


@pytest.mark.parametrize(
    "spec, ndim, text",
    [
        (P("x", None), 2, "[x, _]"),
        (P(None, ("x", "y")), 2, "[_, x*y]"),
        (P("x"), 3, "[x, _, _]"),
        (P(), 1, "[_]"),
        (P(("x",), ()), 2, "[x, _]"),
        (P(None, unreduced=("y", "x")), 1, "[_] +sum(x, y)"),
    ],
)
def test_partition_specs(spec, ndim, text):
    layout = from_spec(spec, ndim)
    assert str(layout) == text and from_spec(to_spec(layout), ndim) == layout
    assert repr(P("x", None, unreduced=["y"])) == "P('x', None, unreduced=['y'])"


@pytest.mark.parametrize(
    "text, message",
    [
        ("[_*x]", r"names whole axes only, so it cannot say \[_\*x\]"),
        ("[x:(1)2]", "names whole axes only"),
        ("[_] +max(x)", "a PartitionSpec has no pending max"),
    ],
)
def test_what_a_partition_spec_cannot_say(text, message):
    with pytest.raises(LayoutError, match=message):
        to_spec(Layout.parse(text))


def test_wrong_partition_specs_are_refused():
    with pytest.raises(LayoutError, match=r"P\('x', 'y'\) has 2 entries, the tensor 1 dims"):
        from_spec(P("x", "y"), 1)
    with pytest.raises(LayoutError, match="entry 0 is 3; None, a name of an axis or a tuple"):
        from_spec(P(3), 1)
    with pytest.raises(LayoutError, match="axis x is used twice"):
        from_spec(P("x", "x"), 2)


@pytest.mark.parametrize(
    "placements, text",
    [
        ((S0, R), "[dp, _]"),
        ((S0, S1), "[dp, tp]"),
        ((R, S0), "[tp, _]"),
        ((S0, S0), "[dp*tp, _] uneven(nested)"),
        ((StridedShard(0, 4), S0), "[tp*dp, _] uneven(nested)"),
        ((R, StridedShard(1, 3)), "[_, 3*tp*_]"),
        ((StridedShard(0, 2), StridedShard(0, 2)), "[2*dp*tp*_, _] uneven(nested)"),
        ((StridedShard(0, 8), S0), "[tp*2*dp*_, _] uneven(nested)"),
        ((S0, StridedShard(0, 2)), "[dp*2*tp*_, _] uneven(nested)"),
        ((Pending(), S0), "[tp, _] +sum(dp)"),
        ((Pending("product"), Pending("product")), "[_, _] +prod(dp, tp)"),
    ],
)
def test_dtensor_placements(placements, text):
    layout = from_dtensor(placements, DP_TP, 2)
    assert str(layout) == text
    assert to_dtensor(layout, DP_TP, (16, 24)) == placements


def nested_chunks(size, mesh, order):
    """What each rank holds where the axes of `order` cut a dim one after the other."""
    held = {}
    for rank in range(mesh.nranks):
        part = np.arange(size)
        for name in order:
            chunk = -(-len(part) // mesh.size(name)) or 1
            at = mesh.coordinate(rank, name)
            part = part[at * chunk : (at + 1) * chunk]
        held[rank] = part.tolist()
    return held


@pytest.mark.parametrize("size", [5, 10, 24, 1, 0])
def test_dtensor_cuts_in_nested_chunks(size):
    mesh = Mesh(x=2, y=2, z=3)
    for order in permutations(mesh.names):
        numbers = tuple(mesh.names.index(name) for name in order)
        layout = from_dtensor((S0, S0, S0), mesh, 1, {0: numbers})
        held = nested_chunks(size, mesh, order)
        for rank in range(mesh.nranks):
            mine = dim_indices(layout, mesh, (size,), 0, rank)
            assert mine[mine >= 0].tolist() == held[rank]
        placements = to_dtensor(layout, mesh, (size,), strided=False)
        assert placements == (S0, S0, S0)
        order = to_shard_order(layout, mesh)
        assert order == {0: numbers}
        assert from_dtensor(placements, mesh, 1, order, shape=(size,)) == layout


@given(meshes(), st.data())
def test_dtensor_placements_there_and_back(mesh, data):
    layout = data.draw(layouts(mesh, 2, kinds=("sum",)))
    layout = Layout(layout.dims, layout.partial, None, "nested")
    plain, order = to_dtensor(layout, mesh, (5, 7), strided=False), to_shard_order(layout, mesh)
    assert from_dtensor(plain, mesh, 2, order, (5, 7)) == layout
    even = tuple(mesh.nranks * size for size in (5, 7))
    back = from_dtensor(to_dtensor(layout, mesh, even), mesh, 2, shape=even)
    assert same_placement(back, layout, mesh, even)  # axes of size 1 may change places


def test_strided_shards_that_dtensor_would_not_nest_are_refused():
    """Of 9 rows in 4 parts it makes 3 3 3 0, where chunks of chunks are 3 2 2 2."""
    mesh = Mesh(x=2, y=2, z=2)
    layout = Layout.parse("[y*z*x] uneven(nested)")
    assert to_dtensor(layout, mesh, (16,)) == (StridedShard(0, 4), S0, S0)
    with pytest.raises(LayoutError, match="over x with split factor 4: size 9 does not divide"):
        to_dtensor(layout, mesh, (9,))
    with pytest.raises(LayoutError, match="an order of axes cannot say dim 0 of"):
        to_dtensor(Layout.parse("[_*x]"), mesh, (16,), strided=False)


def test_dtensor_objects_are_known_by_their_names():
    @dataclass
    class _StridedShard:
        dim: int
        split_factor: int

    @dataclass
    class Partial:
        reduce_op: str

    @dataclass
    class Entry:
        tensor_dim: int
        mesh_dims: tuple[int, ...]

    assert str(from_dtensor((_StridedShard(-1, 4), Shard(1)), DP_TP, 2)).startswith("[_, tp*dp]")
    assert str(from_dtensor((Partial("max"), R), DP_TP, 1)) == "[_] +max(dp)"
    order = (Entry(0, (1, 0)),)
    assert str(from_dtensor((S0, S0), DP_TP, 1, order)) == "[tp*dp] uneven(nested)"
    with pytest.raises(LayoutError, match='unknown reduction "bxor", there are sum, avg, product'):
        from_dtensor((Partial("bxor"), R), DP_TP, 1)


@pytest.mark.parametrize(
    "placements, message",
    [
        ((S0,), r"1 placements, mesh \(dp=2, tp=4\) has 2 axes"),
        ((Shard(2), R), r"placement Shard\(dim=2\): the tensor has 2 dims"),
        ((Pending("sum"), Pending("max")), "pending reductions sum, max: DTensor does not say"),
        (("S", R), "placement 'S' is unknown"),
        ((StridedShard(0, 3), S0), "over tp with split factor 1: no layout says how it cuts the"),
        ((StridedShard(0, 2), StridedShard(0, 3)), "over tp with split factor 3: no layout says"),
    ],
)
def test_wrong_placements_are_refused(placements, message):
    with pytest.raises(LayoutError, match=message):
        from_dtensor(placements, DP_TP, 2)


def test_cyclic_dims_are_strided_shards_of_sizes_that_divide():
    assert to_dtensor(Layout.parse("[_, _*tp]"), DP_TP, (16, 24)) == (R, StridedShard(1, 6))
    assert to_dtensor(Layout.parse("[_*dp*2, _]"), DP_TP, (16, 24)) == (StridedShard(0, 4), R)


@pytest.mark.parametrize(
    "placements, size",
    [((R, StridedShard(0, 3)), 10), ((StridedShard(0, 8), S0), 12), ((StridedShard(0, 2), R), 5)],
)
def test_strided_shards_of_sizes_that_do_not_divide_are_refused(placements, size):
    with pytest.raises(LayoutError, match=f"size {size} does not divide, and no layout says how"):
        from_dtensor(placements, DP_TP, 1, shape=(size,))


@pytest.mark.parametrize(
    "text, message",
    [
        ("[tp:(1)2, _]", "DTensor has no sub-axes: dim 0"),
        ("[_*tp, _]", "DTensor has blocks and strided shards only: dim 0"),
        ("[dp{3,7}, _]", "DTensor has no irregular extents: dim 0"),
        ("[_, dp] order(1, 0)", "DTensor has no memory order"),
        ("[_, _] +sum(dp) +max(tp)", "DTensor has no order of pending reductions"),
        ("[dp*tp, _]", r"nested chunks, dim 0 \(10\) of .* is not: write uneven\(nested\)"),
    ],
)
def test_what_dtensor_cannot_say(text, message):
    with pytest.raises(LayoutError, match=message):
        to_dtensor(Layout.parse(text), DP_TP, (10, 12))


@pytest.mark.parametrize(
    "text, layout, back",
    [
        ('#sdy.sharding<@mesh, [{"x"}, {}]>', "[x, _]", None),
        ('<@m, [{"x", "y":(1)2}, {"y":(2)2}]>', "[x*y:(1)2, y:(2)2]",
         '#sdy.sharding<@m, [{"x", "y":(1)2}, {"y":(2)2}]>'),
        ('#sdy.sharding<@mesh, [{"x", ?}p1, {?}], replicated={"y":(1)2}>', "[x, _]", None),
        ('#sdy.sharding<@mesh, [{}], unreduced={"x", "y"}>', "[_] +sum(x, y)", None),
        ("#sdy.sharding<@mesh, []>", "[]", None),
    ],
)  # fmt: skip
def test_shardy_shardings(text, layout, back):
    sharding = from_shardy(text)
    assert str(sharding.layout) == layout
    assert to_shardy(sharding, Mesh(x=2, y=4), (8,) * sharding.layout.ndim) == (back or text)


def test_what_a_sharding_says_besides():
    sharding = from_shardy('#sdy.sharding<@mesh, [{"x", ?}p1, {?}], replicated={"y"}>')
    expected = Sharding(Layout.parse("[x, _]"), (0, 1), ("y",), (1, None), "mesh")
    assert sharding == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("[_*x]", "Shardy has blocks in row-major memory only"),
        ("[x{3,5}]", "Shardy has blocks in row-major memory only"),
        ("[_] +max(x)", "Shardy has no pending max"),
        ("[x*y] uneven(nested)", "it has no nested chunks"),
    ],
)
def test_what_shardy_cannot_say(text, message):
    size = 5 if "nested" in text else 8
    with pytest.raises(LayoutError, match=message):
        to_shardy(Layout.parse(text), Mesh(x=2, y=2), (size,))


@pytest.mark.parametrize(
    "text, message",
    [
        ("#sdy.sharding<@mesh>", r"#sdy.sharding<@mesh, \[\{..\}, ..\]> is right"),
        ("#sdy.sharding<@mesh, [{x}]>", "cannot read 'x'"),
        ('#sdy.sharding<@mesh, [{"x"}, {"x"}]>', "axis x is used twice"),
        ('#sdy.sharding<@mesh, [{}], unreduced={"x":(1)2}>', "pending over whole axes only"),
        ('#sdy.sharding<@mesh, [{"a b"}]>', "'a b' is not a name for an axis"),
    ],
)
def test_wrong_shardings_are_refused(text, message):
    with pytest.raises(LayoutError, match=message):
        from_shardy(text)
