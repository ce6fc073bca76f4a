"""verify-buffers: check a program on buffers against the same program on tensors, apart from what placed them.

The option `program` names a file with the program as fuse-kernels has left it. Memory that holds something else than
the program on tensors says is an error; what is not shown is a remark with the place. The program is not changed. In
pipelines of `meshweave compile` and `meshweave run` the same check is part of plan-memory. `docs/verify.md` says what
is proven.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.transforms.base import Pass, at, fail, remark
from meshweave.verification.answer import WAY_OUT, Answer
from meshweave.verification.buffers.check import verify_buffers


@dataclass(frozen=True)
class VerifyBuffers(Pass):
    """Refuse a program on buffers that does not compute what the program on tensors does."""

    name: ClassVar[str] = "verify-buffers"
    program: str = ""  # a file with the program on tensors

    def run(self, module: ir.Module) -> None:
        op = module.operation
        if not self.program:
            fail(op, f"{self.name} needs the option program, a file with the program on tensors")
        try:
            text = Path(self.program).read_text()
        except OSError as error:
            fail(op, f"{self.name}: {self.program}: {error.strerror or error}")
        with op.context, ir.Location.unknown(op.context), at(op, self.name):
            answer = verify_buffers(parse_module(text, op.context, self.program), module)
        for finding in answer.unproven:
            remark(op, f"not proven: {finding}")
        if answer.refuted:
            fail(op, str(answer))


def checked(answer: Answer) -> Answer:
    """Return what a check has found. Raises CompileError where it has refuted the program."""
    for finding in answer.refuted[:1]:
        message = f"plan-memory: {finding.value}: {finding.reason} ({WAY_OUT})"
        raise CompileError(message, finding.place)
    return answer
