"""Keep padding out of a reduction: neutral elements in its operands, or an accumulator that stays as it is there."""

from collections.abc import Mapping
from typing import Protocol

from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import terminator
from meshweave.transforms.partitioning.neutral import neutral_attr
from meshweave.transforms.propagation.bodies import BODIES, combiner


class LoopEnd(Protocol):
    """Say where a loop of an op ends."""

    def inside(self, b: OpBuilder, index: ir.Value) -> ir.Value:
        """Compare the loop's `index` with its end: an i1, true before it."""


def mask(op: ir.Operation, bounds: Mapping[int, LoopEnd]) -> None:
    """Keep what lies beyond the end of some reduction loops out of `op`, a linalg op.

    bounds: by the number of a loop, where it ends.
    """
    if _fills(op, bounds):
        _fill_operands(op, bounds)
    else:
        _keep_accumulator(op, bounds)


def _fills(op: ir.Operation, bounds: Mapping[int, LoopEnd]) -> bool:
    """Tell whether a neutral element in the operands is neutral in the reduction.

    It is in products whose factors all run over these loops (elsewhere a factor may be infinite), and in reductions
    of the operand itself. Bodies of named ops are fixed.
    """
    if op.name not in BODIES:
        return True
    if op.name == "linalg.reduce":
        return len(op.regions[0].blocks[0].operations) == 2
    if not linalg.isa_contraction_op(op.opview):
        return False
    maps = [a.value for a in linalg.get_indexing_maps(op.opview)]
    return all(
        set(bounds) <= {e.position for e in m.results if isinstance(e, ir.AffineDimExpr)}
        for m in maps[:-1]
    )


def _fill_operands(op: ir.Operation, bounds: Mapping[int, LoopEnd]) -> None:
    """Put neutral elements beyond the end of every operand that has one of these loops.

    Both factors of a product get them: padding may hold NaN, and NaN * 0 is not 0.
    """
    maps = [a.value for a in linalg.get_indexing_maps(op.opview)]
    kind = combiner(op)
    assert kind is not None
    for i in range(len(op.operands) - len(op.results)):
        positions = {
            e.position: d for d, e in enumerate(maps[i].results) if isinstance(e, ir.AffineDimExpr)
        }
        mine = {positions[loop]: bound for loop, bound in bounds.items() if loop in positions}
        if mine:
            op.operands[i] = filled(OpBuilder.before(op), op.operands[i], mine, kind)


def filled(b: OpBuilder, value: ir.Value, dims: Mapping[int, LoopEnd], kind: str) -> ir.Value:
    """Return `value` with the neutral element of `kind` beyond the end of each of `dims`."""
    neutral = b.constant(neutral_attr(kind, value.type.element_type))
    return b.elementwise(
        [value],
        b.empty(value.type),
        lambda inner, elements: inner.select(_inside(inner, dims), elements[0], neutral),
    )


def _inside(b: OpBuilder, bounds: Mapping[int, LoopEnd]) -> ir.Value:
    """Compare all these loop indices with their ends: an i1, true where all are before them."""
    valid = None
    for d, bound in bounds.items():
        here = bound.inside(b, b.loop_index(d))
        valid = here if valid is None else b.binary("andi", valid, here)
    return valid


def _keep_accumulator(op: ir.Operation, bounds: Mapping[int, LoopEnd]) -> None:
    """Let the body leave its accumulators as they are where an index is beyond the end.

    A plain reduction meets a neutral element there, so that what it combines by stays plain to see.
    """
    block = op.regions[0].blocks[0]
    end = terminator(block)
    kind = combiner(op)
    accumulators = list(block.arguments)[len(block.arguments) - len(end.operands) :]
    made = end.operands[0].owner
    if kind is not None and made.operation.name not in _SKIP_NAN:
        b = OpBuilder.before(made)
        valid = _inside(b, bounds)
        i = int(made.operands[0] == accumulators[0])
        element = made.operands[i]
        neutral = b.constant(neutral_attr(kind, element.type))
        made.operands[i] = b.select(valid, element, neutral)
        return
    b = OpBuilder.before(end)
    valid = _inside(b, bounds)
    for i, old in enumerate(accumulators):
        end.operands[i] = b.select(valid, end.operands[i], old)


_SKIP_NAN = ("arith.maxnumf", "arith.minnumf")
"""No element is neutral to these: of NaN and another they take the other."""
