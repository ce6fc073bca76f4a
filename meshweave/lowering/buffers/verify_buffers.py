"""verify-buffers: check a program on buffers against the same program on tensors, apart from what placed them.

The option `program` names a file with the program as fuse-kernels has left it. Memory that holds something else than
the program on tensors says is an error; what is not shown is a remark with the place. The program is not changed. In
pipelines of `meshweave compile` and `meshweave run` the same check is part of plan-memory. `docs/verify.md` says what
is proven.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.transforms.base import Pass, at
from meshweave.transforms.partitioning.verify import read_other, tell
from meshweave.verification.answer import WAY_OUT, Answer
from meshweave.verification.buffers.check import verify_buffers


@dataclass(frozen=True)
class VerifyBuffers(Pass):
    """Refuse a program on buffers that does not compute what the program on tensors does."""

    name: ClassVar[str] = "verify-buffers"
    program: str = ""  # a file with the program on tensors

    def run(self, module: ir.Module) -> None:
        op = module.operation
        with op.context, ir.Location.unknown(op.context), at(op, self.name):
            other = read_other(self, self.program, op, "the program on tensors")
            tell(op, verify_buffers(other, module))


def checked(answer: Answer) -> Answer:
    """Return what a check has found. Raises CompileError where it has refuted the program."""
    for finding in answer.refuted[:1]:
        message = f"plan-memory: {finding.value}: {finding.reason} ({WAY_OUT})"
        raise CompileError(message, finding.place)
    return answer
