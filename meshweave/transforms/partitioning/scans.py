"""Cut a scan over ranks: each reduces its own elements, all gather these totals, and each starts from those before it.

scan(x) over a block of rank r   =   scan(x, start + total(0) + .. + total(r - 1))
"""

from collections.abc import Sequence

from meshweave.dialects.dist import axes_attr
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import IteratorType, OpBuilder, Values, dims_map, i64, tensor_type
from meshweave.ir.scans import Scan
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local, axis_index
from meshweave.transforms.partitioning.masking import filled
from meshweave.transforms.partitioning.neutral import neutral_attr
from meshweave.transforms.partitioning.place import CutDim, GlobalIndex
from meshweave.transforms.propagation.bodies import scan_combiner


def fix_scan(op: ir.Operation, operands: Sequence[Layout | None], local: Local) -> None:
    """Let a scan whose types are local start from what the ranks before this one combine."""
    what, layout = Scan(op), operands[0]
    axes = layout.axes_of(what.dim) if layout is not None else ()
    if not axes:
        return
    assert layout is not None
    cut = _Cut(what, layout, local)
    op.operands[0] = cut.own()
    op.operands[1] = cut.before(cut.totals())


class _Cut:
    """Make the ops in front of a scan of one tensor whose elements lie on ranks along `axes`."""

    def __init__(self, what: Scan, layout: Layout, local: Local) -> None:
        self.what, self.layout, self.local = what, layout, local
        self.axes = layout.axes_of(what.dim)
        self.b = OpBuilder.before(what.op)
        (self.value,), self.dim = what.inputs, what.dim
        kind = scan_combiner(what.op)
        assert kind is not None, "only a scan that says how it combines is cut"
        self.kind, self.element = kind, self.value.type.element_type
        self.shape = list(self.value.type.shape)
        ndim = len(self.shape)
        self.every, self.rest = dims_map(ndim, range(ndim)), dims_map(ndim, what.kept)
        self.loops = [IteratorType.PARALLEL] * ndim
        self.loops[self.dim] = IteratorType.REDUCTION

    def own(self) -> ir.Value:
        """Return this rank's elements, with neutral ones beyond the end of the whole."""
        whole = self.local.uneven.get(self.value, tuple(self.shape))[self.dim]
        ranks = self.local.mesh.axis_count(self.axes)
        if self.value in self.local.uneven and self.shape[self.dim] * ranks != whole:
            bound = GlobalIndex.of(self.b, CutDim.of(self.layout, self.dim, whole), self.local)
            self.value = filled(self.b, self.value, {self.dim: bound}, self.kind)
        return self.value

    def totals(self) -> ir.Value:
        """Return what each rank combines, side by side along the dim."""
        one = [1 if d == self.dim else n for d, n in enumerate(self.shape)]
        exprs = [ir.AffineDimExpr.get(d) for d in range(len(one))]
        exprs[self.dim] = ir.AffineConstantExpr.get(0)
        only = ir.AffineMap.get(len(one), 0, exprs)
        start = self.b.fill(self._neutral(self.b), tensor_type(one, self.element))
        total = self.b.generic([self.value], [start], [self.every, only], self.loops, self._combine)
        one[self.dim] = self.local.mesh.axis_count(self.axes)
        type_, axes = tensor_type(one, self.element), axes_attr(self.axes)
        return self.b.one("dist.all_gather", type_, total.result, axes=axes, dim=i64(self.dim))

    def before(self, totals: ir.Value) -> ir.Value:
        """Return the start of the scan, combined with the totals of the ranks that come before this one."""
        me = axis_index(self.b, self.axes)
        comes = arith.CmpIPredicate.ugt if self.what.reverse else arith.CmpIPredicate.ult

        def body(b: OpBuilder, arguments: list[ir.Value]) -> Values:
            holds = b.compare(comes, b.loop_index(self.dim), me)
            return self._combine(b, [b.select(holds, arguments[0], self._neutral(b)), arguments[1]])

        maps = [self.every, self.rest]
        return self.b.generic([totals], self.what.starts, maps, self.loops, body).result

    def _combine(self, b: OpBuilder, arguments: list[ir.Value]) -> Values:
        element, combined = arguments
        return self.what.combine(b, [combined, element])

    def _neutral(self, b: OpBuilder) -> ir.Value:
        return b.constant(neutral_attr(self.kind, self.element))
