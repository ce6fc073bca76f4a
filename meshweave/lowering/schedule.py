"""Steps to units: kernels that share rows are joined, buffers get their places in the arena.

`Schedule` holds the program as a tree of entries in the order they run: a `Unit` (one kernel call)
or a `Step` (a collective or an op that stays), whose `bodies` hold entries again.
"""

from __future__ import annotations

from typing import Any

from meshweave.errors import CompileError
from meshweave.locations import location_text
from meshweave.lowering import linear
from meshweave.lowering.arena import Block, plan
from meshweave.lowering.bind import Nest, Pointers, bind, renumbered
from meshweave.lowering.kernels import Kernel, Output
from meshweave.lowering.rows import (
    MOST_NESTS,
    Unit,
    finished,
    ordered,
    related,
    row_local,
    shared_rows,
)
from meshweave.lowering.steps import Buffers, Place, Root, Step
from meshweave.transforms.hint_ledger import kept_apart

Entry = Any  # Unit | Step
_OURS = ("arena", "output")  # kinds of buffers that a kernel's result may be given
_END = 1 << 60  # after every step
Region = tuple[int, int]


class Schedule:
    """The units of a program and the size of its arena."""

    def __init__(self, buffers: Buffers, kernels: list[Kernel], in_place: frozenset[int]) -> None:
        """in_place: numbers of the collectives that may write where they read."""
        self.buffers, self.kernels, self.in_place = buffers, kernels, in_place
        self._position = 0
        self.moments: list[tuple[int, Entry]] = []  # when each entry runs
        self._blocks: dict[Root, Block] = {}
        self._same: dict[Root, Root] = {}
        self.entries = self._group(buffers.steps)
        self._live(self.entries, ())
        self._join_aliases()
        self._share(self.entries)
        self.arena_bytes = self._plan()
        self._settle(self.entries)

    # Grouping.

    def _group(self, steps: list[Step]) -> list[Entry]:
        entries: list[Entry] = []
        unit: Unit | None = None
        for step in steps:
            if step.what in ("kernel", "copy"):
                if step.what == "copy" and step.operands[0] == step.outputs[0]:
                    continue
                if unit is None or not self._joined(unit, step):
                    entries += [unit] if unit is not None else []
                    pointers = Pointers()
                    unit = Unit([self._nest(step, pointers)], 0, pointers, [step])
                continue
            if unit is not None and not _scalar(step):
                entries.append(unit)
                unit = None
            step.bodies = [self._group(body) for body in step.bodies]  # type: ignore[misc]
            entries.append(step)
        return [*entries, unit] if unit is not None else entries

    def _joined(self, unit: Unit, step: Step) -> bool:
        """Whether `step` shares rows with what is in `unit` so far; then it is put in."""
        if unit.nests[-1].contraction or len(unit.steps) == MOST_NESTS:
            return False
        if step.what == "kernel" and self.kernels[step.number].contraction:
            return False
        if kept_apart(step.op.location, unit.steps[-1].op.location):
            return False
        mark = unit.pointers.mark()
        nest = self._nest(step, unit.pointers)
        if related(nest, unit.nests, unit.pointers):
            rows = shared_rows([*unit.nests, nest], unit.pointers)
            if rows:
                unit.rows = rows
                unit.nests.append(nest)
                unit.steps.append(step)
                return True
        unit.pointers.restore(mark)
        return False

    def _nest(self, step: Step, pointers: Pointers) -> Nest:
        kernel = self.kernels[step.number] if step.what == "kernel" else _copy_kernel(step)
        return ordered(bind(kernel, step, pointers, self.buffers.symbols.form))

    # Lifetimes.

    def _live(self, entries: list[Entry], around: tuple[Region, ...]) -> None:
        for entry in entries:
            self._position += 1
            entry_position = self._position
            self.moments.append((entry_position, entry))
            if isinstance(entry, Unit):
                for root, _, _ in entry.pointers.places:
                    self._touch(root, around, entry_position)
                continue
            if entry.bodies:
                end = entry_position + length(entry)
                for body in entry.bodies:
                    self._live(body, (*around, (entry_position, end)))
                self._position = end
            for value in (*entry.operands, *entry.outputs, entry.scratch):
                if isinstance(value, Place):
                    self._touch(value.root, around, entry_position)
            entry.position = entry_position

    def _touch(self, root: Root, around: tuple[Region, ...], position: int) -> None:
        if root.kind not in ("arena", "pointer", "output"):
            return
        depth = self.buffers.depths.get(root, 0)
        first, last = around[depth] if len(around) > depth else (position, position)
        block = self._blocks.setdefault(root, Block(root.nbytes, first, last))
        block.first, block.last = min(block.first, first), max(block.last, last)
        if root.kind == "output":
            block.last = _END

    def _join_aliases(self) -> None:
        """Buffers that control flow may hand on as one live as long as all of them."""
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
            if isinstance(entry, Unit):
                self._share_unit(entry)
                continue
            if entry.what == "collective" and entry.number in self.in_place:
                source, out = entry.operands[0], entry.outputs[0]
                if source.offset == out.offset:
                    self._share_pair(source.root, out.root, entry.position)
            for body in entry.bodies:
                self._share(body)

    def _share_unit(self, unit: Unit) -> None:
        if any(n.contraction for n in unit.nests):
            return
        for which, nest in enumerate(unit.nests):
            roots = [self.final(root) for root, _, _ in unit.pointers.places]
            out = roots[nest.stores[0].access.pointer]
            if nest.reductions or len(nest.stores) != 1 or out.kind not in _OURS:
                continue
            for source in dict.fromkeys(r for r in roots if r.kind == "arena" and r is not out):
                if self._may_share(unit, roots, which, source) and self._share_pair(
                    source, out, None
                ):
                    break

    def _may_share(self, unit: Unit, roots: list[Root], which: int, source: Root) -> bool:
        """Whether nest `which` may write its result where `source` lies: element by element, nobody
        needing either else.
        """
        target = unit.nests[which].stores[0].access
        out, places = roots[target.pointer], unit.pointers.places
        numbered = [(k, a, n) for k, n in enumerate(unit.nests) for a in n.accesses]
        uses = [use for use in numbered if roots[use[1].pointer] is source]
        outs = [use for use in numbered if roots[use[1].pointer] is out]
        if not uses or max(k for k, _, _ in uses) > which or min(k for k, _, _ in outs) < which:
            return False
        width = places[target.pointer][2]
        if any(places[access.pointer][2] != width for _, access, _ in uses + outs):
            return False  # element i of the one lies where another element of the other does
        for k, access, _ in uses:
            same = (access.const, access.strides) == (target.const, target.strides) and places[
                access.pointer
            ][1] == places[target.pointer][1]
            if k == which and not same:
                return False
        gathers = [node[1] for n in unit.nests for node in n.code if node[0] == "gather"]
        if any(roots[pointer] is source for pointer in gathers):
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
        """The buffer that `root` is part of in the end."""
        while root in self._same:
            root = self._same[root]
        return root

    @property
    def blocks(self) -> dict[Root, Block]:
        """The buffers of the arena, with their sizes, lifetimes and places."""
        return {r: b for r, b in self._blocks.items() if r.kind == "arena" and r not in self._same}

    def _plan(self) -> int:
        chosen = self.blocks
        total = plan(chosen.values())
        for root, block in chosen.items():
            root.offset = block.at
        for root in self._same:
            root.offset = self.final(root).offset
        return total

    # Pointers to what is now one buffer become one; loops are merged.

    def _settle(self, entries: list[Entry]) -> None:
        for k, entry in enumerate(entries):
            if isinstance(entry, Unit):
                entries[k] = finished(self._one_pointer_each(entry))
            else:
                for body in entry.bodies:
                    self._settle(body)

    def _one_pointer_each(self, unit: Unit) -> Unit:
        old = unit.pointers
        if not any(root in self._same for root, _, _ in old.places):
            return unit
        new = Pointers(scalars=old.scalars)
        numbers = [new.pointer(self.final(root), offset, n) for root, offset, n in old.places]
        new.written = {numbers[k] for k in old.written}
        return Unit([renumbered(n, numbers) for n in unit.nests], unit.rows, new, unit.steps)


def length(step: Step) -> int:
    """Positions that the bodies of a step take."""
    return sum(1 + (length(e) if isinstance(e, Step) else 0) for body in step.bodies for e in body)


def _scalar(step: Step) -> bool:
    """Whether a step touches no memory, so that kernels may run after it as well as before."""
    return step.what.startswith(("arith.", "math."))


def _copy_kernel(step: Step) -> Kernel:
    """The kernel that copies one buffer to another."""
    source, target = step.operands[0], step.outputs[0]
    whole = linear.identity(len(target.shape))
    kernel = Kernel(-1, location_text(step.op.location), target.shape, frozenset())
    kernel.code.append(("load", 0, whole))
    kernel.outputs.append(Output(whole, target.element))
    kernel.yields = (0,)
    if source.shape != target.shape:
        raise CompileError("a copy between shapes", kernel.where)
    return kernel
