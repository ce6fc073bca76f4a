"""Place a graph: the layouts of all values and the runs of all ops whose predicted time is least.

Each op has a variable, whose choices are its runs, and each value has one, whose choices are the layouts that some op
makes or wants it in, or the one that was said. An op costs the time it computes; each of its operands costs the move
from the layout of its value to the one that the run reads, each result the move from the run's to its value's. All
costs are of one variable or two, so their sum is minimised exactly (elimination.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshweave.layout.factors import Rule
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.placement.again import NOTHING_AGAIN, AgainRow
from meshweave.plan.placement.minimise import minimise
from meshweave.plan.placement.prices import MachinePrices, OpWork
from meshweave.plan.placement.rates import planned_for
from meshweave.plan.placement.repeats import FoldedGraph
from meshweave.plan.placement.runs import OpRun, RuleRuns, axis_turns
from meshweave.plan.placement.terms import (
    FORBIDDEN,
    Choices,
    CostTerm,
    Numbers,
    Places,
    cost_of,
)
from meshweave.plan.propagation.arrange import StatedLayout
from meshweave.plan.propagation.propagate import (
    Decision,
    Graph,
    Spec,
    dim_parts,
    run_decision,
)
from meshweave.plan.redistribute import plan_redistribute


@dataclass(frozen=True)
class Times:
    """Say how often each op of a graph runs, and each value is made, in a run of the program."""

    ops: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Works:
    """Say what each op that is left computes, and how many bytes a rank touches before it reads an argument again."""

    ops: Sequence[OpWork]
    reach: float


@dataclass(frozen=True)
class Edges:
    """Say what the IR adds to a graph.

    passes: the numbers of ops that only hand a value on.
    same: values that have the layout of another one: a result in the buffer of an argument.
    said: values that come, or are wanted, in layouts beyond blocks.
    """

    passes: frozenset[int] = frozenset()
    same: Mapping[int, int] = field(default_factory=dict)
    said: Sequence[StatedLayout] = ()


@dataclass
class PlacementProblem:
    """Hold the problem of placing a graph: variables with their choices, and what they cost together.

    Values come first, then ops, by number in what repeats leave, then what may be made again (again.py), which goes
    with a graph of which all is left. `layouts[v]` and `runs[op]` list the choices; ops that may run again have theirs
    twice.
    """

    graph: Graph
    mesh: Mesh
    times: Times
    edges: Edges
    works: Works
    repeats: FoldedGraph
    prices: MachinePrices = field(default_factory=MachinePrices)
    again: AgainRow = NOTHING_AGAIN
    left: Graph = field(init=False)
    passes: set[int] = field(init=False)
    rules: dict[int, RuleRuns] = field(init=False)
    layouts: list[tuple[Layout, ...]] = field(init=False)
    runs: list[tuple[OpRun, ...]] = field(init=False)
    terms: list[CostTerm] = field(init=False)
    sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.left = self.repeats.graph
        passes = self.passes = {int(self.repeats.ops[op]) for op in self.edges.passes}
        used = {rule for op, rule in enumerate(graph.rule_of) if op not in passes}
        self.rules = {rule: RuleRuns.of(graph.rules[rule], self.mesh) for rule in sorted(used)}
        self.runs = [
            () if op in passes else self.rules[rule].runs for op, rule in enumerate(graph.rule_of)
        ]
        self._axes = {axis.name: self.mesh.size(axis.name) for axis in self.mesh.axes}
        self._bytes = [0] * len(graph.specs)
        for rule, values in zip(graph.rule_of, graph.values_of):
            for v, nbytes in zip(values, graph.rules[rule].nbytes):
                if v >= 0:
                    self._bytes[v] = nbytes
        self._tables: dict[tuple[object, ...], Numbers] = {}
        self.layouts = _domains(self)
        numbers: dict[tuple[Layout, ...], int] = {}
        # Equal domains are mostly one tuple, whose layouts take long to hash.
        seen: dict[int, int] = {}
        for domain in self.layouts:
            if id(domain) not in seen:
                seen[id(domain)] = numbers.setdefault(domain, len(numbers))
        self._domain = [seen[id(domain)] for domain in self.layouts]
        self.sizes = [max(1, len(x)) for x in self.layouts] + [max(1, len(x)) for x in self.runs]
        self.terms = [*self._moves(), *self._work(), *self._interfaces()]
        if self.again.works:
            first, begin = len(graph.specs), len(self.sizes)
            self.sizes = self.again.doubled(self.sizes, first)
            self.terms = self.again.twice(self.terms, first)
            self.terms += self.again.links(self.sizes, first, begin)

    @property
    def states(self) -> int:
        """Return the first of the variables that say what becomes of a value."""
        return len(self.sizes) - len(self.again.works)

    def run_again(self, choices: Choices) -> list[int]:
        """Return the works that run again."""
        return self.again.again(choices.picks[self.states :])

    def again_seconds(self, choices: Choices) -> dict[int, float]:
        """Return the seconds of each work that runs again."""
        first, of = len(self.left.specs), dict[int, float]()
        for term in self.terms:
            for v in term.variables:
                if first <= v < self.states:
                    of[v] = of.get(v, 0.0) + cost_of(choices.picks, [term]) / 2
        works = self.again.works
        return {n: sum([of[first + op] for op in works[n].ops]) for n in self.run_again(choices)}

    def variable(self, value: int) -> int:
        """Return the variable of a value."""
        return int(self.repeats.values[value])

    def solve(self, terms: Sequence[CostTerm] = ()) -> Choices:
        """Return the best choices. terms: what to count besides.

        Where ops have runs that are not looked at, the bound is what the ops compute at least, with no moves.
        """
        return self.bounded(minimise(self.sizes, [*self.terms, *terms], alike=lambda: self.alike))

    @cached_property
    def alike(self) -> list[Places]:
        """Return for each variable numbers of its choices: the same for those that differ in axes of one kind alone."""
        turns = axis_turns(self.mesh)
        rules = {number: runs.alike for number, runs in self.rules.items()}
        numbers: dict[object, int] = {}
        known: dict[int, Places] = {}
        for domain in self.layouts:
            if id(domain) not in known:
                kinds = [numbers.setdefault(_alike(x, turns), len(numbers)) for x in domain]
                known[id(domain)] = np.array(kinds or [0], np.intp)
        found = [known[id(domain)] for domain in self.layouts]
        one = np.zeros(1, np.intp)
        found += [rules[rule] if runs else one for rule, runs in zip(self.left.rule_of, self.runs)]
        for v in [len(self.left.specs) + op for op in self.again.twofold]:
            found[v] = np.concatenate([found[v], found[v] + found[v].max() + 1])
        return found + [np.arange(len(states)) for states in self.again.states]

    def bounded(self, choices: Choices) -> Choices:
        """Return choices with a bound that holds for runs that are not looked at too."""
        if all(runs.every for runs in self.rules.values()):
            return choices
        return replace(choices, bound=min(choices.bound, self._least_work()))

    def _least_work(self) -> float:
        """Return seconds that the ops take at least, each by itself."""
        total = 0.0
        for op, rule in enumerate(self.left.rule_of):
            if not self.runs[op]:
                continue
            work = self.works.ops[op]
            key = ("least", rule, work)
            if key not in self._tables:
                least = self.prices.least_work(self.left.rules[rule], work, self.mesh)
                self._tables[key] = np.array(least)
            total += self._times(op) * float(self._tables[key])
        return total

    def otherwise(
        self, value: int, choices: Choices, terms: Sequence[CostTerm] = ()
    ) -> Choices | None:
        """Return the best choices in which a value has another layout than in these; None where it has no other.

        terms: what to count besides.
        """
        v = self.variable(value)
        if self.sizes[v] == 1:
            return None
        forbidden = np.zeros(self.sizes[v])
        forbidden[choices.picks[v]] = FORBIDDEN
        found = self.solve([*terms, CostTerm((v,), forbidden)])
        return None if found.cost >= FORBIDDEN else found

    def taken(self, other: "PlacementProblem", choices: Choices) -> Choices:
        """Return the choices of another problem of the same graph, in which more or less counts once."""
        picks = [0] * len(self.sizes)
        for v, mine in zip(self.repeats.values.tolist(), other.repeats.values.tolist()):
            if self.layouts[v]:
                picks[v] = self.layouts[v].index(other.layouts[mine][choices.picks[mine]])
        first, before = len(self.left.specs), len(other.left.specs)
        for op, mine in zip(self.repeats.ops.tolist(), other.repeats.ops.tolist()):
            picks[first + op] = choices.picks[before + mine]
        return Choices(tuple(picks), choices.cost, choices.bound)

    def layout(self, value: int, choices: Choices) -> Layout:
        """Return the layout of a value among these choices."""
        v = self.variable(value)
        return self.layouts[v][choices.picks[v]]

    def placed(self, choices: Choices) -> tuple[list[Layout | None], list[Decision]]:
        """Return the layout of each value and the decision of each op, as `propagate` does; sets `graph.specs`."""
        graph, first = self.graph, len(self.left.specs)
        own = [x[pick] if x else None for x, pick in zip(self.layouts, choices.picks)]
        layouts = [own[v] for v in self.repeats.values]
        for v, layout in enumerate(layouts):
            if layout is not None:
                graph.specs[v] = _closed(graph.specs[v], layout)
        known: dict[int, Decision] = {}
        decisions = []
        for op, stands in enumerate(self.repeats.ops.tolist()):
            if stands not in known:
                pick = choices.picks[first + stands] % max(1, len(self.runs[stands]))
                known[stands] = self._decision(op, self.runs[stands][pick : pick + 1], layouts)
            decisions.append(known[stands])
        return layouts, decisions

    def _decision(
        self, op: int, runs: Sequence[OpRun], layouts: Sequence[Layout | None]
    ) -> Decision:
        """Return the decision of an op by its run; a pass has none."""
        graph, values = self.graph, self.graph.values_of[op]
        rule = graph.rules[graph.rule_of[op]]
        if not runs:
            end = layouts[values[-1]] if values[-1] >= 0 else None
            return Decision((end,), (end,))
        if rule.windows:
            specs = tuple(graph.specs[v] if v >= 0 else None for v in values)
            return run_decision(rule, specs, dict(runs[0].placed), self._axes)
        return Decision(runs[0].operands, runs[0].results)

    def _times(self, op: int) -> float:
        """Return how often an op runs, with those that it stands for."""
        return float(self.repeats.counts[op]) * self.times.ops[int(self.repeats.first[op])]

    def _work(self) -> list[CostTerm]:
        found, first = [], len(self.left.specs)
        for op, runs in enumerate(self.runs):
            if runs:
                rule, times = self.left.rule_of[op], self._times(op)
                work = self.works.ops[op]
                key = ("work", rule, times, work)
                if key not in self._tables:
                    row = self.prices.work(self.rules[rule], work, self.works.reach)
                    self._tables[key] = times * row
                found.append(CostTerm((first + op,), self._tables[key]))
        return found

    def _moves(self) -> list[CostTerm]:
        found = []
        for op, (rule, values) in enumerate(zip(self.left.rule_of, self.left.values_of)):
            places: dict[int, list[int]] = {}
            for t, v in enumerate(values):
                if v >= 0:
                    places.setdefault(v, []).append(t)
            if not self.runs[op]:
                found += self._handed_on(op, values)
                continue
            for v, tensors in places.items():
                table = self._table(rule, v, tuple(tensors), self._moved_times(op, v))
                found.append(CostTerm((v, len(self.left.specs) + op), table))
        return found

    def _moved_times(self, op: int, v: int) -> float:
        """Return how often a value is moved for an op, in a run: whenever it is made, or the op runs if that is rarer.

        What a function returns is made in all its calls; who reads it in one of them moves it once.
        """
        first, kept = int(self.repeats.first[op]), int(self.repeats.kept[v])
        return float(self.repeats.counts[op]) * min(self.times.ops[first], self.times.values[kept])

    def _handed_on(self, op: int, values: Sequence[int]) -> list[CostTerm]:
        """Return the cost of a pass, from one value to another."""
        ends = [v for v in values if v >= 0]
        if len(ends) != 2 or ends[0] == ends[1]:
            return []
        source, target = ends
        times, nbytes = self._moved_times(op, source), self._bytes[source]
        key = ("pass", self._domain[source], self._domain[target], nbytes, times)
        if key not in self._tables:
            here, there = self.layouts[source], self.layouts[target]
            self._tables[key] = times * self.prices.moves(here, there, self.mesh, nbytes)
        return [CostTerm((source, target), self._tables[key])]

    def _table(self, number: int, v: int, tensors: tuple[int, ...], times: float) -> Numbers:
        """Return what a value costs an op that reads or makes it, for each layout and each run.

        tensors: where it reads it; two operands in one layout are moved once. times: how often it is moved.
        """
        key = (number, tensors, self._domain[v], times)
        if key not in self._tables:
            self._tables[key] = times * self._ends(number, self.layouts[v], tensors)
        return self._tables[key]

    def _ends(self, number: int, layouts: tuple[Layout, ...], tensors: tuple[int, ...]) -> Numbers:
        rule, runs = self.left.rules[number], self.rules[number]
        made, through = len(rule.operands), {t for t, _, _ in rule.windows}
        table: Numbers = np.zeros((len(layouts), len(runs.runs)))
        for place, t in enumerate(tensors):
            ends, nbytes = runs.ends[t], rule.nbytes[t]
            if t in through:
                costs = self._windows(rule, t, layouts, ends)
            elif t >= made:
                costs = self.prices.moves(ends, layouts, self.mesh, nbytes).T
            else:
                costs = self.prices.moves(layouts, ends, self.mesh, nbytes)
            column = costs[:, runs.at[t]]
            for before in tensors[:place] if t < made and t not in through else ():
                if before not in through:
                    again = [
                        ends[i] == runs.ends[before][j] for i, j in zip(runs.at[t], runs.at[before])
                    ]
                    column = np.where(again, 0.0, column)
            table += column
        return table

    def _windows(
        self, rule: Rule, t: int, layouts: tuple[Layout, ...], ends: tuple[Layout, ...]
    ) -> Numbers:
        """Return the seconds to read windows of an operand: to add it up, if it is a sum, and to exchange the rest."""
        plain = [layout.without_partial() for layout in layouts]
        sums = [n for n, layout in enumerate(layouts) if layout.partial]
        before: Numbers = np.zeros(len(layouts))
        if sums:
            ends_of_sums = [layouts[n] for n in sums], [plain[n] for n in sums]
            once, each = self.prices.rates(self.mesh).along(*ends_of_sums)
            before[sums] = once + each * rule.nbytes[t]
        wanted, held = np.ones((len(layouts), len(ends))), np.ones((len(layouts), len(ends)))
        for dim in range(plain[0].ndim):
            rows, columns = ([x.axes_of(dim) for x in side] for side in (plain, ends))
            some, others = list(dict.fromkeys(rows)), list(dict.fromkeys(columns))
            parts = np.array(
                [[dim_parts(rule, t, dim, a, b, self._axes) for b in others] for a in some]
            )
            here, there = ({axes: n for n, axes in enumerate(side)} for side in (some, others))
            at = np.ix_([here[a] for a in rows], [there[b] for b in columns])
            wanted, held = wanted * parts[at][..., 0], held * parts[at][..., 1]
        whole = rule.nbytes[t] * wanted
        moved = self.prices.window(whole * (1.0 - held), whole * held)
        found: Numbers = before[:, None] + moved
        return found

    def _interfaces(self) -> list[CostTerm]:
        """Return what values that were said to lie beyond blocks cost, from there to the blocks that ops work on."""
        found, profile = [], planned_for(self.prices.profile)
        made = {
            v
            for rule, values in zip(self.graph.rule_of, self.graph.values_of)
            for v in values[len(self.graph.rules[rule].operands) :]
        }
        for stated in self.edges.said:
            v, row = self.variable(stated.value), []
            for layout in self.layouts[v]:
                ends = (layout, stated.layout) if stated.value in made else (stated.layout, layout)
                size = max(1, int(np.prod(stated.shape)))
                item = stated.nbytes // size or 1
                plan = plan_redistribute(*ends, self.mesh, stated.shape, item, profile=profile)
                row.append(plan.seconds)
            found.append(CostTerm((v,), np.array(row)))
        return found


def _alike(layout: Layout, turns: Sequence[dict[str, str]]) -> object:
    """Return what a layout has in common with those that only have axes in each other's places."""
    rows, sums = layout.block_axes(), [(p.kind, p.axes) for p in layout.partial]
    return min(
        (
            tuple([tuple([turn[a] for a in row]) for row in rows]),
            tuple([(kind, tuple(sorted([turn[a] for a in axes]))) for kind, axes in sums]),
        )
        for turn in turns
    )


