"""Define the `dist` dialect: a mesh, where tensors lie on it, and the moves between.

Two views. *Global*: types are those of whole tensors, layouts stand on function arguments and results and in
`dist.constrain` / `dist.redistribute`. *Local*, after dist-partition: types are those of one rank's allocations, and
the collectives are explicit. A collective names mesh `axes`; its group are the ranks that agree in all other
coordinates, numbered by their linear coordinate over `axes` (the first named is major). `g` below is the size of the
group.
"""

# No `from __future__ import annotations` here: the field types are read as classes.
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from meshweave.dialects.checks import layout_fits, mesh_of, require, same_type
from meshweave.dialects.kept import kept_definition
from meshweave.dialects.rows import mixed_rows
from meshweave.errors import LayoutError
from meshweave.ir.bindings import ext, ir
from meshweave.layout.algebra import pending
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.collectives import BY_OP

COMPLEX = "dist.complex"
"""Mark of an argument or result that is complex for its user: the last dim, of 2, holds both parts."""
BITS = "dist.bits"
"""Attribute of an argument or result of bytes: the type of elements that its user sees in them, "f8E4M3FN" or "i4"."""
DONATE, TAKES = "dist.donate", "dist.takes"
UNSIGNED = "dist.unsigned"  # of an argument or result: its integers have no sign for who calls
WEIGHT = (
    "dist.weight"  # of an argument of @main that the program has itself: the SHA-256 of its value
)
"""Attributes of an argument that may be written ("preferred" or "required"), and of the result that takes its buffer,
with the argument's number."""
LENGTH, LEAST, LENGTHS, MERGED = "dist.length", "dist.least", "dist.lengths", "dist.merged"
"""Attributes of sizes that each call chooses: of an argument that is one its name, and the least that it may be; of an
argument or result with such dims what each dim is, a name or a sum such as "n + 1", or ""; of a result how many dims
make one that its user sees."""
DONATIONS = "dist.donations"
"""Attribute of the module: what became of each donation."""
KINDS = ("sum", "max", "min", "prod", "avg")
"""Reductions that a partial value or a collective may name."""


@kept_definition
class Dist(ext.Dialect, name="dist"):
    """Say where tensors lie on a mesh of devices."""


class LayoutAttr(Dist.Attribute, name="layout"):
    """Hold a layout as text, `#dist.layout<"[x, _] +sum(y)">`. The op that carries it checks it."""

    text: ir.StringAttr

    @classmethod
    def make(cls, layout: "Layout | str") -> ir.Attribute:
        """Return the attribute for `layout` in the current context."""
        return cls.get(ir.StringAttr.get(str(layout)))

    @property
    def value(self) -> str:
        """Return the layout text."""
        text: str = ir.StringAttr(self.text).value
        return text

    @property
    def layout(self) -> Layout:
        """Return the layout. Raises LayoutError when the text cannot be read."""
        return Layout.parse(self.value)


class I64Array(ir.DenseI64ArrayAttr):
    """Let a field of an op have the type `array<i64: 8, 6>`."""

    attr_name = "builtin.dense_array"


def _collective_fits(op: ir.Operation) -> bool:
    """Verify a collective by its row in plan/collectives.py: its group, its details, and the shape that it makes."""
    row, found = BY_OP[op.operation.name.removeprefix("dist.")], _group(op)
    if found is None or not ("kind" not in row.details or _kind_ok(op)):
        return False
    group = found[0]
    if not row.has_dims:
        return same_type(op) and ("sources" not in row.details or _sources_ok(op, group))
    types = _local_types(op)
    if types is None:
        return False
    given, result = (list(type_.shape) for type_ in types)
    attributes = {name: op.attributes.get(name) for name in (row.cuts, row.joins) if name}
    dims = {n: a.value if isinstance(a, ir.IntegerAttr) else -1 for n, a in attributes.items()}
    for name, dim in dims.items():
        text = f"{name} {dim} is not a dim of a {len(given)}-dim tensor"
        if not require(op, 0 <= dim < len(given), text):
            return False
    if not require(op, len({*dims.values()}) == len(dims), f"{' and '.join(dims)} are one dim"):
        return False
    if group is None:
        return True
    like = result if len(result) == len(given) else [0] * len(given)
    wanted = row.shape(given, group, dims, like)
    return require(op, wanted == result, f"{group} members make {wanted} of {given}, not {result}")


def _kind_ok(op: ir.Operation) -> bool:
    kind = op.attributes.get("kind")
    value = kind.value if isinstance(kind, ir.StringAttr) else None
    return require(op, value in KINDS, f"unknown reduction {value!r}: known are {', '.join(KINDS)}")


def _sources_ok(op: ir.Operation, group: "int | None") -> bool:
    sources = op.attributes.get("sources")
    if not require(op, isinstance(sources, ir.ArrayAttr), "needs an array `sources`"):
        return False
    numbers, members = [a.value for a in sources], group or len(sources)
    text = f"sources {numbers} are no permutation of {members} members"
    return require(op, sorted(numbers) == list(range(members)), text)


