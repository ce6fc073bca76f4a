"""For which sizes of symbols propagation chooses the same layouts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshweave.layout import Mesh
from meshweave.layout.factors import REDUCTION, Factor, Rule
from meshweave.plan.family import Asked, family, probe, sizes_text, symbols
from meshweave.plan.propagation.defer import defer
from meshweave.plan.propagation.propagate import Graph, Spec, propagate


def product_rule(m, k, n, padding_safe=True):
    """c[m, n] = sum over k of a[m, k] * b[k, n]."""
    factors = (Factor(m), Factor(n), Factor(k, REDUCTION))
    sizes = ((m, k), (k, n), (m, n))
    return Rule(
        factors,
        (((0,), (2,)), ((2,), (1,))),
        (((0,), (1,)),),
        sizes,
        tuple(4 * a * b for a, b in sizes),
        reduction="sum",
        inits=(None,),
        monomials=(frozenset({0, 1}),),
        padding_safe=padding_safe,
    )


def chain(sizes, first, last, padding_safe=True):
    """((v0 @ w1) @ w2) @ ..; `first` is known of v0 and `last` of the last weight."""
    graph = Graph()
    now = graph.add_value(Spec(first, (False, False)))
    for i, (m, k, n) in enumerate(sizes):
        graph.rules.append(product_rule(m, k, n, padding_safe))
        known = Spec(last, (False, False)) if i == len(sizes) - 1 else Spec.unknown(2)
        weight, made = graph.add_value(known), graph.add_value(Spec.unknown(2))
        graph.add_op(i, (now, weight, made))
        now = made
    return graph


def chosen(build, mesh, trace=None):
    graph = build()
    first = propagate(graph, mesh, trace)
    return graph, first, defer(graph, *first, mesh)


DIMS = st.sampled_from([((), ()), (("x",), ()), ((), ("x",)), (("x",), ("y",)), (("x", "y"), ())])


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 64]), min_size=3, max_size=5), DIMS, DIMS)
def test_what_is_said_to_be_the_same_is(dims, first, last):
    def build():
        sizes = [(dims[0], k, n) for k, n in pairwise(dims[1:])]
        return chain(sizes, first, last)

    mesh = Mesh(x="N", y="M")
    asked = Asked(mesh)
    graph, before, after = chosen(build, probe(mesh), asked)
    same = asked.same_for(graph, *before, graph.rules)
    assert dict.fromkeys(("N", "M"), 2) in same
    for sizes in same:
        assert chosen(build, mesh.specialize(**sizes))[2] == after


def test_a_dim_that_cannot_be_cut_is_found():
    def sizes(padding_safe):
        asked = Asked(mesh)
        graph, before, _ = chosen(
            lambda: chain([(4, 8, 8)], (("x",), ()), ((), ()), padding_safe), probe(mesh), asked
        )
        return [each["N"] for each in asked.same_for(graph, *before, graph.rules)]

    mesh = Mesh(x="N")
    assert {4, 8} <= set(sizes(True))  # some ranks have no row
    assert 4 in sizes(False) and 8 not in sizes(False)


@pytest.mark.parametrize(
    "mesh, count", [("x=2", 1), ("x=N", 7), ("x=N, y=M", 16), ("x=N, y=N", 7), ("x=A, y=B, z=C", 8)]
)
def test_families(mesh, count):
    every = family(Mesh.parse(mesh))
    assert len(every) == count and all(set(e) == set(symbols(Mesh.parse(mesh))) for e in every)


def test_texts():
    assert sizes_text({"N": 4, "M": 2}) == "N=4, M=2"
    assert str(probe(Mesh.parse("x=N, y=3"))) == "x=2, y=3"
    many = Mesh.parse("a=A, b=B, c=C, d=D, e=E")
    assert family(many) == [dict.fromkeys("ABCDE", 2)]
