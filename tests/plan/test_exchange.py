"""The table of an exchange: pieces by hand, and the laws that make it least and complete."""

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes, shapes, valid_count

from meshweave.layout import Layout, Mesh
from meshweave.plan.exchange import Piece, Table, busiest
from meshweave.plan.overlap import overlap

X2Y2 = Mesh(x=2, y=2)


def table(source, target, mesh, shape):
    return Table(Layout.parse(source), Layout.parse(target), mesh, shape)


def test_pieces_by_hand():
    made = table("[x, _]", "[_, x]", Mesh(x=2), (4, 6))
    assert made.receives(1) == (
        Piece(0, (2, 3), 3, (6, 1), 0, (3, 1)),
        Piece(1, (2, 3), 3, (6, 1), 6, (3, 1)),
    )
    assert list(made.sends(0)) == [(1, made.receives(1)[0])]
    assert made.counts(0) == {0: 6, 1: 6} and busiest(made) == 6


def test_cyclic_pieces_are_strided():
    made = table("[_*x]", "[x]", Mesh(x=2), (12,))
    assert made.receives(0) == (Piece(0, (3,), 0, (1,), 0, (2,)), Piece(1, (3,), 0, (1,), 1, (2,)))
    made = table("[_*x*2]", "[x]", Mesh(x=2), (16,))
    assert made.receives(0)[0] == Piece(0, (2, 2), 0, (2, 1), 0, (4, 1))
    tail = table("[_*x]", "[x]", Mesh(x=2), (7,)).receives(1)
    assert [(piece.sender, piece.size) for piece in tail] == [(0, 2), (1, 1)]


def test_memory_orders_are_in_the_strides():
    made = table("[_, _]", "[_, _] order(1, 0)", Mesh(x=2), (3, 4))
    assert made.receives(0) == (Piece(0, (3, 4), 0, (4, 1), 0, (1, 3)),)


def test_of_replicas_the_nearest_sends():
    made = table("[x, _]", "[_, _]", X2Y2, (4, 4))
    assert [set(made.counts(rank)) for rank in range(4)] == [{0, 2}, {1, 3}, {0, 2}, {1, 3}]


@settings(max_examples=200)
@given(meshes(), st.data(), st.integers(0, 3))
def test_every_element_comes_once_and_none_that_is_there(mesh, data, ndim):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=())) for _ in range(2))
    made = Table(source, target, mesh, shape)
    for rank in range(mesh.nranks):
        counts = made.counts(rank)
        assert sum(counts.values()) == valid_count(target, mesh, shape, rank)
        for sender in counts:
            sent = [piece for receiver, piece in made.sends(sender) if receiver == rank]
            assert sender == rank or sum(p.size for p in sent) == counts[sender]
    found = overlap(source, target, mesh, shape)
    assert found.missing == found.at_most == busiest(made)
    most = max(sum(s != r for s in made.counts(r)) for r in range(mesh.nranks))
    assert most <= found.senders
    assert found.missing <= found.wanted


def test_too_many_ranks_to_look_at_give_a_range():
    mesh = Mesh(a=1024, b=1024)
    one, other = Layout.parse("[a*b]"), Layout.parse("[b*a]")
    found = overlap(one, other, mesh, (5_000_001,))
    assert 0 < found.missing <= found.at_most == 5
