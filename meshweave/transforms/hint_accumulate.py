"""Accumulators of slices: adding what a slice gives to what was there."""

from typing import Any

from meshweave.bindings import ir
from meshweave.transforms.hint_make import Make
from meshweave.transforms.neutral import neutral_attr

_COMBINE = {
    "sum": ("arith.addf", "arith.addi"),
    "prod": ("arith.mulf", "arith.muli"),
    "max": ("arith.maximumf", "arith.maxsi"),
    "min": ("arith.minimumf", "arith.minsi"),
}


def combined(make: Make, kind: str, piece: Any, block: Any) -> Any:
    """block = block (kind) piece, element by element, in place."""
    rank = len(piece.type.shape)
    element = piece.type.element_type
    identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    op = make.op(
        "linalg.generic",
        [block.type],
        [piece, block],
        1,
        indexing_maps=ir.ArrayAttr.get([identity, identity]),
        iterator_types=ir.ArrayAttr.get([parallel] * rank),
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 1]),
    )
    body = op.regions[0].blocks.append(element, element, arg_locs=[make.loc] * 2)
    inner = Make(ir.InsertionPoint(body), make.loc)
    made = inner.op(_combine_op(kind, element), [element], list(body.arguments)).results[0]
    inner.op("linalg.yield", [], [made])
    return op.results[0]


def _combine_op(kind: str, element: Any) -> str:
    if str(element) == "i1" and kind in ("max", "min"):
        return "arith.ori" if kind == "max" else "arith.andi"
    floats = not isinstance(element, ir.IntegerType | ir.IndexType)
    return _COMBINE[kind][0 if floats else 1]


def starts_neutral(op: Any, kind: str) -> bool:
    """Is the init of `op` full of the neutral element of `kind`?"""
    if not op.name.startswith("linalg.") or len(op.results) != 1:
        return False
    init = op.operands[len(op.operands) - 1]
    if isinstance(init.owner, ir.Block) or init in list(op.operands)[:-1]:
        return False
    owner = init.owner.operation
    neutral = neutral_attr(kind, init.type.element_type)
    if owner.name == "arith.constant":
        value = owner.attributes["value"]
        return isinstance(value, ir.DenseElementsAttr) and value.get_splat_value() == neutral
    if owner.name not in ("linalg.fill", "tensor.splat"):
        return False
    scalar = owner.operands[0].owner
    return (
        not isinstance(scalar, ir.Block)
        and scalar.operation.name == "arith.constant"
        and scalar.operation.attributes["value"] == neutral
    )
