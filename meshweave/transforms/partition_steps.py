"""A legalised redistribute as ops of the local view, one a step of its plan."""

from collections.abc import Callable
from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.layout.layout import Layout
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
    source = LayoutAttr(op.attributes["source"]).layout
    value = op.operands[0]
    if not isinstance(value.owner, ir.Block) and is_free(value.owner):
        local.localise_operand(op, 0, source)
        value = op.operands[0]
    whole = op.results[0].type
    for entry in plan:
        step = Step(op, {a.name: a.attr for a in ir.DictAttr(entry)}, source, whole, local)
        value, source = step.emit(value), step.target
        local.note(value, whole, source)
    replace(op, [local.settle(value, op)])


class Step:
    """One step of the plan of a redistribute `op`, from layout `source` on, of a value of the global type `whole`."""

    def __init__(
        self, op: Any, entry: dict[str, Any], source: Layout, whole: Any, local: Local
    ) -> None:
        self.op, self.entry, self.local, self.whole = op, entry, local, whole
        self.name = entry["op"].value
        self.source, self.target = source, LayoutAttr(entry["target"]).layout
        self.type = local.type(whole, self.target)

    def emit(self, value: Any) -> Any:
        """The value after the step, in ops in front of the redistribute."""
        if self.name in FIELDS:
            attrs = {field: self.entry[field] for field in ("axes", *FIELDS[self.name])}
            return self._create(f"dist.{self.name}", value, **attrs)
        if self.name not in _EMIT:
            fail(self.op, f"dist.redistribute: no step {self.name} in the local view")
        return _EMIT[self.name](self, value)

    def _create(self, name: str, value: Any, **attrs: Any) -> Any:
        return self.local.create(name, [self.type], [value], self.op, **attrs)

    @property
    def _axes(self) -> list[str]:
        return [a.value for a in self.entry["axes"]]

    def _exchange(self, value: Any) -> Any:
        """By the table of the two layouts; a relayout names no axes, since nothing comes from other ranks."""
        return self._create(
            "dist.exchange",
            value,
            axes=self.entry["axes"] if self.name == "exchange" else axes_attr(()),
            source=LayoutAttr.make(self.source),
            target=LayoutAttr.make(self.target),
            shape=ir.DenseI64ArrayAttr.get(list(self.whole.shape)),
        )

    def _local(self, value: Any) -> Any:
        """The first member keeps its tensor, the others hold the neutral element; for an average all keep it."""
        kind = self.entry["kind"].value
        if kind == "avg":
            return value
        first = self.local.is_first(self._axes, self.op)
        neutral = self.local.filled(self.type, self._neutral(kind), self.op)
        return self.local.create("arith.select", [self.type], [first, value, neutral], self.op)

    def _neutral(self, kind: str) -> Any:
        return self.local.constant(neutral_attr(kind, self.type.element_type), self.op)

    def _embed(self, value: Any) -> Any:
        """Member k's tensor as piece k of `dim`, neutral elements elsewhere; cut at the size of the result."""
        kind, dim = self.entry["kind"].value, self.entry["dim"].value
        if kind == "avg":
            fail(self.op, "dist.redistribute: step embed: an avg has no neutral element")
        if 0 in self.type.shape:
            return self.local.empty(self.type, self.op)
        count = self.local.mesh.axis_count(self._axes)
        neutral, index = self._neutral(kind), self.local.axis_index(self._axes, self.op)
        shape = list(value.type.shape)
        apart = [*shape[:dim], count, *shape[dim:]]
        pieces = self.local.elementwise(
            value,
            ir.RankedTensorType.get(apart, value.type.element_type),
            [d for d in range(len(apart)) if d != dim],
            self.op,
            lambda element, end: self.local.create(
                "arith.select",
                [element.type],
                [self.local.compared("eq", self._index(dim, end), index, end), element, neutral],
                end,
            ),
        )
        joined = [*shape[:dim], count * shape[dim], *shape[dim + 1 :]]
        whole = self._joined(pieces, dim, ir.RankedTensorType.get(joined, self.type.element_type))
        return whole if whole.type == self.type else self._cut(whole)

    def _index(self, dim: int, before: Any) -> Any:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        return self.local.create("linalg.index", [ir.IndexType.get()], [], before, dim=number)

    def _joined(self, value: Any, dim: int, type_: Any) -> Any:
        """Dims `dim` and `dim` + 1 as one."""
        i64 = ir.IntegerType.get_signless(64)
        rows = [[d] if d < dim else [d + 1] for d in range(len(type_.shape))]
        rows[dim] = [dim, dim + 1]
        groups = [ir.ArrayAttr.get([ir.IntegerAttr.get(i64, d) for d in row]) for row in rows]
        return self.local.create(
            "tensor.collapse_shape",
            [type_],
            [value],
            self.op,
            reassociation=ir.ArrayAttr.get(groups),
        )

    def _cut(self, value: Any) -> Any:
        """The first elements of each dim, as many as the result of the step has."""
        ndim = len(self.type.shape)
        return self._create(
            "tensor.extract_slice",
            value,
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
            static_offsets=ir.DenseI64ArrayAttr.get([0] * ndim),
            static_sizes=ir.DenseI64ArrayAttr.get(list(self.type.shape)),
            static_strides=ir.DenseI64ArrayAttr.get([1] * ndim),
        )


_EMIT: dict[str, Callable[[Step, Any], Any]] = {
    "exchange": Step._exchange,
    "relayout": Step._exchange,
    "local": Step._local,
    "embed": Step._embed,
}
