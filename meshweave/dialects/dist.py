"""The `dist` dialect: a mesh, where tensors lie on it, and the moves between.

Two views. *Global*: types are those of whole tensors, layouts stand on function arguments and results and in
`dist.constrain` / `dist.redistribute`. *Local*, after dist-partition: types are those of one rank's allocations, and
the collectives are explicit. A collective names mesh `axes`; its group are the ranks that agree in all other
coordinates, numbered by their linear coordinate over `axes` (the first named is major). `g` below is the size of the
group.
"""

# No `from __future__ import annotations` here: the field types are read as classes.
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from meshweave.bindings import ext, ir
from meshweave.dialects.checks import layout_fits, mesh_of, require
from meshweave.errors import LayoutError
from meshweave.layout.algebra import pending
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh

KINDS = ("sum", "max", "min", "prod", "avg")
"""Reductions that a partial value or a collective may name."""


class Dist(ext.Dialect, name="dist"):
    """Where tensors lie on a mesh of devices."""


class LayoutAttr(Dist.Attribute, name="layout"):
    """`#dist.layout<"[x, _] +sum(y)">`: a layout in the text of the layout notation; the op that holds it checks it."""

    text: ir.StringAttr

    @classmethod
    def make(cls, layout: "Layout | str") -> Any:
        """The attribute for `layout` in the current context."""
        return cls.get(ir.StringAttr.get(str(layout)))

    @property
    def value(self) -> str:
        """The layout text."""
        return ir.StringAttr(self.text).value

    @property
    def layout(self) -> Layout:
        """The layout; LayoutError when the text cannot be read."""
        return Layout.parse(self.value)


class I64Array(ir.DenseI64ArrayAttr):
    """`array<i64: 8, 6>` as the type of a field."""

    attr_name = "builtin.dense_array"


class MeshOp(Dist.Operation, name="mesh"):
    """The mesh of the module: `"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=4"} : () -> ()`, one per module."""

    sym_name: ir.StringAttr
    axes: ir.StringAttr

    def verify_invariants(self) -> bool:
        axes = self.attributes.get("axes")
        if not require(
            self, isinstance(axes, ir.StringAttr), 'needs `axes`, for example "x=2, y=4"'
        ):
            return False
        try:
            Mesh.parse(axes.value)
        except LayoutError as error:
            return require(self, False, str(error))
        block = self.operation.block
        meshes = [o for o in block.operations if o.operation.name == "dist.mesh"]
        return require(self, len(meshes) == 1, f"one mesh per module, this one has {len(meshes)}")


class ConstrainOp(Dist.Operation, name="constrain", traits=[ext.Pure]):
    """This value has this layout: propagation keeps it, and ops that want another get a redistribute.

    Optional attributes: `open` (dims that may be sharded further), `replicated` (axes those dims may not use),
    `priorities` (one number a dim, smaller is stronger).
    """

    input: ext.Operand[Any]
    layout: LayoutAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _same_type(self) and layout_fits(
            self, self.attributes.get("layout"), self.operation.results[0].type, "layout"
        )


class RedistributeOp(Dist.Operation, name="redistribute", traits=[ext.Pure]):
    """Give `input` the layout `target`; the global value does not change. `source` is the layout it comes with.

    dist-legalize-redistribute adds `plan`, one dictionary a step.
    """

    input: ext.Operand[Any]
    source: LayoutAttr
    target: LayoutAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not _same_type(self):
            return False
        kind = self.operation.results[0].type
        return all(layout_fits(self, self.attributes.get(n), kind, n) for n in ("source", "target"))


class ToLocalOp(Dist.Operation, name="to_local"):
    """Into a region that is in the local view already: this rank's allocation of `input` in `layout`.

    Such a region is an `scf.execute_region` with the attribute `dist.manual` (Shardy's manual_computation): values
    enter by to_local, leave by to_global as what the region yields, and between them stand the ops and collectives of
    one rank.
    """

    input: ext.Operand[Any]
    layout: LayoutAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        op = self.operation
        return _local_fits(self, op.operands[0].type, op.results[0].type)


