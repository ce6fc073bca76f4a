"""A legalised redistribute as ops of the local view, one a step of its plan."""

from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr
from meshweave.transforms.base import fail, replace
from meshweave.transforms.local import Local
from meshweave.transforms.neutral import neutral_attr
from meshweave.transforms.rules import is_free

FIELDS = {
    "all_slice": ("dim",),
    "all_gather": ("dim",),
    "all_reduce": ("kind",),
    "reduce_scatter": ("dim", "kind"),
    "all_to_all": ("split_dim", "concat_dim"),
    "permute": ("sources",),
}
"""What each collective op carries besides its axes, under the names that steps use too."""


def emit_plan(op: Any, local: Local) -> None:
    """Replace a `dist.redistribute` by the steps of its plan."""
    plan = op.attributes.get("plan")
    if plan is None:
        fail(op, "dist.redistribute has no plan: run dist-legalize-redistribute first")
    type_ = op.results[0].type
    source = LayoutAttr(op.attributes["source"]).layout
    value = op.operands[0]
    if not isinstance(value.owner, ir.Block) and is_free(value.owner):
        local.localise_operand(op, 0, source)
        value = op.operands[0]
    layout = source
    for entry in plan:
        step = {a.name: a.attr for a in ir.DictAttr(entry)}
        layout = LayoutAttr(step["target"]).layout
        value = _step(op, step, value, local.type(type_, layout), local)
        local.note(value, type_, layout)
    replace(op, [local.settle(value, op)])


def _step(op: Any, step: dict[str, Any], value: Any, type_: Any, local: Local) -> Any:
    name = step["op"].value
    if name == "local":
        return _to_partial(op, step, value, type_, local)
    if name not in FIELDS:
        fail(op, f"dist.redistribute: step {name} cannot be partitioned yet")
    attrs = {field: step[field] for field in ("axes", *FIELDS[name])}
    return local.create(f"dist.{name}", [type_], [value], op, **attrs)


def _to_partial(op: Any, step: dict[str, Any], value: Any, type_: Any, local: Local) -> Any:
    """The first member keeps its tensor, the others hold the neutral element; for an average all keep it."""
    kind = step["kind"].value
    if kind == "avg":
        return value
    first = local.is_first([a.value for a in step["axes"]], op)
    scalar = local.constant(neutral_attr(kind, type_.element_type), op)
    return local.create(
        "arith.select", [type_], [first, value, local.filled(type_, scalar, op)], op
    )
