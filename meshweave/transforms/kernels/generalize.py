"""Write every op on tensors as a linalg.generic: the one form that passes have to look at."""

from __future__ import annotations

from meshweave.ir.bindings import PassManager, ir, transform_interpreter
from meshweave.transforms.base import copied, functions, ops_of
from meshweave.transforms.slicing.ledger import OP, number, set_number

_DECOMPOSE = """module attributes {transform.with_named_sequence} {
transform.named_sequence @__transform_main(%module: !transform.any_op) {
  %ops = transform.structured.match ops{["linalg.softmax"]} in %module
    : (!transform.any_op) -> !transform.any_op
  %parts = transform.structured.decompose_interface %ops
    : (!transform.any_op) -> !transform.any_op
  transform.yield
} }"""
_GENERIC = "builtin.module(func.func(convert-elementwise-to-linalg,linalg-generalize-named-ops))"


def decompose(module: ir.Module) -> None:
    """Write each softmax as its reductions and elementwise ops, which keep its number in the ledger of hints."""
    softmaxes = ops_of(module, "linalg.softmax")
    if not softmaxes:
        return
    numbered = [(op.operation, number(op.operation, OP)) for op in softmaxes]
    places = [(*_neighbours(op), n) for op, n in numbered if n >= 0]
    script = ir.Module.parse(_DECOMPOSE)
    sequence = script.body.operations[0]
    transform_interpreter().apply_named_sequence(module.operation, sequence, script.operation)
    for block, before, after, n in places:
        inside = before is None
        for view in block.operations:
            op = view.operation
            if op == after:
                break
            if inside and op.name == "linalg.generic":
                set_number(op, OP, n)
            inside = inside or op == before


def _neighbours(
    op: ir.Operation,
) -> tuple[ir.Block, ir.Operation | None, ir.Operation]:
    """Return the block of an op, the nearest op before it that stays, and the op after it."""
    ops = [view.operation for view in op.block.operations]
    at = ops.index(op)
    before = next((o for o in reversed(ops[:at]) if o.name != "linalg.softmax"), None)
    return op.block, before, ops[at + 1]


def generic_copy(module: ir.Module) -> ir.Module:
    """Copy the module with all ops on tensors as linalg.generic."""
    made = copied(module)
    decompose(made)
    manager = PassManager.parse(_GENERIC)
    manager.enable_verifier(False)  # what is verified is the module itself, behind all passes
    manager.run(made.operation)
    for f in functions(made):
        _lift_numbers(f)
    return made


def _lift_numbers(function: ir.Operation) -> None:
    """Move the ledger's number of arithmetic on tensors from the op inside to the op around it."""
    for op in ops_of(function, "linalg.generic"):
        for inner in op.operation.regions[0].blocks[0].operations:
            if OP in inner.operation.attributes:
                op.operation.attributes[OP] = inner.operation.attributes[OP]
                del inner.operation.attributes[OP]


def take_over(module: ir.Module, made: ir.Operation) -> None:
    """Put the ops of `made` in the place of those of `module`. Wrappers of anything inside both become invalid."""
    block = module.operation.regions[0].blocks[0]
    old = [view.operation for view in block.operations]
    for view in made.body.operations:
        view.operation.clone(ir.InsertionPoint(block))
    for op in old:
        op.erase()