def _closed(spec: Spec | None, layout: Layout) -> Spec:
    """Return the spec of exactly this layout."""
    partial = tuple((p.kind, p.axes) for p in layout.partial)
    dims = layout.block_axes()
    fixed = spec is not None and spec.fixed
    return Spec(dims, (False,) * len(dims), fixed=fixed, partial=partial)


def _domains(work: PlacementProblem) -> list[tuple[Layout, ...]]:
    """Return the layouts that each value may have: what some op makes or wants it in, or what was said.

    A value is handed on as a partial sum only to ops of its own region. Equal domains are one tuple.
    """
    graph = work.left
    found: list[dict[int, None]] = [{} for _ in graph.specs]
    linear, numbers = _may_stay_partial(work), _Numbers()
    ends = {number: _ends_by_number(runs, numbers) for number, runs in work.rules.items()}
    for op, (number, values) in enumerate(zip(graph.rule_of, graph.values_of)):
        if op in work.passes:
            continue
        for v, (blocks, sums) in zip(values, ends[number]):
            if v >= 0:
                found[v].update(blocks)
                if linear[v]:
                    found[v].update(sums)
    _handed(work, found, numbers)
    sizes = work._axes
    known: dict[tuple[int, ...], tuple[Layout, ...]] = {}
    domains = []
    for spec, own in zip(graph.specs, found):
        key = tuple(own)
        if key not in known:
            known[key] = tuple([numbers.layouts[n] for n in key])
        options = known[key]
        domains.append(() if spec is None else _allowed(spec, options, sizes))
    return domains


