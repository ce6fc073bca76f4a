"""dist-verify: check the program of one rank against the whole program, apart from the passes that made it.

The option `program` names a file with the whole program, in the global view. A result that is surely wrong is an error;
one that nothing can be shown of is a remark with the reason. The program is not changed. `docs/verify.md` says what is
proven.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.transforms.base import Pass, at, fail, remark

if TYPE_CHECKING:  # meshweave-opt starts without the check
    from meshweave.verification.answer import Answer


@dataclass(frozen=True)
class Verify(Pass):
    """Refuse a program of one rank that is not its part of the whole program."""

    name: ClassVar[str] = "dist-verify"
    program: str = ""  # a file with the whole program

    def run(self, module: ir.Module) -> None:
        from meshweave.verification.check import verify  # here: few pipelines have this pass

        op = module.operation
        with op.context, ir.Location.unknown(op.context), at(op, self.name):
            tell(op, verify(read_other(self, self.program, op, "the whole program"), module))


def read_other(who: Pass, path: str, op: ir.Operation, what: str) -> ir.Module:
    """Parse the file with the program that a module is checked against, in the module's context."""
    if not path:
        fail(op, f"{who.name} needs the option program, a file with {what}")
    try:
        return parse_module(Path(path).read_text(), op.context, path)
    except OSError as error:
        fail(op, f"{who.name}: {path}: {error.strerror or error}")


def tell(op: ir.Operation, answer: "Answer") -> None:
    """Remark what is not proven, and refuse the module `op` where something is refuted."""
    for finding in answer.unproven:
        remark(op, f"not proven: {finding}")
    if answer.refuted:
        fail(op, str(answer))
