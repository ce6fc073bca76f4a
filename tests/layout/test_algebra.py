"""The algebra: equal placements, common refinement, and views that move nothing."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import any_layouts, meshes, numbered, shapes

from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh, scatter
from meshweave.layout.algebra import refine, reshape, same_placement, transpose

X2Y2, X4 = Mesh(x=2, y=2), Mesh(x=4)
P = Layout.parse


@pytest.mark.parametrize(
    "mesh, shape, one, other, same",
    [
        (X4, (8,), "[x]", "[x*2]", True),
        (X4, (8,), "[x]", "[x{2,2,2,2}]", True),
        (X4, (8,), "[x]", "[x:(1)2*x:(2)2]", True),
        (X2Y2, (8,), "[x*y]", "[x*y] uneven(nested)", True),
        (X2Y2, (5,), "[x*y]", "[x*y] uneven(nested)", False),
        (X2Y2, (8,), "[x*y]", "[y*x]", False),
        (Mesh(x=2), (5,), "[x]", "[x*2]", False),
        (X4, (5,), "[x]", "[x*2]", True),
        (X4, (8,), "[x]", "[_*x]", False),
        (X4, (1 << 40,), "[x]", "[_*x]", False),
        (X4, (1 << 40,), "[x]", "[x:(1)2*x:(2)2*1024]", True),
        (X4, (1 << 40,), "[x]", "[x:(2)2*x:(1)2]", False),
        (X4, (4,), "[x]", "[_*x]", True),
        (X4, (1, 6), "[_, x]", "[_, x] order(1, 0)", True),
        (X4, (2, 8), "[_, x]", "[_, x] order(1, 0)", False),
        (X4, (8,), "[_]", "[_] +sum(x)", False),
        (Mesh(x=2, one=1), (8,), "[x]", "[x*one]", True),
        (Mesh(x=2, one=1), (8,), "[x]", "[x] +max(one)", True),
    ],
)
def test_the_same_layout_under_another_spelling(mesh, shape, one, other, same):
    assert same_placement(P(one), P(other), mesh, shape) is same


@given(meshes(), st.data(), st.integers(0, 2))
def test_layouts_are_the_same_when_their_shards_are(mesh, data, ndim):
    value = numbered(data.draw(shapes(ndim, (1, 2, 4, 5))))
    one, other = (data.draw(any_layouts(mesh, value.shape, kinds=())) for _ in range(2))
    shards = [[s.reshape(-1) for s in scatter(value, mesh, layout)] for layout in (one, other)]
    equal = all(
        a.shape == b.shape and np.array_equal(a, b, equal_nan=True) for a, b in zip(*shards)
    )
    assert not same_placement(one, other, mesh, value.shape) or equal
    if equal and min(value.shape, default=1) > 1:
        assert same_placement(one, other, mesh, value.shape)


def test_common_refinement():
    (rows, columns) = refine(P("[x*y, _]"), P("[_, y]"), X2Y2, (16, 8))
    assert [(d.extent, d.stride) for d in rows] == [(2, 8), (2, 4), (4, 1)]
    assert [(d.one.device, d.other.device) for d in rows] == [(True, False)] * 2 + [(False,) * 2]
    assert [(d.extent, d.other.device) for d in columns] == [(2, True), (4, False)]
    with pytest.raises(LayoutError, match=r"dim 0 of .* no common refinement: 4 does not divide 6"):
        refine(P("[_*x*2]"), P("[y*3]"), X2Y2, (12,))
    with pytest.raises(LayoutError, match="dim 0 is not made of regular digits"):
        refine(P("[x{3,5}]"), P("[x]"), X2Y2, (8,))


@pytest.mark.parametrize(
    "mesh, text, shape, new_shape, expected",
    [
        (X2Y2, "[x, _]", (8, 6), (48,), "[x]"),
        (X2Y2, "[x*y]", (16,), (2, 8), "[x, y]"),
        (X2Y2, "[x*y]", (16,), (4, 4), "[x*y, _]"),
        (X2Y2, "[_*x]", (16,), (8, 2), "[_, x]"),
        (X4, "[x]", (16,), (2, 8), "[x:(1)2, x:(2)2]"),
        (X4, "[x, _]", (10, 6), (10, 2, 3), "[x, _, _]"),
        (X2Y2, "[x, y]", (4, 4), (16,), "[x*2*y]"),
        (X2Y2, "[_, x] order(1, 0)", (4, 4), (2, 2, 4), "[_, _, x] order(2, 0, 1)"),
        (X2Y2, "[x, _] +sum(y)", (4, 1), (4,), "[x] +sum(y)"),
        (X2Y2, "[x*y, 3*_] uneven(nested)", (5, 6), (5, 3, 2), "[x*y, _, _] uneven(nested)"),
    ],
)
def test_reshape(mesh, text, shape, new_shape, expected):
    made = reshape(P(text), mesh, shape, new_shape)
    assert same_placement(made, P(expected), mesh, new_shape), str(made)


@pytest.mark.parametrize(
    "mesh, text, shape, new_shape, message",
    [
        (X4, "[x]", (12,), (6, 2), "a digit of 4 of dim 0 falls across the end of new dim 0"),
        (X4, "[x]", (10,), (5, 2), "dim 0 of 10 is uneven, so it cannot be split or merged"),
        (X4, "[x{3,1,2,2}]", (8,), (2, 4), "dim 0 of 8 is uneven"),
        (X4, "[x]", (8,), (3, 3), "a tensor 8 cannot be reshaped to 3x3"),
    ],
)
def test_views_that_would_move_elements_are_refused(mesh, text, shape, new_shape, message):
    with pytest.raises(LayoutError, match=message):
        reshape(P(text), mesh, shape, new_shape)


@given(
    meshes(), st.data(), st.sampled_from([((8, 6), (2, 4, 6)), ((4, 6), (24,)), ((12,), (3, 4))])
)
def test_a_reshape_leaves_every_element_in_its_place(mesh, data, pair):
    shape, new_shape = pair
    layout = data.draw(any_layouts(mesh, shape, kinds=()))
    try:
        made = reshape(layout, mesh, shape, new_shape)
    except LayoutError:
        assume(False)
    value = numbered(shape)
    old, new = scatter(value, mesh, layout), scatter(value.reshape(new_shape), mesh, made)
    for a, b in zip(old, new):
        assert np.array_equal(a.reshape(-1), b.reshape(-1), equal_nan=True)


@given(meshes(), st.data())
def test_a_transpose_leaves_every_element_in_its_place(mesh, data):
    value = numbered(data.draw(shapes(3, (1, 2, 5, 6))))
    layout = data.draw(any_layouts(mesh, value.shape, kinds=()))
    permutation = data.draw(st.permutations(range(3)))
    made = transpose(layout, permutation)
    turned = scatter(value.transpose(permutation), mesh, made)
    for a, b in zip(scatter(value, mesh, layout), turned):
        assert np.array_equal(a.reshape(-1), b.reshape(-1), equal_nan=True)
    with pytest.raises(LayoutError, match="is not a permutation of its 3 dims"):
        transpose(layout, (0, 1, 1))


def test_a_view_there_and_back_is_the_same_layout():
    for text, shape, new_shape in product(
        ("[x, _]", "[_*x, y]"), [(8, 4)], [(2, 4, 4), (2, 4, 2, 2)]
    ):
        there = reshape(P(text), X2Y2, shape, new_shape)
        back = reshape(there, X2Y2, new_shape, shape)
        assert same_placement(back, P(text), X2Y2, shape) and prod(shape) == prod(new_shape)
