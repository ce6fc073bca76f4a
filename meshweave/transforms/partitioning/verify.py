"""dist-verify: check the program of one rank against the whole program, apart from the passes that made it.

The option `program` names a file with the whole program, in the global view. A result that is surely wrong is an error;
one that nothing can be shown of is a remark with the reason. The program is not changed. `docs/verify.md` says what is
proven.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.transforms.base import Pass, at, fail, remark


@dataclass(frozen=True)
class Verify(Pass):
    """Refuse a program of one rank that is not its part of the whole program."""

    name: ClassVar[str] = "dist-verify"
    program: str = ""  # a file with the whole program

    def run(self, module: ir.Module) -> None:
        from meshweave.verification.check import verify  # here: few pipelines have this pass

        op = module.operation
        if not self.program:
            fail(op, "dist-verify needs the option program, a file with the whole program")
        try:
            text = Path(self.program).read_text()
        except OSError as error:
            fail(op, f"dist-verify: {self.program}: {error.strerror or error}")
        with op.context, ir.Location.unknown(op.context), at(op, "dist-verify"):
            whole = parse_module(text, op.context, self.program)
            answer = verify(whole, module)
        for finding in answer.unproven:
            remark(op, f"not proven: {finding}")
        if answer.refuted:
            fail(op, str(answer))
