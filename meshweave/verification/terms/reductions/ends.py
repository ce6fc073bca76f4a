"""Say what a reduction reads beyond the ends of dims, and where its variables may run."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.verification.terms.indices import Expr, Var, bounds, inside, of_var, plus, variables
from meshweave.verification.terms.masks import settled
from meshweave.verification.terms.nodes import is_neutral
from meshweave.verification.terms.terms import Guard, Term, Terms


def for_all(guard: Guard, over: Sequence[Var]) -> Guard | None:
    """Return the guard that says of a place that it holds for all values of some variables; None for no such."""
    expr, size = guard
    bound = [(a, c) for a, c in expr.terms if variables(Expr(0, ((a, 1),))) & set(over)]
    if not bound:
        return guard
    if not all(a in over and c > 0 for a, c in bound):
        return None
    free = Expr(expr.const, tuple([t for t in expr.terms if t not in bound]))
    room = size - bounds(Expr(0, tuple(bound)))[1]
    return (free, room) if room > 0 else None


def is_defined(terms: Terms, kind: str, body: Term, over: Sequence[Var]) -> bool:
    """Tell whether no padding is read, or what it holds is known."""
    for expr, size, fill in zip(body.exprs, terms.sizes[body.node], body.fills):
        if size is None or not variables(expr) & set(over) or inside(expr, size):
            continue
        if fill is not None:
            if not is_neutral(terms, Term(fill), kind):
                return False
            continue
        free = [t for t in expr.terms if not variables(Expr(0, (t,))) & set(over)]
        part = Expr(0, tuple([t for t in expr.terms if t not in free]))
        if not free or variables(part) - set(over) or bounds(part)[0] < 0:
            return False
    return True


def clipped(terms: Terms, kind: str, body: Term, over: list[Var]) -> tuple[Term, list[Var]]:
    """Leave out what lies beyond the end of a dim and holds the neutral element."""
    for expr, size, fill in zip(body.exprs, terms.sizes[body.node], body.fills):
        if size is None or fill is None or not is_neutral(terms, Term(fill), kind):
            continue
        if len(expr.terms) == 1 and expr.terms[0][0] in over and expr.terms[0][1] == 1:
            var = expr.terms[0][0]
            assert isinstance(var, Var)
            if 0 <= expr.const < size < expr.const + var.size:
                short = Var("b", f"_{terms.fresh()}", size - expr.const)
                body = terms.composed(body, {var: of_var(short)})
                return clipped(terms, kind, body, [short if v == var else v for v in over])
    return body, over


def widened(terms: Terms, kind: str, body: Term, over: list[Var]) -> tuple[Term, list[Var]]:
    """Run over all places of a dim where a mask leaves nothing of those that are not reduced."""
    for number, var in enumerate(over):
        first, end = _room(terms, body, var)
        if first < 0 and not _is_nothing(terms, kind, body, var, first, 0):
            first = 0
        if end > var.size and not _is_nothing(terms, kind, body, var, var.size, end):
            end = var.size
        if (first, end) != (0, var.size):
            wide = Var("b", f"_{terms.fresh()}", end - first)
            body = terms.composed(body, {var: plus(of_var(wide), Expr(first))})
            over = [*over[:number], wide, *over[number + 1 :]]
    return body, over


def _room(terms: Terms, body: Term, var: Var) -> tuple[int, int]:
    """Return from where to where a variable may run: as far as all dims that it is the place in."""
    own = [(e, n) for e, n in zip(body.exprs, terms.sizes[body.node]) if var in variables(e)]
    sizes = [(e.const, n) for e, n in own if n is not None]
    if not sizes or any(e.terms != ((var, 1),) for e, _ in own):
        return 0, var.size
    return min(0, max(-c for c, _ in sizes)), max(var.size, min(n - c for c, n in sizes))


def _is_nothing(terms: Terms, kind: str, body: Term, var: Var, first: int, end: int) -> bool:
    """Tell whether a mask leaves nothing of the places from `first` to `end`."""
    here = Var("b", f"_{terms.fresh()}", end - first)
    there = terms.composed(body, {var: plus(of_var(here), Expr(first))})
    return is_neutral(terms, settled(terms, there), kind)