def _local_types(op: ir.Operation) -> "list[ir.Type] | None":
    """Return the types of the one operand and the one result; None, with an error, unless they are ranked tensors."""
    values = [*op.operation.operands, *op.operation.results]
    types = [v.type for v in values if isinstance(v.type, ir.RankedTensorType)]
    right = len(types) == len(values) == 2
    return types if require(op, right, "needs one ranked tensor and gives one") else None


def _allocation_fits(
    op: ir.Operation, whole: ir.Type, local: ir.Type, what: str = "layout"
) -> bool:
    """Check that `local` is the type of a rank's allocation of `whole` in the layout that the attribute `what` says.

    The attribute `interface` has the `layout` where dist-propagate has put blocks in its place.
    """
    attr = (op.attributes.get("interface") if what == "layout" else None) or op.attributes.get(what)
    if not layout_fits(op, whole, what, attr):
        return False
    text = f"needs a ranked tensor, not {local}"
    if not require(op, isinstance(local, ir.RankedTensorType), text):
        return False
    mesh = mesh_of(op)
    if mesh is None or mesh.is_symbolic:
        return True
    try:
        shape = list(LayoutAttr(attr).layout.allocation_shape(mesh, tuple(whole.shape)))
    except LayoutError as error:
        return require(op, False, str(error))
    return require(
        op,
        shape == list(local.shape) and whole.element_type == local.element_type,
        f"{whole} in layout {attr.value} is {shape} on a rank, not {local}",
    )


def _group(op: ir.Operation) -> "tuple[int | None] | None":
    """Count the members of the op's groups, where the mesh is known; None, with an error, where `axes` is wrong."""
    axes = op.attributes.get("axes")
    if not require(op, isinstance(axes, ir.ArrayAttr), 'needs an array `axes`, as ["x"]'):
        return None
    names = [axis.value for axis in axes if isinstance(axis, ir.StringAttr)]
    if not require(op, len(names) == len(axes), "axes must be strings") or not require(
        op, len(set(names)) == len(names), f"an axis stands twice in {names}"
    ):
        return None
    mesh = mesh_of(op)
    if mesh is None:
        return (None,)
    unknown = [n for n in names if not mesh.has(n.partition(":")[0])]
    if not require(op, not unknown, f"no axis {', '.join(map(repr, unknown))} in mesh ({mesh})"):
        return None
    return (None,) if mesh.is_symbolic else _members(op, names, mesh)


def _members(op: ir.Operation, names: Sequence[str], mesh: Mesh) -> "tuple[int] | None":
    """Count the ranks over axes, of which sub-axes `x:(m)k` are parts of their axis and none overlap."""
    try:
        ends = [(n, mesh.stride(n), mesh.stride(n) * mesh.size(n)) for n in names]
    except LayoutError as error:
        require(op, False, str(error))
        return None
    for (one, low, high), (other, begin, end) in combinations(ends, 2):
        if max(low, begin) < min(high, end) and ":" in one + other:
            require(op, False, f"axes {one} and {other} overlap")
            return None
    return (mesh.axis_count(names),)


class MeshOp(Dist.Operation, name="mesh"):
    """Declare the mesh of the module, once: `"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=4"} : () -> ()`."""

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
    """Fix the layout of a value: propagation keeps it, and ops that want another get a redistribute.

    Optional attributes: `open` (dims that may be sharded further), `replicated` (axes those dims may not use),
    `priorities` (one number a dim, smaller is stronger).
    """

    input: ext.Operand[Any]
    layout: LayoutAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return same_type(self) and layout_fits(self, self.operation.results[0].type)


class RedistributeOp(Dist.Operation, name="redistribute", traits=[ext.Pure]):
    """Give `input` the layout `target`; the global value does not change. `source` is the layout it comes with.

    dist-legalize-redistribute adds `plan`, one dictionary a step.
    """

    input: ext.Operand[Any]
    source: LayoutAttr
    target: LayoutAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        type_ = self.operation.results[0].type
        return same_type(self) and all(layout_fits(self, type_, n) for n in ("source", "target"))


class ToLocalOp(Dist.Operation, name="to_local"):
    """Enter a region that is in the local view already: give this rank's allocation of `input` in `layout`.

    Such a region is an `scf.execute_region` with the attribute `dist.manual` (Shardy's manual_computation): values
    enter by to_local, leave by to_global as what the region yields, and between them stand the ops and collectives of
    one rank.
    """

    input: ext.Operand[Any]
    layout: LayoutAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        op = self.operation
        return _allocation_fits(self, op.operands[0].type, op.results[0].type)


class ToGlobalOp(Dist.Operation, name="to_global"):
    """Leave a region in the local view.

    The result is the global value of which `input` is this rank's allocation in `layout`.
    """

    input: ext.Operand[Any]
    layout: LayoutAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        op = self.operation
        return _allocation_fits(self, op.results[0].type, op.operands[0].type)


