"""Check a program on buffers against the same program on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from meshweave.abi import ALIGNMENT, AsyncArea
from meshweave.ir.bindings import ir
from meshweave.verification.answer import Answer, Finding
from meshweave.verification.buffers.program import CheckedProgram, CheckedStep, Work
from meshweave.verification.buffers.read import NoRuleError, changed_kernels, read
from meshweave.verification.buffers.walk import FunctionCheck


def verify_buffers(before: ir.Module, after: ir.Module) -> Answer:
    """Check a module that plan-memory has made, `after`, against the one that it was given, `before`."""
    return Reference.of(before).verify(after)


@dataclass(frozen=True)
class Reference:
    """Hold a program on tensors, read before its module becomes one on buffers. unread: why it could not be."""

    program: CheckedProgram | None
    unread: Finding | None = None

    @classmethod
    def of(cls, module: ir.Module) -> Reference:
        """Read a module that fuse-kernels has made."""
        found = _read(module)
        return cls(None, found) if isinstance(found, Finding) else cls(found)

    def verify(self, module: ir.Module) -> Answer:
        """Check the module that plan-memory has made of it."""
        return self.later(module)()

    def later(self, module: ir.Module) -> Callable[[], Answer]:
        """Read that module, and return what checks it, whatever becomes of the module, in any thread."""
        after = _read(module)
        if self.program is None or isinstance(after, Finding):
            unread = self.unread if self.program is None else after
            assert isinstance(unread, Finding)
            return partial(Answer, (), (), (unread,))
        changed = changed_kernels(self.program, after)
        return partial(check, self.program, replace(after, kernels=dict(after.kernels)), changed)


def _read(module: ir.Module) -> CheckedProgram | Finding:
    try:
        return read(module)
    except NoRuleError as error:
        return Finding("the program", error.location or "<unknown>", error.message)


def check(before: CheckedProgram, after: CheckedProgram, changed: Sequence[Finding] = ()) -> Answer:
    """Check a program on buffers against the same program on tensors.

    changed: kernels that are not the same ones: with any, nothing is proven.
    """
    proven: list[str] = []
    refuted, unproven, values = list(_areas(after)), list(changed), 0
    for name, function in after.functions.items():
        if name not in before.functions:
            unproven.append(
                Finding(f"@{name}", str(function.where), "is not in the program on tensors")
            )
            continue
        walk = FunctionCheck(before, after, function, ALIGNMENT)
        try:
            walk.run(before.functions[name])
        except RecursionError:
            walk.unproven.append(
                Finding(f"@{name}", str(function.where), "is nested too deeply for the check")
            )
        refuted += walk.refuted
        unproven += walk.unproven
        values += walk.checked
        if not walk.refuted and not walk.unproven and not changed:
            results = [f"@{name} output {k}" for k in range(function.outputs)]
            proven += results or [f"@{name}"]
    return Answer(tuple(proven), tuple(refuted), tuple(unproven), values)


def _areas(after: CheckedProgram) -> list[Finding]:
    """Check that what is sent early waits behind the arena, where nothing else lies."""
    found, taken = list[Finding](), list[tuple[int, int]]()
    arena = after.functions["main"].arena if "main" in after.functions else 0
    for step, work in (s for f in after.functions.values() for s in _started(f.body.steps)):
        start, end = work.area, work.area + AsyncArea.nbytes(work.sent)
        meets = any(start < e and s < end for s, e in taken)
        if start < arena or start % ALIGNMENT or meets:
            reason = f"the area at byte {start} is not its own: the arena ends at {arena}"
            found.append(Finding(f"mw.start {work.name}", str(step.where), reason))
        taken.append((start, end))
    return found


def _started(steps: tuple[CheckedStep, ...]) -> Iterator[tuple[CheckedStep, Work]]:
    """Yield the collectives that are started, also inside of steps."""
    for step in steps:
        if isinstance(step.key, Work):
            if step.key.kind == "start":
                yield step, step.key
        elif step.bodies:
            for body in step.bodies:
                yield from _started(body.steps)
