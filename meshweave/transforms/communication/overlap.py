"""dist-overlap: let collectives run under compute where a hint says `overlap = "auto"`.

A collective that nobody waits for at once is marked `dist.early`: it is started where it stands, and done where it is
first read. For that ops of other trips and slices are put in between: a loop's collectives go a trip ahead of the
compute that needs them, or its compute a trip ahead of the collectives that need it (overlapping/loops.py); in slices
that are written out, what needs a collective stands back until the next one has been issued (overlapping/lines.py). A
ring is so by itself.

The hint is then honoured, or infeasible where no collective of the region can run under anything. How much that saves
is up to the engine: those of target cpu hide the time that ranks wait for each other, the copying takes its core.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from meshweave.dialects.dist import axes_of
from meshweave.hints.ledger import HONOURED, INFEASIBLE, UNSUPPORTED, Ledger, Outcome, StatedHint
from meshweave.ir.bindings import ir
from meshweave.ir.calls import has_effects
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import Pass, mesh_of_module, walk
from meshweave.transforms.communication.overlapping.lines import reorder
from meshweave.transforms.communication.overlapping.loops import (
    COLLECTIVES,
    TripLoop,
    ahead,
    behind,
    is_heavy,
    ops_in,
    runs_ahead,
)
from meshweave.transforms.slicing.ledger import (
    LEDGER,
    OP,
    HintMarks,
    number,
    ops_met,
    read_ledger,
    settle,
    write_ledger,
)

MARK = "dist.early"
"""On a collective: it is started where it stands, and done where it is first read."""
_NUMBER = (
    "dist.number"  # while the pass runs: which collective of the program an op is, or is a copy of
)


@dataclass(frozen=True)
class Overlap(Pass):
    """Let collectives run under compute.

    everywhere: also where no hint asks for it.
    """

    name: ClassVar[str] = "dist-overlap"
    everywhere: bool = False

    def run(self, module: ir.Module) -> None:
        ledger = read_ledger(module)
        if not self.everywhere and all(said.hint.key != "overlap" for said in ledger.said):
            return  # nobody asks
        _Overlap(module, ledger, mesh_of_module(module), self.everywhere).run()
        if LEDGER in module.operation.attributes:
            write_ledger(module, ledger)


@dataclass
class _Found:
    """Describe a collective: its name, the hint that it is under, why it cannot run ahead."""

    name: str
    said: StatedHint | None
    reason: str = "nothing that does not need it is computed next to it"
    early: bool = False


@dataclass
class _Overlap:
    module: ir.Module
    ledger: Ledger
    mesh: Mesh | None
    everywhere: bool
    found: list[_Found] = field(default_factory=list)
    marks: HintMarks = field(default_factory=HintMarks)

    def run(self) -> None:
        self._number()
        for block in self._blocks():  # inner ones first
            if any(has_effects(op) for view in block.operations for op in walk(view.operation)):
                continue  # calls of Python stay in their order
            reorder(block, self._wanted(block))
            if block.owner.operation.name == "scf.for":
                self._rotate(block.owner.operation)
        self._mark()
        self._close()

    def _number(self) -> None:
        """Give numbers to the collectives that may run ahead."""
        for op in walk(self.module):
            if op.name not in COLLECTIVES or self._alone(op):
                continue
            said = self._said(op)
            if self.everywhere or said is not None:
                op.attributes[_NUMBER] = ir.IntegerAttr.get(
                    ir.IntegerType.get_signless(64), len(self.found)
                )
                axes = ", ".join(axes_of(op))
                self.found.append(_Found(f"{op.name.removeprefix('dist.')} over {axes}", said))

    def _alone(self, op: ir.Operation) -> bool:
        """Tell whether it is in a group of one rank."""
        return self.mesh is not None and self.mesh.axis_count(axes_of(op)) == 1

    def _said(self, op: ir.Operation) -> StatedHint | None:
        """Return the hint that lets `op` run ahead: that of the innermost region around it."""
        marked: set[int] = set()
        while op is not None and op.operation.name != "func.func":
            marked |= self.marks.regions(op.operation.location)
            op = op.operation.parent
        known = [n for n in marked if n < len(self.ledger.regions)]
        inner = max(known, key=lambda n: len(self.ledger.chain(n)), default=None)
        return self._hint(inner, "auto") if inner is not None else None

    def _hint(self, region: int, value: str) -> StatedHint | None:
        """Return the hint `overlap` that applies in a region, if it says `value` and the target knows it."""
        said = self.ledger.effective(region).get("overlap")
        if said is None or said.hint.parsed != value:
            return None
        closed = (o.kind for (s, _), o in self.ledger.outcomes.items() if s == said.number)
        return None if UNSUPPORTED in closed else said

    def _blocks(self) -> list[ir.Block]:
        """Return the blocks with such collectives, inner ones first."""
        ops = [op for op in walk(self.module) if _NUMBER in op.attributes]
        blocks = list(dict.fromkeys(op.block for op in ops))
        return sorted(blocks, key=lambda block: -_depth(block))

    def _wanted(self, block: ir.Block) -> list[ir.Operation]:
        return [op for op in ops_in(block) if _NUMBER in op.attributes]

    def _rotate(self, op: ir.Operation) -> None:
        """Let what a loop's body still waits for run under another trip."""
        loop, body = TripLoop.of(op), op.regions[0].blocks[0]
        if not any(is_heavy(inner) for inner in ops_in(body)):
            for move in self._wanted(body):
                self._of(move).reason = "its loop computes nothing: slices run op by op"
            return
        if loop is not None:
            loop = ahead(loop, loop.waiting(self._wanted(loop.block)))
        if loop is not None:
            for knotted in behind(loop, loop.waiting(self._wanted(loop.block))):
                self._of(knotted).reason = "it needs what it gave in the trip before"

    def _of(self, op: ir.Operation) -> _Found:
        number: int = op.attributes[_NUMBER].value
        return self.found[number]

    def _mark(self) -> None:
        """Mark what is started before it is waited for."""
        for block in self._blocks():
            ops = ops_in(block)
            for op in self._wanted(block):
                if runs_ahead(op, ops):
                    op.attributes[MARK] = ir.UnitAttr.get()
                    self._of(op).early = True
        for op in walk(self.module):
            if _NUMBER in op.attributes:
                del op.attributes[_NUMBER]

    def _close(self) -> None:
        """Say of each hint what became of it."""
        met = ops_met(self.module, self.ledger)
        for region in self.ledger.regions:
            ops = [n for n in met if self.ledger.ops[n].region == region.number]
            if (said := self._hint(region.number, "none")) is not None:
                done = Outcome(HONOURED, "every collective is done before the next op begins")
                settle(self.ledger, [said], ops, done, self._place(ops))
            elif ops and (said := self._hint(region.number, "auto")) is not None:
                settle(self.ledger, [said], ops, self._outcome(said), self._place(ops))

    def _place(self, numbers: list[int]) -> ir.Operation:
        """Return an op of the ledger to point at."""
        return next((op for op in walk(self.module) if number(op, OP) in numbers), self.module)

    def _outcome(self, said: StatedHint) -> Outcome:
        mine = [f for f in self.found if f.said == said]
        if early := [f for f in mine if f.early]:
            names = ", ".join(dict.fromkeys(f.name for f in early))
            return Outcome(HONOURED, f"{len(early)} of {len(mine)} collectives run ahead: {names}")
        if not mine:
            return Outcome(INFEASIBLE, "no collective in the region", "drop overlap")
        why = "; ".join(dict.fromkeys(f"{f.name}: {f.reason}" for f in mine))
        return Outcome(INFEASIBLE, why, "slice the region along a dim that its collectives have")


def _depth(block: ir.Block) -> int:
    """Count the ops that a block is nested in."""
    found, op = 0, block.owner
    while op is not None:
        found, op = found + 1, op.operation.parent
    return found
