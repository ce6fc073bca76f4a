"""What changes in an op besides its types when it becomes local.

Attributes that repeat sizes follow the types. `linalg.index` counts from where the rank's block begins. A reduction
over a padded dim must not see the padding: a plain one gets its operands filled with the neutral element there, any
other keeps its accumulator wherever the loop index is beyond the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshweave.bindings import ir, linalg
from meshweave.layout.layout import Layout
from meshweave.transforms.bodies import BODIES, captured_by, is_tensor
from meshweave.transforms.local import Local
from meshweave.transforms.masking import mask


def fix_linalg(op: Any, operands: list[Layout | None], local: Local) -> None:
    """Loop indices and padding of a linalg op whose types are local."""
    loops = None
    if op.name in BODIES:
        indices = _indices(op)
        if indices:
            loops = _loops(op, operands, local)
            _shift_indices(op, indices, loops, _local_reads(op, operands), local)
    if op.name == "linalg.softmax":
        return  # its reduction runs within a rank, over whole rows
    if local.uneven and any(v in local.uneven for v in op.operands):
        loops = loops or _loops(op, operands, local)
        _mask(op, loops, local)


class Loop:
    """A loop of a linalg op: the axes it runs over, its local extent and its global one."""

    def __init__(self) -> None:
        self.axes: tuple[str, ...] = ()
        self.local = 1
        self.whole = 1
        self.reduced = True

    def ragged(self, local: Local) -> bool:
        """Does the last rank's block (or more) reach beyond the end?"""
        return self.local * local.mesh.axis_count(self.axes) != self.whole


def _loops(op: Any, operands: list[Layout | None], local: Local) -> list[Loop]:
    maps = [a.value for a in linalg.get_indexing_maps(op.opview)]
    loops = [Loop() for _ in range(maps[0].n_dims)]
    n_inits = max(1, len(op.results))
    for i, (value, map_, layout) in enumerate(zip(op.operands, maps, operands)):
        if layout is None or not is_tensor(value.type):
            continue
        axes, shape = layout.block_axes(), value.type.shape
        whole = local.uneven.get(value)
        for d, e in enumerate(map_.results):
            if not isinstance(e, ir.AffineDimExpr):
                continue
            loop = loops[e.position]
            loop.axes, loop.local = axes[d], shape[d]
            loop.whole = whole[d] if whole else shape[d] * local.mesh.axis_count(axes[d])
            if i >= len(maps) - n_inits:
                loop.reduced = False
    return loops


def _indices(op: Any) -> list[Any]:
    return [
        inner.operation
        for block in op.regions[0].blocks
        for inner in block.operations
        if inner.operation.name == "linalg.index"
    ]


def _local_reads(op: Any, operands: list[Layout | None]) -> list[tuple[Any, int]]:
    """(reader, operand) of the indices into captured tensors that are cut along with the loop: they stay local."""
    reads = []
    for captured, layout in zip(captured_by(op), operands[len(op.operands) :]):
        for d, axes in enumerate(layout.block_axes() if layout is not None else ()):
            if axes:
                reads.append((captured.reader, d + 1))
    return reads


def _shift_indices(
    op: Any, indices: list[Any], loops: list[Loop], exempt: list[tuple[Any, int]], local: Local
) -> None:
    """Let each index count from the beginning of the rank's block."""
    offsets: dict[int, Any] = {}
    for index in indices:
        d = index.attributes["dim"].value
        if not loops[d].axes:
            continue
        if d not in offsets:
            offsets[d] = local.offset(loops[d].axes, loops[d].local, op)
        uses = [(use.owner.operation, use.operand_number) for use in index.results[0].uses]
        readers = [use for use in uses if use not in exempt]
        ip = ir.InsertionPoint.after(index)
        shifted = ir.Operation.create(
            "arith.addi",
            results=[ir.IndexType.get()],
            operands=[index.results[0], offsets[d]],
            loc=index.location,
            ip=ip,
        ).results[0]
        for reader, i in readers:
            reader.operands[i] = shifted


@dataclass
class _Block:
    """The end of a loop over the rank's block."""

    offset: Any
    end: Any

    def inside(self, index: Any, before: Any, local: Local) -> Any:
        """Is the index, counted globally, before the end?"""
        place = local.create("arith.addi", [ir.IndexType.get()], [index, self.offset], before)
        return local.compared("ult", place, self.end, before)


def _mask(op: Any, loops: list[Loop], local: Local) -> None:
    """Keep padding out of the op's reductions."""
    bounds = {
        d: _Block(local.offset(loop.axes, loop.local, op), local.index(loop.whole, op))
        for d, loop in enumerate(loops)
        if loop.reduced and loop.ragged(local)
    }
    if bounds:
        mask(op, bounds, local)


def _expand_shape(op: Any) -> None:
    op.attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(list(op.results[0].type.shape))


def _extract_slice(op: Any) -> None:
    _slice_sizes(op, op.operands[0].type.shape)


def _insert_slice(op: Any) -> None:
    _slice_sizes(op, op.operands[1].type.shape)


def _slice_sizes(op: Any, large: Any) -> None:
    """Sizes of the dims that are taken in full are those of the local tensor; the others are whole anyway."""
    sizes = list(op.attributes["static_sizes"])
    offsets = list(op.attributes["static_offsets"])
    full = [o == 0 and s > n for o, s, n in zip(offsets, sizes, large)]
    new = [n if f else s for f, s, n in zip(full, sizes, large)]
    op.attributes["static_sizes"] = ir.DenseI64ArrayAttr.get(new)


FIXERS: dict[str, Callable[[Any], None]] = {
    "tensor.expand_shape": _expand_shape,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
}
"""Ops with attributes that repeat sizes."""
