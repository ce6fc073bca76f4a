"""dist-place: a layout for every value, and a run for every op, of which the predicted time is least.

before:  func @main(%x, %w1, %w2)                            nothing is said, or a part
after:   each op has `dist.layouts`, arguments and results have `dist.layout`, as dist-propagate writes them; the module
         has `dist.placement`: predicted seconds, and how far at most from the optimum

It takes the place of dist-propagate: what was said of arguments, results and constraints is kept, and all else is
chosen so that computing and moving together take the least predicted time (plan/placement). For a mesh of which only
the number of ranks is said, `auto=4`, the axes are chosen too: one, or two whose product that number is.
"""

from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.dist import TAKES
from meshweave.ir.bindings import ir
from meshweave.layout.mesh import Mesh
from meshweave.plan.placement.elimination import Choices
from meshweave.plan.placement.place import Edges, PlacementProblem, Times
from meshweave.plan.propagation.arrange import arrange
from meshweave.transforms.base import (
    Pass,
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

PLACEMENT = "dist.placement"
"""The attribute of the module that says how it was placed."""

UNKNOWN_TRIPS = 8.0  # rounds of a loop that ends when its body says so


@dataclass(frozen=True)
class Place(Pass):
    """Give every value the layout, and every op the run, that make the predicted time least."""

    name: ClassVar[str] = "dist-place"

    def run(self, module: ir.Module) -> None:
        mesh = mesh_of_module(module)
        if mesh is None:
            return
        if mesh.ranks_to_arrange is not None:
            mesh = arrange_ranks(module, mesh)
        if mesh.is_symbolic:
            fail(
                mesh_op(module), f"dist-place: mesh ({mesh}) has symbolic sizes: numbers are needed"
            )
        open_interfaces(module, mesh)
        built, placing, choices = placed(module, mesh)
        layouts, decisions = placing.placed(choices)
        layouts, decisions = arrange(built.graph, layouts, decisions, placing.edges.said, mesh)
        for op in built.table.unknown:
            remark(op, f"dist-place: no rule for '{op.name}': its operands are gathered whole")
        LayoutWriter(built, layouts).write(module, decisions)
        f64 = ir.F64Type.get()
        module.operation.attributes[PLACEMENT] = ir.DictAttr.get(
            {
                "mesh": ir.StringAttr.get(str(mesh)),
                "seconds": ir.FloatAttr.get(f64, choices.cost),
                "gap": ir.FloatAttr.get(f64, choices.gap),
            }
        )


NAMES = ("dp", "tp")
"""The axes of meshes that are chosen."""


def arrange_ranks(module: ir.Module, mesh: Mesh) -> Mesh:
    """Give a module for `auto=N` the axes on which its predicted time is least; of equal ones the fewest axes.

    Raises PassFailure for a program whose layouts name axes: of ranks to be arranged none has a name yet.
    """
    best: tuple[float, Mesh] | None = None
    with module.context, module.operation.location:
        for axes in arrangements(mesh.nranks):
            trial = copied(module)
            set_mesh(trial, axes)
            OutlineRepeats().run(trial)
            open_interfaces(trial, axes)
            _, _, choices = placed(trial, axes)
            if best is None or choices.cost < best[0] * (1 - 1e-9):
                best = choices.cost, axes
        assert best is not None  # one axis is always possible
        set_mesh(module, best[1])
    return best[1]


def arrangements(ranks: int) -> list[Mesh]:
    """Return the meshes of so many ranks with one axis, and with two, the larger one first."""
    divisors = [d for d in range(2, ranks) if d * d <= ranks and ranks % d == 0]
    pairs = [Mesh(**dict(zip(NAMES, (ranks // d, d)))) for d in divisors]
    return [Mesh(**{NAMES[0]: ranks}), *pairs]


def placed(module: ir.Module, mesh: Mesh) -> tuple[Built, PlacementProblem, Choices]:
    """Return the graph of a module whose interfaces are open, the problem of placing it, and the best choices."""
    built = build(module, mesh, windows=True)
    passes = frozenset(op for op, site in enumerate(built.sites) if not site.results)
    edges = Edges(passes, _same(module, built), beyond_blocks(module, built))
    placing = PlacementProblem(built.graph, mesh, _times(module, built), edges)
    return built, placing, placing.solve()


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
    bounds = [_constant(value) for value in list(op.operands)[:3]]
    if None in bounds:
        return UNKNOWN_TRIPS
    low, high, step = bounds
    return float(max(0, -(-(high - low) // step))) if step else UNKNOWN_TRIPS  # type: ignore[operator]


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    said = owner.attributes["value"]
    return int(said.value) if isinstance(said, ir.IntegerAttr) else None
