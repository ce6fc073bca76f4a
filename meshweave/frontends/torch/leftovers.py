"""Simplify the linalg that torch-mlir's pipelines leave.

It has run-time checks, results that nothing reads, and vectors of numbers 0, 1, 2, ... where an index would do.
"""

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, Values, dims_map, reassociation, segments
from meshweave.ir.ops import body_of, is_used, ops_by_name, ops_named, producer, terminator


def simplify(module: ir.Module) -> None:
    """Simplify all ops of a module. Only the module's own wrapper stays valid."""
    ops = ops_by_name(module.operation)
    for op in ops.get("cf.assert", ()):
        op.erase()
    for op in ops.get("tensor.extract", ()):
        _clamp(op)
    for op in ops.get("linalg.generic", ()):
        _simplify_generic(op)


def _clamp(extract: ir.Operation) -> None:
    """Hold the indices of an extract that are data within the bounds of the tensor.

    Upstream asserts that they are. Ranks cannot raise Python's IndexError, and must not read outside the tensor: a
    wrong index reads the nearest element.
    """
    b = OpBuilder.before(extract)
    for number, size in enumerate(extract.operands[0].type.shape):
        index = extract.operands[number + 1]
        maker = producer(index)
        if maker is None or maker.name in ("linalg.index", "arith.constant"):
            continue
        index = b.binary("maxsi", index, b.integer(0, index.type))
        extract.operands[number + 1] = b.binary("minsi", index, b.integer(size - 1, index.type))


def _simplify_generic(op: ir.Operation) -> None:
    """Read an index of the loops instead of an operand that holds 0, 1, 2, ...; drop a second result without uses.

    The second result is the place of a maximum.
    """
    inputs, _ = op.attributes["operandSegmentSizes"]
    kept = []
    for number in range(inputs):
        dim = _counted_dim(op, number)
        if dim is None:
            kept.append(number)
        else:
            argument, start = body_of(op).arguments[number], body_of(op).operations[0]
            b = OpBuilder(ir.InsertionPoint(start), op.location)
            cast = b.one("arith.index_cast", argument.type, b.loop_index(dim))
            argument.replace_all_uses_with(cast)
    outs = list(range(inputs, len(op.operands)))
    if len(outs) == 2 and not is_used(op.results[1]) and not _first_needs_second(op):
        outs = outs[:1]
    if len(kept) + len(outs) < len(op.operands):
        _rebuild(op, kept, outs)


def _counted_dim(op: ir.Operation, number: int) -> int | None:
    """Return the loop dim along which an operand counts 0, 1, 2, ... from its element 0, or None."""
    value = op.operands[number]
    maker = producer(value)
    if maker is not None and maker.name == "tensor.expand_shape":
        if [max(value.type.shape)] != list(maker.operands[0].type.shape)[:1]:
            return None
        maker = producer(maker.operands[0])
    if maker is None or not _is_iota(maker):
        return None
    exprs = list(ir.AffineMapAttr(op.attributes["indexing_maps"][number]).value.results)
    dims = [e for e, size in zip(exprs, value.type.shape) if size > 1]
    if len(dims) != 1 or not isinstance(dims[0], ir.AffineDimExpr):
        return None
    return int(dims[0].position)


def _is_iota(op: ir.Operation) -> bool:
    """Tell whether `op` is a linalg.generic over one dim that yields the index, as an integer."""
    if op.name != "linalg.generic" or len(op.operands) != 1 or len(op.results) != 1:
        return False
    names = [inner.operation.name for inner in body_of(op).operations]
    return names == ["linalg.index", "arith.index_cast", "linalg.yield"] and (
        op.results[0].type.rank == 1
    )


def _first_needs_second(op: ir.Operation) -> bool:
    """Tell whether the first result is computed from what the second has so far."""
    block = body_of(op)
    last = block.arguments[len(block.arguments) - 1]
    work, seen = [terminator(block).operands[0]], set()
    while work:
        value = work.pop()
        if value == last:
            return True
        maker = producer(value)
        if maker is not None and maker not in seen:
            seen.add(maker)
            work += list(maker.operands)
    return False


