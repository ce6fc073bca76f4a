"""Merge exchanges that bring windows of one value: a stencil reads its halo once, not once for each of its slices.

before:  a = exchange(v) to [x*_{255,0,255}];  b = exchange(v) to [x*_{255,2,255}]
after:   u = exchange(v) to [x*_{255,0,257}];  a, b = slices of u

The one that takes their place brings the smallest window around them, where that takes no longer by the costs of plans
and brings at most an eighth more: the corners, say, between the edges that they bring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64_array, tensor_type
from meshweave.ir.ops import replace_op
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import REST, AxisFactor, LocalFactor, is_window
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.steps import Plan
from meshweave.transforms.propagation.values import item_bytes

EXCHANGE = "dist.exchange"


@dataclass(frozen=True)
class _Span:
    """Describe what a rank has of a dim: coordinate c over `axes` has `size` indices from step * c + low on."""

    axes: tuple[str, ...]
    step: int
    low: int
    size: int
    block: bool

    def around(self, other: _Span) -> _Span | None:
        """Return the smallest one that holds this and the other; None where their steps differ."""
        if self == other:
            return self
        if (self.axes, self.step) != (other.axes, other.step):
            return None
        low = min(self.low, other.low)
        high = max(self.low + self.size, other.low + other.size)
        mine = self if self.block else other
        return replace(mine, low=low, size=high - low, block=mine.block and mine.size == high - low)

    @property
    def factors(self) -> tuple[AxisFactor | LocalFactor, ...]:
        """Return the factors of the dim."""
        local = REST if self.block else LocalFactor(self.size, (self.step, self.low))
        return (*map(AxisFactor, self.axes), local)


_Spans = tuple[_Span, ...]


@dataclass(frozen=True)
class _ExchangeGroup:
    """Hold an exchange, or several that become one: what all of them bring."""

    ops: tuple[ir.Operation, ...]
    spans: _Spans
    plan: Plan

    @property
    def target(self) -> Layout:
        """Return the layout that holds the windows of all."""
        return Layout(tuple(span.factors for span in self.spans))


def merge_windows(block: ir.Block, mesh: Mesh) -> None:
    """Let exchanges of one value to windows that lie around each other become one."""
    found = [w for view in block.operations if (w := _windows(view.operation, mesh)) is not None]
    by_value: dict[tuple[ir.Value, ir.Attribute], list[_ExchangeGroup]] = {}
    for windows in found:
        op = windows.ops[0]
        groups = by_value.setdefault((op.operands[0], op.attributes["source"]), [])
        for at, group in enumerate(groups):
            joined = _joined(group, windows, mesh)
            if joined is not None:
                groups[at] = joined
                break
        else:
            groups.append(windows)
    for groups in by_value.values():
        for group in groups:
            if len(group.ops) > 1:
                _emit(group, mesh)


def _windows(op: ir.Operation, mesh: Mesh) -> _ExchangeGroup | None:
    """Return what an exchange brings; None where that is not made of blocks and windows."""
    if op.name != EXCHANGE:
        return None
    source, target = (LayoutAttr(op.attributes[name]).layout for name in ("source", "target"))
    shape = tuple(op.attributes["shape"])
    plain = target.order is None and target.uneven == "flat" and not target.partial
    if not plain or not any(is_window(factors[-1]) for factors in target.dims):
        return None
    spans = tuple(_spans(target, mesh, shape))
    if len(spans) != len(shape):
        return None
    return _ExchangeGroup((op,), spans, _plan(op, source, target, mesh))


def _spans(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> Iterator[_Span]:
    for dim, (factors, size) in enumerate(zip(layout.dims, layout.local_shape(mesh, shape))):
        axes, window = layout.axes_of(dim), layout.window(dim)
        if window is not None:
            yield _Span(axes, *window, size, False)
        elif factors == (*map(AxisFactor, axes), REST):
            yield _Span(axes, size if axes else 0, 0, size, True)


def _plan(op: ir.Operation, source: Layout, target: Layout, mesh: Mesh) -> Plan:
    nbytes = item_bytes(op.results[0].type.element_type)
    return plan_redistribute(source, target, mesh, tuple(op.attributes["shape"]), nbytes)


def _joined(one: _ExchangeGroup, other: _ExchangeGroup, mesh: Mesh) -> _ExchangeGroup | None:
    """Return two as one, where that takes no longer."""
    spans = [a.around(b) for a, b in zip(one.spans, other.spans)]
    known = tuple(span for span in spans if span is not None)
    if len(known) != len(spans):
        return None
    op = one.ops[0]
    made = _ExchangeGroup((*one.ops, *other.ops), known, one.plan)
    plan = _plan(op, LayoutAttr(op.attributes["source"]).layout, made.target, mesh)
    single = [step.op for step in plan.steps] in (["exchange"], ["relayout"])
    cheaper = plan.seconds <= one.plan.seconds + other.plan.seconds
    near = 8 * plan.nbytes <= 9 * (one.plan.nbytes + other.plan.nbytes)
    return replace(made, plan=plan) if single and cheaper and near else None


def _emit(group: _ExchangeGroup, mesh: Mesh) -> None:
    """Make the one exchange where the first stood, and slices of it where the others did."""
    first, (step,) = group.ops[0], group.plan.steps
    shape = tuple(first.attributes["shape"])
    type_ = tensor_type(group.target.local_shape(mesh, shape), first.results[0].type.element_type)
    value = OpBuilder.before(first).one(
        EXCHANGE,
        type_,
        first.operands[0],
        axes=axes_attr(step.axes if step.op == "exchange" else ()),
        source=first.attributes["source"],
        target=LayoutAttr.make(group.target),
        shape=i64_array(shape),
    )
    for op in group.ops:
        own = _spans(LayoutAttr(op.attributes["target"]).layout, mesh, shape)
        offsets = [mine.low - whole.low for mine, whole in zip(own, group.spans)]
        part = op.results[0].type
        replace_op(op, [OpBuilder.before(op).extract_slice(value, part, offsets, part.shape)])
