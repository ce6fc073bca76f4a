"""Say where a value differs from what is wanted, and whether it surely does."""

from __future__ import annotations

import random
from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.verification.terms.indices import Expr, Var, text, variables
from meshweave.verification.terms.samples import OpenError, Sampler, TooLongError, differ, place
from meshweave.verification.terms.terms import Guard, Term, Terms, dims_values, view_variables

SAMPLES = 8
"""Elements that are looked at."""
MOST_WORDS = 100


def explained(terms: Terms, got: Term, want: Term, valid: Sequence[Guard]) -> tuple[bool, str]:
    """Return whether a value is surely not what is wanted, and the reason in one line."""
    reason = difference(terms, got, want)
    found = witness(terms, got, want, valid)
    if found is None:
        return False, reason
    return True, f"{reason}; {found}"


def witness(terms: Terms, got: Term, want: Term, valid: Sequence[Guard]) -> str | None:
    """Return an element at which a value is not what is wanted, in words; None where none is found."""
    names = view_variables(got) | view_variables(want)
    depends = sorted(names.union(*[variables(e) for e, _ in valid]))
    if any(not v.size for v in depends):
        return None
    source = random.Random(0)
    for number in range(SAMPLES):
        at = {v: source.randrange(v.size) if number else v.size - 1 for v in depends}
        if any(not 0 <= _place(e, at) < n for e, n in valid):
            continue
        sampler = Sampler(terms, number)
        try:
            right = sampler.element(want, at)
            made = sampler.element(got, at)
        except (TooLongError, RecursionError):
            return None  # at other places it takes as long
        except OpenError:
            continue
        if differ(made, right):
            return f"{_where(at)} it is {made:g} instead of {right:g} for some arguments"
    return None


def _place(expr: Expr, values: dict[Var, int]) -> int:
    try:
        return place(expr, values)
    except OpenError:
        return -1


def _where(at: dict[Var, int]) -> str:
    ranks = [f"{v.name}={p}" for v, p in at.items() if v.kind == "x"]
    places = [str(p) for v, p in at.items() if v.kind == "i"]
    rank = f"on the rank {', '.join(ranks)} " if ranks else ""
    return f"{rank}at [{', '.join(places)}]"


def difference(terms: Terms, got: Term, want: Term) -> str:
    """Return where two terms first differ: what was expected and what is."""
    for _ in range(1000):
        one, other = terms.nodes[got.node], terms.nodes[want.node]
        if (one.op, one.detail, len(one.reads)) != (other.op, other.detail, len(other.reads)):
            if "call" not in (one.op, other.op):
                break
            got, want = _within(terms, got), _within(terms, want)
            continue
        mine = [terms.composed(r, dims_values(got.exprs)) for r in one.reads]
        theirs = [terms.composed(r, dims_values(want.exprs)) for r in other.reads]
        deeper = next(((a, b) for a, b in zip(mine, theirs) if a.node != b.node), None)
        if deeper is None:
            break
        got, want = deeper
    return f"expected {named(terms, want)}, is {named(terms, got)}"


def _within(terms: Terms, view: Term) -> Term:
    """Return the term of a call in the place of it."""
    node = terms.nodes[view.node]
    return Term(node.detail[0], *view[1:]) if node.op == "call" else view


def named(terms: Terms, view: Term) -> str:
    """Describe a view in a few words."""
    node = terms.nodes[view.node]
    if node.op in ("unknown", "open"):
        reason = node.detail[0 if node.op == "unknown" else 2]
        return f"not known: {reason}{_made_at(terms, view)}"
    at = f" at [{', '.join(map(text, view.exprs))}]" if view.exprs else ""
    words = " ".join(map(str, node.detail))
    words = f" {words}" if words and len(words) < MOST_WORDS else ""
    return f"{node.op}{words}{at}{_made_at(terms, view)}"


def _made_at(terms: Terms, view: Term) -> str:
    made = terms.places[view.node]
    return f" ({location_text(made)})" if isinstance(made, ir.Operation) else ""
