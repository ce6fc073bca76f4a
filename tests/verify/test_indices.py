"""Expressions of places keep their value in every normal form."""

from hypothesis import given
from hypothesis import strategies as st

from meshweave.verification.terms.indices import (
    Expr,
    Var,
    bounds,
    of_var,
    plus,
    quotient,
    remainder,
    substitute,
    times,
)
from meshweave.verification.terms.samples import place

VARS = [Var("i", "0", 4), Var("i", "1", 6), Var("x", "x", 2), Var("x", "y", 3), Var("i", "2", 1)]


def forms(depth: int = 3) -> st.SearchStrategy[tuple[Expr, object]]:
    """An expression, and a function that computes it plainly."""
    leaf = st.one_of(
        st.sampled_from([(of_var(v), lambda e, v=v: e[v]) for v in VARS]),
        st.integers(0, 9).map(lambda n: (Expr(n), lambda e: n)),
    )

    def grow(inner: st.SearchStrategy) -> st.SearchStrategy:
        number = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
        return st.one_of(
            st.tuples(inner, inner).map(
                lambda p: (plus(p[0][0], p[1][0]), lambda e: p[0][1](e) + p[1][1](e))
            ),
            st.tuples(inner, number).map(
                lambda p: (times(p[0][0], p[1]), lambda e: p[0][1](e) * p[1])
            ),
            st.tuples(inner, number).map(
                lambda p: (quotient(p[0][0], p[1]), lambda e: p[0][1](e) // p[1])
            ),
            st.tuples(inner, number).map(
                lambda p: (remainder(p[0][0], p[1]), lambda e: p[0][1](e) % p[1])
            ),
        )

    return st.recursive(leaf, grow, max_leaves=12)


@given(forms(), st.data())
def test_an_expression_has_the_value_of_what_it_is_made_of(form, data) -> None:
    expr, plain = form
    at = {v: data.draw(st.integers(0, v.size - 1)) for v in VARS}
    assert place(expr, at) == plain(at)
    low, high = bounds(expr)
    assert low <= place(expr, at) <= high


@given(forms(), forms(), st.data())
def test_substitution_is_computing_with_another_value(form, other, data) -> None:
    expr, plain = form
    at = {v: data.draw(st.integers(0, v.size - 1)) for v in VARS}
    inner = remainder(other[0], 6)
    assert place(substitute(expr, {VARS[1]: inner}), at) == plain({**at, VARS[1]: other[1](at) % 6})


def test_what_a_gather_makes_of_a_block_is_the_index() -> None:
    i = of_var(Var("i", "0", 8))
    for n in (1, 2, 4, 8):
        assert plus(times(quotient(i, n), n), remainder(i, n)) == i
    wide = of_var(Var("i", "0", 24))
    digits = quotient(wide, 12), remainder(quotient(wide, 4), 3), remainder(wide, 4)
    assert plus(plus(times(digits[0], 12), times(digits[1], 4)), digits[2]) == wide


def test_the_digits_of_a_finer_quotient_join() -> None:
    dim = of_var(Var("h", "0", 0))
    for whole in (dim, plus(times(dim, 3), Expr(20))):
        digits = times(quotient(whole, 32), 2), quotient(remainder(whole, 32), 16)
        assert plus(*digits) == quotient(whole, 16)
        assert plus(times(digits[0], 2), digits[1]) != quotient(whole, 16)


def test_what_counts_backwards_has_one_form() -> None:
    x, i = Var("x", "x", 2), Var("i", "i", 8)
    back = plus(Expr(1), times(of_var(x), -1))
    assert remainder(plus(of_var(x), Expr(1)), 2) == remainder(back, 2) == back
    assert quotient(plus(of_var(x), Expr(1)), 2) == of_var(x)
    last = plus(Expr(7), times(of_var(i), -1))
    assert plus(times(quotient(last, 4), 4), remainder(last, 4)) == last
