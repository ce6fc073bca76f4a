"""Compare values case by case: cut the ranges of places and coordinates wherever one of the values changes its form.

    i < 1 ? a[i] : b[i]    and    a[0] beside b[i] for i >= 1    are the same at i = 0, and at i = 1 .. n-1

What is put together of pieces, filled up beyond an end or chosen by a condition on places has one form in each case.
So this proves what differs in how it is put together. It takes time for each case, and is asked last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshweave.verification.cases.keys import Keys
from meshweave.verification.cases.ranges import (
    Values,
    first_partition,
    is_outside,
    partition_atom,
)
from meshweave.verification.cases.resolve import Resolver, StepLimit
from meshweave.verification.terms.indices import Atom, Expr, Var, inside, substitute
from meshweave.verification.terms.terms import Guard, LimitError, Term, Terms

MOST_CASES = 1 << 10
"""Cases that are looked at for one value."""


@dataclass(frozen=True)
class _Case:
    got: Term
    want: Term
    valid: tuple[Guard, ...]


def same_by_cases(
    terms: Terms, got: Term, want: Term, valid: Sequence[Guard], steps: StepLimit
) -> bool:
    """Tell whether two values are surely the same in each case, wherever `valid` places are within their sizes.

    steps: how many are left for this; where they do not suffice nothing is told.
    """
    try:
        return _same(terms, _Case(got, want, tuple(valid)), steps)
    except (LimitError, RecursionError):
        return False


def _same(terms: Terms, whole: _Case, steps: StepLimit) -> bool:
    todo, count = [whole], 0
    while todo:
        case, count = todo.pop(), count + 1
        if count > MOST_CASES:
            return False
        kept = tuple([g for g in case.valid if not inside(*g)])
        if any(is_outside(*g) for g in kept):
            continue  # no element of the whole
        resolver = Resolver(terms, steps)
        one, other = resolver.view(case.got), resolver.view(case.want)
        if one == other and not one.guards:
            continue
        parts = first_partition(resolver.cuts)
        if parts is None:  # all is decided: only sums may still be written in another order
            whole_sums, keys = Keys(resolver, kept, written=0), Keys(resolver, kept)
            if any(k.of(one) == k.of(other) for k in (whole_sums, keys)):
                continue
            parts = _others(one, other, kept, keys.divided)
        if parts is None:
            return False
        todo += [_put(terms, _Case(one, other, kept), values) for values in parts]
    return True


def _others(
    one: Term, other: Term, valid: Sequence[Guard], divided: set[Atom]
) -> list[Values] | None:
    """Return the cases of a case in which ends, or places that are divided, are decided; None where all are."""
    guards = [*one.guards, *other.guards, *valid]
    found = first_partition([cut for e, n in guards for cut in ((e, 0), (e, n))])
    if found is not None:
        return found
    return next((p for atom in sorted(divided) if (p := partition_atom(atom)) is not None), None)


def _put(terms: Terms, case: _Case, values: Mapping[Var, Expr]) -> _Case:
    valid = tuple([(substitute(e, values), n) for e, n in case.valid])
    return _Case(terms.composed(case.got, values), terms.composed(case.want, values), valid)
