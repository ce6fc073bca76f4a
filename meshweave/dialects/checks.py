"""What verifiers share. They run before IRDL's own checks, so they read nothing without looking first."""

from contextlib import suppress
from typing import Any

from meshweave.bindings import ir
from meshweave.errors import LayoutError
from meshweave.hints import Hint as SaidHint
from meshweave.hints import HintError, TimeAxis
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Axis, Mesh


def require(op: Any, holds: bool, message: str) -> bool:
    """`holds`; where it does not, emit "'dialect.op' op message" at the op."""
    if not holds:
        op.operation.location.emit_error(f"'{op.operation.name}' op {message}")
    return holds


def mesh_of(op: Any) -> "Mesh | None":
    """The mesh of the module around `op`; None when there is none (or its text is wrong: its verifier says so)."""
    top = op.operation
    while top.parent is not None:
        top = top.parent.operation
    if top.name != "builtin.module":
        return None
    for child in top.regions[0].blocks[0].operations:
        if child.operation.name == "dist.mesh":
            try:
                return Mesh.parse(child.operation.attributes["axes"].value)
            except (LayoutError, KeyError, AttributeError):
                return None
    return None


def layout_fits(op: Any, layout: Any, value_type: Any, what: str) -> bool:
    """`layout` (an attribute) reads well and fits `value_type` on the module's mesh."""
    text = getattr(layout, "value", None)
    if not require(op, isinstance(text, str), f"{what} must be a #dist.layout"):
        return False
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
            parsed.check(mesh, tuple(shape))
    except LayoutError as error:
        return require(op, False, f"{what}: {error}")
    return True


def time_axes_around(op: Any) -> "list[TimeAxis]":
    """The time axes of the regions around `op`, outermost first; those that cannot be read are left out."""
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


def _with_time_axes(mesh: Mesh, op: Any) -> Mesh:
    """`mesh` with the time axes of the regions around `op`; of those given by a size the count is a symbol."""
    axes = {axis.name: axis for axis in mesh.axes}
    for axis in time_axes_around(op):
        axes.setdefault(axis.name, Axis(axis.name, axis.count or f"n_{axis.name}"))
    return Mesh(*axes.values())
