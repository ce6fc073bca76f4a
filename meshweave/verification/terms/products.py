"""Write products of real numbers in one form: factors and their exponents, exponentials of differences taken apart.

    exp(s - m) / sum exp(s - m)      exp(s) * exp(m)^-1 * (exp(m)^-1 * sum exp(s))^-1  =  exp(s) * (sum exp(s))^-1

So a softmax is the same term whatever was taken off its scores, and an accumulator that is rescaled from slice to slice
joins with what is added to it. A factor goes with its inverse only where it is surely a number and not 0, or where the
product is none anyway.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf

import numpy as np

from meshweave.verification.terms.indices import inside
from meshweave.verification.terms.terms import Node, Term, Terms, dims_values

Factor = tuple[Term, int]
"""A value and its exponent."""

NUMBER, LOW, ANY = 2, 1, 0
"""What a value may be, for arguments that are numbers: a number; a number or -inf; anything."""
_KEPT = (
    "arith.negf",
    "arith.extf",
    "arith.truncf",
    "math.absf",
    "math.tanh",
    "math.erf",
    "math.sin",
    "math.cos",
    "arith.sitofp",
    "arith.uitofp",
)
"""Ops that make numbers of numbers."""
_CHOSEN = ("arith.maximumf", "arith.maxnumf")


def is_integer(type_: str) -> bool:
    """Tell whether a type is one of integers of several bits."""
    return type_[:1] == "i" and type_[1:].isdigit() and type_ != "i1"


def is_real(type_: str) -> bool:
    """Tell whether numbers of a type are taken as real numbers."""
    return "f" in type_ and "complex" not in type_


def factors_of(terms: Terms, view: Term) -> list[Factor]:
    """Return the factors of a value."""
    node = terms.nodes[view.node]
    if node.op != "product" or any(f is not None for f in view.fills):
        return [(view, 1)]
    values = dims_values(view.exprs)
    return [(terms.composed(r, values, view.guards), e) for r, e in zip(node.reads, node.detail)]


def inverse(factors: Sequence[Factor]) -> list[Factor]:
    """Return the factors of 1 divided by a product."""
    return [(view, -exponent) for view, exponent in factors]


def product(terms: Terms, type_: str, factors: Sequence[Factor]) -> Term:
    """Return the product of factors, in its one form."""
    from meshweave.verification.terms.reductions import joined_factors
    from meshweave.verification.terms.scalars import plain

    flat = [(f, e * k) for view, e in factors for f, k in factors_of(terms, view)]
    ups, downs = _gathered(terms, flat)
    _cancelled(terms, ups, downs)
    while (found := joined_factors(terms, ups)) is not None:
        a, b, joined = found
        del ups[a], ups[b]
        ups[joined] = ups.get(joined, 0) + 1
    for view in [*ups, *downs]:
        _guard_cancelled(terms, view, ups, downs)
    zero, one = [terms.constant(type_, n if is_integer(type_) else float(n)) for n in (0, 1)]
    if (
        zero in ups
        and all(is_finite(terms, v) for v in ups)
        and all(is_not_zero(terms, v) for v in downs)
    ):
        return zero
    ups.pop(one, None)
    downs.pop(one, None)
    made = sorted([*ups.items(), *[(v, -e) for v, e in downs.items()]])
    if not made:
        return one
    if len(made) == 1 and made[0][1] == 1:
        return made[0][0]
    return plain(terms, "product", tuple([e for _, e in made]), type_, [v for v, _ in made])


def _gathered(terms: Terms, factors: Sequence[Factor]) -> tuple[dict[Term, int], dict[Term, int]]:
    """Add up exponents, those above and those below 0 apart."""
    ups, downs = dict[Term, int](), dict[Term, int]()
    for view, exponent in factors:
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


def _cancelled(terms: Terms, ups: dict[Term, int], downs: dict[Term, int]) -> None:
    """Let factors go with their inverses, where that changes no number."""
    for view in [v for v in ups if v in downs]:
        below = [d for d in downs if d != view]
        if not is_not_zero(terms, view) and not any(_vanishes(terms, view, d) for d in below):
            continue
        _remove(ups, downs, view, view)


def _remove(ups: dict[Term, int], downs: dict[Term, int], up: Term, down: Term) -> None:
    count = min(ups[up], downs[down])
    for side, view in ((ups, up), (downs, down)):
        side[view] -= count
        if not side[view]:
            del side[view]


def _guard_cancelled(
    terms: Terms, view: Term, ups: dict[Term, int], downs: dict[Term, int]
) -> None:
    """Let `exp(x)` go with `exp(x == -inf ? number : x)` below it where another factor is 0 when x is -inf."""
    guarded = _guarded(terms, _exponent(terms, view)) if view in downs else None
    if guarded is None:
        return
    up = next((u for u in ups if _exponent(terms, u) == guarded), None)
    if up is not None and any(_vanishes(terms, up, u) for u in ups if u != up):
        _remove(ups, downs, up, view)


def is_finite(terms: Terms, view: Term) -> bool:
    """Tell whether a value is surely a number wherever it is looked at."""
    inner = [
        n is None or f is not None or inside(e, n)
        for e, n, f in zip(
            view.exprs, terms.sizes[view.node], view.fills or (None,) * len(view.exprs)
        )
    ]
    return level(terms, view) == NUMBER and not view.guards and all(inner)


def is_not_zero(terms: Terms, view: Term) -> bool:
    """Tell whether a value is surely not 0, nor infinite."""
    exponent = _exponent(terms, view)
    if exponent is not None:
        return level(terms, exponent) == NUMBER
    value = terms.constant_of(view)
    return isinstance(value, float) and value not in (0.0, inf, -inf)


def _exponent(terms: Terms, view: Term) -> Term | None:
    """Return x of `exp(x)`, None for any other value."""
    node = terms.nodes[view.node]
    if node.op != "math.exp" or any(f is not None for f in view.fills):
        return None
    return terms.composed(node.reads[0], dims_values(view.exprs), view.guards)


def _guarded(terms: Terms, view: Term | None) -> Term | None:
    """Return x of `x == -inf ? number : x`, None for any other value."""
    if view is None or terms.nodes[view.node].op != "arith.select":
        return None
    values = dims_values(view.exprs)
    test, number, x = [terms.composed(r, values) for r in terms.nodes[view.node].reads]
    compared = _compared_with_low(terms, test)
    return x if compared == x and level(terms, number) == NUMBER and not view.guards else None


def _compared_with_low(terms: Terms, test: Term) -> Term | None:
    """Return x of `x == -inf`, None for any other condition."""
    from meshweave.verification.terms.scalars import predicate_of

    node = terms.nodes[test.node]
    if node.op != "arith.cmpf" or predicate_of(node.detail) not in (1, 8):
        return None
    x, low = [terms.composed(r, dims_values(test.exprs)) for r in node.reads]
    return x if terms.constant_of(low) == -inf else None


def _vanishes(terms: Terms, view: Term, other: Term) -> bool:
    """Tell whether `other` is surely 0 where `view` is, an exponential of a maximum: it adds up what is below that."""
    from meshweave.verification.terms.reductions import opened, reduce

    node, largest = terms.nodes[other.node], _exponent(terms, view)
    if largest is None or node.op != "reduce" or node.detail[0] != "sum":
        return False
    body, bound = opened(terms, other)
    parts = factors_of(terms, body)
    if any(level(terms, v) != NUMBER or e < 0 for v, e in parts):
        return False
    exponents = [_exponent(terms, v) for v, _ in parts]
    return any(x is not None and reduce(terms, "max", x, bound) == largest for x in exponents)


def exponential(terms: Terms, type_: str, x: Term) -> Term:
    """Return `exp(x)`, that of a difference as a quotient."""
    from meshweave.verification.terms.scalars import plain

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


def level(terms: Terms, view: Term) -> int:
    """Return what a value may be: NUMBER, LOW or ANY."""
    fills = [_level(terms, f) for f in view.fills if f is not None]
    return min([_level(terms, view.node), *fills])


def _level(terms: Terms, number: int) -> int:
    found = terms.levels.get(number)
    if found is None:
        found = terms.levels[number] = _computed(terms, terms.nodes[number])
    return found


def _computed(terms: Terms, node: Node) -> int:
    known = [level(terms, r) for r in node.reads]
    if node.op == "const":
        return _of_constant(node.detail[0])
    if node.op in ("argument", "part", "iota"):
        return NUMBER
    if node.op == "table":
        return _of_table(node)
    if node.op == "symbol":
        return int(node.detail[-1])
    if node.op in ("call", "at"):
        return _level(terms, node.detail[0]) if node.op == "call" else known[0]
    if node.op in ("gather", "put"):
        return min(known[: 1 if node.op == "gather" else 2])
    if node.op == "math.exp":
        return NUMBER if known[0] != ANY else ANY
    if node.op == "product":
        below = [is_not_zero(terms, r) for r, e in zip(node.reads, node.detail) if e < 0]
        return NUMBER if min(known) == NUMBER and all(below) else ANY
    if node.op == "arith.select":
        x = _compared_with_low(terms, node.reads[0])
        is_guard = x == node.reads[2] and known[2] == LOW
        return min(known[1], NUMBER) if is_guard else min(known[1:])
    if node.op in _CHOSEN:
        return max(known) if ANY not in known else ANY
    if node.op == "arith.subf":
        return known[0] if known[1] == NUMBER else ANY
    if node.op == "arith.addf" or node.op == "concat":
        return min(known)
    if node.op == "reduce":
        kind = node.detail[0]
        return known[0] if kind == "max" or (kind in ("sum", "min") and known[0] == NUMBER) else ANY
    return NUMBER if node.op in _KEPT and known[0] == NUMBER else ANY


def _of_table(node: Node) -> int:
    if node.type not in ("f32", "f64"):
        return ANY
    values = np.array(node.detail[0])
    if np.isfinite(values).all():
        return NUMBER
    return LOW if (np.isfinite(values) | (values == -inf)).all() else ANY


def _of_constant(value: Hashable) -> int:
    if not isinstance(value, (int, float)):
        return ANY
    return NUMBER if abs(value) < inf else LOW if value == -inf else ANY
