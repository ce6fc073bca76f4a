"""Plan the memory of a function: which launches run as one kernel, when each buffer lives, and where it lies.

`Schedule` decides on the steps of a bufferised function; plan-memory writes its decisions into the IR, and
`FunctionPlan` (function_plan.py) reads them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.arena import ArenaBlock, plan
from meshweave.lowering.buffers.steps import Buffers, MemrefPlace, Root, Step
from meshweave.lowering.nests.bind import LoopNest, Pointers
from meshweave.lowering.nests.rows import (
    MOST_NESTS,
    Entry,
    KernelUnit,
    before_vectors,
    nest_of,
    related,
    row_local,
    shared_rows,
    streams,
)
from meshweave.plan.collectives import row_of_symbol
from meshweave.transforms.slicing.ledger import HintMarks

_OURS = ("arena", "output")  # kinds of buffers that a kernel's result may be given
_END = 1 << 60  # after every step
Region = tuple[int, int]


class Schedule:
    """Decide on the units of a function, the lifetimes of its buffers and their places."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers, self.marks = buffers, HintMarks()
        self._position = 0
        self._blocks: dict[Root, ArenaBlock] = {}
        self._same: dict[Root, Root] = {}
        self.idle: list[ir.Operation] = []  # copies of a buffer to itself
        self.entries = self._group(buffers.steps)
        self._live(self.entries, ())
        self._join_aliases()
        self._share(self.entries)
        self.entries = self._without_idle(self.entries)
        self.arena_bytes = self._plan()

    # Grouping.

    def _group(self, steps: Sequence[Step]) -> list[Entry]:
        entries: list[Entry] = []
        unit: KernelUnit | None = None
        for step in steps:
            if step.what in ("kernel", "copy"):
                if step.what == "copy" and step.operands[0] == step.outputs[0]:
                    self.idle.append(step.op)
                    continue
                if unit is None or not self._joined(unit, step):
                    entries += [unit] if unit is not None else []
                    pointers = Pointers()
                    unit = KernelUnit([self._nest(step, pointers)], 0, pointers, [step])
                continue
            if unit is not None and not _scalar(step):
                entries.append(unit)
                unit = None
            step.bodies = [self._group(body) for body in step.bodies]
            entries.append(step)
        return [*entries, unit] if unit is not None else entries

    def _joined(self, unit: KernelUnit, step: Step) -> bool:
        """Put `step` into `unit` if it shares rows with what is there so far; tell whether it did."""
        if unit.nests[-1].contraction or len(unit.steps) == MOST_NESTS:
            return False
        if step.kernel is not None and step.kernel.contraction:
            return False
        if self.marks.keep_apart(step.op.location, unit.steps[-1].op.location):
            return False
        mark = unit.pointers.mark()
        nest = self._nest(step, unit.pointers)
        if related(nest, unit.nests, unit.pointers):
            rows = self._rows([*unit.nests, nest], unit.pointers)
            if rows:
                unit.rows = rows
                unit.nests.append(nest)
                unit.steps.append(step)
                return True
        unit.pointers.restore(mark)
        return False

    def _rows(self, nests: list[LoopNest], pointers: Pointers) -> int:
        """Return the number of outer loops that nests should share; 0 for none."""
        if any(streams(nest, nests[-1], pointers) for nest in nests[:-1]):
            return 0
        return shared_rows(nests, pointers, before_vectors(nests))

    def _nest(self, step: Step, pointers: Pointers) -> LoopNest:
        return nest_of(step, pointers, self.buffers)

    # Lifetimes.

    def _live(self, entries: list[Entry], around: tuple[Region, ...]) -> None:
        for entry in entries:
            self._position += 1
            entry_position = self._position
            if isinstance(entry, KernelUnit):
                for root in entry.pointers.roots:
                    self._touch(root, around, entry_position)
                continue
            if entry.bodies:
                end = entry_position + length(entry)
                for body in entry.bodies:
                    self._live(body, (*around, (entry_position, end)))
                self._position = end
            for value in (*entry.operands, *entry.outputs, entry.scratch):
                if isinstance(value, MemrefPlace):
                    self._touch(value.root, around, entry_position)
            entry.position = entry_position

    def _touch(self, root: Root, around: tuple[Region, ...], position: int) -> None:
        if root.kind not in ("arena", "pointer", "output"):
            return
        depth = self.buffers.depths.get(root, 0)
        first, last = around[depth] if len(around) > depth else (position, position)
        block = self._blocks.setdefault(root, ArenaBlock(root.nbytes, first, last))
        block.first, block.last = min(block.first, first), max(block.last, last)
        if root.kind == "output":
            block.last = _END

    def _join_aliases(self) -> None:
        """Let buffers that control flow may hand on as one live as long as all of them."""
        for _ in self.buffers.aliases:
            for a, b in self.buffers.aliases:
                first, second = self._blocks.get(a), self._blocks.get(b)
                if first is None or second is None:
                    continue
                low, high = min(first.first, second.first), max(first.last, second.last)
                first.first = second.first = low
                first.last = second.last = high

    # A result may lie where an operand that dies lay.

    def _share(self, entries: list[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, KernelUnit):
                self._share_unit(entry)
                continue
            if entry.what == "collective" and _works_in_place(entry):
                source, out = entry.operands[0], entry.outputs[0]
                if source.offset == out.offset:
                    self._share_pair(source.root, out.root, entry.position)
            for body in entry.bodies:
                self._share(body)

    def _without_idle(self, entries: list[Entry]) -> list[Entry]:
        """Leave out copies of a buffer to itself, which sharing has made of copies between two."""
        found: list[Entry] = []
        for entry in entries:
            if isinstance(entry, KernelUnit):
                kept = [k for k, step in enumerate(entry.steps) if not self._is_idle(step)]
                self.idle += [step.op for step in entry.steps if self._is_idle(step)]
                entry.nests = [entry.nests[k] for k in kept]
                entry.steps = [entry.steps[k] for k in kept]
                if not kept:
                    continue
            else:
                entry.bodies = [self._without_idle(body) for body in entry.bodies]
            found.append(entry)
        return found

    def _is_idle(self, step: Step) -> bool:
        """Tell whether a step copies what lies there already."""
        if step.what != "copy":
            return False
        source, target = step.operands[0], step.outputs[0]
        assert isinstance(source, MemrefPlace) and isinstance(target, MemrefPlace)
        there, here = (replace(place, root=self.final(place.root)) for place in (source, target))
        return there == here

    def _share_unit(self, unit: KernelUnit) -> None:
        if any(n.contraction for n in unit.nests):
            return
        for which, nest in enumerate(unit.nests):
            roots = [self.final(root) for root in unit.pointers.roots]
            out = roots[nest.stores[0].access.pointer]
            if nest.reductions or len(nest.stores) != 1 or out.kind not in _OURS:
                continue
            for source in dict.fromkeys(r for r in roots if r.kind == "arena" and r is not out):
                if self._may_share(unit, roots, which, source) and self._share_pair(
                    source, out, None
                ):
                    break

    def _may_share(self, unit: KernelUnit, roots: list[Root], which: int, source: Root) -> bool:
        """Tell whether nest `which` may write its result where `source` lies.

        It may when it reads each element right before it writes it, and nothing else needs either buffer.
        """
        target = unit.nests[which].stores[0].access
        out, places = roots[target.pointer], unit.pointers.places
        numbered = [(k, a, n) for k, n in enumerate(unit.nests) for a in n.accesses]
        uses = [use for use in numbered if roots[use[1].pointer] is source]
        outs = [use for use in numbered if roots[use[1].pointer] is out]
        if not uses or max(k for k, _, _ in uses) > which or min(k for k, _, _ in outs) < which:
            return False
        there = places[target.pointer]
        if any(places[access.pointer].nbytes != there.nbytes for _, access, _ in uses + outs):
            return False  # element i of the one lies where another element of the other does
        for k, access, _ in uses:
            same = access._replace(pointer=target.pointer) == target
            if k == which and not (same and places[access.pointer].offset == there.offset):
                return False
        gathers = [g.access for n in unit.nests for g in n.gathers]
        if any(roots[access.pointer] is source for access in gathers):
            return False
        together = [(a, n) for _, a, n in uses + outs]
        return not unit.rows or row_local(together, unit.pointers, unit.rows)

    def _share_pair(self, source: Root, out: Root, position: int | None) -> bool:
        """Let `source` and `out` be one buffer, if one ends in the step where the other begins."""
        source, out = self.final(source), self.final(out)
        depths = self.buffers.depths
        if source is out or source.kind != "arena" or out.kind not in _OURS:
            return False
        if source.nbytes != out.nbytes or depths.get(source, 0) != depths.get(out, 0):
            return False
        old, new = self._blocks[source], self._blocks[out]
        if old.last != new.first or position not in (None, old.last):
            return False
        if self._aliased(source) or self._aliased(out):
            return False
        if out.kind == "output":
            new.first = old.first
            self._same[source] = out
        else:
            old.last = max(old.last, new.last)
            self._same[out] = source
        return True

    def _aliased(self, root: Root) -> bool:
        return any(root in pair for pair in self.buffers.aliases)

    def final(self, root: Root) -> Root:
        """Return the buffer that `root` is part of in the end."""
        while root in self._same:
            root = self._same[root]
        return root

    @property
    def blocks(self) -> dict[Root, ArenaBlock]:
        """Return the buffers of the arena, with their sizes, lifetimes and places."""
        return {r: b for r, b in self._blocks.items() if r.kind == "arena" and r not in self._same}

    def _plan(self) -> int:
        chosen = self.blocks
        total = plan(chosen.values())
        for root, block in chosen.items():
            root.offset = block.at
        for root in self._same:
            root.offset = self.final(root).offset
        return total


def _works_in_place(step: Step) -> bool:
    """Tell whether the two buffers of a collective may be one."""
    row = row_of_symbol(step.op.attributes["symbol"].value)
    return row is not None and row.in_place


def length(step: Step) -> int:
    """Count the positions that the bodies of a step take."""
    return sum(1 + (length(e) if isinstance(e, Step) else 0) for body in step.bodies for e in body)


def _scalar(step: Step) -> bool:
    """Tell whether a step touches no memory, so that kernels may run after it as well as before."""
    return step.what.startswith(("arith.", "math.", "mw.member"))
