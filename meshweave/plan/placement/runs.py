"""List the ways in which one op may run on a mesh: which axes each of its factors runs over, in which order.

Axes that no factor takes leave the work whole on each rank, or, where the op is linear in some operands, hand partial
sums on: its operands and its result are then sums over these axes that are still to do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise, permutations, product
from math import ceil, prod

import numpy as np
import numpy.typing as npt

from meshweave.layout.factors import (
    FOUND,
    JOINED,
    PLACED,
    REDUCTION,
    SORTED,
    WHOLE,
    Axes,
    Rule,
    merge_axes,
    pieces,
)
from meshweave.layout.layout import Layout, Partial
from meshweave.layout.mesh import Mesh
from meshweave.plan.propagation.defer import linear_in
from meshweave.plan.propagation.propagate import holds, moved_inside, run_decision

MOST_RUNS = 600
"""Ways to run an op that are looked at; of more axes, neighbours stay together until there are no more."""


MOST_TURNED = 4
"""Axes that may be in each other's places: there are 24 ways for these."""


def axis_turns(mesh: Mesh) -> list[dict[str, str]]:
    """Return each way to put axes of one size and link in each other's places, first the one that changes nothing."""
    kinds: dict[object, list[str]] = {}
    for axis in mesh.axes[:MOST_TURNED]:
        kinds.setdefault((mesh.size(axis.name), axis.link), []).append(axis.name)
    ways = product(*[permutations(names) for names in kinds.values()])
    same = {axis.name: axis.name for axis in mesh.axes}
    return [same | dict(zip(chain(*kinds.values()), chain(*way))) for way in ways]


@dataclass(frozen=True)
class OpRun:
    """Say how an op runs.

    placed: the axes of each factor that has any. operands, results: the layouts, None for what is no tensor.
    iterations: of its loops, of the busiest rank. nbytes: what a rank reads and writes of its tensors.
    joined: bytes that a rank receives to finish what is reduced by more than a collective, or sorted.
    """

    placed: tuple[tuple[int, Axes], ...]
    pending: Axes
    operands: tuple[Layout | None, ...]
    results: tuple[Layout | None, ...]
    iterations: int
    nbytes: float
    joined: float


def _runs_of(rule: Rule, mesh: Mesh) -> tuple[list[OpRun], bool]:
    """Return the ways to run an op, fewest cuts first in the order of factors, one at least; and whether these are all.

    Where there are too many, axes that are neighbours stay together, those of fewest ranks first: all ranks can work.
    """
    sizes = {axis.name: mesh.size(axis.name) for axis in mesh.axes if mesh.size(axis.name) > 1}
    groups: list[Axes] = [(name,) for name in sizes]
    found = _runs(rule, groups, sizes)
    while len(found) > MOST_RUNS and len(groups) > 1:
        pairs = [pieces((*a, *b), sizes) for a, b in pairwise(groups)]
        at = pairs.index(min(pairs))
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
        found = _runs(rule, groups, sizes)
    return found, len(groups) == len(sizes)


def _runs(rule: Rule, groups: Sequence[Axes], sizes: dict[str, int]) -> list[OpRun]:
    """Return the ways to run an op with the axes of each group together: all, or one more than are looked at."""
    found: dict[object, OpRun] = {}
    fewest = None
    for placed, pending in _placements(rule, groups, sizes):
        let_go = sum(axis not in placed.get(f, ()) for f, axes in rule.held for axis in axes)
        if fewest is None or let_go < fewest:
            fewest, found = let_go, {}
        if let_go > fewest:
            continue
        for linear in _linear(rule, placed, pending):
            run = _run(rule, placed, pending, linear, sizes)
            found.setdefault((run.operands, run.results, *_read_through(rule, run)), run)
        if len(found) > MOST_RUNS and len(groups) > 1:
            break
    return list(found.values())


def _read_through(rule: Rule, run: OpRun) -> tuple[object, ...]:
    """Return what tells two runs with the same layouts apart: factors that are read through windows."""
    read = {rule.factor_of(t, d) for t, d, _ in rule.windows}
    return tuple((f, axes) for f, axes in run.placed if f in read)


def _placements(
    rule: Rule, groups: Sequence[Axes], sizes: dict[str, int]
) -> Iterator[tuple[dict[int, Axes], Axes]]:
    """Give each way to put groups of axes on factors, or on none, or to leave them for sums."""
    factors = [f for f in range(len(rule.factors)) if _may_cut(rule, f)]
    nothing, pending = -1, -2
    spots = [nothing, *([pending] if rule.monomials else []), *factors]
    for pick in product(spots, repeat=len(groups)):
        rows: dict[int, list[Axes]] = {}
        for group, spot in zip(groups, pick):
            rows.setdefault(spot, []).append(group)
        rows.pop(nothing, None)
        waiting = tuple(chain(*rows.pop(pending, ())))
        for orders in product(*[permutations(rows[f]) for f in rows]):
            placed = {f: tuple(chain(*order)) for f, order in zip(rows, orders)}
            if all(pieces(a, sizes) <= rule.factors[f].size for f, a in placed.items()) and holds(
                rule, placed, sizes
            ):
                yield placed, waiting


def _may_cut(rule: Rule, factor: int) -> bool:
    kind = rule.factors[factor].kind
    return kind != WHOLE and (kind != REDUCTION or rule.reduction is not None)


