"""Order the ops of a block so that collectives run under compute: what dist-overlap does with slices written out.

before:  p = compute(0); r = all_reduce(p); x = use(r); q = compute(1); s = all_reduce(q); y = use(s)
after:   p = compute(0); r = all_reduce(p); q = compute(1); s = all_reduce(q); x = use(r); y = use(s)

What needs a collective stands back until the next one has been issued, so that one is on its way at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshweave.ir.bindings import ir
from meshweave.transforms.communication.overlapping.loops import is_heavy, ops_in, runs_ahead
from meshweave.transforms.slicing.program import reads


def reorder(block: ir.Block, wanted: Sequence[ir.Operation]) -> None:
    """Order the ops of `block` so that more of the collectives `wanted` run under compute.

    Nothing changes where there is no such order.
    """
    *ops, end = ops_in(block)
    before = sum(runs_ahead(op, ops) for op in wanted)
    if before == len(wanted):
        return
    line = _Line(wanted)
    for op in ops:
        line.take(op)
    line.flush()
    if sum(runs_ahead(op, line.done) for op in wanted) > before:
        for op in line.done:
            op.move_before(end)


@dataclass
class _Line:
    """Build the new order, op by op.

    done: the ops so far; back: those held back; open: what these make, and what
    collectives under way give; busy: whether anything was computed meanwhile.
    """

    wanted: Sequence[ir.Operation]
    done: list[ir.Operation] = field(default_factory=list)
    back: list[ir.Operation] = field(default_factory=list)
    open: set[ir.Value] = field(default_factory=set)
    busy: bool = False

    def take(self, op: ir.Operation) -> None:
        """Put the next op in its place."""
        late = any(v in self.open for v in reads(op))
        if op in self.wanted:
            self._issue(op, late)
        elif late:
            self.back.append(op)
            self.open |= set(op.results)
        else:
            self.done.append(op)
            self.busy |= is_heavy(op)

    def _issue(self, op: ir.Operation, late: bool) -> None:
        if late:
            self.flush()
        self.done.append(op)
        if self.busy:
            self.flush()
        self.open |= set(op.results)

    def flush(self) -> None:
        """Put down what stands back."""
        self.done += self.back
        self.back, self.open, self.busy = [], set(), False
