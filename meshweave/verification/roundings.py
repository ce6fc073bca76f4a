"""Tell which roundings a rank's program may have, where roundings are left out.

A number that is rounded to fewer bits and lengthened again is taken as it was, in both programs: fused kernels keep it
in all its bits. The other way round, a rank's program may only round what the whole program always rounds.
"""

from __future__ import annotations

from meshweave.ir.bindings import ir
from meshweave.ir.ops import ops_named, terminator
from meshweave.verification.walk import ProgramWalk

_ROUND, _LENGTHEN = "arith.truncf", "arith.extf"


def rounds_more(here: ProgramWalk, there: ProgramWalk, whole: ir.Module) -> bool:
    """Tell whether a rank's program may round what the whole program reads in all its bits."""
    if not here.rounds <= there.rounds:
        return True
    nodes = {node for node, _ in here.rounds}
    if not nodes:
        return False
    plain = [
        v for v, view in there.views.items() if view.node in nodes and not _was_rounded(there, v)
    ]
    return _rounds_within(whole) or any(
        not _is_rounded(there, v, use) for v in plain for use in v.uses
    )


def _was_rounded(walk: ProgramWalk, value: ir.Value) -> bool:
    """Tell whether a value is surely one that was rounded and lengthened again."""
    op = value.owner
    if isinstance(op, ir.Block):
        return False
    if op.name.startswith("linalg.") and len(op.regions) == 1:
        made = terminator(op.regions[0].blocks[0]).operands[value.result_number].owner
        if not isinstance(made, ir.Block) and made.name == _LENGTHEN:
            return True
    node = walk.views[value].node
    same = [v for v in op.operands if v in walk.views and walk.views[v].node == node]
    return op.name == _LENGTHEN or (bool(same) and all(_was_rounded(walk, v) for v in same))


def _rounds_within(whole: ir.Module) -> bool:
    """Tell whether the body of an op rounds what it computes, and reads it in all its bits too."""
    rounded = [op.operands[0] for op in ops_named(whole.operation, _ROUND)]
    computed = [v for v in rounded if not isinstance(v, ir.BlockArgument)]
    return any(
        v.owner.parent.name.startswith("linalg.") and len(list(v.uses)) > 1 for v in computed
    )


def _is_rounded(walk: ProgramWalk, value: ir.Value, use: ir.OpOperand) -> bool:
    """Tell whether an op that reads a value only rounds it, or hands it on as it is."""
    op = use.owner.operation
    if op.name == _ROUND:
        return True
    if len(op.results) == 1:
        made = walk.views.get(op.results[0])
        if made is not None and made.node == walk.views[value].node:
            return True  # who reads that is asked too
    if not op.name.startswith("linalg.") or len(op.regions) != 1:
        return False
    inside = op.regions[0].blocks[0].arguments[use.operand_number]
    return all(one.owner.operation.name == _ROUND for one in inside.uses)
