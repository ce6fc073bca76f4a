"""Share what verifiers need. They run before IRDL's own checks, so they read nothing without looking first."""

from contextlib import suppress

from meshweave.errors import LayoutError
from meshweave.hints.keys import Hint as SaidHint
from meshweave.hints.keys import HintError, TimeAxis
from meshweave.ir.bindings import ir
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Axis, Mesh


def require(op: ir.Operation, holds: bool, message: str) -> bool:
    """Return `holds`; where it is False, emit "'dialect.op' op message" at the op."""
    if not holds:
        op.operation.location.emit_error(f"'{op.operation.name}' op {message}")
    return holds


def same_type(op: ir.Operation) -> bool:
    """Check that the one operand and the one result have one type."""
    values = [*op.operation.operands, *op.operation.results]
    return require(op, len(values) == 2, "takes one operand and gives one result") and require(
        op,
        values[0].type == values[1].type,
        f"must keep the type, but goes from {values[0].type} to {values[1].type}",
    )


def ends_in(op: ir.Operation, end: str) -> "list[ir.Operation] | None":
    """Return the ops of the one block of the op's region; None, with an error, unless the last is called `end`."""
    blocks = op.regions[0].blocks
    if not require(op, len(blocks) == 1, f"needs one block, has {len(blocks)}"):
        return None
    ops = [view.operation for view in blocks[0].operations]
    ended = bool(ops) and ops[-1].name == end
    return ops if require(op, ended, f"must end in {end}") else None


def in_module(op: ir.Operation, name: str) -> "list[ir.Operation]":
    """Return the ops of that name at the top of the module around `op`; none outside of a module."""
    top = op.operation
    while top.parent is not None and top.name != "builtin.module":
        top = top.parent.operation
    views = top.regions[0].blocks[0].operations if top.name == "builtin.module" else ()
    return [view.operation for view in views if view.operation.name == name]


def mesh_of(op: ir.Operation) -> "Mesh | None":
    """Return the mesh of the module around `op`; None where there is none, or its verifier says what is wrong."""
    for mesh in in_module(op, "dist.mesh"):
        with suppress(LayoutError, KeyError, AttributeError):
            return Mesh.parse(mesh.attributes["axes"].value)
    return None


def layout_fits(
    op: ir.Operation,
    value_type: ir.Type,
    what: str = "layout",
    layout: "ir.Attribute | None" = None,
) -> bool:
    """Check that the attribute `what` (or `layout`) can be read and fits `value_type` on the module's mesh."""
    text = getattr(layout or op.attributes.get(what), "value", None)
    if not isinstance(text, str):
        return require(op, False, f"{what} must be a #dist.layout")
    try:
        parsed = Layout.parse(text)
        shape = getattr(value_type, "shape", None)
        if shape is None:
            return require(op, False, f"{what} needs a ranked tensor, not {value_type}")
        if parsed.ndim != len(shape):
            return require(
                op, False, f"{what} {text} has {parsed.ndim} dims, but the value is {value_type}"
            )
        mesh = mesh_of(op)
        if mesh is not None and not all(mesh.has(name) for name in parsed.used_axes):
            mesh = _with_time_axes(mesh, op)
        if mesh is not None and not mesh.is_symbolic:
            parsed.check(mesh, tuple(max(size, 0) for size in shape))  # an open size fits
    except LayoutError as error:
        return require(op, False, f"{what}: {error}")
    return True


def time_axes_around(op: ir.Operation) -> "list[TimeAxis]":
    """Return the time axes of the regions around `op`, outermost first, without those that cannot be read."""
    found: list[TimeAxis] = []
    above = op.operation.parent
    while above is not None:
        region = above.operation
        hints = region.attributes.get("hints") if region.name == "hint.region" else None
        if isinstance(hints, ir.DictAttr) and "slice" in hints:
            said = hints["slice"]
            if isinstance(said, ir.DictAttr) and "value" in said:
                said = said["value"]
            with suppress(HintError):
                found = [*SaidHint.make("slice", getattr(said, "value", "")).parsed, *found]
        above = region.parent
    return found


def _with_time_axes(mesh: Mesh, op: ir.Operation) -> Mesh:
    """Add the time axes of the regions around `op` to `mesh`; the count of one given by a size is a symbol."""
    axes = {axis.name: axis for axis in mesh.axes}
    for axis in time_axes_around(op):
        axes.setdefault(axis.name, Axis(axis.name, axis.count or f"n_{axis.name}"))
    return Mesh(*axes.values())
