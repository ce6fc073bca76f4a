"""Write products of real numbers in one form: factors and their exponents, exponentials of differences taken apart.

    exp(s - m) / sum exp(s - m)      exp(s) * exp(m)^-1 * (exp(m)^-1 * sum exp(s))^-1  =  exp(s) * (sum exp(s))^-1

So an accumulator of a softmax that is rescaled from slice to slice joins with what is added to it. A factor goes with
its inverse only where it is surely a number and not 0, or where the product is none anyway; an exponential leaves a
factor of exponent 0, its shift (`shifts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from meshweave.verification.terms.arith import is_integer
from meshweave.verification.terms.levels import (
    ANY,
    NUMBER,
    exponent_of,
    is_defined,
    is_finite,
    is_not_zero,
    level,
)
from meshweave.verification.terms.nodes import Factor, factors_of, plain, turn
from meshweave.verification.terms.reductions.joins import joined_factors
from meshweave.verification.terms.reductions.reduce import reduce
from meshweave.verification.terms.shifts import left_shifts, unguarded
from meshweave.verification.terms.terms import Term, Terms, dims_values, opened


def inverse(factors: Sequence[Factor]) -> list[Factor]:
    """Return the factors of 1 divided by a product."""
    return [(view, -exponent) for view, exponent in factors]


def product(terms: Terms, type_: str, factors: Sequence[Factor]) -> Term:
    """Return the product of factors, in its one form."""
    flat = [(f, e * k) for view, e in factors for f, k in factors_of(terms, view)]
    ups, downs = _gathered(terms, flat)
    shifts = [view for view, exponent in flat if not exponent]
    shifts += _cancelled(terms, ups, downs)
    while (found := joined_factors(terms, ups)) is not None:
        a, b, joined = found
        del ups[a], ups[b]
        ups[joined] = ups.get(joined, 0) + 1
    for view in [*ups, *downs]:
        shifts += _guard_cancelled(terms, view, ups, downs)
    shifts = left_shifts(terms, shifts, list(ups), list(downs)) if shifts else []
    zero, one = [terms.constant(type_, n if is_integer(type_) else float(n)) for n in (0, 1)]
    if (
        zero in ups
        and all(is_finite(terms, v) for v in ups)
        and all(is_not_zero(terms, v) for v in downs)
    ):
        return zero
    ups.pop(one, None)
    downs.pop(one, None)
    made = [*ups.items(), *[(v, -e) for v, e in downs.items()], *[(v, 0) for v in shifts]]
    made.sort(key=lambda factor: (turn(factor[0]), factor[1]))
    if not made:
        return one
    if len(made) == 1 and made[0][1] == 1:
        return made[0][0]
    return plain(terms, "product", tuple([e for _, e in made]), type_, [v for v, _ in made])


def _gathered(terms: Terms, factors: Sequence[Factor]) -> tuple[dict[Term, int], dict[Term, int]]:
    """Add up exponents, those above and those below 0 apart; those that are 0 are left out."""
    ups, downs = dict[Term, int](), dict[Term, int]()
    for view, exponent in factors:
        if not exponent:
            continue
        value = terms.constant_of(view)
        if exponent < 0 and isinstance(value, float) and _is_power_of_two(value):
            view, exponent = terms.constant(terms.type_of(view), 1 / value), -exponent
        side = ups if exponent > 0 else downs
        side[view] = side.get(view, 0) + abs(exponent)
    return ups, downs


def _is_power_of_two(value: float) -> bool:
    return (
        value != 0.0
        and abs(value) < inf
        and value.hex().split("p")[0].endswith("0x1.0000000000000")
    )


def _cancelled(terms: Terms, ups: dict[Term, int], downs: dict[Term, int]) -> list[Term]:
    """Let factors go with their inverses, where that changes no number; return the exponentials that went."""
    gone = []
    for view in [v for v in ups if v in downs]:
        below = [d for d in downs if d != view]
        if not is_defined(terms, view):
            continue  # what padding holds does not go
        if not is_not_zero(terms, view) and not any(_vanishes(terms, view, d) for d in below):
            continue
        _remove(ups, downs, view, view)
        gone.append(view)
    return [_shift(terms, v) for v in gone if exponent_of(terms, v) is not None]


def _shift(terms: Terms, view: Term) -> Term:
    """Return an exponential without what guards its exponent from being -inf."""
    exponent = exponent_of(terms, view)
    bare = unguarded(terms, exponent) if exponent else None
    return plain(terms, "math.exp", (), terms.type_of(view), [bare]) if bare else view


def _remove(ups: dict[Term, int], downs: dict[Term, int], up: Term, down: Term) -> None:
    count = min(ups[up], downs[down])
    for side, view in ((ups, up), (downs, down)):
        side[view] -= count
        if not side[view]:
            del side[view]


def _guard_cancelled(
    terms: Terms, view: Term, ups: dict[Term, int], downs: dict[Term, int]
) -> list[Term]:
    """Let `exp(x)` go with `exp(x == -inf ? number : x)` below it where another factor is 0 when x is -inf.

    Return what went, if so.
    """
    exponent = exponent_of(terms, view) if view in downs else None
    guarded = unguarded(terms, exponent) if exponent else None
    if guarded is None:
        return []
    up = next((u for u in ups if exponent_of(terms, u) == guarded), None)
    if up is None or not any(_vanishes(terms, up, u) for u in ups if u != up):
        return []
    _remove(ups, downs, up, view)
    return [up]


def _vanishes(terms: Terms, view: Term, other: Term) -> bool:
    """Tell whether `other` is surely 0 where `view` is, an exponential of a maximum: it adds up what is below that."""
    node, largest = terms.nodes[other.node], exponent_of(terms, view)
    if largest is None or node.op != "reduce" or node.detail[0] != "sum":
        return False
    body, bound = opened(terms, other)
    parts = factors_of(terms, body)
    if any(level(terms, v) != NUMBER or e < 0 for v, e in parts):
        return False
    exponents = [exponent_of(terms, v) for v, _ in parts]
    return any(x is not None and reduce(terms, "max", x, bound) == largest for x in exponents)


def exponential(terms: Terms, type_: str, x: Term) -> Term:
    """Return `exp(x)`, that of a difference as a quotient."""
    node = terms.nodes[x.node]
    value = terms.constant_of(x)
    if value in (0.0, -inf):
        return terms.constant(type_, 1.0 if value == 0.0 else 0.0)
    if node.op == "arith.subf" and not any(f is not None for f in x.fills):
        a, b = [terms.composed(r, dims_values(x.exprs), x.guards) for r in node.reads]
        if level(terms, a) != ANY and level(terms, b) != ANY:
            parts = [exponential(terms, type_, v) for v in (a, b)]
            return product(terms, type_, [(parts[0], 1), (parts[1], -1)])
    return plain(terms, "math.exp", (), type_, [x])
