"""Read attentions of one op: they are read as the linalg ops that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.scores.attention import ATTENTION, spelled
from meshweave.ir.scores.reduced import REDUCED_SCORES, spelled_sums
from meshweave.verification.terms.terms import Term
from meshweave.verification.walk import ProgramWalk, handles


@handles(ATTENTION)
def _attention(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return _read_as(walk, op, spelled)


@handles(REDUCED_SCORES)
def _reduced_scores(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return _read_as(walk, op, spelled_sums)


def _read_as(
    walk: ProgramWalk,
    op: ir.Operation,
    meaning: Callable[[ir.Operation, OpBuilder, Sequence[ir.Value]], ir.Value],
) -> Sequence[Term]:
    """Read an op as the ops that it means."""
    module = ir.Module.create(op.location)
    walk.spelled.append(module)  # its values are known by where they are
    b = OpBuilder(ir.InsertionPoint(module.body), op.location)
    given = [b.one("tensor.empty", value.type) for value in op.operands]
    walk.views.update(zip(given, [walk.views[value] for value in op.operands]))
    made = meaning(op, b, given)
    for view in module.body.operations:
        if view.operation.results[0] not in given:
            walk.op(view.operation, view.operation.name)
    return [walk.views[made]]
