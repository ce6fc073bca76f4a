"""dist-place: a layout for every value, and a run for every op, of which the predicted time is least.

before:  func @main(%x, %w1, %w2)                            nothing is said, or a part
after:   each op has `dist.layouts`, arguments and results have `dist.layout`, as dist-propagate writes them; the module
         has `dist.placement`: predicted seconds, and how far at most from the optimum

It takes the place of dist-propagate: what was said of arguments, results and constraints is kept, and all else is
chosen so that computing and moving together take the least predicted time (plan/placement). For a mesh of which only
the number of ranks is said, `auto=4`, the axes are chosen too: one, or two whose product that number is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from meshweave.dialects.dist import TAKES
from meshweave.ir.bindings import ir
from meshweave.ir.trips import trips
from meshweave.layout.mesh import Axis, Mesh
from meshweave.plan.placement.elimination import Choices
from meshweave.plan.placement.place import Edges, PlacementProblem, Times, Works
from meshweave.plan.placement.prices import MachinePrices, machine_of
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
from meshweave.transforms.propagation.graph import Built, build
from meshweave.transforms.propagation.interface import beyond_blocks, open_interfaces
from meshweave.transforms.propagation.outline_repeats import OutlineRepeats
from meshweave.transforms.propagation.propagate import LayoutWriter
from meshweave.transforms.propagation.rules import item_bytes
from meshweave.transforms.propagation.works import op_works

PLACEMENT = "dist.placement"
"""The attribute of the module that says how it was placed."""

UNKNOWN_TRIPS = 8.0  # rounds of a loop that ends when its body says so


@dataclass(frozen=True)
class Place(Pass):
    """Give every value the layout, and every op the run, that make the predicted time least.

    explain: note in `dist.placement` what other layouts of arguments and results would cost, and the next best plans.
    machine: seconds of a multiply-add, a byte copied, a collective, a message, and a byte received.
    """

    name: ClassVar[str] = "dist-place"
    explain: bool = False
    machine: tuple[float, ...] = ()

    @property
    def prices(self) -> MachinePrices:
        """Return what the machine takes."""
        return machine_of(self.machine) if self.machine else MachinePrices()

    def run(self, module: ir.Module) -> None:
        mesh = mesh_of_module(module)
        if mesh is None:
            return
        if mesh.ranks_to_arrange is not None:
            mesh = arrange_ranks(module, mesh, self.prices)
        if mesh.is_symbolic:
            fail(
                mesh_op(module), f"dist-place: mesh ({mesh}) has symbolic sizes: numbers are needed"
            )
        open_interfaces(module, mesh)
        built, placing, choices = placed(module, mesh, self.prices)
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
        if self.explain:
            said |= _explained(module, built, placing, choices)
        module.operation.attributes[PLACEMENT] = ir.DictAttr.get(said)


MOST_PORTS = 24
"""Arguments and results of which is asked what another layout would cost."""

MOST_PLANS = 3
"""Next best plans that are noted."""


def _float(number: float) -> ir.Attribute:
    return ir.FloatAttr.get(ir.F64Type.get(), number)


def _explained(
    module: ir.Module, built: Built, placing: PlacementProblem, choices: Choices
) -> dict[str, ir.Attribute]:
    """Return what each argument and result of the entry costs more in its next best layout, and the next best plans."""
    ports = _ports(module, built)
    decisions, others = [], dict[tuple[str, ...], Choices]()
    for name, value in ports[:MOST_PORTS]:
        own, other = str(placing.layout(value, choices)), placing.otherwise(value, choices)
        said = {"of": ir.StringAttr.get(name), "layout": ir.StringAttr.get(own)}
        if other is not None:
            said["otherwise"] = ir.StringAttr.get(str(placing.layout(value, other)))
            said["seconds"] = _float(max(0.0, other.cost - choices.cost))
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
                _, _, choices = placed(trial, axes, prices)
            except PassFailure as failure:
                refused = refused or failure
                continue
            if best is None or choices.cost < best[0] * (1 - 1e-9):
                best = choices.cost, axes
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


def placed(
    module: ir.Module, mesh: Mesh, prices: MachinePrices
) -> tuple[Built, PlacementProblem, Choices]:
    """Return the graph of a module whose interfaces are open, the problem of placing it, and the best choices."""
    built = build(module, mesh, windows=True)
    passes = frozenset(op for op, site in enumerate(built.sites) if not site.results)
    edges = Edges(passes, _same(module, built), beyond_blocks(module, built))
    works = Works(op_works(built), _reach(module, built))
    placing = PlacementProblem(built.graph, mesh, _times(module, built), edges, works, prices)
    return built, placing, placing.solve()


def _reach(module: ir.Module, built: Built) -> float:
    """Return the bytes of the arguments of the entry: ranks that share memory share its cache too."""
    arguments = _entry(module).regions[0].blocks[0].arguments
    kinds = [v.type for v in arguments if built.values.get(v, -1) >= 0]
    return float(sum([prod(t.shape) * item_bytes(t.element_type) for t in kinds]))


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
    counted = _BlockCounts(module)
    ops = [counted.of(site.op) for site in built.sites]
    values = [1.0] * len(built.graph.specs)
    for value, number in built.values.items():
        owner = value.owner
        if isinstance(owner, ir.Block):
            values[number] = counted.of_block(owner)
        else:
            values[number] = counted.of(owner.operation)
    for name, numbers in built.results.items():
        for number in numbers:
            if number >= 0:
                values[number] = counted.calls(name)
    return Times(ops, values)


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
