"""Recognise the products of an attention: linalg ops that add up products of two tensors over one loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Apply, BodyNode, Constant, read_body
from meshweave.transforms.attention.expressions import (
    ZERO,
    Coordinate,
    Expressions,
    Operand,
    loop_extents,
    maps_of,
    reductions_of,
)


@dataclass(frozen=True)
class MatrixProduct:
    """Describe a linalg.generic that adds up products over one loop, from zero."""

    op: ir.Operation
    operands: tuple[Operand, Operand]
    writes: tuple[Coordinate, ...]
    reduced: int
    sizes: tuple[int, ...]


def product_of(op: ir.Operation) -> MatrixProduct | None:
    """Return the op as a product of two tensors over one loop, None where it is something else."""
    if op.name != "linalg.generic" or len(op.operands) != 3 or len(op.results) != 1:
        return None
    if not adds_products(op) or len(reductions := reductions_of(op)) != 1:
        return None
    if (maps := maps_of(op)) is None:
        return None
    if not filled_with(op.operands[2], 0.0):
        return None
    sizes = loop_extents(op, maps)
    left, right = (Operand(op.operands[k], maps[k]) for k in (0, 1))
    extents = tuple(sizes[k] for k in range(len(sizes)))
    return MatrixProduct(op, (left, right), maps[2], reductions[0], extents)


def adds_products(op: ir.Operation) -> bool:
    """Tell whether the body of a generic of three operands is out + a * b, a and b perhaps widened first."""
    if len(op.operands) != 3 or len(op.results) != 1:
        return False
    block = op.regions[0].blocks[0]
    names = [name for view in block.operations if (name := view.operation.name) != "arith.extf"]
    if names != ["arith.mulf", "arith.addf", "linalg.yield"]:
        return False
    body = read_body(block)
    total = body.nodes[body.results[0]]
    if not isinstance(total, Apply) or 2 not in total.operands:
        return False
    product = body.nodes[sum(total.operands) - 2]
    if not isinstance(product, Apply) or product.name != "arith.mulf":
        return False
    return {_narrow(body.nodes, k) for k in product.operands} == {0, 1}


def _narrow(nodes: Sequence[BodyNode], number: int) -> int:
    """Return the node that is widened to node `number`."""
    node = nodes[number]
    return node.operands[0] if isinstance(node, Apply) and node.name == "arith.extf" else number


def filled_with(value: ir.Value, number: float | None) -> bool:
    """Tell whether a tensor is full of one number: of `number`, unless that is None."""
    expressions = Expressions()
    node = expressions.nodes[expressions.node(value, [ZERO] * len(value.type.shape))]
    attr = node.value if isinstance(node, Constant) else None
    if not isinstance(attr, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        return False
    return number is None or bool(attr.value == number)


def divided_product(op: ir.Operation) -> MatrixProduct | None:
    """Return the product that an elementwise op divides, element by element where it lies."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return None
    names = {view.operation.name for view in op.regions[0].blocks[0].operations}
    if names.isdisjoint(("arith.divf", "arith.mulf")) or reductions_of(op):
        return None
    if (maps := maps_of(op)) is None:
        return None
    for value, entries in zip(op.operands, maps[:-1]):
        made = value.owner
        if entries == maps[-1] and not isinstance(made, ir.Block):
            product = product_of(made.operation)
            if product is not None:
                return product
    return None
