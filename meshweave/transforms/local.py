"""What dist-partition knows while it runs: local types, coordinates of the rank, and values made anew."""

from collections.abc import Callable, Sequence
from typing import Any

from meshweave.bindings import ir, linalg
from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.transforms.neutral import neutral_attr
from meshweave.transforms.rules import is_free, is_tensor


class Local:
    """The local view of one mesh. Caches by type and layout; makes index and constant ops where they are asked for."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._types: dict[tuple[Any, Layout], tuple[Any, bool]] = {}
        self._layouts: dict[Any, Layout | None] = {}
        # Local values with padding: their global shapes.
        self.uneven: dict[Any, tuple[int, ...]] = {}
        # Fills and splats that have their local type already.
        self.settled: set[Any] = set()

    def layout(self, attr: Any) -> Layout | None:
        """The Layout of an attribute of `dist.layouts`; None for what is no tensor."""
        if attr not in self._layouts:
            unit = isinstance(attr, ir.UnitAttr)
            self._layouts[attr] = None if unit else LayoutAttr(attr).layout
        return self._layouts[attr]

    def type(self, global_type: Any, layout: Layout) -> Any:
        """The type of a rank's allocation. Raises LayoutError where the layout does not fit."""
        return self._allocation(global_type, layout)[0]

    def _allocation(self, global_type: Any, layout: Layout) -> tuple[Any, bool]:
        """The local type, and whether it holds padding on some rank."""
        key = (global_type, layout)
        if key not in self._types:
            whole = tuple(global_type.shape)
            shape = layout.allocation_shape(self.mesh, whole)
            type_ = ir.RankedTensorType.get(list(shape), global_type.element_type)
            self._types[key] = (type_, not layout.is_even(self.mesh, whole))
        return self._types[key]

    def localise(self, value: Any, layout: Layout) -> None:
        """Give `value`, which has its global type, its local one."""
        global_type = value.type
        local_type, padded = self._allocation(global_type, layout)
        if padded:
            self.uneven[value] = tuple(global_type.shape)
        if local_type != global_type:
            value.set_type(local_type)

    def note(self, value: Any, global_type: Any, layout: Layout) -> None:
        """Remember the global shape of a local value that has padding on some rank."""
        if self._allocation(global_type, layout)[1]:
            self.uneven[value] = tuple(global_type.shape)

    def localise_operand(self, op: Any, i: int, layout: Layout) -> None:
        """Operand `i` of `op` in the local view: a value made anew in `layout`; others are local already."""
        value = op.operands[i]
        if (
            not is_tensor(value.type)
            or isinstance(value.owner, ir.Block)
            or not is_free(value.owner)
            or value in self.settled
        ):
            return
        global_type = value.type
        target = self.type(global_type, layout)
        if target != global_type or layout.partial:
            op.operands[i] = self._anew(value.owner, target, layout, op)
            self.note(op.operands[i], global_type, layout)

    def settle(self, value: Any, before: Any) -> Any:
        """A value that is local already, such that none of its readers takes it for one of the global view."""
        if isinstance(value.owner, ir.Block) or not is_free(value.owner):
            return value
        copy = value.owner.clone(ir.InsertionPoint(before)).results[0]
        self.settled.add(copy)
        return copy

    def _anew(self, source: Any, target: Any, layout: Layout, reader: Any) -> Any:
        """The free value of `source` with the local type `target`, right before `reader`."""
        if source.name == "tensor.empty":
            return self.empty(target, reader)
        if source.name == "arith.constant":
            splat = source.attributes["value"].get_splat_value()
            if layout.partial:
                scalar = self.constant(splat, reader)
                return self.filled(target, self.kept(scalar, layout, reader), reader)
            value = ir.DenseElementsAttr.get_splat(target, splat)
            return self.constant(value, reader, target)
        scalar = source.operands[0]
        return self.filled(
            target, self.kept(scalar, layout, reader) if layout.partial else scalar, reader
        )

    def kept(self, scalar: Any, layout: Layout, before: Any) -> Any:
        """`scalar` on the first member of each partial group, the neutral element on the others; itself where it is
        neutral anyway."""
        for partial in layout.partial:
            if partial.kind == "avg":
                continue
            neutral = neutral_attr(partial.kind, scalar.type)
            owner = scalar.owner
            constant = not isinstance(owner, ir.Block) and owner.name == "arith.constant"
            if constant and owner.attributes["value"] == neutral:
                continue
            first = self.is_first(partial.axes, before)
            other = self.constant(neutral, before)
            scalar = self.create("arith.select", [scalar.type], [first, scalar, other], before)
        return scalar

    def is_first(self, axes: Sequence[str], before: Any) -> Any:
        """Is this rank member 0 of its group over `axes`? (i1)"""
        return self.compared("eq", self.axis_index(axes, before), self.index(0, before), before)

    def compared(self, predicate: str, one: Any, other: Any, before: Any) -> Any:
        """`one` against `other`, indices (i1). predicate: "eq", or "ult" (smaller, unsigned)."""
        number = {"eq": 0, "ult": 6}[predicate]
        attr = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        i1 = ir.IntegerType.get_signless(1)
        return self.create("arith.cmpi", [i1], [one, other], before, predicate=attr)

    def axis_index(self, axes: Sequence[str], before: Any) -> Any:
        """The rank's linear coordinate over `axes`."""
        return self.create(
            "dist.axis_index", [ir.IndexType.get()], [], before, axes=axes_attr(axes)
        )

    def offset(self, axes: Sequence[str], extent: int, before: Any) -> Any:
        """Where the rank's block of `extent` begins in the global dim (index)."""
        index, size = self.axis_index(axes, before), self.index(extent, before)
        return self.create("arith.muli", [ir.IndexType.get()], [index, size], before)

    def index(self, number: int, before: Any) -> Any:
        """An index constant."""
        return self.constant(ir.IntegerAttr.get(ir.IndexType.get(), number), before)

    def constant(self, attr: Any, before: Any, type_: Any = None) -> Any:
        """An `arith.constant`."""
        return self.create("arith.constant", [type_ or attr.type], [], before, value=attr)

    def empty(self, type_: Any, before: Any) -> Any:
        """A `tensor.empty`."""
        return self.create("tensor.empty", [type_], [], before)

    def filled(self, type_: Any, scalar: Any, before: Any) -> Any:
        """A tensor full of `scalar`."""
        segments = ir.DenseI32ArrayAttr.get([1, 1])
        op = ir.Operation.create(
            "linalg.fill",
            results=[type_],
            operands=[scalar, self.empty(type_, before)],
            attributes={"operandSegmentSizes": segments},
            regions=1,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )
        linalg.fill_builtin_region(op)
        return op.results[0]

    def elementwise(
        self,
        value: Any,
        type_: Any,
        dims: Sequence[int],
        before: Any,
        element: Callable[[Any, Any], Any],
    ) -> Any:
        """A tensor of `type_`, each element made of one of `value`: its dim i runs with dim `dims[i]` of the result.

        element: of the element of `value` and the op it is to stand before, the element of the result.
        """
        ndim = len(type_.shape)
        reads = ir.AffineMap.get(ndim, 0, [ir.AffineDimExpr.get(d) for d in dims])
        maps = [ir.AffineMapAttr.get(m) for m in (reads, ir.AffineMap.get_identity(ndim))]
        parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        location = before.location
        generic = ir.Operation.create(
            "linalg.generic",
            results=[type_],
            operands=[value, self.empty(type_, before)],
            attributes={
                "indexing_maps": ir.ArrayAttr.get(maps),
                "iterator_types": ir.ArrayAttr.get([parallel] * ndim),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
            },
            regions=1,
            loc=location,
            ip=ir.InsertionPoint(before),
        )
        kinds = [value.type.element_type, type_.element_type]
        block = generic.regions[0].blocks.append(*kinds, arg_locs=[location, location])
        end = ir.Operation.create(
            "linalg.yield", operands=[block.arguments[0]], loc=location, ip=ir.InsertionPoint(block)
        )
        end.operands[0] = element(block.arguments[0], end)
        return generic.results[0]

    def create(
        self, name: str, types: list[Any], operands: list[Any], before: Any, **attrs: Any
    ) -> Any:
        """The result of a new op in front of `before`, at its location."""
        op = ir.Operation.create(
            name,
            results=types,
            operands=operands,
            attributes=attrs,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )
        return op.results[0]
