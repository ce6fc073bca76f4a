"""Read transforms: a number of a result is a function of its place along the dim and of the whole row."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.fft import FFT, Transform
from meshweave.verification.ops.lapack import WholeCall, read_whole
from meshweave.verification.terms.terms import Term
from meshweave.verification.walk import ProgramWalk, handles


@handles(FFT)
def _fft(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    call, values = Transform.of(op), [*op.operands, *op.results]
    whole = [_whole(list(value.type.shape), call) for value in values]
    said = (call.kind, call.length)
    return read_whole(walk, op, WholeCall("fft", said, tuple(map(tuple, whole)), "a transform"))


def _whole(shape: list[int], call: Transform) -> list[tuple[int, int]]:
    """Return the number and the extent of the dims of a tensor that are whole: its own, and that of parts."""
    ndim = len(call.shape)
    return [(d, n) for d, n in enumerate(shape) if d == call.dim or d >= ndim]