class ToGlobalOp(Dist.Operation, name="to_global"):
    """Out of a region in the local view: the global value of which `input` is this rank's allocation in `layout`."""

    input: ext.Operand[Any]
    layout: LayoutAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        op = self.operation
        return _local_fits(self, op.results[0].type, op.operands[0].type)


class AxisIndexOp(Dist.Operation, name="axis_index", traits=[ext.Pure]):
    """The linear coordinate of this rank over `axes`, first named major."""

    axes: ir.ArrayAttr
    output: ext.Result[ir.IndexType]

    def verify_invariants(self) -> bool:
        return _axes_ok(self)


class AllSliceOp(Dist.Operation, name="all_slice", traits=[ext.Pure]):
    """Keep piece k of g pieces of ceil(n / g) along `dim`; no bytes move."""

    input: ext.Operand[Any]
    axes: ir.ArrayAttr
    dim: ir.IntegerAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _axes_ok(self) and _shapes_ok(self, _split)


class AllGatherOp(Dist.Operation, name="all_gather", traits=[ext.Pure]):
    """Concatenate the members' tensors along `dim`, in member order; a shorter result is cut at its end."""

    input: ext.Operand[Any]
    axes: ir.ArrayAttr
    dim: ir.IntegerAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _axes_ok(self) and _shapes_ok(self, _joined)


class AllReduceOp(Dist.Operation, name="all_reduce", traits=[ext.Pure]):
    """Reduce the members' tensors elementwise with `kind`; every member gets the result."""

    input: ext.Operand[Any]
    axes: ir.ArrayAttr
    kind: ir.StringAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _axes_ok(self) and _kind_ok(self) and _same_type(self)


class ReduceScatterOp(Dist.Operation, name="reduce_scatter", traits=[ext.Pure]):
    """Reduce with `kind`, and keep piece k of g pieces of ceil(n / g) along `dim`."""

    input: ext.Operand[Any]
    axes: ir.ArrayAttr
    dim: ir.IntegerAttr
    kind: ir.StringAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _axes_ok(self) and _kind_ok(self) and _shapes_ok(self, _split)


