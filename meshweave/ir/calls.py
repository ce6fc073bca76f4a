"""Read the ops that a function of the target computes as a whole: `mw.lapack` and `mw.fft`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from meshweave.ir.fft import FFT, Transform
from meshweave.ir.routines import LAPACK, RoutineCall

if TYPE_CHECKING:
    from meshweave.ir.bindings import ir

CALLS = (LAPACK, FFT)
"""The names of these ops. They are given no tensors to write their results in."""
Called: TypeAlias = RoutineCall | Transform
"""What such an op says: `key`, `title` for reports, `inputs` that it reads, `scratch_bytes` of its own memory."""


def called(op: ir.Operation) -> Called:
    """Read one of these ops, on tensors or on buffers, that its verifier has passed."""
    return Transform.of(op) if op.name == FFT else RoutineCall.of(op)
