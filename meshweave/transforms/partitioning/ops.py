"""Fix what changes in an op besides its types when it becomes local.

Attributes that repeat sizes follow the types. `linalg.index` counts as in the whole dim. A reduction
over a padded dim must not see the padding: a plain one gets its operands filled with the neutral element there, any
other keeps its accumulator wherever the loop index is beyond the end.
"""

from collections.abc import Callable

from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import OpBuilder, i64_array
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local
from meshweave.transforms.partitioning.lookups import fix_lookup
from meshweave.transforms.partitioning.masking import mask
from meshweave.transforms.partitioning.mirrors import turn
from meshweave.transforms.partitioning.place import CutDim, GlobalIndex
from meshweave.transforms.partitioning.selections import join
from meshweave.transforms.propagation.bodies import BODIES, captured_by, is_tensor, selection


def fix_linalg(op: ir.Operation, operands: list[Layout | None], local: Local) -> None:
    """Fix loop indices and padding of a linalg op whose types are local."""
    turn(op, operands, local)
    fix_lookup(op, operands, local)
    loops = None
    selects = selection(op)  # before padding is kept out of it
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
    if selects is not None:
        loops = loops or _loops(op, operands, local)
        axes = [a for loop in loops if loop.cut is not None and loop.reduced for a in loop.cut.axes]
        if local.mesh.axis_count(axes) > 1:
            join(op, selects, axes, local)


class LocalLoop:
    """Describe a loop of a linalg op: the dim that it runs over, if that is cut, and its local extent."""

    def __init__(self) -> None:
        self.cut: CutDim | None = None
        self.local = 1
        self.reduced = True

    def see(self, value: ir.Value, layout: Layout, dim: int, local: Local) -> None:
        """Take it for the loop over a dim of `value`, which has its local type and lies in `layout`."""
        self.local, axes = value.type.shape[dim], layout.axes_of(dim)
        whole = local.uneven.get(value)
        size = whole[dim] if whole else self.local * local.mesh.axis_count(axes)
        self.cut = CutDim.of(layout, dim, size) if axes else None

    def ragged(self, local: Local) -> bool:
        """Tell whether some rank has padding."""
        cut = self.cut
        return cut is not None and self.local * local.mesh.axis_count(cut.axes) != cut.whole


def _loops(op: ir.Operation, operands: list[Layout | None], local: Local) -> list[LocalLoop]:
    maps = [a.value for a in linalg.get_indexing_maps(op.opview)]
    loops = [LocalLoop() for _ in range(maps[0].n_dims)]
    n_inits = max(1, len(op.results))
    for i, (value, map_, layout) in enumerate(zip(op.operands, maps, operands)):
        if layout is None or not is_tensor(value.type):
            continue
        for d, e in enumerate(map_.results):
            if not isinstance(e, ir.AffineDimExpr):
                continue
            loops[e.position].see(value, layout, d, local)
            if i >= len(maps) - n_inits:
                loops[e.position].reduced = False
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
        if layout is not None:
            cut = [d for d in range(layout.ndim) if layout.axes_of(d)]
            reads += [(captured.reader, d + 1) for d in cut]
    return reads


def _shift_indices(
    op: ir.Operation,
    indices: list[ir.Operation],
    loops: list[LocalLoop],
    exempt: list[tuple[ir.Operation, int]],
    local: Local,
) -> None:
    """Let each index count as in the whole dim."""
    places: dict[int, GlobalIndex] = {}
    for index in indices:
        d = index.attributes["dim"].value
        cut = loops[d].cut
        if cut is None:
            continue
        if d not in places:
            places[d] = GlobalIndex.of(OpBuilder.before(op), cut, local)
        uses = [(use.owner.operation, use.operand_number) for use in index.results[0].uses]
        readers = [use for use in uses if use not in exempt]
        shifted = places[d].whole(OpBuilder.after(index), index.result)
        for reader, i in readers:
            reader.operands[i] = shifted


def _mask(op: ir.Operation, loops: list[LocalLoop], local: Local) -> None:
    """Keep padding out of the op's reductions."""
    b = OpBuilder.before(op)
    bounds = {
        d: GlobalIndex.of(b, loop.cut, local)
        for d, loop in enumerate(loops)
        if loop.cut is not None and loop.reduced and loop.ragged(local)
    }
    if bounds:
        mask(op, bounds)


def _expand_shape(op: ir.Operation) -> None:
    op.attributes["static_output_shape"] = i64_array(op.results[0].type.shape)


FIXERS: dict[str, Callable[[ir.Operation], None]] = {
    "tensor.expand_shape": _expand_shape,
}
"""Ops with attributes that repeat sizes."""
