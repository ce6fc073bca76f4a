"""Merge several small all_reduces: what dist-fuse-collectives does last; its docstring has the rule."""

from dataclasses import dataclass
from math import inf, prod

from meshweave.dialects.dist import axes_attr, axes_of
from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import OpBuilder, i64, tensor_type
from meshweave.ir.ops import replace_op
from meshweave.layout.mesh import Mesh
from meshweave.plan import cost
from meshweave.transforms.communication.fusion.chains import group_of
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.values import is_free, item_bytes

_NO_TIME = (
    "tensor.expand_shape",
    "tensor.collapse_shape",
    "tensor.cast",
    "tensor.extract_slice",
    "arith.constant",
    "dist.axis_index",
    "dist.all_slice",
)
_OPEN = 4  # all_reduces that more may join, of each group, kind and type
_MULTIPLY_ADD = 1e-10  # seconds of one step of a loop nest; real kernels take less
_NOWHERE = 1 << 62


class BlockOrder:
    """Keep the ops of a block and their places up to date while some are replaced."""

    def __init__(self, block: ir.Block) -> None:
        self.block = block
        self.ops: list[ir.Operation] = [view.operation for view in block.operations]
        # By result: an op itself has another hash when its operands have changed.
        self._where: dict[ir.Value, int] = {
            op.results[0]: at for at, op in enumerate(self.ops) if len(op.results)
        }
        self._seconds: dict[int, float] = {}

    def at(self, op: ir.Operation) -> int:
        """Return the place of an op, or of the op of this block that it is in; -1 for one before the block."""
        while op is not None:
            if op.block == self.block:
                return self._own(op)
            if op.parent is None or op.parent.operation.name == "builtin.module":
                return -1
            op = op.parent.operation
        return -1

    def _own(self, op: ir.Operation) -> int:
        if len(op.results):
            return self._where[op.results[0]]
        last = len(self.ops) - 1
        return next(at for at in range(last, -1, -1) if self.ops[at] == op)

    def made_at(self, value: ir.Value) -> int:
        """Return the place of what makes a value; -1 where it comes from outside of the block."""
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.operation.block != self.block:
            return -1
        return self._where[owner.operation.results[0]]

    def first_reader(self, value: ir.Value) -> int:
        """Return the place of the first op that reads a value."""
        return min((self.at(use.owner.operation) for use in value.uses), default=_NOWHERE)

    def put(self, op: ir.Operation, place: ir.Operation) -> None:
        """Note that `op` takes the place of `place`, which will go."""
        at = self._where[op.results[0]] = self._where[place.results[0]]
        self.ops[at] = op

    def leaves(self, op: ir.Operation) -> None:
        """Note that `op` will move: what is moved over its place does not wait for it."""
        self._seconds[self._where[op.results[0]]] = 0.0

    def replace(self, op: ir.Operation, value: ir.Value) -> None:
        """Let all readers of `op` read `value`, and remove it."""
        self._forget(op)
        replace_op(op, [value])

    def erase(self, op: ir.Operation) -> None:
        """Remove `op`, which nothing reads."""
        self._forget(op)
        op.erase()

    def _forget(self, op: ir.Operation) -> None:
        at = self._where.pop(op.results[0])
        if self.ops[at] == op:
            self.ops[at] = None
        self._seconds.pop(at, None)

    def only_views(self, first: ir.Operation, last: ir.Operation) -> bool:
        """Tell whether nothing between two ops of the block takes time."""
        return self.between(self.at(first), self.at(last), 0.0) == 0.0

    def between(self, first: int, last: int, limit: float) -> float:
        """Sum the seconds of the ops between two places; anything above `limit` once it is passed."""
        total = 0.0
        for at in range(first + 1, last):
            total += self._cost(at)
            if total > limit:
                break
        return total

    def _cost(self, at: int) -> float:
        if at not in self._seconds:
            self._seconds[at] = _seconds(self.ops[at])
        return self._seconds[at]


def _seconds(op: ir.Operation) -> float:
    """Estimate what an op takes, too much rather than too little; None is an op that is gone."""
    if op is None or op.name in _NO_TIME or is_free(op):
        return 0.0
    values = [v for v in (*op.operands, *op.results) if is_tensor(v.type)]
    if op.name.startswith("dist.") or (len(op.regions) and not op.name.startswith("linalg.")):
        return inf
    if not values:
        return 0.0
    maps = linalg.get_indexing_maps(op.opview) if op.name.startswith("linalg.") else None
    nbytes = sum(_nbytes(v.type) for v in values)
    if maps is None:
        return inf if op.name.startswith("linalg.") else cost.copy_seconds(nbytes)
    return max(_MULTIPLY_ADD * _iterations(op, list(maps)), cost.copy_seconds(nbytes))


def _iterations(op: ir.Operation, maps: list[ir.AffineMap]) -> int:
    """Count the steps of the loop nest of a linalg op."""
    extents: dict[int, int] = {}
    for value, attr in zip(op.operands, maps):
        map_ = attr.value if isinstance(attr, ir.AffineMapAttr) else attr
        if not is_tensor(value.type):
            continue
        for expr, extent in zip(map_.results, value.type.shape):
            if isinstance(expr, ir.AffineDimExpr):
                extents[expr.position] = extent
    return prod(extents.values())


