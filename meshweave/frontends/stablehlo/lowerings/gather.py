"""Turn gathers that upstream's lowering cannot read into ones that it can."""

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir, stablehlo
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.locations import location_text


def _vector_last(op: ir.Operation) -> None:
    """Let the index vectors of a gather lie along the last dim of its indices.

    Upstream crashes where a batching dim of the indices comes behind the dim of the vectors.
    """
    hlo = stablehlo()
    if hlo is None:
        raise CompileError("stablehlo.gather: no StableHLO bindings", location_text(op))
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
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


LOWER = {"stablehlo.gather": _vector_last}
