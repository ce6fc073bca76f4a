"""dist-place: a layout for every value, and a run for every op, of which the predicted time is least.

before:  func @main(%x, %w1, %w2)                            nothing is said, or a part
after:   each op has `dist.layouts`, arguments and results have `dist.layout`, as dist-propagate writes them; the module
         has `dist.placement`: predicted seconds, and how far at most from the optimum; with a bound on bytes, the bytes

It takes the place of dist-propagate: what was said of arguments, results and constraints is kept, and all else is
chosen so that computing and moving together take the least predicted time (plan/placement). For a mesh of which only
the number of ranks is said, `auto=4`, the axes are chosen too: one, or two whose product that number is.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import ClassVar

from meshweave.dialects.dist import TAKES
from meshweave.dialects.hint import hints_in
from meshweave.hints.keys import Hint
from meshweave.hints.ledger import StatedHint
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.trips import trips
from meshweave.layout.mesh import Axis, Mesh
from meshweave.plan.placement.again import NOTHING_AGAIN, AgainRow
from meshweave.plan.placement.bounded import Bounded, OverLimit, fewest, within
from meshweave.plan.placement.goal import TIME, PlacementGoal
from meshweave.plan.placement.memory import MemoryLoad, local_bytes
from meshweave.plan.placement.place import Edges, PlacementProblem, Times, Works
from meshweave.plan.placement.prices import MachinePrices, machine_of
from meshweave.plan.placement.repeats import FoldedGraph
from meshweave.plan.placement.terms import Choices, Places, cost_of
from meshweave.plan.propagation.arrange import arrange
from meshweave.transforms.base import (
    Pass,
    PassFailure,
    copied,
    fail,
    functions,
    mesh_of_module,
    mesh_op,
    port_attrs,
    remark,
    set_mesh,
)
from meshweave.transforms.propagation.again import again_row, mark
from meshweave.transforms.propagation.graph import Built, build
from meshweave.transforms.propagation.interface import beyond_blocks, open_interfaces
from meshweave.transforms.propagation.live import LiveRow, live_program
from meshweave.transforms.propagation.outline_repeats import OutlineRepeats
from meshweave.transforms.propagation.propagate import LayoutWriter
from meshweave.transforms.propagation.values import item_bytes
from meshweave.transforms.propagation.works import op_works
from meshweave.transforms.slicing.ledger import (
    WHOLE,
    main_of,
    read_ledger,
    whole_region,
    write_ledger,
)

PLACEMENT = "dist.placement"
"""The attribute of the module that says how it was placed."""

UNKNOWN_TRIPS = 8.0  # rounds of a loop that ends when its body says so


@dataclass(frozen=True)
class Place(Pass):
    """Give every value the layout, and every op the run, that make the predicted time least.

    objective: "time", or the "bytes" of a rank, within max_seconds of predicted time.
    peak_bytes: a bound on the bytes of a rank, of arguments and results too; 0: what `peak_bytes` around all of the
    program says, which then bounds what arguments and results leave for values in between.
    share: of the bytes between arguments and results that the bound is to leave room for.
    again: under a bound, or for fewest bytes, values may be computed again instead of kept.
    explain: note in `dist.placement` what other layouts of arguments and results would cost, and the next best plans.
    machine: seconds of a multiply-add, a byte copied, a collective, a message, and a byte received.
    """

    name: ClassVar[str] = "dist-place"
    explain: bool = False
    machine: tuple[float, ...] = ()
    objective: str = TIME
    max_seconds: float = 0.0
    peak_bytes: int = 0
    share: float = 1.0
    again: bool = True

    @property
    def goal(self) -> PlacementGoal:
        """Return what is minimised, within which bound."""
        within = f" within {self.max_seconds}" if self.max_seconds else ""
        goal = PlacementGoal.parse(f"{self.objective}{within}")
        return replace(goal, limit=self.peak_bytes, share=self.share, again=self.again)

    @property
    def prices(self) -> MachinePrices:
        """Return what the machine takes."""
        return machine_of(self.machine) if self.machine else MachinePrices()

    def run(self, module: ir.Module) -> None:
        mesh = mesh_of_module(module)
        if mesh is None:
            return
        if mesh.ranks_to_arrange is not None:
            mesh = arrange_ranks(module, mesh, self.prices, goal=self.goal)
        if mesh.is_symbolic:
            fail(
                mesh_op(module), f"dist-place: mesh ({mesh}) has symbolic sizes: numbers are needed"
            )
        open_interfaces(module, mesh)
        made = bounded_placement(module, mesh, self.prices, self.goal, whole=self.explain)
        built, placing, choices = made.built, made.placing, made.choices
        layouts, decisions = placing.placed(choices)
        layouts, decisions = arrange(built.graph, layouts, decisions, placing.edges.said, mesh)
        for op in built.table.unknown:
            remark(op, f"dist-place: no rule for '{op.name}': its operands are gathered whole")
        LayoutWriter(built, layouts).write(module, decisions)
        said: dict[str, ir.Attribute] = {
            "mesh": ir.StringAttr.get(str(mesh)),
            "seconds": _float(choices.cost),
            "gap": _float(choices.gap),
        }
        said |= made.note()
        if self.explain:
            said |= _explained(module, made)
        if made.live is not None:
            mark(built, made.live, placing.again, placing.run_again(choices))
        made.leave_rest(module)
        module.operation.attributes[PLACEMENT] = ir.DictAttr.get(said)


MOST_PORTS = 24
"""Arguments and results of which is asked what another layout would cost."""

MOST_UNPROVEN = 4
"""The same where the optimum is not proven: each takes as long as placing the program did."""

MOST_PLANS = 3
"""Next best plans that are noted."""


def _float(number: float) -> ir.Attribute:
    return ir.FloatAttr.get(ir.F64Type.get(), number)


def _explained(module: ir.Module, made: "BoundedPlacement") -> dict[str, ir.Attribute]:
    """Return what each argument and result of the entry costs more in its next best layout, and the next best plans.

    Under a bound on bytes these have the price that the bound gives them.
    """
    placing, choices, priced = made.placing, made.choices, made.found.priced
    ports, own_cost = _ports(module, made.built), choices.cost + cost_of(choices.picks, priced)
    decisions, others = [], dict[tuple[str, ...], Choices]()
    for name, value in ports[: MOST_UNPROVEN if choices.gap else MOST_PORTS]:
        own = str(placing.layout(value, choices))
        other = placing.otherwise(value, choices, priced)
        said = {"of": ir.StringAttr.get(name), "layout": ir.StringAttr.get(own)}
        if other is not None:
            said["otherwise"] = ir.StringAttr.get(str(placing.layout(value, other)))
            said["seconds"] = _float(max(0.0, other.cost - own_cost))
            others.setdefault(tuple(_differs(ports, placing, choices, other)), other)
        decisions.append(ir.DictAttr.get(said))
    best = sorted(others.items(), key=lambda item: (item[1].cost, item[0]))[:MOST_PLANS]
    plans = [
        {
            "seconds": _float(other.cost),
            "differs": ir.ArrayAttr.get([*map(ir.StringAttr.get, where)]),
        }
        for where, other in best
    ]
    return {
        "decisions": ir.ArrayAttr.get(decisions),
        "plans": ir.ArrayAttr.get([ir.DictAttr.get(plan) for plan in plans]),
    }


def _entry(module: ir.Module) -> ir.Operation:
    """Return the function that a program begins with."""
    found = [f.operation for f in functions(module)]
    return next((f for f in found if f.attributes["sym_name"].value == "main"), found[0])


def _ports(module: ir.Module, built: Built) -> list[tuple[str, int]]:
    """Return the tensors that the entry takes and gives, by name, with their numbers."""
    entry = _entry(module)
    arguments = entry.regions[0].blocks[0].arguments
    numbers = [built.values.get(a, -1) for a in arguments]
    results = built.results[entry.attributes["sym_name"].value]
    named = [(f"argument {i}", n) for i, n in enumerate(numbers)]
    named += [(f"result {i}", n) for i, n in enumerate(results)]
    return [(name, number) for name, number in named if number >= 0]


def _differs(
    ports: list[tuple[str, int]], placing: PlacementProblem, choices: Choices, other: Choices
) -> list[str]:
    """Return which arguments and results lie otherwise in other choices, and how."""
    return [
        f"{name}: {placing.layout(value, other)}"
        for name, value in ports
        if placing.layout(value, choices) != placing.layout(value, other)
    ]


NAMES = ("dp", "tp")
"""The axes of meshes that are chosen."""


def arrange_ranks(
    module: ir.Module,
    mesh: Mesh,
    prices: MachinePrices,
    names: Sequence[str] = (),
    goal: PlacementGoal | None = None,
) -> Mesh:
    """Give a module for `auto=N` the axes on which its predicted time is least; of equal ones the first.

    names: axes that layouts of the program name; they get sizes. Raises PassFailure where the layouts fit none.
    """
    best: tuple[float, Mesh] | None = None
    refused: PassFailure | None = None
    with module.context, module.operation.location:
        for axes in arrangements(mesh.nranks, names):
            trial = copied(module)
            set_mesh(trial, axes)
            OutlineRepeats().run(trial)
            try:
                open_interfaces(trial, axes)
                rank = bounded_placement(trial, axes, prices, goal or PlacementGoal()).rank
            except PassFailure as failure:
                refused = refused or failure
                continue
            if best is None or rank < best[0] * (1 - 1e-9):
                best = rank, axes
        if best is None:
            assert refused is not None  # there is one arrangement at least
            raise refused
        set_mesh(module, best[1])
    return best[1]


def arrangements(ranks: int, names: Sequence[str] = ()) -> list[Mesh]:
    """Return the meshes of so many ranks with one axis, and with two, the larger one first.

    names: return those with these axes instead, whatever their sizes.
    """
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    if not names:
        pairs = [(ranks // d, d) for d in divisors if d > 1 and d * d <= ranks]
        return [Mesh(**dict(zip(NAMES, sizes))) for sizes in ((ranks,), *pairs)]
    if len(names) == 1:
        return [Mesh(**{names[0]: ranks})]
    found = []
    for first in reversed(divisors):
        for rest in arrangements(ranks // first, names[1:]):
            found.append(Mesh(Axis(names[0], first), *rest.axes))
    return found


@dataclass(frozen=True)
class BoundedPlacement:
    """Hold a placement, and what it takes of a bound on bytes.

    limit: on the bytes of a rank, None where there is none. resident: bytes of arguments and results.
    said: the hint around the program that says the limit. live: the block that has what may run again.
    """

    built: Built
    placing: PlacementProblem
    found: Bounded
    goal: PlacementGoal
    limit: int | None = None
    resident: int = 0
    said: StatedHint | None = None
    live: LiveRow | None = None

    @property
    def choices(self) -> Choices:
        """Return the choices."""
        return self.found.choices

    @property
    def rank(self) -> float:
        """Return what is minimised."""
        return self.found.nbytes if self.goal.is_bytes else self.choices.cost

    def note(self) -> dict[str, ir.Attribute]:
        """Return what `dist.placement` says of bytes."""
        if self.limit is None and not self.goal.is_bytes:
            return {}
        numbers = {
            "free_seconds": self.found.free,
            "nbytes": self.found.nbytes,
            "resident": float(self.resident),
            "price": self.found.price,
            "limit": float(self.limit or 0),
        }
        said = {name: _float(number) for name, number in numbers.items()}
        again = self.placing.again_seconds(self.choices)
        said["again"] = _float(sum(again.values()))
        said["seconds"] = _float(self.choices.cost - sum(again.values()))
        values = [self._made_again(number, seconds) for number, seconds in again.items()]
        return {**said, "made_again": ir.ArrayAttr.get(values)} if values else said

    def _made_again(self, number: int, seconds: float) -> ir.DictAttr:
        """Return what `dist.placement` says of a value that is made again."""
        work, sites = self.placing.again.works[number], self.built.sites
        op = sites[work.ops[-1]].op
        value = op.results[0]
        layout = self.placing.layout(work.value, self.choices)
        shape = tuple(value.type.shape), item_bytes(value.type.element_type)
        return ir.DictAttr.get(
            {
                "of": ir.StringAttr.get(f"{op.name} at {location_text(op.location)}"),
                "layout": ir.StringAttr.get(str(layout)),
                "nbytes": _float(local_bytes(layout, self.placing.mesh, shape)),
                "seconds": _float(seconds),
            }
        )

    def leave_rest(self, module: ir.Module) -> None:
        """Let the hint around the program bound what arguments and results leave."""
        if self.said is None or self.limit is None:
            return
        ledger, hint = read_ledger(module), self.said.hint
        rest = Hint.make(hint.key, max(1, self.limit - self.resident), hint.strength, hint.where)
        ledger.said[self.said.number] = replace(self.said, hint=rest)
        write_ledger(module, ledger)


def placed(
    module: ir.Module, mesh: Mesh, prices: MachinePrices
) -> tuple[Built, PlacementProblem, Choices]:
    """Return the graph of a module whose interfaces are open, the problem of placing it, and the best choices."""
    read = _Read.of(module, mesh, prices)
    problem = read.problem()
    return read.built, problem, problem.solve()


@dataclass(frozen=True)
class _Read:
    """Hold what is read of a module to place it."""

    built: Built
    mesh: Mesh
    times: Times
    edges: Edges
    reach: float
    prices: MachinePrices

    @staticmethod
    def of(module: ir.Module, mesh: Mesh, prices: MachinePrices) -> "_Read":
        """Read a module whose interfaces are open."""
        built = build(module, mesh, windows=True)
        passes = frozenset(op for op, site in enumerate(built.sites) if not site.results)
        edges = Edges(passes, _same(module, built), beyond_blocks(module, built))
        return _Read(built, mesh, _times(module, built), edges, _reach(module, built), prices)

    def problem(
        self, works: Works | None = None, again: AgainRow = NOTHING_AGAIN, once: bool = False
    ) -> PlacementProblem:
        """Return the problem of placing the module.

        works: what all ops compute, if that is known. again: what may run again. once: what repeats counts once, and is
        placed in the same way.
        """
        graph, edges, times = self.built.graph, self.edges, self.times
        variables = [edges.same.get(v, v) for v in range(len(graph.specs))]
        if once and not edges.said:
            sites = self.built.sites
            values: list[tuple[Hashable, ...]] = [*zip(graph.specs, times.values)]
            for v, other in edges.same.items():
                values[other] = (*values[other], *values[v])
            ops = [*zip(graph.rule_of, [s.kind for s in sites], times.ops, graph.region_of)]
            repeats = FoldedGraph.of(graph, variables, values, ops)
        else:
            repeats = FoldedGraph.none(graph, variables)
        works = works or Works(op_works(self.built, repeats.first.tolist()), self.reach)
        given = works, repeats, self.prices, again
        return PlacementProblem(graph, self.mesh, times, edges, *given)


def _reach(module: ir.Module, built: Built) -> float:
    """Return the bytes of the arguments of the entry: ranks that share memory share its cache too."""
    arguments = _entry(module).regions[0].blocks[0].arguments
    kinds = [v.type for v in arguments if built.values.get(v, -1) >= 0]
    return float(sum([prod(t.shape) * item_bytes(t.element_type) for t in kinds]))


def bounded_placement(
    module: ir.Module,
    mesh: Mesh,
    prices: MachinePrices,
    goal: PlacementGoal,
    whole: bool = False,
) -> BoundedPlacement:
    """Return the best placement within the bound on bytes of a goal, or of the program.

    whole: return the problem of all ops, also where what repeats is placed once.
    Fails where nothing is within the bound, naming the fewest bytes.
    """
    read = _Read.of(module, mesh, prices)
    said, limit = whole_budget(module)
    limit = goal.limit or limit
    if not limit and not goal.is_bytes:
        placing = read.problem(once=True)
        choices = placing.solve()
        if whole:
            every = read.problem()
            placing, choices = every, every.taken(placing, choices)
        return BoundedPlacement(read.built, placing, Bounded(choices, 0.0), goal)
    works = Works(op_works(read.built), read.reach)
    live, row = live_program(module, read.built, works.ops)
    again = again_row(read.built, row) if goal.again and goal.share else NOTHING_AGAIN
    placing = read.problem(works, again)
    load = MemoryLoad(placing, live, goal.share)
    found = _within(module, placing, load, goal, limit)
    if not goal.is_bytes:
        found = replace(found, choices=placing.bounded(found.choices))
    elif not all(rule.every for rule in placing.rules.values()):
        found = replace(found, choices=replace(found.choices, bound=0.0))
    resident = int(load.resident(found.choices.picks))
    return BoundedPlacement(read.built, placing, found, goal, limit or None, resident, said, row)


def _within(
    module: ir.Module, placing: PlacementProblem, load: MemoryLoad, goal: PlacementGoal, limit: int
) -> Bounded:
    """Return the best choices for a goal. Fails where none are within its bounds."""
    sizes, terms = placing.sizes, placing.terms

    def alike() -> Sequence[Places]:
        return placing.alike

    try:
        if not goal.is_bytes:
            return within(sizes, terms, load, limit, alike=alike)
        found, bound = fewest(sizes, terms, load, goal.seconds, alike=alike)
    except OverLimit as over:
        if goal.is_bytes:
            fail(
                _entry(module),
                f"dist-place: no placement takes at most {goal.seconds} s: the least predicted is {over.least:.6g} s",
            )
        least = "possible" if over.bound >= over.least - 1 else "found"
        what = "arguments, results and values between" if load.share else "arguments and results"
        fail(
            _entry(module),
            f"dist-place: peak_bytes = {limit} is infeasible: the least {least} is {ceil(over.least):,} bytes of a "
            f"rank, for {what}",
        )
    if limit and found.nbytes > limit:
        fail(
            _entry(module),
            f"dist-place: peak_bytes = {limit} is infeasible: the least found is {ceil(found.nbytes):,}",
        )
    proven = 1.0 if bound >= found.nbytes else bound / found.nbytes
    gap_bytes = replace(found.choices, bound=found.choices.cost * proven)
    return replace(found, choices=gap_bytes)


def whole_budget(module: ir.Module) -> tuple[StatedHint | None, int]:
    """Return what `peak_bytes` around all of @main says, as the ledger has it or its attribute; 0: nothing."""
    which = whole_region(module)
    for one in read_ledger(module).said:
        if one.region == which and one.hint.key == "peak_bytes":
            return one, one.hint.parsed
    main = main_of(module)
    if main is not None and WHOLE in main.attributes:
        for hint in hints_in(main.attributes[WHOLE], location_text(main.location)):
            if hint.key == "peak_bytes":
                return None, hint.parsed
    return None, 0


def _same(module: ir.Module, built: Built) -> dict[int, int]:
    """Return the numbers of results that lie in the buffer of an argument, with those of the arguments."""
    found = {}
    for f in functions(module):
        arguments = f.operation.regions[0].blocks[0].arguments
        results = built.results[f.operation.attributes["sym_name"].value]
        for number, entry in zip(results, port_attrs(f, "res_attrs")):
            if TAKES in entry and number >= 0:
                found[number] = built.values[arguments[entry[TAKES].value]]
    return found


def _times(module: ir.Module, built: Built) -> Times:
    """Count how often each op runs and each value is made, in a run of @main."""
    counted, graph = _BlockCounts(module), built.graph
    values, regions = [0.0] * len(graph.specs), dict[int, float]()
    ops = []
    for site, region, row in zip(built.sites, graph.region_of, graph.values_of):
        if not site.results:
            ops.append(counted.of(site.op))
            continue
        if region not in regions:
            regions[region] = counted.of(site.op)
        ops.append(regions[region])
        for number in row[-len(site.results) :]:
            if number >= 0:
                values[number] = regions[region]
    for value, number in built.values.items():
        if values[number]:
            continue
        owner = value.owner
        if isinstance(owner, ir.Block):
            values[number] = counted.of_block(owner)
        else:
            values[number] = counted.of(owner.operation)
    for name, numbers in built.results.items():
        for number in numbers:
            if number >= 0:
                values[number] = counted.calls(name)
    return Times(ops, [times or 1.0 for times in values])


class _BlockCounts:
    """Count how often blocks run: loops by their bounds, functions by their calls."""

    def __init__(self, module: ir.Module) -> None:
        self.callers: dict[str, list[ir.Operation]] = {}
        self.known: dict[ir.Operation, float] = {}
        self.called: dict[str, float] = {}

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name == "func.call":
                self.callers.setdefault(op.attributes["callee"].value, []).append(op)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)

    def calls(self, name: str) -> float:
        """Return how often a function runs; one that nobody calls runs once."""
        if name not in self.called:
            self.called[name] = 1.0  # while its callers are counted
            callers = self.callers.get(name, ())
            self.called[name] = sum([self.of(c) for c in callers]) if callers else 1.0
        return self.called[name]

    def of(self, op: ir.Operation) -> float:
        """Return how often an op runs."""
        parent = op.parent
        return 1.0 if parent is None else self._inside(parent.operation)

    def of_block(self, block: ir.Block) -> float:
        """Return how often a block is entered, as its arguments are."""
        return self._inside(block.owner.operation)

    def _inside(self, parent: ir.Operation) -> float:
        found = self.known.get(parent)
        if found is None:
            if parent.name == "func.func":
                found = self.calls(parent.attributes["sym_name"].value)
            elif parent.name == "builtin.module":
                found = 1.0
            else:
                found = self.of(parent) * _trips(parent)
            self.known[parent] = found
        return found


def _trips(op: ir.Operation) -> float:
    """Return how often the body of an op runs for each time that the op does."""
    if op.name == "scf.while":
        return UNKNOWN_TRIPS
    if op.name != "scf.for":
        return 1.0
    known = trips(op)
    return UNKNOWN_TRIPS if known is None else float(known)
