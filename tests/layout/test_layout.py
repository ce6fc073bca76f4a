"""Layouts: the text and its canonical form, local shapes and offsets, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import layouts, meshes, notations, shapes

from meshweave.errors import LayoutError
from meshweave.layout import AxisFactor, Layout, LocalFactor, Mesh, Partial, dim_indices

MESH = Mesh(x=2, y=3)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[_]",
        "[x, _]",
        "[x*y, _]",
        "[_*x, _]",
        "[_*x*4, _]",
        "[_, y] +sum(x)",
        "[_] +sum(x) +max(y, z)",
        "[_, x] order(1, 0)",
        "[2*_] order(0.1, 0.0)",
        "[2*_, _] order(0.0, 1, 0.1)",
        "[x*y] uneven(nested)",
        "[x:(1)2, x:(2)2]",
        "[x{3,4,0}]",
    ],
)
def test_canonical_text_stays(text):
    assert str(Layout.parse(text)) == text


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("[ x*_,_ ]", "[x, _]"),
        ("[x*2]", "[x*2*_]"),
        ("[2*3*1*_]", "[6*_]"),
        ("[x:(1)2*x:(2)4]", "[x:(1)8]"),
        ("[_] +sum(y, x)", "[_] +sum(x, y)"),
        ("[_] +sum(y) +sum(x)", "[_] +sum(x, y)"),
        ("[_, x] order(0, 1)", "[_, x]"),
        ("[2*_, x] order(1.0, 0)", "[2*_, x] order(1, 0)"),
        ("[x] uneven(nested)", "[x]"),
        ("[x*y] uneven(flat)", "[x*y]"),
    ],
)
def test_other_text_is_made_canonical(text, canonical):
    assert str(Layout.parse(text)) == canonical
    assert Layout.parse(text) == Layout.parse(canonical)


@given(notations())
def test_every_layout_is_read_back(layout):
    again = Layout.parse(str(layout))
    assert again == layout and str(again) == str(layout) and hash(again) == hash(layout)
    assert (again.dims, again.partial) == (layout.dims, layout.partial)
    assert (again.order, again.uneven) == (layout.order, layout.uneven)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r'expected "\[" at column 1, found the end'),
        ("[x", 'expected "," or "]" at column 3, found the end'),
        ("[x,]", "expected a factor: _, an axis or a number at column 4"),
        ("[x] y", 'expected "\\+", "order", "uneven" or the end at column 5, found "y"'),
        ("[x] +mean(y)", 'expected "sum" or "max" or "min" or "prod" or "avg" at column 6'),
        ("[x*x]", "axis x is used twice"),
        ("[x] +sum(x)", "axis x is used twice"),
        ("[x:(1)4, x:(2)2]", "axis x is used twice"),
        ("[x, x:(2)2]", "axis x is used twice"),
        ("[_*_]", "dim 0 has 2 factors _, at most one"),
        ("[0*_]", "a local factor is at least 1, got 0"),
        (
            "[99*999999999999999999]",
            "a local factor has at most 18 digits, .* got 98999999999999999901",
        ),
        ("[x:(1)99*x:(99)999999999999999999]", "m and k have at most 18 digits"),
        ("[x:(1)1]", "sub-axis x:.1.1: m is at least 1 and k at least 2"),
        ("[x{3,4}*y]", "must be the only factor of dim 0"),
        ("[_, _] order(1)", r"order\(1\) must name every local factor once: 0.0, 1.0"),
        ("[x*y] uneven(deep)", 'expected "flat" or "nested"'),
        ("[99999999999999999999]", "expected a number at column 2"),
    ],
)
def test_wrong_text_is_refused(text, message):
    with pytest.raises(LayoutError, match="layout .*" + message):
        Layout.parse(text)


def test_questions_about_the_parts():
    layout = Layout.parse("[y*x, _, z] +sum(a) +max(b)")
    assert layout.block_axes() == (("y", "x"), (), ("z",)) and layout.is_block
    assert layout.axes_of(0) == ("y", "x") and layout.ndim == 3
    assert layout.used_axes == ("y", "x", "z", "a", "b")
    assert layout.partial_axes() == ("a", "b") and layout.partial_axes("max") == ("b",)
    assert str(layout.without_partial()) == "[y*x, _, z]"
    assert str(layout.with_axes(1, ("w",))) == "[y*x, w, z] +sum(a) +max(b)"
    assert str(Layout.parse("[_*x, y]").with_axes(1, ())) == "[_*x, _]"
    assert str(Layout.replicated(2)) == "[_, _]"
    assert Layout.blocks([("x",), ()], [Partial("sum", ("y",))]) == Layout.parse("[x, _] +sum(y)")
    assert Layout(((AxisFactor("x"), LocalFactor(None)),)) == Layout.parse("[x]")


@pytest.mark.parametrize(
    "text, factor",
    [
        ("[_, _*x]", "factor _ of dim 1"),
        ("[x*2]", "factor 2 of dim 0"),
        ("[x:(1)2]", "factor x:.1.2 of dim 0"),
        ("[x{3,4}]", r"factor x\{3,4\} of dim 0"),
        ("[_, _] order(1, 0)", "memory order"),
        ("[x*y] uneven(nested)", r"uneven\(nested\)"),
    ],
)
def test_what_is_not_in_blocks_is_named(text, factor):
    assert not Layout.parse(text).is_block
    with pytest.raises(LayoutError, match=f"{factor}.* is not supported yet"):
        Layout.parse(text).block_axes()


def test_local_shapes_of_uneven_dims():
    layout = Layout.parse("[x*y, _]")
    assert layout.local_shape(MESH, (13, 4)) == (3, 4)
    assert [layout.offsets(MESH, (13, 4), rank)[0] for rank in range(6)] == [0, 3, 6, 9, 12, 15]
    assert [layout.valid_shape(MESH, (13, 4), rank)[0] for rank in range(6)] == [3, 3, 3, 3, 1, 0]
    assert layout.is_even(MESH, (12, 4)) and not layout.is_even(MESH, (13, 4))
    assert Layout.parse("[_*x*4]").local_shape(Mesh(x=2), (20,)) == (12,)
    assert Layout.parse("[x{5,1}]").local_shape(Mesh(x=2), (6,)) == (5,)
    assert Layout.parse("[x]").local_shape(Mesh(x=4), (0,)) == (0,)


@given(meshes(), st.data())
def test_offsets_are_what_the_digits_say(mesh, data):
    shape = data.draw(shapes(2))
    layout = data.draw(layouts(mesh, 2))
    for rank in range(mesh.nranks):
        starts = layout.offsets(mesh, shape, rank)
        sizes = layout.valid_shape(mesh, shape, rank)
        for dim in range(2):
            valid = [i for i in dim_indices(layout, mesh, shape, dim, rank).tolist() if i >= 0]
            assert valid == list(range(starts[dim], starts[dim] + sizes[dim]))


@pytest.mark.parametrize(
    "text, shape, message",
    [
        ("[x, _]", (8,), r"layout \[x, _\] has 2 dims, the tensor 8 has 1"),
        ("[z]", (8,), r'layout \[z\]: no axis "z" in mesh \(x=2, y=3\)'),
        ("[_] +sum(z)", (8,), r'no axis "z" in mesh'),
        ("[x:(1)4]", (8,), r"dim 0: sub-axis x:\(1\)4: 1 \* 4 does not divide x=2"),
        ("[x{3,4}]", (8,), "lists 2 extents that sum to 7, dim 0 needs 2 that sum to 8"),
        ("[y{4,4}]", (8,), "lists 2 extents that sum to 8, dim 0 needs 3"),
    ],
)
def test_what_does_not_fit_is_refused(text, shape, message):
    with pytest.raises(LayoutError, match=message):
        Layout.parse(text).check(MESH, shape)


def test_a_symbolic_mesh_is_checked_by_name():
    mesh = Mesh(x="N")
    Layout.parse("[x]").check(mesh, (8,))
    with pytest.raises(LayoutError, match='no axis "y"'):
        Layout.parse("[y]").check(mesh, (8,))
    with pytest.raises(LayoutError, match="symbolic"):
        Layout.parse("[x]").local_shape(mesh, (8,))
