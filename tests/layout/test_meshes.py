"""A layout of one mesh, said in the axes of another one, has each element on the same rank, at the same place."""

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, shapes

from meshweave.layout import Layout, Mesh
from meshweave.layout.digits import scatter
from meshweave.layout.meshes import on_mesh

SIZES = {
    4: ((4,), (2, 2), (1, 4), (2, 1, 2)),
    6: ((6,), (2, 3), (3, 2), (1, 2, 3)),
    8: ((8,), (2, 4), (4, 2), (2, 2, 2)),
    12: ((12,), (3, 4), (2, 6), (4, 3), (2, 3, 2)),
}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Mesh, Mesh]:
    """Two meshes of as many ranks."""
    sizes = SIZES[draw(st.sampled_from(sorted(SIZES)))]
    return tuple(Mesh(**dict(zip(names, draw(st.sampled_from(sizes))))) for names in ("xyz", "abc"))  # type: ignore[return-value]


@settings(max_examples=examples(200))
@given(st.data())
def test_each_element_stays_on_its_rank_at_its_place(data: st.DataObject) -> None:
    mesh, other = data.draw(pairs())
    shape = data.draw(shapes(data.draw(st.integers(0, 3))))
    layout = data.draw(any_layouts(mesh, shape))
    found = on_mesh(layout, mesh, other)
    if found is None:
        return
    found.check(other, shape)
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    for one, two in zip(scatter(value, mesh, layout), scatter(value, other, found)):
        assert one.shape == two.shape and np.array_equal(one, two)
    back = on_mesh(found, other, mesh)
    assert back is None or back.local_shape(mesh, shape) == layout.local_shape(mesh, shape)


@settings(max_examples=examples(60))
@given(st.data())
def test_all_plain_layouts_are_layouts_of_a_row(data: st.DataObject) -> None:
    mesh, _ = data.draw(pairs())
    shape = data.draw(shapes(data.draw(st.integers(0, 3))))
    plain = Layout(data.draw(any_layouts(mesh, shape)).dims)
    assert on_mesh(plain, mesh, Mesh(r=mesh.nranks)) is not None


@pytest.mark.parametrize(
    ("layout", "mesh", "other", "found"),
    [
        ("[x, _]", "x=4", "a=2, b=2", "[a*b, _]"),
        ("[a, b]", "a=2, b=2", "x=4", "[x:(1)2, x:(2)2]"),
        ("[b, a]", "a=2, b=6", "x=4, y=3", "[x:(2)2*y, x:(1)2]"),
        ("[a, _]", "a=2, b=3", "x=3, y=2", None),  # a is no part of x
        ("[_, _] +sum(x)", "x=4", "a=2, b=2", "[_, _] +sum(a, b)"),
        ("[_, _] +sum(a)", "a=2, b=2", "x=4", None),  # sums are over whole axes
        ("[a{3,5}]", "a=2, b=2", "x=4", "[x:(1)2{3,5}]"),
        ("[x{1,2,3,2}]", "x=4", "a=2, b=2", None),
        ("[a*b] uneven(nested)", "a=2, b=2", "x=4", None),
        ("[a, _] +max(b)", "a=4, b=1", "x=2, y=2", "[x*y, _]"),
    ],
)  # fmt: skip
def test_layouts_in_the_axes_of_another_mesh(
    layout: str, mesh: str, other: str, found: str | None
) -> None:
    made = on_mesh(Layout.parse(layout), Mesh.parse(mesh), Mesh.parse(other))
    assert made == (None if found is None else Layout.parse(found))
