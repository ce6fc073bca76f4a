"""The products of an attention: linalg ops that add up products of two tensors over one loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshweave.bindings import ir
from meshweave.transforms.expressions import Entry, Expressions, maps_of, reductions_of


@dataclass(frozen=True)
class Operand:
    """A tensor as the loops read it: an entry for each of its dims."""

    value: Any
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Product:
    """A linalg.generic that adds up products over one loop, from zero: its operands as the loops read them."""

    op: Any
    operands: tuple[Operand, Operand]
    writes: tuple[Entry, ...]
    reduced: int
    sizes: tuple[int, ...]


def product_of(op: Any) -> Product | None:
    """The op as a product of two tensors over one loop, None where it is something else."""
    if op.name != "linalg.generic" or len(op.operands) != 3 or len(op.results) != 1:
        return None
    reductions, maps = reductions_of(op), maps_of(op)
    if len(reductions) != 1 or maps is None or not _adds_products(op):
        return None
    if not filled_with(op.operands[2], 0.0):
        return None
    sizes: dict[int, int] = {}
    for value, entries in zip(op.operands, maps):
        for entry, extent in zip(entries, value.type.shape):
            if entry[0] == "dim":
                sizes[entry[1]] = extent
    left, right = (Operand(op.operands[k], maps[k]) for k in (0, 1))
    extents = tuple(sizes[k] for k in range(len(sizes)))
    return Product(op, (left, right), maps[2], reductions[0], extents)


def _adds_products(op: Any) -> bool:
    """Is the body out + a * b, a and b perhaps widened first?"""
    block = op.regions[0].blocks[0]
    ops = [o for view in block.operations if (o := view.operation).name != "arith.extf"]
    if [o.name for o in ops] != ["arith.mulf", "arith.addf", "linalg.yield"]:
        return False
    a, b, out = block.arguments
    factors = {_narrow(value) for value in ops[0].operands}
    return factors == {a, b} and set(ops[1].operands) == {out, ops[0].results[0]}


def _narrow(value: Any) -> Any:
    """What is widened to `value`."""
    owner = value.owner
    widened = not isinstance(owner, ir.Block) and owner.operation.name == "arith.extf"
    return owner.operation.operands[0] if widened else value


def filled_with(value: Any, number: float | None) -> bool:
    """Is it a tensor full of one number (this one)?"""
    expressions = Expressions()
    node = expressions.nodes[expressions.node(value, [("number", 0)] * len(value.type.shape))]
    if node[0] != "const" or not isinstance(node[1], ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        return False
    return number is None or node[1].value == number


def divided_product(op: Any) -> Product | None:
    """The product that an elementwise op divides, element by element where it lies."""
    if op.name != "linalg.generic" or len(op.results) != 1 or reductions_of(op):
        return None
    maps = maps_of(op)
    if maps is None or not any(
        view.operation.name in ("arith.divf", "arith.mulf")
        for view in op.regions[0].blocks[0].operations
    ):
        return None
    for value, entries in zip(op.operands, maps[:-1]):
        made = value.owner
        if entries == maps[-1] and not isinstance(made, ir.Block):
            product = product_of(made.operation)
            if product is not None:
                return product
    return None
