"""Multiply the factors of sums, and tell which a sum runs over."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.verification.terms.indices import Var
from meshweave.verification.terms.masks import is_plain
from meshweave.verification.terms.nodes import Factor, factors_of, is_neutral
from meshweave.verification.terms.terms import Node, Term, Terms, opened, view_variables

LINEAR = ("product", "complex.mul")
SUMS = ("arith.addf", "arith.addi", "arith.subf", "arith.subi", "arith.negf", "complex.add")


def flattened(terms: Terms, view: Term, bound: list[Var]) -> tuple[Term, list[Var]] | None:
    """Write a sum of products of sums as one sum: `sum_k (sum_l A[k, l] * B[l]) * C[k]` is one over k and l."""
    factors, inner = list[Factor](), list[Var]()
    for factor, exponent in factors_of(terms, view):
        node = terms.nodes[factor.node]
        is_sum = node.op == "reduce" and node.detail[0] == "sum" and exponent == 1
        if is_sum and view_variables(factor) & set(bound):
            factor, own = opened(terms, factor)
            inner += own
        factors.append((factor, exponent))
    if not inner:
        return None
    return multiplied(terms, terms.type_of(view), factors), [*bound, *inner]


def flat_product(terms: Terms, body: Term) -> Term | None:
    """Return a product of products as one, where nothing is left of the ends that kept them apart; None for no such."""
    node = terms.nodes[body.node]
    if node.op != "product" or not terms.algebra or body.fills.count(None) != len(body.fills):
        return None
    if not any(terms.nodes[r.node].op == "product" and is_plain(r) for r in node.reads):
        return None
    made = multiplied(terms, node.type, list(zip(reads_of(terms, body), exponents_of(node))))
    return None if made.node == body.node else made


def exponents_of(node: Node) -> Sequence[int]:
    """Return the exponent of each factor of a node."""
    return node.detail if node.op == "product" else (1,) * len(node.reads)


def multiplied_as(terms: Terms, node: Node, factors: Sequence[Factor]) -> Term:
    """Multiply as a node does."""
    if node.op == "product" or len(factors) < 2:
        return multiplied(terms, node.type, factors)
    return terms.apply(node.op, node.detail, node.type, [v for v, _ in factors])


def multiplied(terms: Terms, type_: str, factors: Sequence[Factor]) -> Term:
    """Multiply factors."""
    return terms.apply("product", tuple([e for _, e in factors]), type_, [v for v, _ in factors])


def filled_read(terms: Terms, view: Term, read: Term, all_dims: bool) -> Term | None:
    """Return what an op reads with nothing beyond the ends where the op's result has nothing."""
    fills = list(read.fills)
    for expr, size, fill in zip(view.exprs, terms.sizes[view.node], view.fills):
        if fill is None:
            continue
        at = [k for k, e in enumerate(read.exprs) if e == expr]
        if not is_neutral(terms, Term(fill), "sum") or (all_dims and not at):
            return None
        if any(terms.sizes[read.node][k] != size for k in at):
            return None
        for k in at:
            fills[k] = fill
    return read._replace(fills=tuple(fills))


def connected(used: Sequence[frozenset[Var]]) -> list[tuple[frozenset[Var], list[int]]]:
    """Group factors that share variables: the variables of each group and the numbers of its factors."""
    groups: list[tuple[frozenset[Var], list[int]]] = []
    for number, own in enumerate(used):
        shared = [g for g in groups if g[0] & own]
        groups = [g for g in groups if g not in shared]
        merged = own.union(*[g[0] for g in shared])
        groups.append((merged, sorted([number, *[k for g in shared for k in g[1]]])))
    return groups


def reads_of(terms: Terms, view: Term) -> list[Term]:
    """Return what the node of a view reads, at the places of the view."""
    return [terms.at_dims(r, view.exprs, view.guards) for r in terms.nodes[view.node].reads]