def _linear(rule: Rule, placed: dict[int, Axes], pending: Axes) -> Iterator[tuple[int, ...]]:
    """Give each set of operands that are partial sums over the pending axes; the empty one where none are."""
    if not pending:
        yield ()
        return
    if any(rule.factors[f].kind in (REDUCTION, FOUND, JOINED, SORTED) for f in placed):
        return
    if len(rule.results) != 1 or rule.windows or rule.mirrored:
        return
    seen: set[tuple[int, ...]] = set()
    for operand in sorted({o for product_ in rule.monomials for o in product_}):
        chosen = linear_in(rule, {operand})
        if chosen is not None and chosen not in seen:
            seen.add(chosen)
            yield chosen


def _run(
    rule: Rule,
    placed: dict[int, Axes],
    pending: Axes,
    linear: tuple[int, ...],
    sizes: dict[str, int],
) -> OpRun:
    decision = run_decision(rule, (None,) * len(rule.tensors), placed, sizes)
    operands, results = decision.operands, decision.results
    if pending:
        waits = (Partial("sum", pending),)
        operands = tuple(
            x.with_partial(waits) if x is not None and i in linear else x
            for i, x in enumerate(operands)
        )
        results = tuple(x.with_partial(waits) if x is not None else x for x in results)
    iterations = 1
    for number, factor in enumerate(rule.factors):
        if factor.kind not in (PLACED, FOUND):
            iterations *= ceil(factor.size / pieces(placed.get(number, ()), sizes))
    nbytes, joined = 0.0, 0.0
    inside = moved_inside(rule, placed, sizes)
    for t, dims in enumerate(rule.tensors):
        if dims is None:
            continue
        axes = [a for dim in dims for a in merge_axes(placed, dim, rule, sizes)[0]]
        local = rule.nbytes[t] / pieces(axes, sizes)
        nbytes += local
        if t >= len(rule.operands):
            joined += local * inside
        elif any(merge_axes(placed, dims[d], rule, sizes)[0] for at, d in rule.mirrored if at == t):
            joined += local
    return OpRun(
        tuple(sorted(placed.items())), pending, operands, results, iterations, nbytes, joined
    )


@dataclass(frozen=True)
class RuleRuns:
    """Hold the ways to run an op, and for each of its tensors the layouts that they read or make it in.

    ends: of each tensor its distinct layouts, () for what is no tensor. at: for each run the place in these.
    blocks: the same layouts in blocks, without windows and sums. cuts: of these the parts of each dim, row by row.
    iterations, joined: of each run. every: whether the op has no other runs.
    """

    runs: tuple[OpRun, ...]
    ends: tuple[tuple[Layout, ...], ...]
    at: tuple[npt.NDArray[np.intp], ...]
    blocks: tuple[tuple[Layout, ...], ...]
    cuts: tuple[npt.NDArray[np.float64], ...]
    iterations: npt.NDArray[np.float64]
    joined: npt.NDArray[np.float64]
    every: bool
    rule: Rule
    mesh: Mesh

    @staticmethod
    @lru_cache(maxsize=1 << 12)
    def of(rule: Rule, mesh: Mesh) -> "RuleRuns":
        """Return those of an op with this rule."""
        runs, every = _runs_of(rule, mesh)
        sizes = {axis.name: mesh.size(axis.name) for axis in mesh.axes}
        ends, at, blocks, cuts = [], [], [], []
        for layouts in zip(*[(*run.operands, *run.results) for run in runs]):
            places = {x: number for number, x in enumerate(dict.fromkeys(layouts)) if x is not None}
            ends.append(tuple(places))
            at.append(np.array([places[x] for x in layouts] if places else [], np.intp))
            rows = [[x.axes_of(d) for d in range(x.ndim)] for x in places]
            blocks.append(tuple([Layout.blocks(row) for row in rows]))
            cuts.append(np.array([[pieces(axes, sizes) for axes in row] for row in rows], float))
        iterations = np.array([run.iterations for run in runs], float)
        joined = np.array([run.joined for run in runs], float)
        layouts = tuple(ends), tuple(at), tuple(blocks), tuple(cuts)
        return RuleRuns(tuple(runs), *layouts, iterations, joined, every, rule, mesh)

    @cached_property
    def sides(self) -> npt.NDArray[np.float64]:
        """Return the least side of a product on the busiest rank, for each run: rows, columns, or what is summed."""
        rule, sizes = self.rule, {axis.name: self.mesh.size(axis.name) for axis in self.mesh.axes}
        named = [{f for dim in dims for f in dim} for dims in rule.tensors if dims is not None]
        first, second = named[0], named[1] if len(named) > 2 else set()
        result = named[-1]
        sums = (first & second) - result
        groups = [g for g in ((first & result) - second, (second & result) - first, sums) if g]
        if len(groups) != 3:
            return np.ones(len(self.runs))
        found = []
        for run in self.runs:
            placed = dict(run.placed)
            found.append(
                min(
                    prod(ceil(rule.factors[f].size / pieces(placed.get(f, ()), sizes)) for f in g)
                    for g in groups
                )
            )
        return np.array(found, float)

    @cached_property
    def alike(self) -> npt.NDArray[np.intp]:
        """Return a number for each run: the same for those that differ only in which of the axes they use for what."""
        turns = axis_turns(self.mesh)
        turned: dict[Axes, list[Axes]] = {}

        def all_turns(axes: Axes) -> list[Axes]:
            if axes not in turned:
                turned[axes] = [tuple([turn[a] for a in axes]) for turn in turns]
            return turned[axes]

        kinds: dict[object, int] = {}
        found = []
        for run in self.runs:
            sums = tuple([x is not None and bool(x.partial) for x in run.operands])
            factors = tuple([f for f, _ in run.placed])
            rows = [*[all_turns(axes) for _, axes in run.placed], all_turns(run.pending)]
            found.append(kinds.setdefault((factors, min(zip(*rows)), sums), len(kinds)))
        return np.array(found, np.intp)
