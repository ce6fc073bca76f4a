"""Lower torch-mlir's own dialect (tm_tensor), for which linalg has no op: scan, sort and scatter to ours."""

from collections.abc import Callable, Sequence
from functools import partial

from meshweave.errors import CompileError
from meshweave.frontends.torch.flat import Digit, Flat, columns, flat_parts
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import (
    OpBuilder,
    Values,
    predicate,
    static_offsets,
    static_sizes,
    static_strides,
    tensor_type,
)
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, is_used, move_body, ops_named, producer, replace_op
from meshweave.ir.scans import scan
from meshweave.ir.scatters import scatter
from meshweave.ir.sorting import Order, sort
from meshweave.ir.sorting import first as first_of
from meshweave.ir.wanted import FEW

_Int, _Float = arith.CmpIPredicate, arith.CmpFPredicate
_ASCENDING = {
    "arith.cmpf": (_Float.OLT, _Float.OLE),
    "arith.cmpi": (_Int.slt, _Int.sle, _Int.ult, _Int.ule),
}
_DESCENDING = {
    "arith.cmpf": (_Float.OGT, _Float.OGE),
    "arith.cmpi": (_Int.sgt, _Int.sge, _Int.ugt, _Int.uge),
}


def lower_tm_tensor(module: ir.Module) -> None:
    """Lower all ops of the dialect. Raises CompileError for one in another form.

    Only the module's own wrapper stays valid.
    """
    for op in ops_named(module.operation, *_LOWER):
        results = _LOWER[op.name](op, OpBuilder.before(op))
        for old, new in zip(op.results, results):
            old.replace_all_uses_with(new)
        if any(map(is_used, op.results)):
            raise CompileError(f"not supported: {op.name} of this form", location_text(op.location))
        op.erase()


def _scan(op: ir.Operation, b: OpBuilder) -> list[ir.Value]:
    """Combine each element along a dim with what came before it. No op of torch reads the second result, the totals."""
    source = op.operands[0]
    dim, inclusive = (ir.IntegerAttr(op.attributes["dimension"]).value, op.attributes["inclusive"])
    if not ir.BoolAttr(inclusive).value:
        raise CompileError("not supported: an exclusive scan", location_text(op.location))
    block, shape, element = body_of(op), list(source.type.shape), source.type.element_type
    start = _NEUTRAL.get(block.operations[0].operation.name)
    if len(block.operations) != 2 or start is None:
        raise CompileError("not supported: a scan with this body", location_text(op.location))
    kind = ir.FloatAttr if isinstance(element, ir.FloatType) else ir.IntegerAttr
    rest = tensor_type([*shape[:dim], *shape[dim + 1 :]], element)
    begin = b.one("tensor.splat", rest, b.constant(kind.get(element, start)))
    return scan(b, [source], [begin], dim, lambda k, pair: _applied(k, block, pair))


_NEUTRAL = {"arith.addf": -0.0, "arith.addi": 0, "arith.mulf": 1.0, "arith.muli": 1}


def _applied(k: OpBuilder, block: ir.Block, scalars: Values) -> list[ir.Value]:
    """Move the ops of a region of scalars here; return what it yields. A block can be applied once."""
    for argument, scalar in zip(block.arguments, scalars, strict=True):
        argument.replace_all_uses_with(scalar)
    return move_body(block, k.ip)


def _sort(op: ir.Operation, b: OpBuilder) -> list[ir.Value]:
    """Sort stably, NaNs as the largest, as torch does. Only the direction of upstream's comparator counts.

    Of what torch's topk takes of the result, no more is put in order.
    """
    test, *others = (o.operation for o in body_of(op).operations)
    known = len(others) == 1 and test.name in _ASCENDING
    descends = known and predicate(test) in _DESCENDING[test.name]
    if not known or not (descends or predicate(test) in _ASCENDING[test.name]):
        raise CompileError("not supported: sort with this order", location_text(op.location))
    dim, inputs = ir.IntegerAttr(op.attributes["dimension"]).value, list(op.operands)
    shape = list(inputs[0].type.shape)
    if not shape:
        return inputs
    first = [slice_ for result in op.results for slice_ in _first(result, dim)]
    count = max([s.results[0].type.shape[dim] for s in first], default=shape[dim])
    if len(first) != sum(len(list(result.uses)) for result in op.results):
        count = shape[dim]
    if count == shape[dim] or count * FEW > shape[dim]:
        return _sorted(b, inputs, dim, Order(descending=descends))
    *made, _ = first_of(b, inputs, dim, count, Order(descending=descends))
    for slice_ in first:
        type_ = slice_.results[0].type
        number = ir.OpResult(slice_.operands[0]).result_number
        taken_ = OpBuilder.before(slice_).extract_slice(made[number], type_, [0] * len(shape))
        replace_op(slice_, [taken_])
    return made


def _sorted(b: OpBuilder, inputs: Values, dim: int, how: Order) -> list[ir.Value]:
    """Put tensors in the order of the first; of one that holds the places along the dim that is that order itself."""
    moved = [v for k, v in enumerate(inputs) if k == 0 or not _counts(v, dim)]
    *made, places = sort(b, moved, dim, how)
    found = dict(zip(moved, made, strict=True))

    def wide(inner: OpBuilder, given: list[ir.Value], kind: ir.Type) -> ir.Value:
        return inner.one("arith.extsi", kind, given[0])

    return [
        found[v]
        if v in found
        else b.elementwise([places], b.empty(v.type), partial(wide, kind=v.type.element_type))
        for v in inputs
    ]