class _Numbers:
    """Number layouts in the order in which they are met."""

    def __init__(self) -> None:
        self.layouts: list[Layout] = []
        self.of: dict[Layout, int] = {}

    def number(self, layout: Layout) -> int:
        """Return the number of a layout."""
        found = self.of.setdefault(layout, len(self.layouts))
        if found == len(self.layouts):
            self.layouts.append(layout)
        return found


_Ends = tuple[dict[int, None], dict[int, None]]


def _ends_by_number(runs: RuleRuns, numbers: _Numbers) -> list[_Ends]:
    """Return for each tensor of a rule the numbers of the blocks it may lie in, and of those that are sums."""
    return [
        (
            dict.fromkeys(numbers.number(x) for x in blocks),
            dict.fromkeys(
                numbers.number(x) for x, y in zip(ends, blocks) if x.partial and x.is_block
            ),
        )
        for ends, blocks in zip(runs.ends, runs.blocks)
    ]


def _handed(work: PlacementProblem, found: list[dict[int, None]], numbers: _Numbers) -> None:
    """Let values that are handed on have the layouts of what they come from and become, but for sums."""
    above = list(range(len(found)))

    def root(v: int) -> int:
        while above[v] != v:
            above[v] = v = above[above[v]]
        return v

    pairs = []
    for op in sorted(work.passes):
        ends = [v for v in work.left.values_of[op] if v >= 0]
        if len(ends) == 2:
            pairs.append(ends)
            first, second = sorted(map(root, ends))
            above[second] = first
    said: dict[Spec, int] = {}
    for v, spec in zip(work.repeats.values.tolist(), work.graph.specs):
        if spec is not None:
            if spec not in said:
                said[spec] = numbers.number(spec.layout().without_partial())
            found[v].setdefault(said[spec])
    together: dict[int, dict[int, None]] = {}
    members = list(dict.fromkeys(v for ends in pairs for v in ends))
    for v in members:
        whole = [n for n in found[v] if not numbers.layouts[n].partial]
        together.setdefault(root(v), {}).update(dict.fromkeys(whole))
    for v in members:
        found[v].update(together[root(v)])