def _nbytes(type_: ir.Type) -> int:
    count: int = prod(type_.shape)
    return count * item_bytes(type_.element_type)


@dataclass
class _Bucket:
    """Collect all_reduces that become one.

    at, place: the one of them where it will stand.
    reader:    the first place where any is read.
    waits:     seconds that the first of them stands later than it did.
    """

    members: list[ir.Operation]
    at: ir.Operation
    place: int
    reader: int
    nbytes: int
    waits: float = 0.0


def merge_small(ops: list[ir.Operation], order: BlockOrder, mesh: Mesh, max_bytes: int) -> None:
    """Merge all_reduces of `ops`, which are in no particular order, as far as it pays."""
    buckets: dict[tuple[tuple[str, ...], ir.Attribute, ir.Type], list[_Bucket]] = {}
    for op in sorted(ops, key=order.at):
        type_, axes = op.results[0].type, group_of(mesh, axes_of(op))
        nbytes = _nbytes(type_)
        saved = _saved(mesh, axes)
        if not nbytes or nbytes > max_bytes or saved <= _copies(nbytes):
            continue
        key = (axes, op.attributes["kind"], type_.element_type)
        known = buckets.setdefault(key, [])
        here = _Bucket([op], op, order.at(op), order.first_reader(op.results[0]), nbytes)
        if not any(_joins(bucket, here, order, saved, max_bytes) for bucket in known[-_OPEN:]):
            known.append(here)
    for (axes, kind, _), found in buckets.items():
        for bucket in found:
            if len(bucket.members) > 1:
                _merge(bucket, axes, kind, order)


def _saved(mesh: Mesh, axes: tuple[str, ...]) -> float:
    """Estimate the seconds that an all_reduce takes however small it is."""
    link = cost.link_of(mesh, axes)
    return cost.seconds("all_reduce", 0, mesh.axis_count(axes), link)


def _copies(nbytes: int) -> float:
    """Estimate the seconds to copy `nbytes` in and out."""
    return 2 * cost.copy_seconds(nbytes)


def _joins(bucket: _Bucket, new: _Bucket, order: BlockOrder, saved: float, max_bytes: int) -> bool:
    """Put the one all_reduce of `new` into `bucket`, if it may go there and that pays. Return whether it did."""
    moved = new.nbytes + (bucket.nbytes if len(bucket.members) == 1 else 0)
    if bucket.nbytes + new.nbytes > max_bytes or saved <= _copies(moved):
        return False
    (op,) = new.members
    if order.made_at(op.operands[0]) < bucket.place and not _reads_all_reduce(op):
        order.leaves(op)
    else:
        waits = bucket.waits + order.between(bucket.place, new.place, saved)
        if new.place >= bucket.reader or waits > saved:
            return False
        order.leaves(bucket.at)
        bucket.waits, bucket.place, bucket.at = waits, new.place, op
    bucket.members.append(op)
    bucket.reader = min(bucket.reader, new.reader)
    bucket.nbytes += new.nbytes
    return True


def _reads_all_reduce(op: ir.Operation) -> bool:
    """Tell whether the operand is itself an all_reduce, which may move: then `op` does not move to the front."""
    owner = op.operands[0].owner
    return not isinstance(owner, ir.Block) and owner.operation.name == "dist.all_reduce"


def _merge(bucket: _Bucket, axes: tuple[str, ...], kind: ir.Attribute, order: BlockOrder) -> None:
    """Make one all_reduce of the elements of all members back to back."""
    first = bucket.members[0]
    element = first.results[0].type.element_type
    b = OpBuilder.before(bucket.at)
    counts = [prod(op.results[0].type.shape) for op in bucket.members]
    row = tensor_type([sum(counts)], element)
    whole = b.one(
        "tensor.concat", row, *[_flat(b, op.operands[0]) for op in bucket.members], dim=i64(0)
    )
    reduced = b.one("dist.all_reduce", row, whole, axes=axes_attr(axes), kind=kind)
    parts, start = [], 0
    for op, count in zip(bucket.members, counts):
        part = b.extract_slice(reduced, tensor_type([count], element), [start])
        parts.append(_shaped(b, part, op.results[0].type))
        start += count
    for op, part in zip(bucket.members, parts):  # last: the place is one of them
        order.replace(op, part)


def _flat(b: OpBuilder, value: ir.Value) -> ir.Value:
    """Return the elements of a tensor in a row."""
    type_ = value.type
    row, ndim = tensor_type([prod(type_.shape)], type_.element_type), len(type_.shape)
    if ndim == 1:
        return value
    return b.collapse_shape(value, row, [range(ndim)]) if ndim else b.expand_shape(value, row, [])


def _shaped(b: OpBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Undo `_flat`: return the elements as a tensor of `type_`."""
    ndim = len(type_.shape)
    if ndim == 1:
        return value
    if ndim:
        return b.expand_shape(value, type_, [range(ndim)])
    return b.collapse_shape(value, type_, [])
