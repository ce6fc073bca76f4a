"""Read attentions of one op: they are read as the linalg ops that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.attention import ATTENTION, spelled
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.verification.terms.terms import Term
from meshweave.verification.walk import ProgramWalk, handles


@handles(ATTENTION)
def _attention(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    module = ir.Module.create(op.location)
    walk.spelled.append(module)  # its values are known by where they are
    b = OpBuilder(ir.InsertionPoint(module.body), op.location)
    given = [b.one("tensor.empty", value.type) for value in op.operands]
    walk.views.update(zip(given, [walk.views[value] for value in op.operands]))
    made = spelled(op, b, given)
    for view in module.body.operations:
        if view.operation.results[0] not in given:
            walk.op(view.operation, view.operation.name)
    return [walk.views[made]]
