"""Write out loops of few rounds that compute element by element: what they carry then stays in registers.

A generator of random numbers mixes its two words in five rounds. As a loop, each round reads and writes whole tensors;
written out, all of it is one kernel.
"""

from __future__ import annotations

from math import prod

from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, iterator_types, static_offsets
from meshweave.ir.ops import body_of, move_body, ops_named, producer, replace_op
from meshweave.lowering.nests.bodies import constant_of

MOST_OPS = 256  # elementwise ops that a loop is written out as
_FREE = (
    "arith.",
    "math.",
    "tensor.empty",
    "tensor.splat",
    "tensor.from_elements",
    "tensor.extract",
    "tensor.expand_shape",
    "tensor.collapse_shape",
    "scf.yield",
)


def unroll(function: ir.OpView) -> bool:
    """Write out all such loops of a function, inner ones first; tell whether there was any."""
    found = False
    for loop in ops_named(function.operation, "scf.for"):
        if rounds := _rounds(loop):
            replace_op(loop, _written_out(loop, rounds))
            found = True
    for extract in ops_named(function.operation, "tensor.extract") if found else ():
        _fold(extract)
    return found


def _rounds(loop: ir.Operation) -> range | None:
    """Return the numbers that the counter of a loop has, where the loop is to be written out."""
    known = [constant_of(value) for value in list(loop.operands)[:3]]
    bounds = [bound.value for bound in known if isinstance(bound, ir.IntegerAttr)]
    if len(bounds) < 3:
        return None
    rounds, count = range(*bounds), 0
    for view in body_of(loop).operations:
        op = view.operation
        if op.name == "linalg.generic":
            count += 1
            if IteratorType.REDUCTION in iterator_types(op) or _looks_up(op):
                return None
        elif not _is_free(op):
            return None
    return rounds if 0 < len(rounds) * count <= MOST_OPS else None


def _looks_up(op: ir.Operation) -> bool:
    """Tell whether an op reads at computed places: in a round of its own, many such reads are under way at once."""
    return any(view.operation.name == "tensor.extract" for view in body_of(op).operations)


def _is_free(op: ir.Operation) -> bool:
    """Tell whether an op moves nothing: a slice is free where it begins at a place that is known."""
    if op.name == "tensor.extract_slice":
        return len(op.operands) == 1
    return str(op.name).startswith(_FREE)


def _written_out(loop: ir.Operation, rounds: range) -> list[ir.Value]:
    """Write the rounds of a loop in front of it; return what the last one yields."""
    values = list(loop.operands)[3:]
    for number in rounds:
        copy = loop.clone(ir.InsertionPoint(loop)).operation
        block, to = body_of(copy), ir.InsertionPoint(copy)
        counter = OpBuilder.before(copy).integer(number, block.arguments[0].type)
        for argument, value in zip(block.arguments, [counter, *values], strict=True):
            argument.replace_all_uses_with(value)
        values = move_body(block, to)
        copy.erase()
    return values


def _fold(extract: ir.Operation) -> None:
    """Let what reads the one element of a view of a constant have the number: what varied by round is then known."""
    number = _only_element(extract.operands[0])
    if number is not None:
        replace_op(extract, [OpBuilder.before(extract).integer(number, extract.results[0].type)])


def _only_element(value: ir.Value) -> int | None:
    """Return the integer that is the one element of a view of a constant; None for anything else."""
    made, at = producer(value), 0
    if prod(value.type.shape) != 1:
        return None
    while made is not None and made.name in ("tensor.collapse_shape", "tensor.expand_shape"):
        made = producer(made.operands[0])
    if made is not None and made.name == "tensor.extract_slice" and len(made.operands) == 1:
        shape = made.operands[0].type.shape
        at = sum(start * prod(shape[d + 1 :]) for d, start in enumerate(static_offsets(made)))
        made = producer(made.operands[0])
    known = made.attributes["value"] if made is not None and made.name == "arith.constant" else None
    return int(known[at]) if isinstance(known, ir.DenseIntElementsAttr) else None