def _may_stay_partial(work: PlacementProblem) -> list[bool]:
    """Tell of each value whether it may be handed on as a sum to do: it is read by ops of its own region alone."""
    graph = work.left
    good = [spec is not None and not spec.fixed for spec in graph.specs]
    region: dict[int, int] = {}
    for op, (rule, values) in enumerate(zip(graph.rule_of, graph.values_of)):
        made = values[len(graph.rules[rule].operands) :]
        for v in values:
            if v >= 0 and op in work.passes:
                good[v] = False
        for v in made:
            if v >= 0:
                region[v] = graph.region_of[op]
    for op, (rule, values) in enumerate(zip(graph.rule_of, graph.values_of)):
        for v in values[: len(graph.rules[rule].operands)]:
            if v >= 0 and region.get(v) != graph.region_of[op]:
                good[v] = False
    return good


def _allowed(
    spec: Spec, options: tuple[Layout, ...], sizes: Mapping[str, int]
) -> tuple[Layout, ...]:
    """Return the options that agree with what was said of a value."""
    if not spec.fixed and not any(spec.dims):
        return options or (spec.layout(),)
    own = spec.layout()
    kept = {own: None}
    for layout in options:
        partial = tuple((p.kind, p.axes) for p in layout.partial)
        rows = zip(layout.block_axes(), spec.dims, spec.open)
        if partial == spec.partial and all(
            row[: len(said)] == said
            and (is_open or row == said)
            and not set(row[len(said) :]) & set(spec.forbidden)
            for row, said, is_open in rows
        ):
            kept[layout] = None
    return tuple(kept)
