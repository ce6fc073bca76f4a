"""Fix what changes in an op besides its types when it becomes local.

Attributes that repeat sizes follow the types. `linalg.index` counts from where the rank's block begins. A reduction
over a padded dim must not see the padding: a plain one gets its operands filled with the neutral element there, any
other keeps its accumulator wherever the loop index is beyond the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshweave.ir.bindings import arith, ir, linalg
from meshweave.ir.build import OpBuilder, i64_array, static_offsets, static_sizes
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local, block_offset
from meshweave.transforms.partitioning.masking import mask
from meshweave.transforms.propagation.bodies import BODIES, captured_by, is_tensor


def fix_linalg(op: ir.Operation, operands: list[Layout | None], local: Local) -> None:
    """Fix loop indices and padding of a linalg op whose types are local."""
    loops = None
    if op.name in BODIES:
        indices = _indices(op)
        if indices:
            loops = _loops(op, operands, local)
            _shift_indices(op, indices, loops, _local_reads(op, operands))
    if op.name == "linalg.softmax":
        return  # its reduction runs within a rank, over whole rows
    if local.uneven and any(v in local.uneven for v in op.operands):
        loops = loops or _loops(op, operands, local)
        _mask(op, loops, local)


class LocalLoop:
    """Describe a loop of a linalg op: the axes it runs over, its local extent and its global one."""

    def __init__(self) -> None:
        self.axes: tuple[str, ...] = ()
        self.local = 1
        self.whole = 1
        self.reduced = True

    def ragged(self, local: Local) -> bool:
        """Tell whether the last rank's block (or more) reaches beyond the end."""
        return self.local * local.mesh.axis_count(self.axes) != self.whole


def _loops(op: ir.Operation, operands: list[Layout | None], local: Local) -> list[LocalLoop]:
    maps = [a.value for a in linalg.get_indexing_maps(op.opview)]
    loops = [LocalLoop() for _ in range(maps[0].n_dims)]
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


def _indices(op: ir.Operation) -> list[ir.Operation]:
    return [
        inner.operation
        for block in op.regions[0].blocks
        for inner in block.operations
        if inner.operation.name == "linalg.index"
    ]


def _local_reads(op: ir.Operation, operands: list[Layout | None]) -> list[tuple[ir.Operation, int]]:
    """Return (reader, operand) of the indices into captured tensors that are cut along with the loop.

    They stay local.
    """
    reads = []
    for captured, layout in zip(captured_by(op), operands[len(op.operands) :]):
        for d, axes in enumerate(layout.block_axes() if layout is not None else ()):
            if axes:
                reads.append((captured.reader, d + 1))
    return reads


def _shift_indices(
    op: ir.Operation,
    indices: list[ir.Operation],
    loops: list[LocalLoop],
    exempt: list[tuple[ir.Operation, int]],
) -> None:
    """Let each index count from the beginning of the rank's block."""
    offsets: dict[int, ir.Value] = {}
    for index in indices:
        d = index.attributes["dim"].value
        if not loops[d].axes:
            continue
        if d not in offsets:
            offsets[d] = block_offset(OpBuilder.before(op), loops[d].axes, loops[d].local)
        uses = [(use.owner.operation, use.operand_number) for use in index.results[0].uses]
        readers = [use for use in uses if use not in exempt]
        shifted = OpBuilder.after(index).binary("addi", index.result, offsets[d])
        for reader, i in readers:
            reader.operands[i] = shifted


@dataclass
class Block:
    """Describe the end of a loop over the rank's block."""

    offset: ir.Value
    end: ir.Value

    @classmethod
    def of(cls, b: OpBuilder, axes: Sequence[str], extent: int, whole: int) -> "Block":
        """Return the end of a loop over a block of `extent`, of a dim of `whole` elements cut along `axes`."""
        return cls(block_offset(b, axes, extent), b.index(whole))

    def inside(self, b: OpBuilder, index: ir.Value) -> ir.Value:
        """Compare the index, counted globally, with the end: an i1, true before it."""
        place = b.binary("addi", index, self.offset)
        return b.compare(arith.CmpIPredicate.ult, place, self.end)


def _mask(op: ir.Operation, loops: list[LocalLoop], local: Local) -> None:
    """Keep padding out of the op's reductions."""
    b = OpBuilder.before(op)
    bounds = {
        d: Block.of(b, loop.axes, loop.local, loop.whole)
        for d, loop in enumerate(loops)
        if loop.reduced and loop.ragged(local)
    }
    if bounds:
        mask(op, bounds)


def _expand_shape(op: ir.Operation) -> None:
    op.attributes["static_output_shape"] = i64_array(op.results[0].type.shape)


def _slice_sizes(op: ir.Operation) -> None:
    """Give the dims that are taken in full the sizes of the local tensor; the others are whole anyway."""
    large = op.operands[1 if op.name == "tensor.insert_slice" else 0].type.shape
    sizes = static_sizes(op)
    full = [o == 0 and s > n for o, s, n in zip(static_offsets(op), sizes, large)]
    new = [n if f else s for f, s, n in zip(full, sizes, large)]
    op.attributes["static_sizes"] = i64_array(new)


FIXERS: dict[str, Callable[[ir.Operation], None]] = {
    "tensor.expand_shape": _expand_shape,
    "tensor.extract_slice": _slice_sizes,
    "tensor.insert_slice": _slice_sizes,
}
"""Ops with attributes that repeat sizes."""
