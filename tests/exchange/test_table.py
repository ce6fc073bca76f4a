"""The table of an exchange: pieces by hand, and the laws that make it least and complete."""

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes, shapes, valid_count

from meshweave.exchange.table import Piece, Table
from meshweave.layout import Layout, Mesh
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
    assert made.sends(0) == (made.receives(1)[0]._replace(peer=1),)
    assert made.counts(0) == {0: 6, 1: 6}


def test_cyclic_pieces_are_strided():
    made = table("[_*x]", "[x]", Mesh(x=2), (12,))
    assert made.receives(0) == (Piece(0, (3,), 0, (1,), 0, (2,)), Piece(1, (3,), 0, (1,), 1, (2,)))
    made = table("[_*x*2]", "[x]", Mesh(x=2), (16,))
    assert made.receives(0)[0] == Piece(0, (2, 2), 0, (2, 1), 0, (4, 1))
    tail = table("[_*x]", "[x]", Mesh(x=2), (7,)).receives(1)
    assert [(piece.peer, piece.size) for piece in tail] == [(0, 2), (1, 1)]


def test_long_dims_are_walked_by_digits():
    size = (1 << 40) + 5  # far too many to look at each
    made = table("[_*x]", "[x]", Mesh(x=4), (size,)).receives(3)
    assert [piece.peer for piece in made] == [0, 1, 2, 3]
    assert sum(piece.size for piece in made) == size - 3 * -(-size // 4)
    (piece,) = table("[_*x*8]", "[_*8*x]", Mesh(x=4), (1 << 40,)).receives(0)[:1]
    assert (piece.peer, piece.size) == (0, 1 << 36)


def test_memory_orders_are_in_the_strides():
    made = table("[_, _]", "[_, _] order(1, 0)", Mesh(x=2), (3, 4))
    assert made.receives(0) == (Piece(0, (3, 4), 0, (4, 1), 0, (1, 3)),)


def test_of_replicas_the_nearest_sends():
    made = table("[x, _]", "[_, _]", X2Y2, (4, 4))
    assert [set(made.counts(rank)) for rank in range(4)] == [{0, 2}, {1, 3}, {0, 2}, {1, 3}]


@settings(max_examples=examples(200))
@given(meshes(), st.data(), st.integers(0, 3))
def test_every_element_comes_once_and_none_that_is_there(mesh, data, ndim):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=())) for _ in range(2))
    made, ranks = Table(source, target, mesh, shape), range(mesh.nranks)
    counts = [made.counts(rank) for rank in ranks]
    for rank in ranks:
        assert sum(counts[rank].values()) == valid_count(target, mesh, shape, rank)
    found = overlap(source, target, mesh, shape)
    foreign = [sum(n for s, n in row.items() if s != rank) for rank, row in enumerate(counts)]
    assert found.missing == found.at_most == max(foreign)
    most = max(sum(s != r for s in counts[r]) for r in ranks)
    assert most <= found.senders
    assert found.missing <= found.wanted


@settings(max_examples=examples(200))
@given(meshes(), st.data(), st.integers(0, 3))
def test_a_rank_sends_what_the_others_receive_from_it(mesh, data, ndim):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape)) for _ in range(2))
    made, ranks = Table(source, target, mesh, shape), range(mesh.nranks)
    wanted: list[list[Piece]] = [[] for _ in ranks]
    for rank in ranks:
        for piece in made.receives(rank):
            if piece.peer != rank:
                wanted[piece.peer].append(piece._replace(peer=rank))
    for rank in ranks:
        assert made.sends(rank) == tuple(wanted[rank])
        held = valid_count(source, mesh, shape, rank)
        sent = sum(piece.size for piece in wanted[rank]) + made.counts(rank).get(rank, 0)
        assert sent <= held * made.repeats


@pytest.mark.parametrize(
    "source, target, repeats",
    [
        ("[x, _]", "[_, x]", 1),
        ("[x, _]", "[_, _]", 6),
        ("[x:(1)2, _]", "[_, x:(1)2]", 1),
        ("[x:(1)2, _]", "[x:(2)3, _]", 2),
        ("[x:(1)2, y]", "[y, _]", 2),
        ("[_, _]", "[x, y]", 1),
    ],
)
def test_how_often_an_element_is_given_away(source, target, repeats):
    assert table(source, target, Mesh(x=6, y=2), (12, 12)).repeats == repeats


@pytest.mark.parametrize("source, target", [("[_*x, _]", "[x, _]"), ("[x*y, _]", "[y*x, _]")])
def test_one_rank_of_many_knows_its_own_pieces(source, target):
    mesh = Mesh(x=64, y=64)
    made = table(source, target, mesh, (64 * 64 * 3 + 1, 8))
    for rank in (0, 100, 4095):
        for piece in made.receives(rank):
            sent = [p for p in made.sends(piece.peer) if p.peer == rank]
            assert piece.peer == rank or piece._replace(peer=rank) in sent


def test_too_many_ranks_to_look_at_give_a_range():
    mesh = Mesh(a=1024, b=1024)
    one, other = Layout.parse("[a*b]"), Layout.parse("[b*a]")
    found = overlap(one, other, mesh, (5_000_001,))
    assert 0 < found.missing <= found.at_most == 5
