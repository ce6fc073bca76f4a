"""Propagate layouts over a plain graph: layouts for all values, and for each op the layouts it runs with.

The graph holds numbers, rules and specs, no IR. A `Spec` is what is known of a value: the axes of each dim, and which
dims may still get more. `refine` moves axes along the factors of one op; sweeps forwards and backwards repeat it to a
fixpoint, first through the ops that move nothing (elementwise, views), then forwards through all, then both ways.
`decide` then picks, op by op, which axis runs over which factor, by the bytes that its operands and results would have
to move.

Both are pure functions of (rule, specs, mesh) behind caches keyed by value, so a layer that occurs again costs a
lookup.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import product
from math import prod
from typing import Protocol

from meshweave.layout.factors import (
    FOUND,
    IN_ORDER,
    JOINED,
    NEUTRAL_FREE,
    PARALLEL,
    PLACED,
    REDUCTION,
    SORTED,
    WHOLE,
    Axes,
    Rule,
    SlidingWindow,
    merge_axes,
    pieces,
    split_axes,
)
from meshweave.layout.layout import AxisFactor, Factor, Layout, LocalFactor, Partial
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import REST

PASSING, FORWARD, BOTH = "passing", "forward", "both"
"""What a round of propagation lets through: ops without reductions, all ops forwards, all ops both ways."""


@dataclass(frozen=True)
class Spec:
    """Hold what is known of a value's layout.

    dims:      axes of each dim, major first.
    open:      for each dim whether more axes may be added after those it has.
    forbidden: axes that open dims may not use.
    priority:  for each dim the round in which its axes begin to propagate (0 first); empty: all 0.
    fixed:     the user said so: redistributions bend other values to this one.
    """

    dims: tuple[Axes, ...]
    open: tuple[bool, ...]
    forbidden: tuple[str, ...] = ()
    priority: tuple[int, ...] = ()
    fixed: bool = False
    partial: tuple[tuple[str, Axes], ...] = ()

    @staticmethod
    @cache
    def unknown(ndim: int) -> "Spec":
        """Return a spec with nothing known and everything open."""
        return Spec(((),) * ndim, (True,) * ndim)

    def layout(self) -> Layout:
        """Return the layout of the value as known so far."""
        return _layout(self.dims, self.partial)


_Specs = tuple[Spec | None, ...]


@lru_cache(maxsize=1 << 16)
def _layout(dims: tuple[Axes, ...], partial: tuple[tuple[str, Axes], ...]) -> Layout:
    return Layout.blocks(dims, [Partial(kind, axes) for kind, axes in partial])


@dataclass
class Graph:
    """Hold ops over numbered values.

    `specs[v]` is None for a value that costs nothing to make again in any layout (fills, splats, empties): it takes
    what each use asks for and carries nothing from one use to another.
    """

    rules: list[Rule] = field(default_factory=list)
    rule_of: list[int] = field(default_factory=list)
    values_of: list[tuple[int, ...]] = field(default_factory=list)
    specs: list[Spec | None] = field(default_factory=list)
    region_of: list[int] = field(default_factory=list)

    def add_value(self, spec: Spec | None) -> int:
        """Add a value and return its number."""
        self.specs.append(spec)
        return len(self.specs) - 1

    def add_op(self, rule: int, values: tuple[int, ...], region: int = 0) -> int:
        """Add an op of `rules[rule]` and return its number.

        values: the numbers of its operands, then of its results, -1 for what is no tensor. region: a number shared by
        ops that run equally often.
        """
        self.rule_of.append(rule)
        self.region_of.append(region)
        self.values_of.append(values)
        return len(self.rule_of) - 1

    def without_windows(self) -> "Graph":
        """Return the graph, of the same values, whose ops need whole what they would read through windows."""
        return replace(self, rules=[rule.without_windows() for rule in self.rules])


@dataclass(frozen=True)
class Decision:
    """Hold the layouts an op runs with: for each operand and result a Layout, None for what is no tensor."""

    operands: tuple[Layout | None, ...]
    results: tuple[Layout | None, ...]


class Trace(Protocol):
    """Receive each distinct question that a propagation asks of one op, and its answer."""

    def refined(self, rule: Rule, specs: _Specs, mode: str, priority: int, answer: _Specs) -> None:
        """Receive the `answer` that `refine` gave to these arguments."""

    def decided(self, rule: Rule, specs: _Specs, answer: Decision) -> None:
        """Receive the `answer` that `decide` gave to these arguments."""


def propagate(
    graph: Graph, mesh: Mesh, trace: Trace | None = None, slices: bool = False
) -> tuple[list[Layout | None], list[Decision]]:
    """Return a layout for each value (None: made where it is used) and a Decision for each op; refines `graph.specs`.

    slices: the axes are of time, as for `decide`.
    """
    specs = [s for s in graph.specs if s is not None]
    last = max((max(s.priority, default=0) for s in specs), default=0)
    for priority in range(last + 1):
        for mode in (PASSING, FORWARD, BOTH):
            asked = _fixpoint(graph, mesh, mode, priority)
            if trace is not None:
                for (number, *_), (now, new) in asked.items():
                    trace.refined(graph.rules[number], now, mode, priority, new)
    # Keyed by identity: hashing a rule costs more than deciding by one does. The entry keeps what its key names alive.
    known: dict[tuple[int, ...], tuple[_Specs, Decision]] = {}
    decisions = []
    for rule, values in zip(graph.rule_of, graph.values_of, strict=True):
        now = tuple([graph.specs[v] if v >= 0 else None for v in values])
        key = (rule, *map(id, now))
        if key not in known:
            known[key] = (now, decide(graph.rules[rule], now, mesh, slices))
            if trace is not None:
                trace.decided(graph.rules[rule], now, known[key][1])
        decisions.append(known[key][1])
    return [None if s is None else s.layout() for s in graph.specs], decisions


def _fixpoint(
    graph: Graph, mesh: Mesh, mode: str, priority: int
) -> dict[tuple[int, ...], tuple[_Specs, _Specs]]:
    """Sweep forwards and backwards over the ops until no spec changes.

    Returns what `refine` was asked: keys begin with the number of the rule, values are the specs and their answer.
    """
    rules, values_of, specs = graph.rules, graph.values_of, graph.specs
    readers: list[list[int]] = [[] for _ in specs]
    dirty = bytearray(len(values_of))
    for op, values in enumerate(values_of):
        if mode == PASSING and not rules[graph.rule_of[op]].passes_through:
            continue
        dirty[op] = 1
        for v in values:
            if v >= 0 and specs[v] is not None:
                readers[v].append(op)
    seen: dict[tuple[int, ...], tuple[_Specs, _Specs]] = {}
    direction = 1
    while any(dirty):
        for op in range(len(values_of))[::direction]:
            if not dirty[op]:
                continue
            dirty[op] = 0
            values = values_of[op]
            now = tuple([specs[v] if v >= 0 else None for v in values])
            key = (graph.rule_of[op], *map(id, now))
            if key not in seen:
                seen[key] = (now, refine(rules[graph.rule_of[op]], now, mesh, mode, priority))
            new = seen[key][1]
            for v, old, spec in zip(values, now, new, strict=True):
                if spec is not old and spec != old:
                    specs[v] = spec
                    for reader in readers[v]:
                        dirty[reader] = 1
        direction = -direction
    return seen


@lru_cache(maxsize=1 << 15)
def refine(
    rule: Rule, specs: tuple[Spec | None, ...], mesh: Mesh, mode: str = BOTH, priority: int = 0
) -> tuple[Spec | None, ...]:
    """Return `specs` with the axes that the op's factors carry from one tensor to another.

    On a factor the tensors with most bytes speak first; a longer row of axes wins over its own beginning, two that
    disagree leave each other alone. An axis goes to a tensor only where the dim is open, the axis is not used by
    another dim of it, and the dim can be cut that way.
    """
    sizes = _sizes(mesh)
    nops = len(rule.operands)
    sources = range(nops) if mode == FORWARD else range(len(specs))
    placed: dict[int, Axes] = {}
    thin: dict[int, int] = {}
    for t in sorted(sources, key=lambda t: -rule.nbytes[t]):
        spec, dims = specs[t], rule.tensors[t]
        if spec is None or dims is None:
            continue
        for d, axes in enumerate(spec.dims):
            if not axes or (spec.priority and spec.priority[d] > priority):
                continue
            for factor, here in split_axes(axes, dims[d], rule, sizes).items():
                known = placed.get(factor, ())
                if len(here) > len(known) and here[: len(known)] == known:
                    placed[factor] = here
                    extent = rule.extent(t, d)
                    if extent < pieces(here, sizes):
                        thin[factor] = extent
    turned = _turned(rule, specs, placed, sizes)
    moved = {axis for axes in turned.values() for axis in axes}
    placed = {f: a for f, a in placed.items() if not moved & set(a)} | turned
    targets = range(nops, len(specs)) if mode == FORWARD else range(len(specs))
    new = list(specs)
    for t in targets:
        spec, dims = specs[t], rule.tensors[t]
        if spec is not None and dims is not None and any(spec.open):
            new[t] = _grown(spec, dims, placed, thin, rule, t, sizes)
    result = tuple(new)
    return specs if result == specs else result


def _turned(
    rule: Rule, specs: _Specs, placed: dict[int, Axes], sizes: dict[str, int]
) -> dict[int, Axes]:
    """Return axes for a factor that all tensors of the op have, in place of a dim that must be whole.

    A transform of the columns of `[x, _]` runs on `[_, x]`: all_to_all brings a rank its columns, where it would gather
    all. So does a sort, unless its result is wanted where its operand lies: then it stays there.
    """
    if not rule.turns:
        return {}
    shared = [f for f, factor in enumerate(rule.factors) if factor.kind == PARALLEL]
    tensors = [[dim[0] for dim in dims if len(dim) == 1] for dims in rule.tensors if dims]
    free = [f for f in shared if f not in placed and all(f in own for own in tensors)]
    for spec, dims in zip(specs, rule.operands):
        if spec is None or dims is None or not free:
            continue
        for axes, dim in zip(spec.dims, dims):
            if axes and all(_may_turn(rule, specs, f) for f in dim):
                fits = [f for f in free if rule.factors[f].size % pieces(axes, sizes) == 0]
                used = {
                    a for f, row in placed.items() if not _may_turn(rule, specs, f) for a in row
                }
                if fits and not used & set(axes):
                    return {fits[0]: axes}
    return {}


def _may_turn(rule: Rule, specs: _Specs, factor: int) -> bool:
    """Tell whether axes of a factor may go to another one."""
    kind = rule.factors[factor].kind
    if kind != SORTED:
        return kind == WHOLE
    results = zip(specs[len(rule.operands) :], rule.results)
    kept = [
        spec.dims[d]
        for spec, dims in results
        if spec and dims
        for d in range(len(dims))
        if dims[d] == (factor,)
    ]
    return not any(kept)


def _grown(
    spec: Spec,
    dims: tuple[tuple[int, ...], ...],
    placed: dict[int, Axes],
    thin: dict[int, int],
    rule: Rule,
    tensor: int,
    sizes: dict[str, int],
) -> Spec:
    """Return `spec` with the axes of `placed` where it is open to them.

    thin: the extents of factors of which some ranks have nothing where they are known: one row stays on the one rank
          that has it.
    """
    grown = list(spec.dims)
    used = {axis for axes in spec.dims for axis in axes} | set(spec.forbidden)
    used |= {axis for _, axes in spec.partial for axis in axes}
    extents = rule.sizes[tensor]
    assert extents is not None
    for d, dim in enumerate(dims):
        if not spec.open[d] or any(rule.factors[f].kind == WHOLE for f in dim):
            continue
        axes, _ = merge_axes(placed, dim, rule, sizes)
        known = grown[d]
        if len(axes) <= len(known) or axes[: len(known)] != known:
            continue
        new: Axes = known
        for axis in axes[len(known) :]:
            cut = pieces((*new, axis), sizes)
            fits = extents[d] % cut == 0 or (
                rule.padding_safe
                and len(dim) == 1
                and (extents[d] >= cut or extents[d] == thin.get(dim[0]))
            )
            if axis in used or not fits:
                break
            new = (*new, axis)
            used.add(axis)
        grown[d] = new
    return spec if tuple(grown) == spec.dims else replace(spec, dims=tuple(grown))


def decide(
    rule: Rule, specs: tuple[Spec | None, ...], mesh: Mesh, slices: bool = False
) -> Decision:
    """Return the layouts the op runs with: each axis on the factor (or on none) that moves the fewest bytes in all.

    slices: the axes are of time. A sum over slices then costs nothing, since it is carried from one to the next; what
    another slice makes is not available. Among equals more axes at work win, then the order of factors. Raises
    nothing: running whole is always possible.
    """
    return decide_by_cost(rule, specs, mesh, slices)[0]


@lru_cache(maxsize=1 << 15)
def decide_by_cost(
    rule: Rule, specs: tuple[Spec | None, ...], mesh: Mesh, slices: bool = False
) -> tuple[Decision, float]:
    """Return what `decide` does, and the bytes a rank receives, with those that it could receive while it works."""
    sizes = _sizes(mesh)
    rows: dict[int, list[Axes]] = {}
    for t in sorted(range(len(specs)), key=lambda t: -rule.nbytes[t]):
        spec, dims = specs[t], rule.tensors[t]
        if spec is None or dims is None:
            continue
        for d, axes in enumerate(spec.dims):
            for factor, here in split_axes(axes, dims[d], rule, sizes).items():
                if _may_cut(rule, factor, slices) and here not in rows.setdefault(factor, []):
                    rows[factor].append(here)
    known = {f: row[0] for f, row in rows.items()}
    for factor, axes in _turned(rule, specs, known, sizes).items():
        rows[factor] = [axes]
    names = sorted({axis for row in rows.values() for part in row for axis in part})
    choices = [
        [f for f in sorted(rows) if any(a in part for part in rows[f])] + [-1] for a in names
    ]
    best: tuple[int, float, int, tuple[int, ...]] | None = None
    chosen: dict[int, Axes] = {}
    for pick in product(*choices):
        placed = _placement(names, pick, rows)
        if placed is None or not holds(rule, placed, sizes):
            continue
        cost = _moved(rule, specs, placed, sizes, slices) + _work(rule, placed, sizes)
        let_go = sum(axis not in placed.get(f, ()) for f, axes in rule.held for axis in axes)
        score = (let_go, cost, pick.count(-1), pick)
        if best is None or score < best:
            best, chosen = score, placed
    return run_decision(rule, specs, chosen, sizes), best[1] if best is not None else 0.0


WORK = 0.2
"""Cost of an iteration of an op's loops, in bytes received: at 100 GFLOP/s a core does 5 multiply-adds in the time that
a byte takes at 10 GB/s. It only has to prevent that every rank does work that could be shared.
"""


def _work(rule: Rule, placed: dict[int, Axes], sizes: dict[str, int]) -> float:
    """Return the busiest rank's share of the op's loops, as the bytes it could receive in that time."""
    iterations = 1.0
    for number, factor in enumerate(rule.factors):
        if factor.kind not in (PLACED, FOUND):
            iterations *= max(factor.size / pieces(placed.get(number, ()), sizes), 1)
    return WORK * iterations


def _may_cut(rule: Rule, factor: int, slices: bool) -> bool:
    kind = rule.factors[factor].kind
    if kind in IN_ORDER and slices:
        return False
    return kind != WHOLE and (kind != REDUCTION or rule.reduction is not None)


def _placement(
    axes: Sequence[str], pick: tuple[int, ...], rows: dict[int, list[Axes]]
) -> dict[int, Axes] | None:
    """Return axes per factor, in the order of the largest tensor that names them all; None if no tensor does."""
    placed: dict[int, Axes] = {}
    for factor in set(pick) - {-1}:
        mine = {a for a, f in zip(axes, pick, strict=True) if f == factor}
        order = next((row for row in rows[factor] if mine <= set(row)), None)
        if order is None:
            return None
        placed[factor] = tuple(a for a in order if a in mine)
    return placed


def holds(rule: Rule, placed: dict[int, Axes], sizes: dict[str, int]) -> bool:
    """Tell whether every tensor of the op can be laid out so: digits in order, and cuts that the op may run on."""
    for dims in rule.tensors:
        if dims is not None and not all(merge_axes(placed, dim, rule, sizes)[1] for dim in dims):
            return False
    turned = [rule.factor_of(t, d) for t, d in rule.mirrored]
    if any(rule.factors[f].size % pieces(placed.get(f, ()), sizes) for f in (*turned, *rule.even)):
        return False
    if rule.padding_safe:
        return True
    return all(rule.factors[f].size % pieces(axes, sizes) == 0 for f, axes in placed.items())


OUT_OF_REACH = 1e6
"""Weight of a byte of another slice: more than any number of bytes that are available."""


def _moved(
    rule: Rule,
    specs: tuple[Spec | None, ...],
    placed: dict[int, Axes],
    sizes: dict[str, int],
    slices: bool,
) -> float:
    """Return the bytes a rank would receive to bring operands to the op, and to reduce results and bring them home."""
    total = 0.0
    scale = OUT_OF_REACH if slices else 1.0
    reduced = _reduced(rule, placed)
    inside = moved_inside(rule, placed, sizes)
    nops = len(rule.operands)
    for t, (spec, dims) in enumerate(zip(specs, rule.tensors, strict=True)):
        if dims is None or spec is None:
            continue
        run = tuple(merge_axes(placed, dim, rule, sizes)[0] for dim in dims)
        if t < nops:
            total += scale * bytes_missing(rule, t, spec.dims, run, sizes)
            if any(run[d] for at, d in rule.mirrored if at == t):
                total += scale * rule.nbytes[t] / pieces([a for axes in run for a in axes], sizes)
            continue
        group = pieces(reduced, sizes)
        local = rule.nbytes[t] / pieces([a for axes in run for a in axes], sizes)
        if group > 1 and not slices:
            kept = {a for axes in spec.dims for a in axes} >= set(reduced)
            total += local * (group - 1) / group * (1 if kept else 2)
        total += local * inside
        total += scale * _gathered(run, spec.dims, rule.nbytes[t], sizes)
    return total


def moved_inside(rule: Rule, placed: Mapping[int, Axes], sizes: dict[str, int]) -> float:
    """Return what a rank receives while the op works, as a multiple of the bytes of its results.

    Where it joins what ranks have made it is that of each other one, where it sorts the part that lay on others.
    """
    joined, merged = [
        pieces([a for f, row in placed.items() if rule.factors[f].kind == kind for a in row], sizes)
        for kind in (JOINED, SORTED)
    ]
    return joined - 1 / merged


def bytes_missing(
    rule: Rule, tensor: int, have: tuple[Axes, ...], run: tuple[Axes, ...], sizes: dict[str, int]
) -> float:
    """Return the bytes missing on a rank that holds `have` of an operand and runs on `run`."""
    parts = [dim_parts(rule, tensor, d, *axes, sizes) for d, axes in enumerate(zip(have, run))]
    wanted, held = prod([part[0] for part in parts]), prod([part[1] for part in parts])
    return rule.nbytes[tensor] * wanted * (1.0 - held)


def dim_parts(
    rule: Rule, tensor: int, dim: int, have: Axes, run: Axes, sizes: dict[str, int]
) -> tuple[float, float]:
    """Return the part of a dim of an operand that a rank reads, and the part of that which it holds."""
    extents = rule.sizes[tensor]
    assert extents is not None
    windows = [window for t, d, window in rule.windows if (t, d) == (tensor, dim)]
    if windows and (have or run):
        places = _window_size(rule, tensor, dim)
        return _seen(windows[-1], places, extents[dim], have, run, sizes)
    return 1.0 / pieces(run, sizes), _held(have, run, sizes)


def _window_size(rule: Rule, tensor: int, dim: int) -> int:
    """Return the size of the factor that a dim is made of."""
    dims = rule.tensors[tensor]
    assert dims is not None
    return rule.factors[dims[dim][0]].size


def _seen(
    window: SlidingWindow, places: int, size: int, have: Axes, run: Axes, sizes: dict[str, int]
) -> tuple[float, float]:
    """Return the part of a dim that a rank reads through its window, and the part of that which it holds.

    They are those of the busiest of the first ranks, the middle one and the last ones.
    """
    count, block = pieces(run, sizes), -(-places // pieces(run, sizes))
    chunk, parts = -(-size // pieces(have, sizes)), pieces(have, sizes)
    most, least = 0, 1.0
    for k in {0, 1, count // 2, count - 2, count - 1} & set(range(count)):
        start = k * block * window.stride + window.low
        low, high = max(start, 0), min(start + window.span(block), size)
        if low < high:
            both = min(high, (k + 1) * chunk) - max(low, k * chunk)
            held = max(0, both) if have == run else (high - low) // parts
            most, least = max(most, high - low), min(least, held / (high - low))
    return most / max(size, 1), least


def _gathered(
    have: tuple[Axes, ...], want: tuple[Axes, ...], nbytes: int, sizes: dict[str, int]
) -> float:
    """Return the bytes missing on a rank that holds `have` and needs `want`: those cut beyond common beginnings."""
    held = prod([_held(a, b, sizes) for a, b in zip(have, want, strict=True)])
    return nbytes / pieces([a for axes in want for a in axes], sizes) * (1.0 - held)


def _held(have: Axes, want: Axes, sizes: dict[str, int]) -> float:
    """Return the part that a rank holds of what it needs along a dim."""
    common = 0
    while common < min(len(have), len(want)) and have[common] == want[common]:
        common += 1
    return 1.0 / pieces(have[common:], sizes)


def _reduced(rule: Rule, placed: dict[int, Axes]) -> Axes:
    """Return the axes over which the result is partial, in the order of the factors."""
    summed = [f for f in sorted(placed) if rule.factors[f].kind in (REDUCTION, FOUND)]
    return tuple(a for f in summed for a in placed[f])


def run_decision(
    rule: Rule, specs: _Specs, placed: dict[int, Axes], sizes: dict[str, int]
) -> Decision:
    """Return the layouts of an op whose factors run over the axes of `placed`.

    specs: of its values, which windows depend on.
    """
    reduced = _reduced(rule, placed)
    partial: tuple[tuple[str, Axes], ...] = ()
    if reduced and rule.reduction is not None:
        partial = ((rule.reduction, reduced),)
    held = () if rule.reduction in NEUTRAL_FREE else partial
    inits = set(rule.inits)
    layouts: list[Layout | None] = []
    for t, dims in enumerate(rule.tensors):
        if dims is None:
            layouts.append(None)
            continue
        run = tuple(merge_axes(placed, dim, rule, sizes)[0] for dim in dims)
        pending = partial if t >= len(rule.operands) else held if t in inits else ()
        windows = _windows(rule, t, specs[t], run, sizes)
        layout = _layout(run, pending)
        layouts.append(_in_windows(layout, windows) if windows else layout)
    return Decision(tuple(layouts[: len(rule.operands)]), tuple(layouts[len(rule.operands) :]))


def _windows(
    rule: Rule, tensor: int, spec: Spec | None, run: tuple[Axes, ...], sizes: dict[str, int]
) -> dict[int, LocalFactor]:
    """Return the window that a rank holds of each dim that the op reads through one.

    A dim that is whole on each rank, before and for the op, stays whole, and plain blocks are left as blocks.
    """
    found = {}
    for d, window in [(d, w) for t, d, w in rule.windows if t == tensor]:
        extents, axes = rule.sizes[tensor], run[d]
        assert extents is not None
        count = pieces(axes, sizes)
        block = -(-_window_size(rule, tensor, d) // count)
        step, low, size = block * window.stride, window.low, window.span(block)
        if count == 1:
            if spec is None or pieces(spec.dims[d], sizes) == 1:
                continue
            step, low, size = 0, max(low, 0), min(low + size, extents[d]) - max(low, 0)
        chunk = -(-extents[d] // count)
        if (size > 0 and (low, size) != (0, chunk)) or (count > 1 and step != size):
            found[d] = LocalFactor(size, (step, low))
    return found


def _in_windows(layout: Layout, windows: dict[int, LocalFactor]) -> Layout:
    """Return a layout in blocks with windows of some dims instead."""
    rows: list[tuple[Factor, ...]] = [
        (*map(AxisFactor, axes), windows.get(d, REST)) for d, axes in enumerate(layout.block_axes())
    ]
    return Layout(tuple(rows), layout.partial)


@lru_cache(maxsize=256)
def _sizes(mesh: Mesh) -> dict[str, int]:
    """Return the axis sizes, with 2 for a symbolic axis: the least that cuts anything."""
    return {axis.name: axis.size if isinstance(axis.size, int) else 2 for axis in mesh.axes}
