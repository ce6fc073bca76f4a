"""Turn gathers that upstream's lowering cannot read into ones that it can, and counted indices into batches."""

from __future__ import annotations

from typing import Any

from meshweave.errors import CompileError
from meshweave.frontends.stablehlo.counted import counted_dim
from meshweave.frontends.stablehlo.lowerings.loops import component
from meshweave.ir.bindings import ir, stablehlo
from meshweave.ir.build import OpBuilder, i64, tensor_type
from meshweave.ir.locations import location_text


def lower_gather(op: ir.Operation) -> None:
    """Let the index vectors of a gather lie along the last dim of its indices, without those that only count."""
    hlo = stablehlo()
    if hlo is None:
        raise CompileError("stablehlo.gather: no StableHLO bindings", location_text(op))
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    if not _counted_batches(op, hlo, numbers):
        _vector_last(op, hlo, numbers)


def _counted_batches(op: ir.Operation, hlo: Any, numbers: Any) -> bool:
    """Make batches of the dims whose index is that of a dim of the indices; tell whether there are any.

    before:  x[arange(n), i]       a pair of indices for each element
    after:   one index for each, along the second dim of row n
    """
    operand, indices = op.operands
    vector, to = numbers.index_vector_dim, list(numbers.start_index_map)
    if vector == len(indices.type.shape):
        return False
    b, collapsed = OpBuilder.before(op), list(numbers.collapsed_slice_dims)
    parts = [component(b, indices, vector, n) for n in range(len(to))]
    counted = [counted_dim(part) for part in parts]
    batches: dict[int, int] = {}
    for dim, part, loop in zip(to, parts, counted):
        same = loop is not None and part.type.shape[loop] == operand.type.shape[dim]
        if loop is not None and same and dim in collapsed and loop not in batches.values():
            batches[dim] = loop
    if batches and len(batches) == len(to):
        batches.popitem()  # one index must be left
    if not batches:
        return False
    before = [d - (d > vector) for d in numbers.start_indices_batching_dims]
    pairs = [*zip(numbers.operand_batching_dims, before), *batches.items()]
    pairs.sort()
    op.operands[1] = _side_by_side(b, [p for d, p in zip(to, parts) if d not in batches])
    op.attributes["dimension_numbers"] = hlo.GatherDimensionNumbers.get(
        offset_dims=list(numbers.offset_dims),
        collapsed_slice_dims=[d for d in collapsed if d not in batches],
        operand_batching_dims=[d for d, _ in pairs],
        start_indices_batching_dims=[loop for _, loop in pairs],
        start_index_map=[d for d in to if d not in batches],
        index_vector_dim=len(indices.type.shape) - 1,
    )
    return True


def _side_by_side(b: OpBuilder, parts: list[ir.Value]) -> ir.Value:
    """Return index vectors of components, along a new last dim."""
    shape, element = list(parts[0].type.shape), parts[0].type.element_type
    one = tensor_type([*shape, 1], element)
    made = [b.one("stablehlo.reshape", one, part) for part in parts]
    if len(made) == 1:
        return made[0]
    type_ = tensor_type([*shape, len(made)], element)
    return b.one("stablehlo.concatenate", type_, *made, dimension=i64(len(shape)))


def _vector_last(op: ir.Operation, hlo: Any, numbers: Any) -> None:
    """Turn the indices where upstream crashes: where a batching dim comes behind the dim of the vectors."""
    indices, vector = op.operands[1], numbers.index_vector_dim
    batching = list(numbers.start_indices_batching_dims)
    last = len(indices.type.shape) - 1
    if not any(dim > vector for dim in batching):
        return
    order = [dim for dim in range(last + 1) if dim != vector] + [vector]
    turned = tensor_type([indices.type.shape[dim] for dim in order], indices.type.element_type)
    permutation = ir.DenseI64ArrayAttr.get(order)
    b = OpBuilder.before(op)
    op.operands[1] = b.one("stablehlo.transpose", turned, indices, permutation=permutation)
    op.attributes["dimension_numbers"] = hlo.GatherDimensionNumbers.get(
        offset_dims=list(numbers.offset_dims),
        collapsed_slice_dims=list(numbers.collapsed_slice_dims),
        operand_batching_dims=list(numbers.operand_batching_dims),
        start_indices_batching_dims=[dim - (dim > vector) for dim in batching],
        start_index_map=list(numbers.start_index_map),
        index_vector_dim=last,
    )


LOWER = {"stablehlo.gather": lower_gather}
