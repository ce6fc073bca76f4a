"""Emit a legalised redistribute as ops of the local view, one for each step of its plan."""

from collections.abc import Callable

from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder, i64_array, tensor_type
from meshweave.layout.layout import Layout
from meshweave.plan.collectives import ROWS
from meshweave.transforms.base import fail
from meshweave.transforms.partitioning.local import Local, axis_index, is_first
from meshweave.transforms.partitioning.neutral import neutral_attr
from meshweave.transforms.propagation.values import is_made_free

FIELDS = {row.op: row.details for row in ROWS if row.is_blockwise}
"""What each collective op carries besides its axes, under the names that steps use too."""


def emit_plan(op: ir.Operation, local: Local) -> None:
    """Replace a `dist.redistribute` by the steps of its plan."""
    plan = op.attributes.get("plan")
    if plan is None:
        fail(op, "dist.redistribute has no plan: run dist-legalize-redistribute first")
    source = LayoutAttr(op.attributes["source"]).layout
    value = op.operands[0]
    if is_made_free(value):
        local.localise_operand(op, 0, source)
        value = op.operands[0]
    whole = op.results[0].type
    for entry in plan:
        step = LocalStep(op, {a.name: a.attr for a in ir.DictAttr(entry)}, source, whole, local)
        value, source = step.emit(value), step.target
        local.note(value, whole, source)
    local.replace(op, [local.settle(value, op)])


class LocalStep:
    """Emit one step of the plan of a redistribute `op`, from layout `source` on, of a value of global type `whole`."""

    def __init__(
        self,
        op: ir.Operation,
        entry: dict[str, ir.Attribute],
        source: Layout,
        whole: ir.Type,
        local: Local,
    ) -> None:
        self.op, self.entry, self.local, self.whole = op, entry, local, whole
        self.b = OpBuilder.before(op)
        self.name = entry["op"].value
        self.source, self.target = source, LayoutAttr(entry["target"]).layout
        self.type = local.type(whole, self.target)

    def emit(self, value: ir.Value) -> ir.Value:
        """Return the value after the step, made by ops in front of the redistribute."""
        if self.name in FIELDS:
            attrs = {field: self.entry[field] for field in ("axes", *FIELDS[self.name])}
            return self._create(f"dist.{self.name}", value, **attrs)
        if self.name not in _EMIT:
            fail(self.op, f"dist.redistribute: no step {self.name} in the local view")
        return _EMIT[self.name](self, value)

    def _create(self, name: str, value: ir.Value, **attrs: ir.Attribute) -> ir.Value:
        return self.b.one(name, self.type, value, **attrs)

    @property
    def _axes(self) -> list[str]:
        return [a.value for a in self.entry["axes"]]

    def _exchange(self, value: ir.Value) -> ir.Value:
        """Exchange by the table of the two layouts; a relayout names no axes, since nothing comes from other ranks."""
        return self._create(
            "dist.exchange",
            value,
            axes=self.entry["axes"] if self.name == "exchange" else axes_attr(()),
            source=LayoutAttr.make(self.source),
            target=LayoutAttr.make(self.target),
            shape=i64_array(self.whole.shape),
        )

    def _local(self, value: ir.Value) -> ir.Value:
        """Keep the tensor on the first member and the neutral element on the others; for an average all keep it."""
        kind = self.entry["kind"].value
        if kind == "avg":
            return value
        first = is_first(self.b, self._axes)
        return self.b.select(first, value, self.b.fill(self._neutral(kind), self.type))

    def _neutral(self, kind: str) -> ir.Value:
        return self.b.constant(neutral_attr(kind, self.type.element_type))

    def _embed(self, value: ir.Value) -> ir.Value:
        """Make member k's tensor piece k of `dim`, neutral elsewhere, cut at the size of the result."""
        kind, dim = self.entry["kind"].value, self.entry["dim"].value
        if kind == "avg":
            fail(self.op, "dist.redistribute: step embed: an avg has no neutral element")
        if 0 in self.type.shape:
            return self.b.empty(self.type)
        count = self.local.mesh.axis_count(self._axes)
        neutral, index = self._neutral(kind), axis_index(self.b, self._axes)
        shape = list(value.type.shape)
        apart = [*shape[:dim], count, *shape[dim:]]

        def own_piece(b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
            own = b.compare(arith.CmpIPredicate.eq, b.loop_index(dim), index)
            return b.select(own, elements[0], neutral)

        into = self.b.empty(tensor_type(apart, value.type.element_type))
        others = [d for d in range(len(apart)) if d != dim]
        pieces = self.b.elementwise([value], into, own_piece, {0: others})
        merged = tensor_type(
            [*shape[:dim], count * shape[dim], *shape[dim + 1 :]], self.type.element_type
        )
        groups = [[d] if d < dim else [d + 1] for d in range(len(shape))]
        groups[dim] = [dim, dim + 1]
        whole = self.b.collapse_shape(pieces, merged, groups)
        return self.b.extract_slice(whole, self.type, [0] * len(shape))


_EMIT: dict[str, Callable[[LocalStep, ir.Value], ir.Value]] = {
    "exchange": LocalStep._exchange,
    "relayout": LocalStep._exchange,
    "local": LocalStep._local,
    "embed": LocalStep._embed,
}
