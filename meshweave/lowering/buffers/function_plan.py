"""Read the memory plan of a function: what plan-memory has written into the IR."""

from __future__ import annotations

from collections.abc import Mapping

from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.arena import ArenaBlock
from meshweave.lowering.buffers.steps import Buffers, Root, Step
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.lowering.nests.rows import Entry, Follow, in_order, unit_of

ARENA = "mw.arena_bytes"  # attribute of a function: the size of its arena, or frame


class FunctionPlan:
    """Hold a function as a tree of entries in the order they run.

    An entry is a `KernelUnit` (one kernel call) or a `Step` (a collective or an op that stays), whose `bodies` hold
    entries again.

    moments: the position of each entry. blocks: the buffers of the arena, with their lifetimes.
    """

    def __init__(
        self,
        function: ir.OpView,
        kernels: Mapping[str, FusedKernel],
        numbers: Mapping[str, int],
        follow: Follow | None = None,
    ) -> None:
        """kernels: those of the module, by name. numbers: of its functions. follow: see `unit_of`."""
        self.buffers = Buffers(function, kernels)
        self._numbers, self._follow = numbers, follow
        self.arena_bytes = function.operation.attributes[ARENA].value
        self.entries = self._entries(self.buffers.steps)
        self.moments = list(enumerate(in_order(self.entries), 1))
        self.blocks: dict[Root, ArenaBlock] = self.buffers.blocks

    def _entries(self, steps: list[Step]) -> list[Entry]:
        entries: list[Entry] = []
        for step in steps:
            if step.what in ("kernel", "copy"):
                entries.append(unit_of([step], 0, self.buffers, self._follow))
            elif step.what == "unit":
                rows = step.op.attributes["rows"].value
                entries.append(unit_of(step.bodies[0], rows, self.buffers, self._follow))
            else:
                if step.what == "call":
                    step.number = self._numbers[step.op.attributes["callee"].value]
                step.bodies = [self._entries(body) for body in step.bodies]
                entries.append(step)
        return entries
