"""Allow layouts beyond blocks at the edges of a program.

Propagation places axes, and takes the pieces for blocks, so inside such a value lies in blocks nearby; where ops can
as well run on the layout that was said, they do (plan/propagation/arrange.py).

before:  func @f(%a {dist.layout = [_*x, _]})        dist.constrain %v {layout = [_, x] order(1, 0)}
after:   the same with dist.layout = [x, _], open to more axes, and what was said under dist.interface (of an op:
         `interface`)

dist-propagate does this first and then decides about blocks only; dist-insert-redistribute puts back what was said,
with a redistribute between the two.
"""

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import LayoutError
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import replace_op
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import axis_factors
from meshweave.plan.propagation.arrange import StatedLayout
from meshweave.transforms.base import fail, functions, ops_of, port_attrs, set_port_attrs
from meshweave.transforms.propagation.graph import Built
from meshweave.transforms.propagation.values import nbytes

INTERFACE = "interface"
"""On an op with a `layout`: the layout that was said. On arguments and results of functions: dist.interface."""


def nearby_blocks(layout: Layout) -> Layout:
    """Return blocks over the axes of each dim, in their order; an axis in parts is where its first part is."""
    seen: set[str] = set()
    rows = []
    for factors in layout.dims:
        names = [f.name for f in axis_factors(factors) if f.name not in seen]
        rows.append(list(dict.fromkeys(names)))
        seen.update(names)
    return Layout.blocks(rows, layout.partial)


def open_interfaces(module: ir.Module, mesh: Mesh) -> None:
    """Note every layout that is not in blocks as an interface, with blocks in its place.

    Raises PassFailure for one that does not fit its tensor or the mesh.
    """
    for f in functions(module):
        arguments = [a.type for a in f.operation.regions[0].blocks[0].arguments]
        results = f.operation.attributes["function_type"].value.results
        for key, types in (("arg_attrs", arguments), ("res_attrs", results)):
            _open_function(f, key, types, mesh)
    for op in ops_of(module, "dist.redistribute"):
        _as_constraints(op.operation)
    for op in ops_of(module, "dist.constrain"):
        _open_op(op.operation, op.operation.results[0].type, mesh)
    for op in ops_of(module, "dist.to_local"):
        _open_op(op.operation, op.operation.operands[0].type, mesh)
    for op in ops_of(module, "dist.to_global"):
        _open_op(op.operation, op.operation.results[0].type, mesh)


def beyond_blocks(module: ir.Module, built: Built) -> list[StatedLayout]:
    """Return the values of the graph that were noted as interfaces, with the layouts that were said."""
    found: list[tuple[int, ir.Type, ir.Attribute]] = []
    for f in functions(module):
        arguments = list(f.operation.regions[0].blocks[0].arguments)
        numbers = [built.values.get(a, -1) for a in arguments]
        results = built.results[f.operation.attributes["sym_name"].value]
        types = f.operation.attributes["function_type"].value.results
        for key, values, of in (
            ("arg_attrs", numbers, [a.type for a in arguments]),
            ("res_attrs", results, types),
        ):
            for value, type_, entry in zip(values, of, port_attrs(f, key)):
                if "dist.interface" in entry:
                    found.append((value, type_, entry["dist.interface"]))
    for view in ops_of(module, "dist.constrain"):
        op = view.operation
        if INTERFACE in op.attributes:
            value = op.results[0]
            found.append((built.values[value], value.type, op.attributes[INTERFACE]))
    return [
        StatedLayout(number, LayoutAttr(said).layout, tuple(type_.shape), nbytes(type_))
        for number, type_, said in found
    ]


def forget_interfaces(module: ir.Module) -> None:
    """Let the whole tensor on every rank stand for each layout that is not in blocks: for a mesh of one rank."""
    with module.context, ir.Location.unknown():
        for f in functions(module):
            for key in ("arg_attrs", "res_attrs"):
                entries = port_attrs(f, key)
                for entry in entries:
                    _forget(entry, "dist.layout")
                set_port_attrs(f, key, entries)
        for op in ops_of(module, "dist.redistribute", "dist.constrain"):
            for name in ("layout", "source", "target"):
                _forget(op.operation.attributes, name)


def _forget(entry: ir.Attribute, name: str) -> None:
    said = _beyond_blocks(entry.get(name))
    if said is not None:
        entry[name] = LayoutAttr.make(Layout.replicated(said.ndim))


def _beyond_blocks(attr: ir.Attribute) -> Layout | None:
    """Return the layout of an attribute when it is not in blocks; one that cannot be read is for others to refuse."""
    if attr is None:
        return None
    try:
        layout = LayoutAttr(attr).layout
    except (LayoutError, ValueError):
        return None
    return None if layout.is_block else layout


def _checked(layout: Layout, type_: ir.Type, mesh: Mesh, op: ir.Operation, what: str) -> Layout:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        fail(op, f"{what}: {type_} is not a tensor of static shape")
    try:
        layout.check(mesh, tuple(type_.shape))
        layout.check_owned()
    except LayoutError as error:
        fail(op, f"{what}: {error}")
    return layout


def _every_dim(layout: Layout) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(range(layout.ndim)))


def _open_function(f: ir.Operation, key: str, types: ir.Attribute, mesh: Mesh) -> None:
    entries = port_attrs(f, key)
    for entry, type_ in zip(entries, types):
        said = _beyond_blocks(entry.get("dist.layout"))
        if said is not None:
            blocks = nearby_blocks(_checked(said, type_, mesh, f, "dist.layout"))
            entry["dist.interface"] = entry["dist.layout"]
            entry["dist.layout"] = LayoutAttr.make(blocks)
            entry["dist.open"] = _every_dim(blocks)
    if any("dist.interface" in entry for entry in entries):
        set_port_attrs(f, key, entries)


def _open_op(op: ir.Operation, type_: ir.Type, mesh: Mesh) -> None:
    said = _beyond_blocks(op.attributes.get("layout"))
    if said is None:
        return
    blocks = nearby_blocks(_checked(said, type_, mesh, op, "layout"))
    op.attributes[INTERFACE] = op.attributes["layout"]
    op.attributes["layout"] = LayoutAttr.make(blocks)
    if op.name == "dist.constrain":
        op.attributes["open"] = _every_dim(blocks)


def _as_constraints(op: ir.Operation) -> None:
    """Replace a redistribute from or to what is not in blocks: the value has one layout, and then the other."""
    ends = [op.attributes.get(name) for name in ("source", "target")]
    if all(_beyond_blocks(end) is None for end in ends):
        return
    value = op.operands[0]
    for end in ends:
        value = OpBuilder.before(op).one("dist.constrain", value.type, value, layout=end)
    replace_op(op, [value])
