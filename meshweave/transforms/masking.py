"""Padding kept out of a reduction: neutral elements in its operands, or an accumulator that stays as it is there."""

from collections.abc import Mapping
from typing import Any, Protocol

from meshweave.bindings import ir, linalg
from meshweave.transforms.bodies import BODIES, combiner
from meshweave.transforms.local import Local
from meshweave.transforms.neutral import neutral_attr


class Bound(Protocol):
    """Where a loop of an op ends."""

    def inside(self, index: Any, before: Any, local: Local) -> Any:
        """i1, in front of the op `before`: is the loop's `index` before its end?"""


def mask(op: Any, bounds: Mapping[int, Bound], local: Local) -> None:
    """Keep what lies beyond the end of some reduction loops out of `op`, a linalg op.

    bounds: by the number of a loop, where it ends.
    """
    if _fills(op, bounds):
        _fill_operands(op, bounds, local)
    else:
        _keep_accumulator(op, bounds, local)


def _fills(op: Any, bounds: Mapping[int, Bound]) -> bool:
    """Is a neutral element in the operands neutral in the reduction? In products whose factors all run over these loops
    (elsewhere a factor may be infinite), and in reductions of the operand itself. Bodies of named ops are fixed."""
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


def _fill_operands(op: Any, bounds: Mapping[int, Bound], local: Local) -> None:
    """Neutral elements beyond the end, in every operand that has one of these loops (both factors of a product: padding
    may hold NaN, and NaN * 0 is no 0)."""
    maps = [a.value for a in linalg.get_indexing_maps(op.opview)]
    kind = combiner(op)
    assert kind is not None
    for i in range(len(op.operands) - len(op.results)):
        positions = {
            e.position: d for d, e in enumerate(maps[i].results) if isinstance(e, ir.AffineDimExpr)
        }
        mine = {positions[loop]: bound for loop, bound in bounds.items() if loop in positions}
        if mine:
            op.operands[i] = _filled(op.operands[i], mine, kind, op, local)


def _filled(value: Any, dims: Mapping[int, Bound], kind: str, before: Any, local: Local) -> Any:
    """`value` with the neutral element of `kind` beyond the end of each of `dims`."""
    type_ = value.type
    neutral = local.constant(neutral_attr(kind, type_.element_type), before)
    return local.elementwise(
        value,
        type_,
        range(len(type_.shape)),
        before,
        lambda element, end: local.create(
            "arith.select", [element.type], [_inside(dims, end, local), element, neutral], end
        ),
    )


def _inside(bounds: Mapping[int, Bound], before: Any, local: Local) -> Any:
    """i1: are all these loop indices before their ends?"""
    i1 = ir.IntegerType.get_signless(1)
    valid = None
    for d, bound in bounds.items():
        dim = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), d)
        index = local.create("linalg.index", [ir.IndexType.get()], [], before, dim=dim)
        here = bound.inside(index, before, local)
        valid = here if valid is None else local.create("arith.andi", [i1], [valid, here], before)
    return valid


def _keep_accumulator(op: Any, bounds: Mapping[int, Bound], local: Local) -> None:
    """The body leaves its accumulators as they are where an index is beyond the end.

    A plain reduction meets a neutral element there, so that what it combines by stays plain to see.
    """
    block = op.regions[0].blocks[0]
    ops = block.operations
    end = ops[len(ops) - 1].operation
    kind = combiner(op)
    accumulators = list(block.arguments)[len(block.arguments) - len(end.operands) :]
    made = end.operands[0].owner
    if kind is not None and made.operation.name not in _SKIP_NAN:
        valid = _inside(bounds, made, local)
        i = int(made.operands[0] == accumulators[0])
        element = made.operands[i]
        neutral = local.constant(neutral_attr(kind, element.type), made)
        made.operands[i] = local.create(
            "arith.select", [element.type], [valid, element, neutral], made
        )
        return
    valid = _inside(bounds, end, local)
    for i, old in enumerate(accumulators):
        new = end.operands[i]
        end.operands[i] = local.create("arith.select", [new.type], [valid, new, old], end)


_SKIP_NAN = ("arith.maxnumf", "arith.minnumf")
"""No element is neutral to these: of NaN and another they take the other."""
