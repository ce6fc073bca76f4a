"""What torch-mlir's pipelines leave in linalg that our passes do better without: run-time checks, results that nobody
reads, vectors of numbers 0, 1, 2, .. where an index would do.
"""

from collections.abc import Sequence
from typing import Any

from meshweave.bindings import ir


def simplify(module: Any) -> None:
    """All of it. Only the module's own wrapper stays valid."""
    ops: dict[str, list[Any]] = {"cf.assert": [], "tensor.extract": [], "linalg.generic": []}

    def visit(op: Any) -> Any:
        if op.name in ops:
            ops[op.name].append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in ops["cf.assert"]:
        op.erase()
    for op in ops["tensor.extract"]:
        _clamp(op)
    for op in ops["linalg.generic"]:
        _simplify_generic(op)


def _clamp(extract: Any) -> None:
    """Hold the indices of an extract that are data within the bounds of the tensor.

    Upstream asserts that they are. Ranks cannot raise Python's IndexError, and must not read what is not there: a wrong
    index reads the nearest element.
    """
    kind = extract.operands[0].type
    for number, size in enumerate(kind.shape):
        index = extract.operands[number + 1]
        owner = _maker(index)
        if owner is None or owner.name in ("linalg.index", "arith.constant"):
            continue
        at, where = ir.InsertionPoint(extract), extract.location
        for name, value in (("arith.maxsi", 0), ("arith.minsi", size - 1)):
            number_attr = ir.IntegerAttr.get(index.type, value)
            bound = ir.Operation.create(
                "arith.constant", [index.type], [], {"value": number_attr}, loc=where, ip=at
            ).result
            index = ir.Operation.create(name, [index.type], [index, bound], loc=where, ip=at).result
        extract.operands[number + 1] = index


def _maker(value: Any) -> Any:
    """The op that makes a value, None for an argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _simplify_generic(op: Any) -> None:
    """Use an index of the loops for an operand that holds 0, 1, 2, ..; drop a second result that nobody reads: the
    place of a maximum.
    """
    segments = list(op.attributes["operandSegmentSizes"])
    kept = []
    for number in range(segments[0]):
        dim = _counted_dim(op, number)
        if dim is None:
            kept.append(number)
        else:
            _use_index(op, number, dim)
    outs = list(range(len(op.operands)))[segments[0] :]
    unread = len(outs) == 2 and not any(True for _ in op.results[1].uses)
    if unread and not _first_needs_second(op):
        outs = outs[:1]
    if len(kept) + len(outs) < len(op.operands):
        _rebuild(op, kept, outs)


def _counted_dim(op: Any, number: int) -> int | None:
    """The loop dim along which an operand counts 0, 1, 2, .. from its element 0; None where it does not."""
    value = op.operands[number]
    maker = _maker(value)
    if maker is not None and maker.name == "tensor.expand_shape":
        if max(value.type.shape) != maker.operands[0].type.shape[0]:
            return None
        value = maker.operands[0]
        maker = _maker(value)
    if maker is None or not _is_iota(maker):
        return None
    shape = op.operands[number].type.shape
    exprs = list(ir.AffineMapAttr(op.attributes["indexing_maps"][number]).value.results)
    dims = [e for e, size in zip(exprs, shape) if size > 1]
    if len(dims) != 1 or not isinstance(dims[0], ir.AffineDimExpr):
        return None
    return int(dims[0].position)


def _is_iota(op: Any) -> bool:
    """Is it a linalg.generic over one dim that yields the index, as an integer?"""
    if op.name != "linalg.generic" or len(op.operands) != 1 or len(op.results) != 1:
        return False
    names = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    return names == ["linalg.index", "arith.index_cast", "linalg.yield"] and (
        op.results[0].type.rank == 1
    )


def _use_index(op: Any, number: int, dim: int) -> None:
    """Read the index of a loop instead of an operand."""
    block = op.regions[0].blocks[0]
    argument = block.arguments[number]
    at, where = ir.InsertionPoint.at_block_begin(block), op.location
    kind = ir.IntegerType.get_signless(64)
    index = ir.Operation.create(
        "linalg.index",
        [ir.IndexType.get()],
        [],
        {"dim": ir.IntegerAttr.get(kind, dim)},
        loc=where,
        ip=at,
    ).result
    cast = ir.Operation.create("arith.index_cast", [argument.type], [index], loc=where, ip=at)
    argument.replace_all_uses_with(cast.result)


def _first_needs_second(op: Any) -> bool:
    """Is the first result computed from what the second has so far?"""
    block = op.regions[0].blocks[0]
    *_, end = block.operations
    last = block.arguments[len(block.arguments) - 1]
    work, seen = [end.operation.operands[0]], set()
    while work:
        value = work.pop()
        if value == last:
            return True
        maker = _maker(value)
        if maker is not None and maker not in seen:
            seen.add(maker)
            work += list(maker.operands)
    return False


def _rebuild(op: Any, inputs: Sequence[int], outs: Sequence[int]) -> None:
    """Replace a linalg.generic by one with these operands alone."""
    kept = [*inputs, *outs]
    maps = list(op.attributes["indexing_maps"])
    made = ir.Operation.create(
        "linalg.generic",
        results=[op.results[i].type for i in range(len(outs))],
        operands=[op.operands[i] for i in kept],
        attributes={
            "indexing_maps": ir.ArrayAttr.get([maps[i] for i in kept]),
            "iterator_types": op.attributes["iterator_types"],
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), len(outs)]),
        },
        regions=1,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    old = op.regions[0].blocks[0]
    arguments = [old.arguments[i] for i in kept]
    block = ir.Block.create_at_start(
        made.regions[0], [a.type for a in arguments], [op.location] * len(arguments)
    )
    for before, after in zip(arguments, block.arguments, strict=True):
        before.replace_all_uses_with(after)
    *ops, end = [inner.operation for inner in old.operations]
    yielded = [end.operands[i] for i in range(len(outs))]
    end_made = ir.Operation.create(
        "linalg.yield", operands=yielded, loc=op.location, ip=ir.InsertionPoint(block)
    )
    end.erase()
    for inner in reversed(ops):
        if not any(True for result in inner.results for _ in result.uses):
            inner.erase()
    for inner in list(old.operations):
        inner.operation.move_before(end_made)
    for i in range(len(outs)):
        op.results[i].replace_all_uses_with(made.results[i])
    op.erase()
