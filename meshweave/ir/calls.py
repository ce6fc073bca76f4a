"""Read the ops that a function computes as a whole: `mw.lapack` and `mw.fft`, of the target, and `mw.host`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from meshweave.ir.fft import FFT, Transform
from meshweave.ir.routines import LAPACK, RoutineCall

if TYPE_CHECKING:
    from meshweave.ir.bindings import ir

HOST = "mw.host"


@dataclass(frozen=True)
class HostCall:
    """Hold what an `mw.host` says.

    number: of the function, in the process that has it; inputs: operands it reads; by_first: rank 0 alone calls it;
    effects: it runs as often, and in the order, that the program says.
    """

    number: int
    name: str
    inputs: int
    by_first: bool = False
    effects: bool = False
    scratch_bytes: int = 0

    @classmethod
    def of(cls, op: ir.Operation) -> HostCall:
        """Read an `mw.host`, on tensors or on buffers, that its verifier has passed."""
        outs = op.attributes["outs"].value if "outs" in op.attributes else 0
        said = op.attributes
        inputs = len(op.operands) - outs
        named = said["number"].value, said["function"].value
        return cls(*named, inputs, "first" in said, "effects" in said)

    @property
    def key(self) -> tuple[object, ...]:
        """Return what equal calls have in common."""
        return "host", self.number

    @property
    def title(self) -> str:
        """Return what reports call it."""
        return f"{self.name} of Python"


CALLS = (LAPACK, FFT, HOST)
"""The names of these ops. They are given no tensors to write their results in."""
Written: TypeAlias = RoutineCall | Transform
"""What an op says that a function of the target does, which is written for it."""
Called: TypeAlias = Written | HostCall
"""What such an op says: `key`, `title` for reports, `inputs` that it reads, `scratch_bytes` of its own memory."""


def called(op: ir.Operation) -> Called:
    """Read one of these ops, on tensors or on buffers, that its verifier has passed."""
    return _READ[op.name](op)


def has_effects(op: ir.Operation) -> bool:
    """Tell whether an op is an `mw.host` with effects: it runs as often, and in the order, that the program says."""
    return op.name == HOST and "effects" in op.attributes


_READ: dict[str, Callable[[ir.Operation], Called]] = {
    LAPACK: RoutineCall.of,
    FFT: Transform.of,
    HOST: HostCall.of,
}