def _counts(value: ir.Value, dim: int) -> bool:
    """Tell whether a tensor of i64 holds the places along a dim."""
    made = producer(value)
    if made is None or made.name != "linalg.generic" or len(made.operands) != 1:
        return False
    index, *rest = [o.operation for o in body_of(made).operations]
    (map_,) = made.attributes["indexing_maps"]
    plain = [o.name for o in rest] == ["arith.index_cast", "linalg.yield"]
    identity = map_.value == ir.AffineMap.get_identity(len(value.type.shape))
    wide = str(value.type.element_type) == "i64"
    return bool(
        index.name == "linalg.index"
        and plain
        and identity
        and wide
        and index.attributes["dim"].value == dim
    )


def _first(value: ir.Value, dim: int) -> list[ir.Operation]:
    """Return the ops that take the first elements of a tensor along `dim`, and all along other dims."""
    found = []
    for use in value.uses:
        op = use.owner.operation
        if op.name != "tensor.extract_slice" or len(op.operands) != 1:
            continue
        sizes, whole = static_sizes(op), list(value.type.shape)
        others = [d for d in range(len(whole)) if d != dim]
        plain = not any(static_offsets(op)) and set(static_strides(op)) <= {1}
        if plain and len(op.results[0].type.shape) == len(whole):
            found += [op] if all(sizes[d] == whole[d] for d in others) else []
    return found


def _scatter(op: ir.Operation, b: OpBuilder) -> list[ir.Value]:
    """Make one update after the other, each window of `updates` where its row of `indices` says.

    A negative index counts from the end; an update that lies outside is dropped.
    """
    updates, indices, original = op.operands
    if 0 in original.type.shape:
        return [original]
    plain = len(updates.type.shape) == 1
    merged = flat_parts([*columns(indices), updates]) if plain else None
    made = None if merged is None else _of_merged(op, b, *merged)
    return _of_rows(op, b) if made is None else made


def _of_rows(op: ir.Operation, b: OpBuilder) -> list[ir.Value]:
    """Make a scatter with a loop for each dim of the updates."""
    updates, indices, original = op.operands
    dims = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
    block, shape, sizes = body_of(op), list(original.type.shape), list(updates.type.shape)
    skipped = len(shape) - (len(sizes) - 1)
    windows = {d: d - skipped + 1 for d in range(skipped, len(shape))}
    placed = [d for d in range(len(shape)) if d in dims or sizes[windows[d]] != shape[d]]
    to = [len(sizes) + placed.index(d) if d in placed else windows[d] for d in range(len(shape))]
    one = tensor_type(sizes[:1], indices.type.element_type)
    starts = [b.extract_slice(indices, one, [0, k], [sizes[0], 1]) for k in range(len(dims))]

    def update(
        k: OpBuilder, at: list[ir.Value], elements: list[ir.Value], old: list[ir.Value]
    ) -> tuple[ir.Value, Values, Values]:
        places = []
        for d in placed:
            place = _start(k, elements[dims.index(d)], shape[d]) if d in dims else k.index(0)
            places.append(k.binary("addi", place, at[windows[d]]) if d in windows else place)
        return _always(k), places, _applied(k, block, [elements[-1], *old])

    rows = [*[[0]] * len(starts), list(range(len(sizes)))]
    return scatter(b, [*starts, updates], rows, [original], to, update)


def _of_merged(
    op: ir.Operation, b: OpBuilder, parts: Sequence[Flat], digits: Sequence[Digit]
) -> list[ir.Value] | None:
    """Make a scatter with a loop for each dim that torch-mlir has merged; None where nothing runs with one of them."""
    *starts, source = parts
    dims = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
    block, shape = body_of(op), list(op.operands[2].type.shape)
    read = [part for part in parts if part.tensor is not None]
    if source.tensor is None or {d for part in read for d in part.digits} != set(digits):
        return None
    loops = [digits.index(part.digits[0]) for part in starts]
    to: list[int] = []
    placed: list[int] = []
    for d, size in enumerate(shape):
        part, loop = starts[dims.index(d)], loops[dims.index(d)]
        if part.tensor is None and part.digits[0][1] == size and loop not in to:
            to.append(loop)
        else:
            to.append(len(digits) + len(placed))
            placed.append(d)

    def update(
        k: OpBuilder, at: list[ir.Value], elements: list[ir.Value], old: list[ir.Value]
    ) -> tuple[ir.Value, Values, Values]:
        places = []
        for number in map(dims.index, placed):
            part = starts[number]
            if part.tensor is None:
                places.append(at[loops[number]])
            else:
                places.append(_start(k, elements[read.index(part)], shape[dims[number]]))
        return _always(k), places, _applied(k, block, [elements[-1], *old])

    rows = [[digits.index(d) for d in part.digits] for part in read]
    tensors = [part.tensor for part in read if part.tensor is not None]
    return scatter(b, tensors, rows, [op.operands[2]], to, update)


def _always(b: OpBuilder) -> ir.Value:
    return b.integer(1, ir.IntegerType.get_signless(1))


def _start(b: OpBuilder, index: ir.Value, size: int) -> ir.Value:
    """Return an index that may count from the end as a place."""
    place = b.one("arith.index_cast", ir.IndexType.get(), index)
    wrapped = b.binary("addi", place, b.index(size))
    return b.select(b.compare(_Int.slt, place, b.index(0)), wrapped, place)


_LOWER: dict[str, Callable[[ir.Operation, OpBuilder], list[ir.Value]]] = {
    "tm_tensor.scan": _scan,
    "tm_tensor.sort": _sort,
    "tm_tensor.scatter": _scatter,
}
