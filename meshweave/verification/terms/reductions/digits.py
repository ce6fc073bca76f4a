"""Write bound variables as digits: one that is divided as two, two that make one number as one."""

from __future__ import annotations

from itertools import permutations

from meshweave.verification.terms.indices import Atom, DivMod, Expr, Var, of_var, total, variables
from meshweave.verification.terms.reductions.dims import weight
from meshweave.verification.terms.terms import Term, Terms


def split(terms: Terms, body: Term, over: list[Var]) -> tuple[Term, list[Var]]:
    """Write a variable that is divided by a number as two digits."""
    for _ in range(8):
        found = next((p for e in body.exprs for p in _parts(e) if _plain(p) in over), None)
        if found is None:
            break
        var = _plain(found)
        assert var is not None
        if var.size % found.by:
            break
        high = Var("b", f"_{terms.fresh()}", var.size // found.by)
        low = Var("b", f"_{terms.fresh()}", found.by)
        both = total(((of_var(high), found.by), (of_var(low), 1)))
        body = terms.composed(body, {var: both})
        over = [v for v in over if v != var] + [high, low]
    return body, over


def _parts(expr: Expr) -> list[DivMod]:
    found = []
    for atom, _ in expr.terms:
        if isinstance(atom, DivMod):
            found += [*_parts(atom.of), atom]
    return found


def _plain(part: DivMod) -> Var | None:
    terms = part.of.terms
    if len(terms) == 1 and not part.of.const and terms[0][1] == 1 and isinstance(terms[0][0], Var):
        return terms[0][0]
    return None


def merged(terms: Terms, body: Term, over: list[Var]) -> tuple[Term, list[Var]]:
    """Make one variable of two that are digits of one number wherever they stand."""
    done = False
    while not done:
        done = True
        for major, minor in permutations(over, 2):
            joined = Var("b", f"_{terms.fresh()}", major.size * minor.size)
            made = _as_digits(terms, body, major, minor, joined)
            if made is not None:
                body, over = made, [v for v in over if v not in (major, minor)] + [joined]
                done = False
                break
    return body, over


def _as_digits(terms: Terms, body: Term, major: Var, minor: Var, joined: Var) -> Term | None:
    """Return a body over the number that two variables are digits of; None where it is no function of that."""
    if not _digits(body, major, minor) and not _are_mixed(body, major, minor):
        return None
    made = terms.composed(body, {major: Expr(0), minor: of_var(joined)})
    if _digits(body, major, minor):
        return made
    number = total(((of_var(major), minor.size), (of_var(minor), 1)))
    return made if terms.composed(made, {joined: number}) == body else None


def _are_mixed(body: Term, major: Var, minor: Var) -> bool:
    """Tell whether a sum of both variables is divided somewhere."""
    both, exprs = {major, minor}, (*body.exprs, *[e for e, _ in body.guards])
    return any(not isinstance(a, Var) and _inner(a) >= both for e in exprs for a, _ in e.terms)


def _digits(body: Term, major: Var, minor: Var) -> bool:
    seen = False
    for expr in (*body.exprs, *[e for e, _ in body.guards]):
        high, low = weight(expr, major), weight(expr, minor)
        if high != low * minor.size:
            return False
        seen = seen or low != 0
        if any(not isinstance(a, Var) and {major, minor} & _inner(a) for a, _ in expr.terms):
            return False
    return seen


def _inner(atom: Atom) -> frozenset[Var]:
    return variables(Expr(0, ((atom, 1),)))
