"""Apply scalar ops to terms: one node for each op and what it reads, with what the rules of arithmetic make equal.

Sums are those of real numbers, as in all distributed programs: in which order they are rounded is not looked at.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from math import inf

from meshweave.verification.terms.arith import (
    COMBINES,
    UNSIGNED,
    folded,
    is_integer,
    is_real,
    kind_of,
    neutral,
    predicate_of,
)
from meshweave.verification.terms.indices import (
    Expr,
    Var,
    bounds,
    is_number,
    plus,
    quotient,
    remainder,
    times,
)
from meshweave.verification.terms.levels import NUMBER, level
from meshweave.verification.terms.masks import as_place
from meshweave.verification.terms.nodes import NODE, in_order, is_neutral, plain
from meshweave.verification.terms.orders import place_of
from meshweave.verification.terms.pieces import by_place, guarded
from meshweave.verification.terms.products import exponential, product
from meshweave.verification.terms.reductions.joins import combine
from meshweave.verification.terms.reductions.reduce import reduce
from meshweave.verification.terms.reductions.turns import in_turn, operands_of
from meshweave.verification.terms.terms import (
    Term,
    Terms,
    dims_values,
    is_only,
)

_INDEX = {"arith.addi": 1, "arith.subi": -1}
_PRODUCTS = {"arith.mulf": 1, "arith.divf": -1}
"""Ops on two numbers that are products, with the exponent of the second."""
_EXACT: dict[str, Callable[..., int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
}
_LOOKED_INTO = (
    *("arith.select", "arith.cmpi", "arith.andi", "arith.ori"),
    *("arith.truncf", "arith.extf"),
)
"""Ops with rules that hold for what is no number and no place."""
_RULED = (*_LOOKED_INTO, "reduce", "product")
_CASTS = ("arith.index_cast", "arith.index_castui")


def apply(
    terms: Terms, name: str, detail: tuple[Hashable, ...], type_: str, reads: Sequence[Term]
) -> Term:
    """Return what a scalar op makes of values. detail: its attributes.

    Those of a product are its exponents, those of a reduction its kind and the variables that it is over.
    """
    if not terms.algebra and name not in _RULED and terms.numbers.isdisjoint(map(NODE, reads)):
        return plain(terms, name, detail, type_, in_order(reads) if name in COMBINES else reads)
    if name == "reduce":
        return reduce(terms, str(detail[0]), reads[0], [v for v in detail if isinstance(v, Var)])
    if name == "product":
        return product(terms, type_, [(r, e) for r, e in zip(reads, detail) if isinstance(e, int)])
    kind = kind_of(name, type_) if len(reads) == 2 else None
    if terms.algebra or name in _LOOKED_INTO or _may_have_rule(terms, kind, reads):
        made = _special(terms, name, detail, type_, reads)
        if made is None and kind is not None:
            made = _of_neutral(terms, kind, reads)
            if made is None and terms.algebra:
                made = _combined(terms, kind, name, reads)
        if made is not None:
            return made
    if name == "arith.select" and terms.algebra and set(reads[1].guards) != set(reads[2].guards):
        return guarded(terms, type_, reads)
    return plain(terms, name, detail, type_, reads if kind is None else in_order(reads))


def _before_rounding(terms: Terms, type_: str, short: Term) -> Term | None:
    """Return the number that was rounded, where roundings are left out; None for any other number."""
    if terms.nodes[short.node].op != "arith.truncf":
        return None
    for long in operands_of(terms, "arith.truncf", short):
        if terms.type_of(long) == type_:
            terms.rounded = True
            if terms.rounds is not None:
                terms.rounds.add((long.node, terms.type_of(short)))
                return long
    return None


def _may_have_rule(terms: Terms, kind: str | None, reads: Sequence[Term]) -> bool:
    """Tell whether a rule may hold for what is read: all numbers, a place, or a neutral element."""
    known = [read for read in reads if read.node in terms.numbers]
    if len(known) == len(reads):
        return True
    for read in known:
        node = terms.nodes[read.node]
        if node.op == "iota" or (kind is not None and node.detail[0] == neutral(kind, node.type)):
            return True
    return False


def _of_neutral(terms: Terms, kind: str, reads: Sequence[Term]) -> Term | None:
    """Return what a neutral element is combined with, None where there is none."""
    for one, other in (reads, reads[::-1]):
        if is_neutral(terms, one, kind):
            return other
    return None


def _combined(terms: Terms, kind: str, name: str, reads: Sequence[Term]) -> Term | None:
    joined = combine(terms, kind, reads[0], reads[1])
    return in_turn(terms, kind, name, reads[0], reads[1]) if joined is None else joined


def _special(
    terms: Terms, name: str, detail: tuple[Hashable, ...], type_: str, reads: Sequence[Term]
) -> Term | None:
    if name == "arith.select":
        return _select(terms, reads)
    if name == "arith.cmpi":
        return _compared(terms, detail, reads)
    if (
        type_ == "index"
        and len(reads) == 2
        and all(terms.nodes[r.node].op == "iota" for r in reads)
    ):
        return _index_sum(terms, name, reads)
    if name in ("arith.andi", "arith.ori") and type_ == "i1":
        return _logic(terms, name, reads)
    if name == "arith.truncf":  # a float that was lengthened is what it was
        for short in operands_of(terms, "arith.extf", reads[0]):
            if terms.nodes[short.node].type == type_:
                return short
    if name == "arith.extf":
        long = _before_rounding(terms, type_, reads[0])
        if long is not None:
            return long
    made = _algebra(terms, name, detail, type_, reads) if terms.algebra else None
    if made is not None:
        return made
    if name in _CASTS and terms.nodes[reads[0].node].op == "iota":
        return _cast(terms, type_, reads[0])
    values = [terms.constant_of(r) for r in reads]
    if all(v is not None for v in values):
        if name == "arith.trunci" and isinstance(values[0], int) and is_integer(type_):
            half = 1 << int(type_[1:]) - 1
            return terms.constant(type_, values[0]) if -half <= values[0] < half else None
        number = folded(name, detail, values, list(map(terms.type_of, reads)))
        return None if number is None else terms.constant(type_, number)
    return None


def _algebra(
    terms: Terms, name: str, detail: tuple[Hashable, ...], type_: str, reads: Sequence[Term]
) -> Term | None:
    """Return what rules of arithmetic make of an op on numbers."""
    sum_ = _integers(name, type_, reads[0], reads[-1], terms)
    if sum_ is not None:
        return sum_
    if (name in _PRODUCTS and is_real(type_)) or (name == "arith.muli" and is_integer(type_)):
        return product(terms, type_, [(reads[0], 1), (reads[1], _PRODUCTS.get(name, 1))])
    if name == "math.exp" and is_real(type_):
        return exponential(terms, type_, reads[0])
    if name == "arith.index_cast" and type_ == "index" and not reads[0].guards:
        place = as_place(terms, reads[0])
        return None if place is None else terms.iota(place)
    if name == "arith.cmpf" and predicate_of(detail) in (1, 8):
        return _equal_to_low(terms, reads)
    return None


def _integers(name: str, type_: str, a: Term, b: Term, terms: Terms) -> Term | None:
    """Compute with integers that are known, where nothing wraps around."""
    compute, values = _EXACT.get(name), [terms.constant_of(v) for v in (a, b)]
    if compute is None or not is_integer(type_) or not all(isinstance(v, int) for v in values):
        return None
    made, half = compute(*values), 1 << int(type_[1:]) - 1
    return terms.constant(type_, made) if -half <= made < half else None


def _cast(terms: Terms, type_: str, place: Term) -> Term | None:
    """Make a number of a place that is known."""
    known, shift = is_number(place.exprs[0]), 0 if type_ == "i1" else 1
    if place.guards or not known or type_ == "index":
        return None
    value = place.exprs[0].const
    return terms.constant(type_, value) if 0 <= value < 1 << int(type_[1:]) - shift else None


def _logic(terms: Terms, name: str, reads: Sequence[Term]) -> Term | None:
    if reads[0] == reads[1]:
        return reads[0]
    for one, other in (reads, reads[::-1]):
        value = terms.constant_of(one)
        if value is not None:
            return other if bool(value) == (name == "arith.andi") else one
    return None


def _index_sum(terms: Terms, name: str, reads: Sequence[Term]) -> Term | None:
    a, b = (r.exprs[0] for r in reads)
    guards = (*reads[0].guards, *reads[1].guards)
    made: Expr | None = None
    if name in _INDEX:
        made = plus(a, times(b, _INDEX[name]))
    elif name == "arith.muli" and (not a.terms or not b.terms):
        made = times(a, b.const) if not b.terms else times(b, a.const)
    elif name in ("arith.divui", "arith.divsi", "arith.floordivsi", "arith.remui", "arith.remsi"):
        if not b.terms and b.const > 0 and bounds(a)[0] >= 0:
            made = quotient(a, b.const) if "div" in name else remainder(a, b.const)
    elif name in ("arith.minui", "arith.minsi", "arith.maxsi", "arith.maxui"):
        (least, most), (low, high) = bounds(a), bounds(b)
        if min(least, low) >= 0 or name.endswith("si"):
            small, large = (a, b) if most <= low else (b, a) if high <= least else (None, None)
            made = small if "min" in name else large
    return None if made is None else terms.iota(made)._replace(guards=guards)


def _equal_to_low(terms: Terms, reads: Sequence[Term]) -> Term | None:
    """Compare a value with -inf, where it is surely a number, or -inf."""
    for one, other in (reads, reads[::-1]):
        if terms.constant_of(other) == -inf and not one.guards:
            if terms.constant_of(one) == -inf:
                return terms.constant("i1", 1)
            if level(terms, one) == NUMBER:
                return terms.constant("i1", 0)
    return None


def _range(terms: Terms, view: Term) -> tuple[int, int] | None:
    """Return the least and the greatest number that a known integer or place may be; None for others."""
    if terms.nodes[view.node].op == "iota":
        return None if view.guards else bounds(view.exprs[0])
    number = terms.constant_of(view)
    if isinstance(number, int):
        return number, number
    place = place_of(terms, view)
    return None if place is None else (0, terms.nodes[place.node].detail[1] - 1)


_ORDER = {2: (0, False), 3: (0, True), 4: (1, False), 5: (1, True)}
_REFLEXIVE = (0, 3, 5, 7, 9)


def _compared(terms: Terms, detail: tuple[Hashable, ...], reads: Sequence[Term]) -> Term | None:
    """Compare a value with itself, or two places or numbers where their ranges say the answer."""
    if reads[0] == reads[1]:
        return terms.constant("i1", int(predicate_of(detail) in _REFLEXIVE))
    values = [terms.constant_of(r) for r in reads]
    if all(isinstance(v, int) for v in values):
        x, y = [int(str(v)) for v in values]
        answer = _answer(predicate_of(detail), x, x, y, y)
        return None if answer is None else terms.constant("i1", int(answer))
    ranges = [found for r in reads if (found := _range(terms, r)) is not None]
    if len(ranges) < len(reads):
        return None
    (low, high), (least, most) = ranges
    answer = _answer(predicate_of(detail), low, high, least, most)
    return None if answer is None else terms.constant("i1", int(answer))


def _answer(predicate: int, low: int, high: int, least: int, most: int) -> bool | None:
    if predicate in UNSIGNED:
        if min(low, least) < 0:
            return None
        predicate = UNSIGNED[predicate]
    if predicate in (0, 1):
        if high < least or most < low:
            return predicate == 1
        return predicate == 0 if low == high == least == most else None
    if predicate not in _ORDER:
        return None
    swap, equal = _ORDER[predicate]
    if swap:
        low, high, least, most = least, most, low, high
    if high < least or (equal and high <= least):
        return True
    if low > most or (not equal and low >= most):
        return False
    return None


def _select(terms: Terms, reads: Sequence[Term]) -> Term | None:
    condition, yes, no = reads
    value = terms.constant_of(condition)
    if value is not None:
        return yes if value else no
    if yes == no and not condition.guards:
        return yes
    holds = (terms.constant_of(yes), terms.constant_of(no)) == (1, 0)
    if holds and terms.nodes[yes.node].type == "i1" and not condition.guards:
        return condition
    return _masked(terms, condition, yes, no) or by_place(terms, condition, yes, no)


def _masked(terms: Terms, condition: Term, yes: Term, no: Term) -> Term | None:
    """Read `index < size ? value : number` as the value with a known number in its padding."""
    if terms.constant_of(no) is None:
        return None
    bounds_ = limits(terms, condition)
    if bounds_ is None:
        return None
    if yes == no:
        return yes
    sizes, fills = terms.sizes[yes.node], list(yes.fills)
    exprs, guards = list(yes.exprs), list(yes.guards)
    for expr, size in bounds_:
        at = [k for k, e in enumerate(exprs) if e == expr]
        if not at and (expr, 1) in guards and size == 1:  # a dim of one place, which says no more
            at = [k for k, e in enumerate(exprs) if is_only(e, sizes[k]) and fills[k] is None][:1]
            guards.remove((expr, 1))
        if len(at) != 1 or sizes[at[0]] != size or bounds(expr)[0] < 0:
            return None
        if fills[at[0]] not in (None, no.node):
            return None
        exprs[at[0]], fills[at[0]] = expr, no.node
    if any(f is not None and f != no.node for f in fills):
        return None
    return terms.view(yes.node, exprs, fills, guards)


def limits(terms: Terms, condition: Term) -> list[tuple[Expr, int]] | None:
    """Return what a condition says when it is that places are below numbers; None for any other."""
    node = terms.nodes[condition.node]
    if condition.guards:
        return None
    if node.op == "arith.andi":
        parts = [terms.composed(r, dims_values(condition.exprs)) for r in node.reads]
        found = [limits(terms, p) for p in parts]
        return [x for f in found if f for x in f] if all(f is not None for f in found) else None
    if node.op != "arith.cmpi" or predicate_of(node.detail) not in (2, 6):
        return None
    place, end = [terms.composed(r, dims_values(condition.exprs)) for r in node.reads]
    if terms.nodes[place.node].op != "iota" or terms.nodes[end.node].op != "iota":
        return None
    if end.exprs[0].terms:
        return None
    return [(place.exprs[0], end.exprs[0].const)]
