"""Decide how the body of a linalg op is rounded."""

from __future__ import annotations

import operator
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import (
    AnyNode,
    Apply,
    Argument,
    Body,
    BodyNode,
    Constant,
    Expression,
    Gather,
    Node,
    Scalar,
    renumber,
)

A = TypeVar("A", bound=Hashable)
I = TypeVar("I", bound=Hashable)  # noqa: E741
S = TypeVar("S", bound=Hashable)


def exact(body: Body) -> Body:
    """Return the body with nothing reordered, contracted or approximated."""
    nodes = [n.exact() if isinstance(n, Apply) else n for n in body.nodes]
    return replace(body, nodes=tuple(nodes))


def contracted(body: Body, sums: Collection[int]) -> Body:
    """Return the body with products added without rounding them first.

    This is decided within the body only, so that the bits of a result do not depend on what it is
    computed together with.

    sums: nodes for what a reduction holds so far. A product that is added there is marked, because
    such sums may be reordered; any other becomes a fused multiply-add.
    """
    if not any(isinstance(node, Apply) and node.name == "arith.mulf" for node in body.nodes):
        return body
    nodes: list[BodyNode] = []
    new: list[int] = []  # for each old node

    def put(node: BodyNode) -> int:
        nodes.append(node)
        return len(nodes) - 1

    for old in body.nodes:
        node = renumber(old, new)
        which = _product(node, nodes)
        if which is None or not isinstance(node, Apply):
            new.append(put(node))
            continue
        at, other = node.operands[which], node.operands[1 - which]
        product = nodes[at]
        assert isinstance(product, Apply)
        if other in sums:
            nodes[at] = product.contracted()
            new.append(put(node.contracted()))
            continue
        left, right = product.operands
        if node.name == "arith.subf":
            negated = left if which else other
            opposite = put(Apply("arith.negf", node.attributes, (negated,), node.type))
            left, other = (opposite, other) if which else (left, opposite)
        new.append(put(Apply("math.fma", node.attributes, (left, right, other), node.type)))
    return Expression(tuple(nodes), tuple([new[k] for k in body.results]))


def _product(node: BodyNode, nodes: list[BodyNode]) -> int | None:
    """Return which operand of a sum or difference in f32 or f64 is a product of the same body."""
    if not isinstance(node, Apply) or node.name not in ("arith.addf", "arith.subf"):
        return None
    if str(node.type) not in ("f32", "f64"):
        return None
    for k, number in enumerate(node.operands):
        made = nodes[number]
        if isinstance(made, Apply) and made.name == "arith.mulf":
            return k
    return None


def computes_nothing(body: Body) -> bool:
    """Tell whether a body only hands on arguments or scalars from around it."""
    return all(isinstance(node, (Argument, Scalar)) for node in body.nodes)


def gathered_tensors(body: Body) -> list[ir.Value]:
    """Return the tensors that a body reads at computed places, in order."""
    return [node.access for node in body.nodes if isinstance(node, Gather)]


def with_tensor(body: Body, old: ir.Value, new: ir.Value) -> Body:
    """Return the body gathering from tensor `new` where it gathered from `old`."""
    if old not in gathered_tensors(body):
        return body
    nodes = [
        replace(n, access=new) if isinstance(n, Gather) and n.access == old else n
        for n in body.nodes
    ]
    return replace(body, nodes=tuple(nodes))


def constant_of(value: ir.Value) -> ir.Attribute | None:
    """Return the attribute of the arith.constant that makes `value`, None when something else does."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return owner.attributes["value"]


_COMPARISONS = (
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.lt, operator.le, operator.gt, operator.ge),  # without signs
)


def folded(node: Node[A, I, S], nodes: Sequence[Node[A, I, S]]) -> Node[A, I, S] | int:
    """Return a comparison of two known integers as what it is, a choice by it as the number of what it takes.

    Any other node is returned as it is. What reads constants of the program becomes known only in a kernel.
    """
    if not isinstance(node, Apply) or node.name not in ("arith.cmpi", "arith.select"):
        return node
    values = [_integer(nodes[k]) for k in node.operands]
    if node.name == "arith.select":
        return node if values[0] is None else node.operands[1 if values[0] else 2]
    predicate, (left, right) = node.attribute("predicate"), values
    if left is None or right is None or predicate is None:
        return node
    if predicate.value > 5 and min(left, right) < 0:
        return node
    holds = _COMPARISONS[predicate.value](left, right)
    return Constant(ir.IntegerAttr.get(node.type, int(holds)), node.type)


def _integer(node: AnyNode) -> int | None:
    """Return the integer that a node is."""
    number = node.value if isinstance(node, Constant) else None
    return number.value if isinstance(number, ir.IntegerAttr) else None
