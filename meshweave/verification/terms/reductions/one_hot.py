"""Read the one element of a sum whose condition holds at one place: `sum over b of (b == k ? value[b] : 0)`."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.verification.terms.arith import predicate_of
from meshweave.verification.terms.indices import (
    Expr,
    Var,
    inside,
    plus,
    quotient,
    remainder,
    variables,
)
from meshweave.verification.terms.lookups import all_of, conditions_of
from meshweave.verification.terms.nodes import is_neutral
from meshweave.verification.terms.terms import Term, Terms, dims_values


def one_hot(terms: Terms, kind: str, view: Term, bound: list[Var]) -> tuple[Term, list[Var]] | None:
    """Read `sum over b of (b == k ? value : 0)` as the value at b = k: that, and what is left to reduce it over."""
    node = terms.nodes[view.node]
    if node.op != "arith.select" or any(f is not None for f in view.fills):
        return None
    if any(variables(e) & set(bound) for e, _ in view.guards):
        return None
    values = dims_values(view.exprs)
    condition, yes, no = [terms.composed(r, values) for r in node.reads]
    if not is_neutral(terms, no, kind):
        return None
    tests = conditions_of(terms, condition)
    for number, test in enumerate(tests):
        solved = _equal(terms, test, bound)
        if solved is None:
            continue
        rest = [terms.composed(t, solved) for k, t in enumerate(tests) if k != number]
        made = terms.composed(yes, solved, view.guards)
        if rest:
            reads = [all_of(terms, rest), made, no]
            made = terms.apply("arith.select", (), terms.type_of(no), reads)
        return made, [v for v in bound if v not in solved]
    return None


def _equal(terms: Terms, condition: Term, bound: Sequence[Var]) -> dict[Var, Expr] | None:
    """Return at which values of bound variables a condition holds that says of two places that they are the same."""
    test = terms.nodes[condition.node]
    if test.op != "arith.cmpi" or predicate_of(test.detail) != 0 or condition.guards:
        return None
    ends = [terms.composed(r, dims_values(condition.exprs)) for r in test.reads]
    if any(terms.nodes[e.node].op != "iota" or e.guards for e in ends):
        return None
    for one, other in ((ends[0], ends[1]), (ends[1], ends[0])):
        solved = _solved(one.exprs[0], other.exprs[0], bound)
        if solved is not None:
            return solved
    return None


def _solved(expr: Expr, value: Expr, bound: Sequence[Var]) -> dict[Var, Expr] | None:
    """Return what makes `expr`, of bound variables, give `value`, when there is exactly one such choice."""
    own = {a for a, _ in expr.terms}
    if variables(value) & set(bound) or not own or not own <= set(bound):
        return None
    value = plus(value, Expr(-expr.const))
    weight, found = 1, {}
    rest = value
    for atom, coefficient in sorted(expr.terms, key=lambda t: t[1]):
        if coefficient != weight or not isinstance(atom, Var):
            return None
        found[atom] = remainder(rest, atom.size)
        rest = quotient(rest, atom.size)
        weight *= atom.size
    return found if inside(value, weight) else None
