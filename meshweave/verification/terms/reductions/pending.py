"""Settle reductions that an argument came with: of one kind, over the members whose parts are still apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshweave.verification.terms.indices import Expr, Var, variables
from meshweave.verification.terms.terms import Guard, Node, Term, Terms


def without_pending(
    terms: Terms, kind: str, view: Term, bound: list[Var]
) -> tuple[Term, list[Var]]:
    """Do reductions that an argument came with: those of this kind, before which no other is to be done."""
    node = terms.nodes[view.node]
    pending: list[tuple[str, int]] = list(node.detail[1])
    first = len(view.exprs) - len(pending)
    left, kept = list(bound), list[tuple[Expr, tuple[str, int]]]()
    guarded = {v for e, _ in view.guards for v in variables(e)}

    def alone(var: Var) -> bool:
        return var not in guarded and sum(var in variables(e) for e in view.exprs) == 1

    for expr, (one, size) in zip(view.exprs[first:], pending):
        var = expr.terms[0][0] if len(expr.terms) == 1 and not expr.const else None
        first_of_kind = one == kind and not any(k != kind for _, (k, _) in kept)
        if (
            first_of_kind
            and isinstance(var, Var)
            and var in left
            and var.size == size
            and alone(var)
        ):
            left.remove(var)
        else:
            kept.append((expr, (one, size)))
    if len(kept) == len(pending):
        return view, bound
    return part(terms, node.detail[0], node.type, terms.sizes[view.node][:first], kept)(
        view.exprs[:first], view.guards
    ), left


def part(
    terms: Terms,
    number: int,
    type_: str,
    shape: Sequence[int | None],
    pending: list[tuple[Expr, tuple[str, int]]],
) -> Callable[[Sequence[Expr], Sequence[Guard]], Term]:
    """Return a reader of an argument with reductions pending: for each the member that is read, its kind and size."""
    if not pending:
        node = terms.put(Node("argument", (number,), (), type_), shape)
    else:
        detail = (number, tuple([p for _, p in pending]))
        sizes = [*shape, *[size for _, (_, size) in pending]]
        node = terms.put(Node("part", detail, (), type_), sizes)
    members = [e for e, _ in pending]
    return lambda exprs, guards: terms.view(node, [*exprs, *members], (), guards)