class AxisIndexOp(Dist.Operation, name="axis_index", traits=[ext.Pure]):
    """Give the linear coordinate of this rank over `axes`, first named major."""

    axes: ir.ArrayAttr
    output: ext.Result[ir.IndexType]

    def verify_invariants(self) -> bool:
        return _group(self) is not None


class _CollectiveOp(Dist.Operation, traits=[ext.Pure]):
    """Move pieces among the groups over `axes`, as its row in plan/collectives.py says."""

    input: ext.Operand[Any]
    axes: ir.ArrayAttr
    output: ext.Result[Any]

    verify_invariants = _collective_fits


class AllSliceOp(_CollectiveOp, name="all_slice"):
    """Keep piece k of g pieces of ceil(n / g) along `dim`; no bytes move."""

    dim: ir.IntegerAttr


class AllGatherOp(_CollectiveOp, name="all_gather"):
    """Concatenate the members' tensors along `dim`, in member order; a shorter result is cut at its end."""

    dim: ir.IntegerAttr


class AllReduceOp(_CollectiveOp, name="all_reduce"):
    """Reduce the members' tensors elementwise with `kind`; every member gets the result."""

    kind: ir.StringAttr


class ReduceScatterOp(_CollectiveOp, name="reduce_scatter"):
    """Reduce with `kind`, and keep piece k of g pieces of ceil(n / g) along `dim`."""

    dim: ir.IntegerAttr
    kind: ir.StringAttr


class AllToAllOp(_CollectiveOp, name="all_to_all"):
    """Split `split_dim` into g pieces of ceil(n / g), and send piece j to member j.

    What comes is concatenated along `concat_dim`, in member order; a shorter result is cut at its end.
    """

    split_dim: ir.IntegerAttr
    concat_dim: ir.IntegerAttr


class PermuteOp(_CollectiveOp, name="permute"):
    """Receive, as member k, the tensor of member `sources[k]`; `sources` is a permutation of 0..g-1."""

    sources: ir.ArrayAttr


class ExchangeOp(Dist.Operation, name="exchange", traits=[ext.Pure]):
    """Move a tensor of global `shape` from a rank's allocation in `source` to its allocation in `target`.

    This is the general all-to-all-v between two layouts. Every element of the target comes once, from the nearest
    rank that holds it.

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
        shape, local = self.attributes.get("shape"), _local_types(self)
        if _group(self) is None or local is None or not require(
            self, isinstance(shape, ir.DenseI64ArrayAttr), "needs `shape`, as array<i64: 8, 6>"
        ):  # fmt: skip
            return False
        whole = ir.RankedTensorType.get(list(shape), local[0].element_type, loc=self.location)
        names = ("source", "target")
        if not all(_allocation_fits(self, whole, *end) for end in zip(local, names)):
            return False
        mesh, ends = mesh_of(self), [LayoutAttr(self.attributes[name]).layout for name in names]
        return mesh is None or mesh.is_symbolic or require(
            self,
            pending(ends[0], mesh) == pending(ends[1], mesh),
            f"goes from {ends[0]} to {ends[1]}: pending reductions must be the same",
        )  # fmt: skip


@mixed_rows
class MergeOp(Dist.Operation, name="merge", traits=[ext.Pure]):
    """Join rows that each member has in order to rows in order along `dim`, of which member k gets part k.

    The first tensor says which order: see `mw.order`, whose marks it has. All are of one shape, and the elements of the
    others move as its elements do. Of equal ones those of earlier members come first, and else stay in their order.
    """

    values: Sequence[ext.Operand[Any]]
    outputs: Sequence[ext.Result[Any]]
    axes: ir.ArrayAttr
    dim: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        return _group(self) is not None and sorts(self)


def sorts(op: ir.Operation, more: int = 0) -> bool:
    """Verify an op that puts tensors of one shape in order along `dim`, and gives some `more` results."""
    given, made = ([v.type for v in row] for row in (op.operation.operands, op.operation.results))
    made = made[: len(made) - more]
    ranked = all(isinstance(t, ir.RankedTensorType) for t in given)
    text = "needs ranked tensors of one shape, and gives as many of their types"
    if not require(op, ranked and bool(given) and given == made, text) or not require(
        op, len({tuple(t.shape) for t in given}) == 1, text
    ):
        return False
    dim, ndim = op.attributes.get("dim"), len(given[0].shape)
    inside = isinstance(dim, ir.IntegerAttr) and 0 <= dim.value < ndim
    return require(op, inside, f"dim must be one of the {ndim} dims")


COLLECTIVES = (
    AllSliceOp,
    AllGatherOp,
    AllReduceOp,
    ReduceScatterOp,
    AllToAllOp,
    PermuteOp,
    ExchangeOp,
    MergeOp,
)
"""The ops of the local view that look at other ranks, or at which rank this is."""


def axes_attr(axes: Sequence[str]) -> ir.Attribute:
    """Return `axes` as the array of strings that the collectives carry."""
    return ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes])


def axes_of(op: ir.Operation) -> tuple[str, ...]:
    """Return the mesh axes that a collective (or axis_index) names, major first."""
    return tuple(axis.value for axis in op.operation.attributes["axes"])
