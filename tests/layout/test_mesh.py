"""Meshes: text, ranks, groups, symbols and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import meshes

from meshweave.errors import LayoutError
from meshweave.layout import Axis, Link, Mesh

MESH = Mesh(x=2, y=3)


def test_text_is_read_and_printed():
    assert str(Mesh.parse(" x=2 ,y = 4")) == "x=2, y=4"
    assert Mesh.parse("x=2, y=4") == Mesh(x=2, y=4) == Mesh(Axis("x", 2), Axis("y", 4))
    assert Mesh("x=2", y=4) == Mesh("x=2, y=4") == Mesh(Axis("x", 2), "y=4") == Mesh(x=2, y=4)
    assert Mesh.parse("").nranks == 1 and str(Mesh()) == ""
    assert Mesh(x=2, y=4) != Mesh(y=4, x=2)
    assert Mesh(Axis("x", 2, Link(1e-6, 1e-9))) != Mesh(x=2)


def test_ranks_count_row_major():
    assert MESH.nranks == 6 and MESH.names == ("x", "y") and MESH.size("y") == 3
    assert MESH.coordinates(4) == {"x": 1, "y": 1}
    assert MESH.rank_of({"y": 1, "x": 1}) == 4


def test_groups_share_all_other_coordinates():
    assert MESH.group(("y",), 4) == (3, 4, 5)
    assert MESH.group(("x",), 4) == (1, 4)
    assert MESH.group(("y", "x"), 4) == (0, 3, 1, 4, 2, 5)
    assert MESH.group_index(("y", "x"), 4) == 3
    assert MESH.group((), 4) == (4,) and MESH.group_index((), 4) == 0
    assert list(MESH.groups(("x",))) == [(0, 3), (1, 4), (2, 5)]
    assert MESH.axis_count(("x", "y")) == 6 and MESH.axis_count(()) == 1


def test_sub_axes_are_named_like_axes():
    mesh = Mesh(x=8, y=2)
    assert mesh.size("x:(2)2") == 2
    assert [mesh.coordinate(rank, "x:(2)2") for rank in range(0, 16, 2)] == [0, 0, 1, 1] * 2
    assert mesh.group(("x:(2)2",), 0) == (0, 4)
    with pytest.raises(LayoutError, match=r"sub-axis x:\(3\)2: 3 \* 2 does not divide x=8"):
        mesh.size("x:(3)2")


@given(meshes(), st.data())
def test_a_group_lists_its_members_in_order(mesh, data):
    axes = data.draw(st.permutations(mesh.names))[: data.draw(st.integers(0, len(mesh.names)))]
    rank = data.draw(st.integers(0, mesh.nranks - 1))
    members = mesh.group(axes, rank)
    assert members[mesh.group_index(axes, rank)] == rank
    assert [mesh.group_index(axes, member) for member in members] == list(range(len(members)))
    assert len(set(members)) == mesh.axis_count(axes)
    assert mesh.rank_of(mesh.coordinates(rank)) == rank


def test_symbols_become_numbers():
    mesh = Mesh.parse("x=N, y=2")
    assert mesh.is_symbolic and str(mesh) == "x=N, y=2" and mesh.size("y") == 2
    assert mesh.specialize(N=4) == mesh.specialize(x=4) == Mesh(x=4, y=2)
    for ask in (lambda: mesh.nranks, lambda: mesh.size("x"), lambda: mesh.group(("x",), 0)):
        with pytest.raises(LayoutError, match=r"mesh \(x=N, y=2\) is symbolic: give x=N a number"):
            ask()
    with pytest.raises(LayoutError, match='no symbol "M" in mesh'):
        mesh.specialize(M=4)


@pytest.mark.parametrize(
    "text, message",
    [
        ("x", r'mesh "x": "x" is not NAME=SIZE'),
        ("x=2,", r'"" is not NAME=SIZE'),
        ("x=0", "axis x=0: a size is at least 1"),
        ("x=-1", "axis x=-1: a size is a number or a symbol"),
        ("x=2, x=3", "a mesh has axis x only once, got x, x"),
        ("2=x", "an axis name is an identifier"),
        ("_=2", "an identifier other than _"),
        ("x=99999, y=99999", "at most 2147483647"),
        ("x=99999999999999999999999", "a size is a number or a symbol"),
    ],
)
def test_wrong_text_is_refused(text, message):
    with pytest.raises(LayoutError, match=message):
        Mesh.parse(text)


def test_an_axis_is_an_axis_or_a_text():
    with pytest.raises(LayoutError, match="Axis objects or texts such as 'x=2, y=4', got 4"):
        Mesh(4)


def test_wrong_questions_are_refused():
    with pytest.raises(LayoutError, match=r'no axis "z" in mesh \(x=2, y=3\)'):
        MESH.size("z")
    with pytest.raises(LayoutError, match=r"rank 6 is not in mesh \(x=2, y=3\)"):
        MESH.coordinates(6)
    with pytest.raises(LayoutError, match=r"axis y of mesh .* needs a coordinate 0..2, got None"):
        MESH.rank_of({"x": 1})
    with pytest.raises(LayoutError, match=r"a group names each axis once, got \(x, x\)"):
        MESH.group(("x", "x"), 0)
    with pytest.raises(LayoutError, match="alpha >= 0"):
        Link(-1.0, 0.0)
