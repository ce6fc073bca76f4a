"""Compute a new state behind all that reads the old one, so that it can be written where the old one lies.

before:  %new = launch(%state);  %y = launch(%state, ..);  return %new
after:   %y = launch(%state, ..);  %new = launch(%state);  return %new
"""

from __future__ import annotations

from meshweave.dialects.dist import TAKES
from meshweave.ir.bindings import ir
from meshweave.ir.ops import body_of, producer, terminator
from meshweave.transforms.base import port_attrs, use_count

_VIEWS = ("tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice", "tensor.cast")


def put_off_states(function: ir.OpView) -> None:
    """Move the launches that make results in the buffers of arguments. Only what the function returns is moved."""
    op = function.operation
    if "res_attrs" not in op.attributes:
        return
    block = body_of(op)
    results = terminator(block).operands
    for result, entry in zip(list(results), port_attrs(op, "res_attrs"), strict=True):
        if TAKES in entry:
            _put_off(result, block.arguments[entry[TAKES].value], block)


def _put_off(new: ir.Value, old: ir.Value, block: ir.Block) -> None:
    op = producer(new)
    if op is None or op.block != block or op.name != "mw.launch":
        return
    if sum(map(use_count, op.results)) > 1 or old not in list(op.operands):
        return
    end = terminator(block)
    for reader in (_in_block(reader, block) for reader in _readers(old)):
        if reader != end and op.is_before_in_block(reader):
            op.move_after(reader)


def _readers(value: ir.Value) -> list[ir.Operation]:
    """Return the ops that read a tensor, also through views of it."""
    users = [use.owner.operation for use in value.uses]
    views = [user.results[0] for user in users if user.name in _VIEWS]
    return users + [reader for view in views for reader in _readers(view)]


def _in_block(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """Return `op`, or the op of a block that it is inside of."""
    while op.block != block:
        op = op.parent.operation
    return op