def _rebuild(op: ir.Operation, inputs: Sequence[int], outs: Sequence[int]) -> None:
    """Replace a linalg.generic by one with these operands alone."""
    kept, maps = [*inputs, *outs], list(op.attributes["indexing_maps"])
    b, old = OpBuilder.before(op), body_of(op)
    made = b.op(
        "linalg.generic",
        [op.results[i].type for i in range(len(outs))],
        [op.operands[i] for i in kept],
        1,
        indexing_maps=ir.ArrayAttr.get([maps[i] for i in kept]),
        iterator_types=op.attributes["iterator_types"],
        operandSegmentSizes=segments(len(inputs), len(outs)),
    )
    arguments = [old.arguments[i] for i in kept]
    body, fresh = b.block(made.regions[0], [a.type for a in arguments])
    for before, after in zip(arguments, fresh, strict=True):
        before.replace_all_uses_with(after)
    *ops, end = [inner.operation for inner in old.operations]
    yielded = [end.operands[i] for i in range(len(outs))]
    end.erase()
    body.op("linalg.yield", [], yielded)
    for inner in reversed(ops):
        if not any(map(is_used, inner.results)):
            inner.erase()
    for inner in list(old.operations):
        inner.operation.move_before(terminator(body.ip.block))
    for i in range(len(outs)):
        op.results[i].replace_all_uses_with(made.results[i])
    op.erase()


# Products


def unfold_products(module: ir.Module) -> None:
    """Unfold products of matrices: torch merges dims in front of a product, and splits them again behind it.

    before:  batch_matmul(collapse(q), collapse(k)), expanded     [b*h, m, k] x [b*h, k, n]
    after:   one linalg.generic over b, h, m, n, k                a dim that is sharded stays a dim

    Only the module's own wrapper stays valid.
    """
    for op in ops_named(module.operation, "linalg.matmul", "linalg.batch_matmul"):
        _unfold(op)


def _unfold(op: ir.Operation) -> None:
    batched = op.name == "linalg.batch_matmul"
    users = [use.owner.operation for use in op.results[0].uses]
    expand = users[0] if len(users) == 1 else None
    if expand is None or expand.name != "tensor.expand_shape" or not _folds_first(expand):
        return
    wide = expand.results[0].type
    count = len(wide.shape) - len(op.results[0].type.shape) + 1  # dims that are folded into one
    left = _unfolded(op.operands[0], list(wide.shape)[:count])
    right = _unfolded(op.operands[1], list(wide.shape)[:count]) if batched else op.operands[1]
    fill = producer(op.operands[2])
    same = len({str(op.operands[i].type.element_type) for i in range(3)}) == 1
    if left is None or right is None or fill is None or fill.name != "linalg.fill" or not same:
        return
    b = OpBuilder.before(op)
    start = b.fill(fill.operands[0], wide)
    expand.results[0].replace_all_uses_with(_product(b, left, right, start, count, batched))
    expand.erase()
    op.erase()


def _folds_first(op: ir.Operation) -> bool:
    """Tell whether a reshape folds its first dims and leaves the others as they are."""
    return all(len(group) == 1 for group in reassociation(op)[1:])


def _unfolded(value: ir.Value, sizes: list[int]) -> ir.Value | None:
    """Return the tensor whose first dims, of these sizes, `value` has folded into one, or None."""
    maker = producer(value)
    if maker is None or maker.name != "tensor.collapse_shape":
        return None
    source = maker.operands[0]
    shape, kept = list(source.type.shape), value.type.rank - 1
    return source if shape[: len(shape) - kept] == sizes and _folds_first(maker) else None


def _product(
    b: OpBuilder, left: ir.Value, right: ir.Value, start: ir.Value, count: int, batched: bool
) -> ir.Value:
    """Make the product as a linalg.generic over the folded dims, the rows of a batched one, the columns, the sum."""
    rows = list(range(count + batched))
    column, inner = len(rows), len(rows) + 1
    batch = rows[:-1] if batched else []
    reads = [[*rows, inner], [*batch, inner, column], [*rows, column]]
    suffix = "i" if isinstance(start.type.element_type, ir.IntegerType) else "f"

    def add_term(body: OpBuilder, values: Values) -> list[ir.Value]:
        x, y, total = values
        return [body.binary(f"add{suffix}", total, body.binary(f"mul{suffix}", x, y))]

    maps = [dims_map(inner + 1, dims) for dims in reads]
    kinds = [IteratorType.PARALLEL] * inner + [IteratorType.REDUCTION]
    return b.generic([left, right], [start], maps, kinds, add_term).result