class AllToAllOp(Dist.Operation, name="all_to_all", traits=[ext.Pure]):
    """Split `split_dim` into g pieces of ceil(n / g), send piece j to member j, and concatenate what comes along
    `concat_dim`, in member order; a shorter result is cut at its end."""

    input: ext.Operand[Any]
    axes: ir.ArrayAttr
    split_dim: ir.IntegerAttr
    concat_dim: ir.IntegerAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not _axes_ok(self):
            return False
        group = _group_size(self)
        shapes = _shapes(self)
        dims = [_integer(self, name) for name in ("split_dim", "concat_dim")]
        if shapes is None or group is None or not all(0 <= d < len(shapes[0]) for d in dims):
            return require(self, shapes is not None, "needs ranked tensors") and require(
                self, group is None, f"dims {dims} are not dims of the tensor"
            )
        (given, result), (split, concat) = shapes, dims
        if not require(self, split != concat, f"split_dim and concat_dim are both {split}"):
            return False
        wanted = list(given)
        wanted[split] = -(-given[split] // group)
        limit = given[concat] * group
        wanted[concat] = result[concat] if result[concat] <= limit else limit
        return require(self, wanted == result, f"{group} members make {wanted}, not {result}")


class PermuteOp(Dist.Operation, name="permute", traits=[ext.Pure]):
    """Member k receives the tensor of member `sources[k]`; `sources` is a permutation of 0..g-1."""

    input: ext.Operand[Any]
    axes: ir.ArrayAttr
    sources: ir.ArrayAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not (_axes_ok(self) and _same_type(self)):
            return False
        sources = self.attributes.get("sources")
        if not require(self, isinstance(sources, ir.ArrayAttr), "needs an array `sources`"):
            return False
        numbers = [a.value for a in sources]
        group = _group_size(self) or len(numbers)
        return require(
            self,
            sorted(numbers) == list(range(group)),
            f"sources {numbers} are no permutation of {group} members",
        )


class ExchangeOp(Dist.Operation, name="exchange", traits=[ext.Pure]):
    """The general all-to-all-v: from a rank's allocation in layout `source` to its allocation in layout `target`, of a
    tensor of global `shape`. Every element of the target comes once, from the nearest rank that holds it.

    `axes` name the group within which elements move; with none each rank rearranges what it holds itself. Padding of
    the result is undefined. Pending reductions stay pending: both layouts name the same.
    """

    input: ext.Operand[Any]
    axes: ir.ArrayAttr
    source: LayoutAttr
    target: LayoutAttr
    shape: I64Array
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not _axes_ok(self):
            return False
        shape = self.attributes.get("shape")
        if not require(
            self, isinstance(shape, ir.DenseI64ArrayAttr), "needs `shape`, as array<i64: 8, 6>"
        ):
            return False
        whole = _Whole(tuple(shape))
        ends = [self.attributes.get(n) for n in ("source", "target")]
        if not all(layout_fits(self, end, whole, n) for end, n in zip(ends, ("source", "target"))):
            return False
        mesh = mesh_of(self)
        if mesh is None or mesh.is_symbolic:
            return True
        source, target = (LayoutAttr(end).layout for end in ends)
        return require(
            self,
            pending(source, mesh) == pending(target, mesh),
            f"goes from {source} to {target}: pending reductions must be the same",
        ) and _allocations_ok(self, (source, target), mesh, whole)


COLLECTIVES = (
    AllSliceOp,
    AllGatherOp,
    AllReduceOp,
    ReduceScatterOp,
    AllToAllOp,
    PermuteOp,
    ExchangeOp,
)
"""The ops of the local view that look at other ranks, or at which rank this is."""


def axes_attr(axes: Sequence[str]) -> Any:
    """`axes` as the array of strings that the collectives carry."""
    return ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes])


def axes_of(op: Any) -> tuple[str, ...]:
    """The mesh axes a collective (or axis_index) names, major first."""
    return tuple(axis.value for axis in op.operation.attributes["axes"])


def _same_type(op: Any) -> bool:
    values = [*op.operation.operands, *op.operation.results]
    return require(op, len(values) == 2, "takes one operand and gives one result") and require(
        op,
        values[0].type == values[1].type,
        f"must keep the type, but goes from {values[0].type} to {values[1].type}",
    )


def _local_fits(op: Any, whole: Any, local: Any) -> bool:
    """Is `local` the type of a rank's allocation of `whole` in the op's layout? (`interface`, where dist-propagate has
    put blocks in its place.)"""
    attr = op.attributes.get("interface") or op.attributes.get("layout")
    if not layout_fits(op, attr, whole, "layout"):
        return False
    mesh = mesh_of(op)
    if mesh is None or mesh.is_symbolic or not isinstance(local, ir.RankedTensorType):
        return require(
            op, isinstance(local, ir.RankedTensorType), f"needs a ranked tensor, not {local}"
        )
    try:
        shape = list(LayoutAttr(attr).layout.allocation_shape(mesh, tuple(whole.shape)))
    except LayoutError as error:
        return require(op, False, str(error))
    return require(
        op,
        shape == list(local.shape) and whole.element_type == local.element_type,
        f"{whole} in layout {attr.value} is {shape} on a rank, not {local}",
    )


def _axes_ok(op: Any) -> bool:
    axes = op.attributes.get("axes")
    if not require(op, isinstance(axes, ir.ArrayAttr), 'needs an array `axes`, as ["x"]'):
        return False
    names = [axis.value for axis in axes if isinstance(axis, ir.StringAttr)]
    if not require(op, len(names) == len(axes), "axes must be strings") or not require(
        op, len(set(names)) == len(names), f"an axis stands twice in {names}"
    ):
        return False
    mesh = mesh_of(op)
    if mesh is None:
        return True
    unknown = [n for n in names if not mesh.has(n.partition(":")[0])]
    if not require(op, not unknown, f"no axis {', '.join(map(repr, unknown))} in mesh ({mesh})"):
        return False
    return _sub_axes_ok(op, names, mesh)


