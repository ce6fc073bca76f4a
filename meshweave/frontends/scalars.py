"""Arithmetic on tensors without dims, inside loops, to arithmetic on scalars.

StableHLO has no scalars: counters, comparators and reducers compute on `tensor<f32>`, and as
linalg ops each of them would be a buffer and a kernel. Inside scf regions those whose operands are
scalars or integers anyway become plain arith; tensors that a reduction made stay tensors, because
they may be sharded or partial.
"""

from typing import Any

from meshweave.bindings import ir
from meshweave.frontends.build import Builder

_ELEMENTWISE = ("linalg.map", "linalg.generic")
_SCALAR_SOURCES = ("tensor.from_elements", "arith.constant")


def scalarise(module: Any) -> bool:
    """Rewrite what qualifies; whether there was any. Canonicalize afterwards: it removes the boxes
    in between.
    """
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in _ELEMENTWISE and not _shape(op.results) and op.parent.name.startswith("scf."):
            found.append(op)
        return ir.WalkResult.ADVANCE

    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    if not any(_has_loops(block) for f in functions for block in f.regions[0].blocks):
        return False
    module.operation.walk(visit)
    changed = False
    for op in found:
        if _qualifies(op):
            _rewrite(op)
            changed = True
    return changed


def _has_loops(block: Any) -> bool:
    """Whether an scf op stands in the block itself, or in a manual computation in it."""
    for op in block.operations:
        name = op.operation.name
        if "dist.manual" in op.operation.attributes:
            if _has_loops(op.operation.regions[0].blocks[0]):
                return True
        elif name.startswith("scf.") and name != "scf.yield":
            return True
    return False


def _shape(values: Any) -> bool:
    """Whether any value has dims (or is no tensor)."""
    return not len(values) or any(
        not isinstance(v.type, ir.RankedTensorType) or len(v.type.shape) for v in values
    )


def _qualifies(op: Any) -> bool:
    inputs = list(op.operands)[: len(op.operands) - len(op.results)]
    if _shape(inputs) and inputs:
        return False
    block = op.regions[0].blocks[0]
    if any(
        o.operation.name == "linalg.index" or len(o.operation.regions) for o in block.operations
    ):
        return False
    return all(_is_scalar(v) for v in inputs)


def _is_scalar(value: Any) -> bool:
    if isinstance(value.type.element_type, ir.IntegerType):
        return True
    return not isinstance(value, ir.BlockArgument) and value.owner.name in _SCALAR_SOURCES


def _rewrite(op: Any) -> None:
    b = Builder(ir.InsertionPoint(op), op.location)
    inputs = list(op.operands)[: len(op.operands) - len(op.results)]
    block = op.regions[0].blocks[0]
    *ops, end = list(block.operations)
    for argument, value in zip(block.arguments, inputs, strict=False):
        argument.replace_all_uses_with(b.element(value))
    inits = list(block.arguments)[len(inputs) :]
    for argument, value in zip(inits, list(op.operands)[len(inputs) :], strict=False):
        if any(True for _ in argument.uses):  # an init that is read: a value, not only a place
            argument.replace_all_uses_with(b.element(value))
    for inner in ops:
        inner.operation.move_before(op)
    for old, new in zip(op.results, list(end.operands), strict=True):
        old.replace_all_uses_with(b.boxed(new))
    op.erase()
