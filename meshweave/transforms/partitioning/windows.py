"""Fix ops that read tensors through windows: a rank has the indices that its own block of the result is made of."""

from collections.abc import Callable, Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.build import i64_array, static_offsets, static_sizes, static_strides
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.ops import slice_sizes

Layouts = Sequence[Layout | None]


def _extract_slice(op: ir.Operation, operands: Layouts) -> None:
    """Let a slice take all of each window: what it leaves out is not on this rank."""
    slice_sizes(op)
    offsets, sizes, strides = static_offsets(op), static_sizes(op), static_strides(op)
    layout, shape = operands[0], op.operands[0].type.shape
    assert layout is not None
    for d in [d for d in range(layout.ndim) if layout.window(d) is not None]:
        offsets[d], sizes[d] = 0, (shape[d] - 1) // strides[d] + 1
    op.attributes["static_offsets"] = i64_array(offsets)
    op.attributes["static_sizes"] = i64_array(sizes)


WINDOWED: dict[str, Callable[[ir.Operation, Layouts], None]] = {
    "tensor.extract_slice": _extract_slice,
}
"""Ops that read windows."""
