"""Compile programs on a mesh whose sizes are still symbols: what passes leave behind so that numbers may come late.

    "dist.mesh"() {axes = "x=N", symbolic = {passes = [..], sizes = ["N=2", "N=4"]}}

passes: those of ours that ran while sizes were symbols, with their options. sizes: the choices of numbers for which
dist-propagate is known to choose the same layouts; for others dist-specialize-mesh takes back what the passes did and
runs them again. For that dist-propagate marks what was there before it, by `dist.given`: on a function the attributes
of arguments and results, on constraints and redistributes a unit attribute, and those stay until the mesh has numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.errors import PlanError
from meshweave.ir.bindings import ir
from meshweave.ir.ops import replace_op
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan import formula as f
from meshweave.plan.family import family, sizes_text, symbols
from meshweave.plan.formula import Formula
from meshweave.plan.steps import OPS
from meshweave.plan.symbolic import SymbolicPlan, SymbolicStep, symbolic_plan
from meshweave.transforms.base import at, fail, functions, mesh_of_module, mesh_op, ops_of
from meshweave.transforms.propagation.values import item_bytes

GIVEN = "dist.given"
RECORD = "symbolic"
PROPAGATE = "dist-propagate"
_OF_VALUES = ("arg_attrs", "res_attrs")
LATE = "made when the mesh has numbers"
"""The plan of a redistribute that has no formula: it is no matter of blocks."""

MAX_BYTES = 1 << 62


@dataclass(frozen=True)
class Record:
    """Record what ran on the symbolic mesh, in order.

    `sizes` are the numbers for which its layouts are those of a concrete compile.
    """

    passes: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()

    @staticmethod
    def of(op: ir.Operation) -> "Record":
        """Return the record on a `dist.mesh`; an empty one where nothing ran."""
        attr = op.operation.attributes.get(RECORD)
        if attr is None:
            return Record()
        entry = ir.DictAttr(attr)
        return Record(*(tuple(t.value for t in entry[name]) for name in ("passes", "sizes")))

    def write(self, op: ir.Operation) -> None:
        entry = {"passes": axes_attr(self.passes), "sizes": axes_attr(self.sizes)}
        op.operation.attributes[RECORD] = ir.DictAttr.get(entry)

    def again(self, old: Mesh, new: Mesh) -> tuple[str, ...]:
        """Return the passes that must be taken back and run again on `new`.

        There are none when they chose what they would choose there.
        """
        found = [i for i, p in enumerate(self.passes) if p.partition("{")[0] == PROPAGATE]
        return () if not found or self._knows(old, new) else self.passes[found[-1] :]

    def _knows(self, old: Mesh, new: Mesh) -> bool:
        if not set(old.names) <= set(new.names):
            return False
        sizes = {a.size: new.size(a.name) for a in old.axes if isinstance(a.size, str)}
        in_order = {name: sizes[name] for name in symbols(old)}
        return old.specialize(**in_order) == new and sizes_text(in_order) in self.sizes


def ran(module: ir.Module, name: str, sizes: Sequence[str] | None = None) -> None:
    """Note that the pass `name` has run, if the mesh is symbolic. sizes: of dist-propagate."""
    mesh = mesh_of_module(module)
    if mesh is None or not mesh.is_symbolic:
        return
    op = mesh_op(module)
    record = Record.of(op)
    with ir.Location.unknown(module.operation.context):
        Record((*record.passes, name), record.sizes if sizes is None else tuple(sizes)).write(op)


def mark_given(module: ir.Module) -> None:
    """Before layouts are chosen: remember which were there, and mark the constraints and redistributes."""
    for op in ops_of(module, "dist.constrain", "dist.redistribute"):
        op.operation.attributes[GIVEN] = ir.UnitAttr.get()
    for function in functions(module):
        attributes = function.operation.attributes
        entry = {key: attributes[key] for key in _OF_VALUES if key in attributes}
        attributes[GIVEN] = ir.DictAttr.get(entry)


def is_given(op: ir.Operation) -> bool:
    """Tell whether the op was there before layouts were chosen on a symbolic mesh."""
    return GIVEN in op.operation.attributes


def take_back(module: ir.Module) -> None:
    """Leave the module as dist-propagate found it, but for records that it overwrites."""
    for op in ops_of(module, "dist.redistribute"):
        if not is_given(op):
            replace_op(op, [op.operation.operands[0]])
    for function in functions(module):
        if not is_given(function):
            fail(function, "this function was not there when dist-propagate ran: run it again")
        attributes = function.operation.attributes
        given = ir.DictAttr(attributes[GIVEN])
        kind = attributes["function_type"].value
        for key, types in zip(_OF_VALUES, (kind.inputs, kind.results)):
            if key in given and len(given[key]) != len(types):
                fail(function, "its signature has changed since dist-propagate: run it again")
            if key in given:
                attributes[key] = given[key]
            elif key in attributes:
                del attributes[key]


def forget(module: ir.Module) -> None:
    """Remove all marks and plans; they were for the symbolic mesh."""
    marked = ops_of(module, "dist.mesh", "dist.constrain", "dist.redistribute")
    for op in (*marked, *functions(module)):
        for name in (RECORD, GIVEN, "plan"):
            if name in op.operation.attributes:
                del op.operation.attributes[name]


def legalize_symbolic(module: ir.Module, name: str, steps: tuple[str, ...]) -> bool:
    """Give each redistribute its plan, with formulas for bytes; False (and nothing done) where the mesh has numbers.

    All redistributes stay: which of them are redundant is a matter of costs. name: of the pass that does this, with its
    options. steps: those that plans may use.
    Raises PassFailure for a layout whose text needs a number that is a symbol.
    """
    mesh = mesh_of_module(module)
    if mesh is None or not mesh.is_symbolic:
        return False
    made: dict[ir.Value, ir.Value] = {}
    for op in ops_of(module, "dist.redistribute"):
        attributes = op.operation.attributes
        key = (op.operation.results[0].type, attributes["source"], attributes["target"])
        if key not in made:
            with at(op, "dist.redistribute"):
                made[key] = _plan_attr(_plan(op, mesh, steps))
        attributes["plan"] = made[key]
    ran(module, name)
    return True


def _plan_attr(made: SymbolicPlan | None) -> ir.Attribute:
    if made is None:
        return ir.StringAttr.get(LATE)
    return ir.ArrayAttr.get([_step_attr(step) for step in made.steps])


def _ends(op: ir.Operation) -> tuple[Layout, Layout]:
    attributes = op.operation.attributes
    return LayoutAttr(attributes["source"]).layout, LayoutAttr(attributes["target"]).layout


def _plan(op: ir.Operation, mesh: Mesh, steps: tuple[str, ...] = OPS) -> SymbolicPlan | None:
    """Return the plan of a redistribute; None when it has no formula."""
    ends, type_ = _ends(op), op.operation.results[0].type
    nbytes = item_bytes(type_.element_type)
    if prod(type_.shape) * nbytes > MAX_BYTES:
        raise PlanError(f"{type_} has {prod(type_.shape) * nbytes} bytes, at most {MAX_BYTES} work")
    for layout in ends:
        layout.check(mesh, tuple(type_.shape))
    if not all(layout.is_block for layout in ends):
        return None
    return symbolic_plan(*ends, mesh, tuple(type_.shape), nbytes, ops=steps)


def _step_attr(step: SymbolicStep) -> ir.Attribute:
    """Return a step as the dictionary of dist-legalize-redistribute, `bytes` as the text of a formula."""
    i64 = ir.IntegerType.get_signless(64)
    entry = {
        "op": ir.StringAttr.get(step.op),
        "axes": axes_attr(step.axes),
        "source": LayoutAttr.make(step.source),
        "target": LayoutAttr.make(step.target),
        "bytes": ir.StringAttr.get(str(step.nbytes)),
    }
    for name, value in step.details.items():
        entry[name] = (
            ir.StringAttr.get(value) if isinstance(value, str) else ir.IntegerAttr.get(i64, value)
        )
    return ir.DictAttr.get(entry)


@dataclass(frozen=True)
class Costs:
    """Hold what the redistributes of a module cost, each counted once: formulas in the symbols of its mesh.

    nbytes:     received by the busiest rank of each step, in all.
    peak_bytes: the most that input and output of one step take together on a rank.
    launches:   steps in which ranks talk to each other.
    late:       redistributes that have no formula, and are not in the sums.
    sizes:      the choices of numbers, of a few, for which every plan has the steps of the formulas.
    """

    nbytes: Formula
    peak_bytes: Formula
    launches: int
    late: int
    sizes: tuple[str, ...]


def module_costs(module: ir.Module) -> Costs | None:
    """Return the costs of a module with redistributes on a mesh with symbols; None where there are no symbols."""
    mesh = mesh_of_module(module)
    if mesh is None or not mesh.is_symbolic:
        return None
    plans = []
    for op in ops_of(module, "dist.redistribute"):
        with at(op, "dist.redistribute"):
            plans.append(_plan(op, mesh))
    known = [made for made in plans if made is not None]
    distinct = {(made.ends, made.shape, made.itemsize): made for made in known}
    every = family(mesh)
    for made in distinct.values():
        every = [sizes for sizes in every if made.holds(**sizes)]
    return Costs(
        f.total(made.nbytes for made in known),
        f.largest([f.number(0), *(made.peak_bytes for made in known)]),
        sum(made.launches for made in known),
        len(plans) - len(known),
        tuple(map(sizes_text, every)),
    )
