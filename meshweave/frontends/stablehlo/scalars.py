"""Turn arithmetic on tensors without dims, inside loops, into arithmetic on scalars.

StableHLO has no scalars: counters, comparators and reducers compute on `tensor<f32>`, and as linalg ops each of them
would be a buffer and a kernel. Inside scf regions, bodies of linalg ops, scans and scatters those whose operands are
scalars or integers anyway become plain arith; tensors that a reduction made stay tensors, because they may be sharded
or partial.
"""

from collections.abc import Iterable

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import (
    Ops,
    body_of,
    functions_of,
    is_used,
    move_body,
    ops_where,
    producer,
    replace_op,
)
from meshweave.ir.scans import SCAN
from meshweave.ir.scatters import SCATTER

_ELEMENTWISE = ("linalg.map", "linalg.generic")
_INSIDE = ("scf.", "linalg.generic", SCAN, SCATTER)
_SCALAR_SOURCES = ("tensor.from_elements", "arith.constant")


def scalarise(module: ir.Module, ops: Ops) -> bool:
    """Rewrite the ops that qualify; tell whether there was any. ops: those of the module.

    Canonicalize afterwards: that removes the tensors in between.
    """
    if not any(_has_loops(b) for f in functions_of(module).values() for b in f.regions[0].blocks):
        return False
    if not any(_is_inside(op) for name in _ELEMENTWISE for op in ops.get(name, ())):
        return False
    found = ops_where(module.operation, lambda op: op.name in _ELEMENTWISE and _is_inside(op))
    changed = False
    for op in found:  # a rewrite may make the next one qualify
        if _qualifies(op):
            _rewrite(op)
            changed = True
    return changed


def _is_inside(op: ir.Operation) -> bool:
    """Tell whether an op makes tensors without dims within a loop, a branch or another op's body."""
    return _are_scalar_tensors(op.results) and op.parent.name.startswith(_INSIDE)


def _has_loops(block: ir.Block) -> bool:
    """Tell whether the block, or a manual computation in it, has an op whose body may compute so."""
    for op in block.operations:
        name = op.operation.name
        if "dist.manual" in op.operation.attributes:
            if _has_loops(body_of(op.operation)):
                return True
        elif name.startswith(_INSIDE) and name != "scf.yield":
            return True
    return False


def _are_scalar_tensors(values: Iterable[ir.Value]) -> bool:
    """Tell whether there are values, and all are tensors without dims."""
    types = [v.type for v in values]
    return bool(types) and all(
        isinstance(t, ir.RankedTensorType) and not len(t.shape) for t in types
    )


def _qualifies(op: ir.Operation) -> bool:
    inputs = list(op.operands)[: len(op.operands) - len(op.results)]
    if inputs and not _are_scalar_tensors(inputs):
        return False
    inner = [o.operation for o in body_of(op).operations]
    if any(o.name == "linalg.index" or len(o.regions) for o in inner):
        return False
    makers = [producer(v) for v in inputs if not isinstance(v.type.element_type, ir.IntegerType)]
    return all(maker is not None and maker.name in _SCALAR_SOURCES for maker in makers)


def _rewrite(op: ir.Operation) -> None:
    b, block = OpBuilder.before(op), body_of(op)
    count = len(op.operands) - len(op.results)
    for number, (argument, value) in enumerate(zip(block.arguments, op.operands)):
        if number < count or is_used(argument):  # an init may be a place only
            argument.replace_all_uses_with(b.element(value))
    replace_op(op, [b.scalar_tensor(value) for value in move_body(block, b.ip)])
