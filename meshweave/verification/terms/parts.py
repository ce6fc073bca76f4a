"""Tell whether each place of a dim is in exactly one part of it, by computing where each part has each place.

part x of 0 .. 7:  has p where 2 * (p / 2) + x == p,  at p / 2,  and its place g is 2 * g + x
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from meshweave.verification.terms.arith import UNSIGNED, predicate_of
from meshweave.verification.terms.indices import DivMod, Expr, Owned, Var, substitute
from meshweave.verification.terms.terms import Term, Terms, dims_values

Places = Any  # an array of integers, or of bools
MOST_PLACES = 1 << 22
"""Places of all parts that are computed."""
MOST_READ = 64
"""Values that are looked at for a place that is held within a dim."""
_OPS: dict[str, Callable[[Places, Places], Places]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divui": np.floor_divide,
    "arith.remui": np.remainder,
}
_COMPARE: dict[int, Callable[[Places, Places], Places]] = {
    0: np.equal, 1: np.not_equal, 2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal,
    6: np.less, 7: np.less_equal, 8: np.greater, 9: np.greater_equal,
}  # fmt: skip
_Known = Mapping[Var, int]


def is_apart(
    terms: Terms,
    has: tuple[Term, Term],
    place: Term,
    whole: tuple[Var, Expr, int],
    over: Sequence[Var],
) -> bool:
    """Tell whether each place of a dim is in exactly one part, where that says it is.

    has:   a condition, whether a part has `place`, and an index, where.
    whole: a variable, the place of the whole dim that it is in a part, and the size of that dim.
    over:  the variables that number the parts.
    """
    inner, expr, size = whole
    if size * prod(v.size for v in over) > MOST_PLACES:
        return False
    every, count = np.arange(size), np.zeros(size, np.int64)
    for numbers in product(*[range(v.size) for v in over]):
        known = dict(zip(over, numbers))
        held, here = [_computed(terms, view, place, every, known) for view in has]
        if held is None or here is None:
            return False
        held, here = np.broadcast_to(held, every.shape), np.broadcast_to(here, every.shape)
        own = here[held]
        if own.size and not (own.min() >= 0 and own.max() < inner.size):
            return False
        there = _placed(expr, inner, own, known)
        if there is None or not np.array_equal(np.broadcast_to(there, own.shape), every[held]):
            return False
        count += held
    return bool((count == 1).all())


def within(terms: Terms, view: Term) -> Iterator[Term]:
    """Yield a value, and what it is computed from by scalar ops, at any depth: MOST_READ of these at most."""
    waiting, seen = [view], set[Term]()
    while waiting and len(seen) < MOST_READ:
        view = waiting.pop(0)
        if view in seen:
            continue
        seen.add(view)
        yield view
        if terms.nodes[view.node].op.startswith("arith.") and not view.guards:
            waiting += _reads(terms, view)


def _reads(terms: Terms, view: Term) -> list[Term]:
    return [terms.composed(r, dims_values(view.exprs)) for r in terms.nodes[view.node].reads]


def _computed(terms: Terms, view: Term, place: Term, every: Places, known: _Known) -> Places | None:
    """Return a value for every number that `place` may be; None where it depends on anything else."""
    if view == place:
        return every
    node = terms.nodes[view.node]
    if view.guards or any(f is not None for f in view.fills):
        return None
    if node.op == "iota":
        return _placed(view.exprs[0], None, every, known)
    if node.op == "table":
        at = [_placed(e, None, every, known) for e in view.exprs]
        numbers = np.array(node.detail[0])
        sure = [a for a in at if a is not None]
        inside = all(0 <= int(a) < n for a, n in zip(sure, numbers.shape) if np.ndim(a) == 0)
        plain = len(sure) == len(at) and inside and all(np.ndim(a) == 0 for a in sure)
        return numbers[tuple([int(a) for a in sure])] if plain else None
    read = _reads(terms, view)
    found = (_computed(terms, r, place, every, known) for r in read)
    parts = [part for part in found if part is not None]
    if not parts or len(parts) < len(read):
        return None
    if node.op == "arith.select":
        condition, yes, no = parts
        return np.where(condition, yes, no)
    if node.op == "arith.cmpi":
        return _compared(predicate_of(node.detail), *parts)
    if node.op not in _OPS or (node.op in ("arith.divui", "arith.remui") and not _divides(*parts)):
        return None
    return _OPS[node.op](*parts)


def _divides(value: Places, by: Places) -> bool:
    """Tell whether a division of numbers with signs is that of numbers without."""
    return bool(np.min(value) >= 0 and np.min(by) > 0)


def _compared(predicate: int, a: Places, b: Places) -> Places | None:
    """Compare numbers; without signs those below 0 are the largest."""
    if predicate not in _COMPARE:
        return None
    if predicate in UNSIGNED:
        a, b = [np.asarray(n, np.int64).astype(np.uint64) for n in (a, b)]
    return _COMPARE[predicate](a, b)


def _placed(expr: Expr, inner: Var | None, at: Places, known: _Known) -> Places | None:
    """Return a place where `inner` is `at` and other variables are what is known; None where that is not enough."""
    expr = substitute(expr, {v: Expr(n) for v, n in known.items()})
    total: Places = expr.const
    for atom, factor in expr.terms:
        if atom == inner:
            found: Places | None = at
        elif isinstance(atom, DivMod):
            found = _placed(atom.of, inner, at, known)
            if found is not None:
                found = found // atom.by if atom.kind == "/" else found % atom.by
        elif isinstance(atom, Owned):
            indices, place = atom.indices(), _placed(atom.inputs[-1], inner, at, known)
            if indices is None or place is None or np.size(place) == 0:
                found = place if indices is not None else None
            else:
                row = np.asarray(indices)
                found = row[place] if np.min(place) >= 0 and np.max(place) < row.size else None
        else:
            found = 0 if atom.size == 1 else None
        if found is None:
            return None
        total = total + factor * found
    return total
