"""Heads that are computed one by one are those of the whole program, whichever of them share keys."""

import pytest
from depth import sampled
from verify.heads import RIGHT, WRONG, texts
from verify.pairs import compared

from meshweave.verification.terms.diagonals import MOST_LEVELS, anew, in_one_form
from meshweave.verification.terms.indices import Expr, Var, of_var
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import Node, Term, Terms


@pytest.mark.parametrize("name", RIGHT)
def test_heads_one_by_one_are_proven(name: str) -> None:
    assert compared(*texts(RIGHT[name])).status == 0


@sampled(1)
@pytest.mark.parametrize("name", WRONG)
def test_heads_that_read_other_keys_are_not_proven(name: str) -> None:
    assert not compared(*texts(WRONG[name])).proven


def products(terms: Terms) -> tuple[Term, Term]:
    """q[0] * k[0], which has one dim for both places, and q[1] * k[0]."""
    q, k = [terms.put(Node("argument", (n,), (), "f32"), (4,)) for n in range(2)]
    reads = [[terms.view(q, [Expr(n)], (None,)), terms.view(k, [Expr(0)], (None,))] for n in (0, 1)]
    one, other = [terms.apply("arith.mulf", (), "f32", own) for own in reads]
    return one, other


def test_what_is_read_at_equal_places_is_what_is_read_at_any() -> None:
    terms = Terms(100, apply)
    one, other = products(terms)
    assert (len(one.exprs), len(other.exprs)) == (1, 2)
    found = in_one_form(terms, one, other)
    assert found is not None and found[0].node == found[1].node == other.node
    assert [e.const for e in found[0].exprs] == [0, 0] and found[1] == other
    assert in_one_form(terms, other, one) == found[::-1]


def test_other_values_have_no_one_form() -> None:
    terms = Terms(100, apply)
    one, other = products(terms)
    three = terms.apply("arith.mulf", (), "f32", [one, terms.constant("f32", 3.0)])
    assert in_one_form(terms, three, other) is None
    assert in_one_form(terms, one, one) is None


def test_a_place_that_one_of_them_does_not_read_tells_them_apart() -> None:
    """So nothing is written anew: numbers in the place of numbers do not make them the same."""
    terms = Terms(100, apply)
    one, _ = products(terms)
    q, k = [terms.put(Node("argument", (n,), (), "f32"), (4,)) for n in range(2)]
    i = of_var(Var("i", "0", 4))
    reads = [terms.view(q, [i], (None,)), terms.view(k, [Expr(0)], (None,))]
    other = terms.apply("arith.mulf", (), "f32", reads)
    before = len(terms.nodes)
    assert in_one_form(terms, one, other) is None
    assert len(terms.nodes) == before


def test_long_chains_end() -> None:
    """A program of thousands of ops behind each other is looked into as far as the limit."""
    terms = Terms(10_000, apply)
    i, j = [of_var(Var("i", str(n), 4)) for n in range(2)]
    one, other = [terms.put(Node("argument", (n,), (), "f32"), (4,)) for n in range(2)]
    made = terms.apply(
        "arith.addf", (), "f32", [terms.view(one, [i], (None,)), terms.view(other, [j], (None,))]
    )
    for _ in range(20 * MOST_LEVELS):
        made = terms.apply("math.sin", (), "f32", [made])
    there = terms.composed(made, {Var("i", "0", 4): Expr(1), Var("i", "1", 4): Expr(1)})
    before = len(terms.nodes)
    assert len(anew(terms, there).exprs) == 1
    assert len(terms.nodes) <= before + MOST_LEVELS