def _sub_axes_ok(op: Any, names: Sequence[str], mesh: Mesh) -> bool:
    """Sub-axes `x:(m)k` are parts of their axis, and no rank coordinate is named twice."""
    if not any(":" in name for name in names):
        return True
    try:
        ends = [(n, mesh.stride(n), mesh.stride(n) * mesh.size(n)) for n in names]
    except LayoutError as error:
        return require(op, False, str(error))
    for (one, low, high), (other, begin, end) in combinations(ends, 2):
        if max(low, begin) < min(high, end):
            return require(op, False, f"axes {one} and {other} overlap")
    return True


def _kind_ok(op: Any) -> bool:
    kind = op.attributes.get("kind")
    value = kind.value if isinstance(kind, ir.StringAttr) else None
    return require(op, value in KINDS, f"unknown reduction {value!r}: known are {', '.join(KINDS)}")


def _integer(op: Any, name: str) -> int:
    """The integer attribute `name`, -1 where it is missing."""
    value = op.attributes.get(name)
    return value.value if isinstance(value, ir.IntegerAttr) else -1


def _group_size(op: Any) -> "int | None":
    """Members of the op's groups; None while that is not known (no mesh, or a symbolic one)."""
    mesh = mesh_of(op)
    if mesh is None or mesh.is_symbolic:
        return None
    return math.prod(mesh.size(axis) for axis in axes_of(op))


@dataclass(frozen=True)
class _Whole:
    """A global tensor that only an attribute tells of."""

    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"a tensor of shape {list(self.shape)}"


def _allocations_ok(op: Any, layouts: Sequence[Layout], mesh: Mesh, whole: _Whole) -> bool:
    """Operand and result are what a rank allocates of `whole` in each of the two layouts."""
    shapes = _shapes(op)
    if not require(op, shapes is not None, "needs one ranked tensor and gives one"):
        return False
    for layout, given, name in zip(layouts, shapes, ("operand", "result")):
        right = list(layout.allocation_shape(mesh, whole.shape))
        text = f"{whole} in layout {layout} is {right} on a rank, the {name} is {given}"
        if not require(op, right == given, text):
            return False
    types = [value.type.element_type for value in (op.operands[0], op.results[0])]
    return require(op, types[0] == types[1], f"must keep the element type {types[0]}")


def _shapes(op: Any) -> "tuple[list[int], list[int]] | None":
    operands, results = op.operation.operands, op.operation.results
    if len(operands) != 1 or len(results) != 1:
        return None
    types = (operands[0].type, results[0].type)
    if not all(isinstance(t, ir.RankedTensorType) for t in types):
        return None
    return list(types[0].shape), list(types[1].shape)


def _split(n: int, group: int, _result: int) -> int:
    return -(-n // group)


def _joined(n: int, group: int, result: int) -> int:
    return min(n * group, result)


def _shapes_ok(op: Any, extent: Any) -> bool:
    """The result differs from the operand in `dim` alone, where it is `extent(n, g, result)`."""
    shapes, dim = _shapes(op), _integer(op, "dim")
    if not require(op, shapes is not None, "needs one ranked tensor and gives one"):
        return False
    given, result = shapes
    if not require(
        op, 0 <= dim < len(given), f"dim {dim} is not a dim of a {len(given)}-dim tensor"
    ):
        return False
    group = _group_size(op)
    if group is None:
        return True
    wanted = list(given)
    wanted[dim] = extent(given[dim], group, result[dim] if len(result) == len(given) else -1)
    return require(op, wanted == result, f"{group} members make {wanted} of {given}, not {result}")
