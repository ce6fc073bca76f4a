"""Read calls of functions of Python: an element of a result is a function of its place and of whole operands."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.calls import HOST, HostCall
from meshweave.verification.ops.lapack import WholeCall, read_whole
from meshweave.verification.terms.terms import Term
from meshweave.verification.walk import ProgramWalk, handles


@handles(HOST)
def _host(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    call = HostCall.of(op)
    shapes = [value.type.shape for value in (*op.operands, *op.results)]
    whole = tuple([tuple(enumerate(shape)) for shape in shapes])
    return read_whole(walk, op, WholeCall("host", call.number, whole, call.title))
