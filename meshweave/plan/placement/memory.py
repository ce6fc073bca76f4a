"""Count the bytes that a rank holds in a program that is placed: at each moment, as sums of tables over choices.

What resides is exact: the buffers of arguments, and of results with buffers of their own. Between them the values that
are alive at a moment are counted, each in its layout, and what an op reads or makes in another layout than its value's.
Values that are views of others, and those that elementwise ops hand to each other, have no bytes.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.placement.place import PlacementProblem
from meshweave.plan.placement.terms import CostTerm, Numbers


@dataclass(frozen=True)
class LiveMoment:
    """Describe an op of a block as it runs: the values that are held, and the blocks that run in it.

    held: numbers of values. ops: those of the graph that it stands for. inner: numbers of blocks, of which one runs at
    a time. before: values that are held right before it.
    """

    held: tuple[int, ...]
    ops: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()
    before: tuple[int, ...] = ()


@dataclass(frozen=True)
class LiveProgram:
    """Hold the moments of all blocks; the first one is the whole program.

    shapes: of each value, with the bytes of an element. resides: the values that arguments and results are.
    """

    blocks: tuple[tuple[LiveMoment, ...], ...]
    shapes: Mapping[int, tuple[tuple[int, ...], int]]
    resides: tuple[int, ...]


@dataclass
class MemoryLoad:
    """Tell how many bytes the choices of a problem take.

    share: of the bytes between arguments and results that count; 0: what resides alone.
    """

    problem: PlacementProblem
    program: LiveProgram
    share: float = 1.0
    _rows: dict[tuple[object, ...], Numbers] = field(default_factory=dict)
    _of: dict[int, list[CostTerm]] = field(default_factory=dict)

    def most(self, picks: Sequence[int]) -> tuple[float, Hashable]:
        """Return the most bytes at a moment; it is the places of the ops that run, from the outermost one on."""
        resides = self.resident(picks)
        if not self.share or not self.program.blocks:
            return resides, ()
        known: dict[int, tuple[float, tuple[int, ...]]] = {}
        between, path = self._most_of(0, picks, known)
        return resides + self.share * between, path

    def resident(self, picks: Sequence[int]) -> float:
        """Return the bytes of arguments and results."""
        return sum([float(t.table[picks[t.variables[0]]]) for t in self._resident_terms()])

    def _most_of(
        self, block: int, picks: Sequence[int], known: dict[int, tuple[float, tuple[int, ...]]]
    ) -> tuple[float, tuple[int, ...]]:
        if block in known:
            return known[block]
        best: tuple[float, tuple[int, ...]] = (0.0, ())
        known[block] = best  # while it is looked at
        again = self._again(picks) if self._is_row(block) else None
        sizes = {v: 0.0 for moment in self.program.blocks[block] for v in moment.held}
        for v in sizes:
            sizes[v] = sum(float(t.table[picks[t.variables[0]]]) for t in self._value(v))
        for number, moment in enumerate(self.program.blocks[block]):
            total = sum([sizes[v] for v in moment.held])
            if again is not None:
                total += float(again[number])
            for op in moment.ops:
                for term in self._copies(op):
                    total += float(term.table[tuple([picks[v] for v in term.variables])])
            inner = [self._most_of(b, picks, known) for b in moment.inner]
            deepest = max(inner, key=lambda one: one[0], default=(0.0, ()))
            total += deepest[0]
            if total > best[0]:
                which = moment.inner[inner.index(deepest)] if inner else -1
                best = total, (number, which, *deepest[1])
        for number, place in enumerate(self.problem.again.copies if again is not None else ()):
            at = len(self.program.blocks[block]) + number
            total = sum([sizes[v] for v in self.program.blocks[block][place].before])
            total += float(again[at]) if again is not None else 0.0
            if total > best[0]:
                best = total, (at, -1)
        known[block] = best
        return best

    def terms(self, moment: Hashable) -> Sequence[CostTerm]:
        """Return the bytes at a moment as terms, equal ones with one table."""
        assert isinstance(moment, tuple)
        between: list[CostTerm] = []
        block, path = 0, moment
        while path and self.share:
            if self._is_row(block):
                between += self._made_again(path[0])
            moments = self.program.blocks[block]
            if path[0] >= len(moments):
                place = self.problem.again.copies[path[0] - len(moments)]
                for v in moments[place].before:
                    between += self._value(v)
                break
            now = moments[path[0]]
            for v in now.held:
                between += self._value(v)
            for op in now.ops:
                between += self._copies(op)
            block, path = path[1], path[2:]
        return [*self._resident_terms(), *[self._shared(term) for term in between]]

    def _is_row(self, block: int) -> bool:
        row = self.problem.again
        return bool(row.works) and row.block == block

    def _again(self, picks: Sequence[int]) -> Numbers:
        """Return how many bytes are held more at each moment, and before copies, because of what is made again."""
        row, states = self.problem.again, picks[self.problem.states :]
        total: Numbers = np.zeros(row.moments + len(row.copies))
        for work, shifts, state in zip(row.works, row.shifts, states):
            if shifts[state].any():
                nbytes = sum(float(t.table[picks[t.variables[0]]]) for t in self._value(work.value))
                total += nbytes * shifts[state]
        return total

    def _made_again(self, moment: int) -> Iterator[CostTerm]:
        """Return the bytes that are held more or less at a moment, by what becomes of each value."""
        row = self.problem.again
        for number, (work, shifts) in enumerate(zip(row.works, row.shifts)):
            column = shifts[:, moment]
            for term in self._value(work.value) if column.any() else ():
                key = "again", id(term.table), column.tobytes()
                if key not in self._rows:
                    self._rows[key] = np.multiply.outer(term.table, column)
                yield CostTerm((*term.variables, self.problem.states + number), self._rows[key])

    def _shared(self, term: CostTerm) -> CostTerm:
        if self.share == 1:
            return term
        key = ("share", id(term.table))
        if key not in self._rows:
            self._rows[key] = self.share * term.table
        return CostTerm(term.variables, self._rows[key])

    def _resident_terms(self) -> list[CostTerm]:
        if -1 not in self._of:
            own = dict.fromkeys(self.problem.variable(v) for v in self.program.resides)
            self._of[-1] = [term for v in own for term in self._value(v)]
        return self._of[-1]

    def _value(self, value: int) -> list[CostTerm]:
        """Return the bytes of a value."""
        v, shape = self.problem.variable(value), self.program.shapes.get(value)
        if shape is None or not self.problem.layouts[v]:
            return []
        return [CostTerm((v,), self._row(self.problem.layouts[v], shape))]

    def _row(self, layouts: tuple[Layout, ...], shape: tuple[tuple[int, ...], int]) -> Numbers:
        key = (id(layouts), shape)
        if key not in self._rows:
            self._rows[key] = np.array([local_bytes(x, self.problem.mesh, shape) for x in layouts])
        return self._rows[key]

    def _copies(self, op: int) -> list[CostTerm]:
        """Return the bytes of what an op reads and makes in other layouts than those of its values."""
        if op not in self._of:
            self._of[op] = list(self._found_copies(op))
        return self._of[op]

    def _found_copies(self, op: int) -> Sequence[CostTerm]:
        problem, graph = self.problem, self.problem.graph
        values, found = graph.values_of[op], []
        if not problem.runs[op]:
            ends = [v for v in values if v >= 0]
            if len(ends) == 2 and problem.variable(ends[0]) != problem.variable(ends[1]):
                source, target = (problem.variable(v) for v in ends)
                shape = self.program.shapes[ends[1]]
                here, there = problem.layouts[source], problem.layouts[target]
                table = self._different(here, there, np.arange(len(there)), shape)
                found.append(CostTerm((source, target), table))
            return found
        runs = problem.rules[graph.rule_of[op]]
        for t, value in enumerate(values):
            v = problem.variable(value) if value >= 0 else -1
            if v >= 0 and runs.ends[t] and problem.layouts[v]:
                shape = self.program.shapes[value]
                times = problem.sizes[len(graph.specs) + op] // len(runs.runs)
                table = self._different(
                    problem.layouts[v], runs.blocks[t], runs.at[t], shape, times
                )
                found.append(CostTerm((v, len(graph.specs) + op), table))
        return found

    def _different(
        self,
        layouts: tuple[Layout, ...],
        ends: tuple[Layout, ...],
        at: Numbers | np.ndarray,
        shape: tuple[tuple[int, ...], int],
        times: int = 1,
    ) -> Numbers:
        """Return the bytes of each end, where it is another layout than that of the value; all ends several times."""
        key = (id(layouts), id(ends), id(at), shape, times)
        if key not in self._rows:
            row = np.array([local_bytes(end, self.problem.mesh, shape) for end in ends])
            numbers = {layout.without_partial(): n for n, layout in enumerate(layouts)}
            same = np.array([numbers.get(end.without_partial(), -1) for end in ends])
            plain = np.array([numbers[layout.without_partial()] for layout in layouts])
            table = np.where(plain[:, None] == same[None, :], 0.0, row[None, :])
            self._rows[key] = np.ascontiguousarray(np.tile(table[:, at], times))
        return self._rows[key]


def local_bytes(layout: Layout, mesh: Mesh, shape: tuple[tuple[int, ...], int]) -> float:
    """Return the bytes of a buffer of a tensor on a rank. shape: of the tensor, with the bytes of an element."""
    return float(shape[1] * prod(layout.local_shape(mesh, shape[0])))
