"""Turn the IR into a plain graph for plan/propagation: one walk, values become numbers, ops become rules.

Regions are flattened. A value that enters or leaves a region (an iteration argument, a branch's yield, a call's
operand) is joined to its counterpart by a *pass*: an op of the identity rule with no IR behind it but an operand to
redistribute.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import LayoutError
from meshweave.ir.bindings import ir
from meshweave.ir.ops import terminator
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.propagation.propagate import Graph, Spec
from meshweave.transforms.base import fail, functions, port_attrs
from meshweave.transforms.propagation.bodies import captured_by, is_tensor
from meshweave.transforms.propagation.rules.table import RuleTable
from meshweave.transforms.propagation.values import is_free, is_made_free
from meshweave.transforms.slicing.ledger import held_axes

SKIPPED = ("dist.mesh", "func.return", "scf.yield", "scf.condition", "hint.yield")

MANUAL = "dist.manual"
"""The attribute of an scf.execute_region whose body is in the local view already."""


@dataclass
class Site:
    """Say what a graph op is in the IR.

    op:       the IR op; of a pass, the op that hands the value on (scf.yield, func.call, ...).
    operands: where its operands are read, (op, operand number), so that each can be redistributed.
    results:  the IR values of its results (none for a pass).
    kind:     a number, the same for ops that compute the same of other values; -1 for a pass.
    """

    op: ir.Operation
    operands: list[tuple[ir.Operation, int]]
    results: list[ir.Value]
    kind: int = -1


@dataclass
class Built:
    """Hold a module as a graph.

    sites[i] is the IR of graph op i, values maps IR values to numbers, results[f] are
    those of what function f returns (shared by all its calls); openings are ops that only hand on what their
    regions yield.
    """

    graph: Graph = field(default_factory=Graph)
    table: RuleTable = field(default_factory=RuleTable)
    sites: list[Site] = field(default_factory=list)
    values: dict[ir.Value, int] = field(default_factory=dict)
    results: dict[str, list[int]] = field(default_factory=dict)
    openings: list[ir.Operation] = field(default_factory=list)
    mesh: Mesh | None = None
    region: int = 0
    regions: int = 0


def build(module: ir.Module, mesh: Mesh, windows: bool = False) -> Built:
    """Build the graph of all functions of `module`. Raises PassFailure for ops and layouts that cannot be placed.

    windows: ops may read blocks with some of their neighbours, where only part of a tensor is read.
    """
    built = Built(mesh=mesh, table=RuleTable(windows))
    built.graph.rules = built.table.rules
    functions_ = functions(module)
    by_name = {f.operation.attributes["sym_name"].value: f for f in functions_}
    for f in functions_:
        _enter_function(built, f)
    for f in functions_:
        _block(built, f.operation.regions[0].blocks[0], by_name)
        _leave_function(built, f)
    return built


def spec_from(
    named: dict[str, ir.Attribute], prefix: str, op: ir.Operation, mesh: Mesh, type_: ir.Type
) -> Spec | None:
    """Return what the attributes `{prefix}layout`, `open`, `replicated`, `priorities` say.

    None when there is no layout.
    """
    given = named.get(prefix + "layout")
    if given is None:
        return None
    if not is_tensor(type_) or not type_.has_static_shape:
        fail(op, f"{prefix}layout: {type_} is not a tensor of static shape")
    try:
        layout = LayoutAttr(given).layout
        layout.check(mesh, tuple(type_.shape))
        return _fixed(layout, named, prefix)
    except LayoutError as error:
        fail(op, f"{prefix}layout: {error}")


def _fixed(layout: Layout, named: dict[str, ir.Attribute], prefix: str) -> Spec:
    dims = layout.block_axes()
    opened = {int(d) for d in named.get(prefix + "open", ())}
    return Spec(
        dims,
        tuple(d in opened for d in range(len(dims))),
        tuple(a.value for a in named.get(prefix + "replicated", ())),
        tuple(int(p) for p in named.get(prefix + "priorities", ())),
        True,
        tuple((p.kind, p.axes) for p in layout.partial),
    )


def _new_value(built: Built, value: ir.Value, spec: Spec | None = None) -> int:
    if not is_tensor(value.type):
        return -1
    if not value.type.has_static_shape:
        fail(value, f"the shape of {value.type} is not static: layouts need known sizes")
    number = built.graph.add_value(spec or Spec.unknown(len(value.type.shape)))
    built.values[value] = number
    return number


def _enter_function(built: Built, f: ir.Operation) -> None:
    assert built.mesh is not None
    if len(f.operation.regions[0].blocks) > 1:
        fail(f, "a function must have one block: use scf ops for control flow")
    arguments = f.operation.regions[0].blocks[0].arguments
    for argument, named in zip(arguments, port_attrs(f, "arg_attrs")):
        _new_value(built, argument, _annotated(built, f, named, argument.type))
    name = f.operation.attributes["sym_name"].value
    numbers = []
    types = f.operation.attributes["function_type"].value.results
    for type_, named in zip(types, port_attrs(f, "res_attrs")):
        spec = _annotated(built, f, named, type_)
        unknown = Spec.unknown(len(type_.shape)) if is_tensor(type_) else None
        numbers.append(built.graph.add_value(spec or unknown) if is_tensor(type_) else -1)
    built.results[name] = numbers


def _annotated(
    built: Built, f: ir.Operation, named: dict[str, ir.Attribute], type_: ir.Type
) -> Spec | None:
    """Return the spec of an argument or result of `f` with the attributes `named`."""
    if not is_tensor(type_):
        return None
    assert built.mesh is not None
    return spec_from(named, "dist.", f, built.mesh, type_)


def _leave_function(built: Built, f: ir.Operation) -> None:
    """Join what the function returns to its results."""
    end = terminator(f.operation.regions[0].blocks[0])
    for i, number in enumerate(built.results[f.operation.attributes["sym_name"].value]):
        if number >= 0:
            _pass(built, end, i, number)


def _number(built: Built, value: ir.Value) -> int:
    """Return the number of a value; -1 for what is no tensor, and for a value made again at each use."""
    return built.values.get(value, -1)


def _pass(built: Built, op: ir.Operation, operand: int, target: int) -> None:
    """Add a pass: operand `operand` of `op` becomes the value `target`."""
    value = op.operands[operand]
    rule = built.table.identity(value.type)
    built.graph.add_op(rule, (_number(built, value), target))
    built.sites.append(Site(op, [(op, operand)], []))


def _block(built: Built, block: ir.Block, by_name: dict[str, ir.Operation]) -> None:
    built.regions += 1
    outer, built.region = built.region, built.regions
    _ops(built, block, by_name)
    built.region = outer


def _ops(built: Built, block: ir.Block, by_name: dict[str, ir.Operation]) -> None:
    for view in block.operations:
        op = view.operation
        name = op.name
        if name in SKIPPED or is_free(op):
            continue
        if name in STRUCTURED:
            STRUCTURED[name](built, op, by_name)
        elif any(is_tensor(v.type) for v in op.operands) or any(
            is_tensor(r.type) for r in op.results
        ):
            _plain(built, op)
        elif len(op.regions) and any(len(r.blocks) for r in op.regions):
            fail(
                op,
                f"'{name}' holds a region that propagation does not know: inline or lower it first",
            )


def _plain(built: Built, op: ir.Operation) -> None:
    operands = list(op.operands)
    results = list(op.results)
    if not results:
        fail(op, f"'{op.name}' gives no result: such an op cannot be distributed")
    if op.name.startswith("scf.") or (op.name in SKIPPED):
        fail(op, f"'{op.name}' cannot be distributed yet")
    rule, captured, kind = built.table.rule(op)
    if held := held_axes(op):
        rule = built.table.holding(rule, held)
    numbers = [_number(built, v) for v in (*operands, *[c.value for c in captured])]
    numbers += [_new_value(built, r) for r in results]
    built.graph.add_op(rule, tuple(numbers), built.region)
    sites = [(op, i) for i in range(len(operands))] + [(c.reader, c.operand) for c in captured]
    built.sites.append(Site(op, sites, results, kind))


def _constrain(built: Built, op: ir.Operation, _: dict[str, ir.Operation]) -> None:
    assert built.mesh is not None
    named = {name: op.attributes[name] for name in op.attributes}
    spec = spec_from(named, "", op, built.mesh, op.results[0].type)
    _pass(built, op, 0, _new_value(built, op.results[0], spec))


def _closed(attr: ir.Attribute, op: ir.Operation) -> Spec:
    """Return the spec of exactly this layout."""
    try:
        return _fixed(LayoutAttr(attr).layout, {}, "")
    except LayoutError as error:
        fail(op, str(error))


def _redistribute(built: Built, op: ir.Operation, _: dict[str, ir.Operation]) -> None:
    """Keep a redistribute that is there already: its source and target are what the user (or a pass) said."""
    _pass(built, op, 0, built.graph.add_value(_closed(op.attributes["source"], op)))
    _new_value(built, op.results[0], _closed(op.attributes["target"], op))


def _manual(built: Built, op: ir.Operation, _: dict[str, ir.Operation]) -> None:
    """Add a region in the local view: its to_local ops read global values, its results are what to_global ops make."""
    entering = [
        inner.operation
        for inner in op.regions[0].blocks[0].operations
        if inner.operation.name == "dist.to_local"
    ]
    for outside in captured_by(op):
        if outside.reader not in entering and not is_made_free(outside.value):
            fail(
                outside.reader,
                "a dist.manual region must read tensors from outside by dist.to_local",
            )
    for inner in op.regions[0].blocks[0].operations:
        if inner.operation.name == "dist.to_local":
            layout = inner.operation.attributes["layout"]
            _pass(built, inner.operation, 0, built.graph.add_value(_closed(layout, inner)))
    for i, value in enumerate(terminator(op.regions[0].blocks[0]).operands):
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name != "dist.to_global":
            fail(op, f"result {i} of a dist.manual region must come from dist.to_global")
        _new_value(built, op.results[i], _closed(owner.attributes["layout"], owner))
    built.openings.append(op)


def _call(built: Built, op: ir.Operation, by_name: dict[str, ir.Operation]) -> None:
    name = op.attributes["callee"].value
    callee = by_name.get(name)
    if callee is None:
        fail(op, f"call of @{name}, which has no body in this module")
    arguments = callee.operation.regions[0].blocks[0].arguments
    for i, argument in enumerate(arguments):
        if is_tensor(argument.type):
            _pass(built, op, i, built.values[argument])
    for result, number in zip(op.results, built.results[name]):
        if number >= 0:
            built.values[result] = number


def _join(
    built: Built, ops: Sequence[ir.Operation], first: int, values: Sequence[ir.Value]
) -> None:
    """Join each of `values` to operand first + i of each of `ops`, which hands it on."""
    for i, value in enumerate(values):
        if not is_tensor(value.type):
            continue
        for op in ops:
            _pass(built, op, first + i, built.values[value])


def _for(built: Built, op: ir.Operation, by_name: dict[str, ir.Operation]) -> None:
    body = op.regions[0].blocks[0]
    for argument, result in zip(list(body.arguments)[1:], op.results):
        number = _new_value(built, argument)
        if number >= 0:
            built.values[result] = number
    _join(built, [op], 3, list(op.results))
    _block(built, body, by_name)
    _join(built, [terminator(op.regions[0].blocks[0])], 0, list(op.results))


def _while(built: Built, op: ir.Operation, by_name: dict[str, ir.Operation]) -> None:
    before, after = (region.blocks[0] for region in op.regions)
    for argument in before.arguments:
        _new_value(built, argument)
    _join(built, [op], 0, list(before.arguments))
    _block(built, before, by_name)
    # What goes round in both halves keeps one layout, and so one buffer.
    one = [a.type for a in before.arguments] == [r.type for r in op.results]
    for i, (argument, result) in enumerate(zip(after.arguments, op.results)):
        if one and is_tensor(argument.type):
            number = built.values[argument] = built.values[before.arguments[i]]
        else:
            number = _new_value(built, argument)
        if number >= 0:
            built.values[result] = number
    _join(built, [terminator(op.regions[0].blocks[0])], 1, list(op.results))
    _block(built, after, by_name)
    _join(built, [terminator(op.regions[1].blocks[0])], 0, list(before.arguments))


def _region(built: Built, op: ir.Operation, by_name: dict[str, ir.Operation]) -> None:
    if MANUAL in op.attributes:
        _manual(built, op, by_name)
        return
    built.openings.append(op)
    for result in op.results:
        _new_value(built, result)
    for region in op.regions:
        if len(region.blocks):
            _block(built, region.blocks[0], by_name)
            _join(built, [terminator(region.blocks[0])], 0, list(op.results))


STRUCTURED = {
    "dist.constrain": _constrain,
    "dist.redistribute": _redistribute,
    "func.call": _call,
    "scf.for": _for,
    "scf.while": _while,
    "scf.if": _region,
    "scf.execute_region": _region,
    "hint.region": _region,
}
"""Ops that hand values on instead of computing: how each joins them."""
