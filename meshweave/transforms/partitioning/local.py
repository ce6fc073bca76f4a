"""Keep what dist-partition knows while it runs: local types, coordinates of the rank, and recomputed values."""

from collections.abc import Sequence

from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import replace_op
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.transforms.partitioning.neutral import neutral_attr
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.values import is_made_free


class Local:
    """Hold the local view of one mesh. Caches by type and layout."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._types: dict[tuple[ir.Type, Layout], tuple[ir.Type, bool]] = {}
        self._layouts: dict[ir.Attribute, Layout | None] = {}
        # Local values with padding: their global shapes.
        self.uneven: dict[ir.Value, tuple[int, ...]] = {}
        # Local values in windows: their global shapes.
        self.windowed: dict[ir.Value, tuple[int, ...]] = {}
        # Fills and splats that have their local type already.
        self.settled: set[ir.Value] = set()

    def layout(self, attr: ir.Attribute) -> Layout | None:
        """Return the Layout of an attribute of `dist.layouts`; None for what is no tensor."""
        if attr not in self._layouts:
            unit = isinstance(attr, ir.UnitAttr)
            self._layouts[attr] = None if unit else LayoutAttr(attr).layout
        return self._layouts[attr]

    def type(self, global_type: ir.Type, layout: Layout) -> ir.Type:
        """Return the type of a rank's allocation. Raises LayoutError where the layout does not fit."""
        return self._allocation(global_type, layout)[0]

    def _allocation(self, global_type: ir.Type, layout: Layout) -> tuple[ir.Type, bool]:
        """Return the local type, and whether it holds padding on some rank."""
        key = (global_type, layout)
        if key not in self._types:
            whole = tuple(global_type.shape)
            shape = layout.allocation_shape(self.mesh, whole)
            type_ = ir.RankedTensorType.get(list(shape), global_type.element_type)
            self._types[key] = (type_, not layout.is_even(self.mesh, whole))
        return self._types[key]

    def localise(self, value: ir.Value, layout: Layout) -> None:
        """Give `value`, which has its global type, its local one."""
        global_type = value.type
        local_type, padded = self._allocation(global_type, layout)
        if padded:
            self.uneven[value] = tuple(global_type.shape)
        if any(layout.window(d) is not None for d in range(layout.ndim)):
            self.windowed[value] = tuple(global_type.shape)
        if local_type != global_type:
            value.set_type(local_type)

    def note(self, value: ir.Value, global_type: ir.Type, layout: Layout) -> None:
        """Remember the global shape of a local value that has padding on some rank."""
        if self._allocation(global_type, layout)[1]:
            self.uneven[value] = tuple(global_type.shape)

    def replace(self, op: ir.Operation, values: Sequence[ir.Value]) -> None:
        """Let the users of `op` read `values`, which have its padding, and erase it.

        What is known of its results is forgotten: a value that is made later may have the address of one of them.
        """
        for old, new in zip(op.results, values, strict=True):
            self.settled.discard(old)
            self.windowed.pop(old, None)
            if (whole := self.uneven.pop(old, None)) is not None:
                self.uneven[new] = whole
        replace_op(op, values)

    def localise_operand(self, op: ir.Operation, i: int, layout: Layout) -> None:
        """Make operand `i` of `op` local: a free value is made again in `layout`; others are local already."""
        value = op.operands[i]
        if not is_tensor(value.type) or not is_made_free(value) or value in self.settled:
            return
        global_type = value.type
        target = self.type(global_type, layout)
        if target != global_type or layout.partial:
            op.operands[i] = self._anew(value.owner, target, layout, op)
            self.note(op.operands[i], global_type, layout)

    def settle(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        """Return a local value such that none of its readers takes it for one of the global view."""
        if not is_made_free(value):
            return value
        copy = value.owner.clone(ir.InsertionPoint(before)).results[0]
        self.settled.add(copy)
        return copy

    def _anew(
        self, source: ir.Operation, target: ir.Type, layout: Layout, reader: ir.Operation
    ) -> ir.Value:
        """Make the free value of `source` with the local type `target`, right before `reader`."""
        b = OpBuilder.before(reader)
        if source.name == "tensor.empty":
            return b.empty(target)
        if source.name == "arith.constant":
            splat = source.attributes["value"].get_splat_value()
            if layout.partial:
                return b.fill(kept(b, b.constant(splat), layout), target)
            return b.constant(ir.DenseElementsAttr.get_splat(target, splat), target)
        scalar = source.operands[0]
        return b.fill(kept(b, scalar, layout) if layout.partial else scalar, target)


def kept(b: OpBuilder, scalar: ir.Value, layout: Layout) -> ir.Value:
    """Return `scalar` on the first member of each partial group, the neutral element on the others.

    It is `scalar` itself where that is neutral already.
    """
    for partial in layout.partial:
        if partial.kind == "avg":
            continue
        neutral = neutral_attr(partial.kind, scalar.type)
        owner = scalar.owner
        constant = not isinstance(owner, ir.Block) and owner.name == "arith.constant"
        if constant and owner.attributes["value"] == neutral:
            continue
        first = is_first(b, partial.axes)
        scalar = b.select(first, scalar, b.constant(neutral))
    return scalar


def is_first(b: OpBuilder, axes: Sequence[str]) -> ir.Value:
    """Compare this rank's coordinate over `axes` with 0: an i1, true for member 0 of its group."""
    return b.compare(arith.CmpIPredicate.eq, axis_index(b, axes), b.index(0))


def axis_index(b: OpBuilder, axes: Sequence[str]) -> ir.Value:
    """Return the rank's linear coordinate over `axes`."""
    return b.one("dist.axis_index", ir.IndexType.get(), axes=axes_attr(axes))
