"""Compute rows: softmax, norms, and reductions along what lies side by side.

A group of threads, up to a block, does a row and keeps it in registers where it fits: it is read
once, whatever the number of nests.

Each nest is either a map over the row, a reduction of the row, or a computation on what a row has
one of. Values pass between nests as flow.py says.
"""

from __future__ import annotations

import math
from dataclasses import replace

from meshweave.device import CHIPS, Chip
from meshweave.hints.fast_paths import BIT_EXACT, DETERMINISTIC
from meshweave.ir.expressions import needed
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.facts import MOST, Facts
from meshweave.lowering.gpu.families import groups
from meshweave.lowering.gpu.families.flow import NestAccesses, RowFlow, phase_of
from meshweave.lowering.gpu.families.lanes import WIDEST, piece
from meshweave.lowering.gpu.families.launch import MOST_BLOCKS, REUSE, frame_for
from meshweave.lowering.gpu.families.recompute import recomputed
from meshweave.lowering.gpu.families.reduction import combiners
from meshweave.lowering.gpu.families.rowcode import RowCode, RowShape
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.nests.bind import LoopNest, reordered
from meshweave.lowering.nests.rows import KernelUnit

CHUNKS = 4  # of a thread, in each row that is kept in registers, as long as there are threads
BLOCK = 128  # threads of a block that does several rows
MOST_THREADS = 1024
REGISTERS, FEWER = 48, 32  # of a thread for its rows; with the most threads there are fewer
BUSY = 132 * 512  # threads below which rows are given more of them
LONG = 512  # elements of a row from which it pays to begin at the first aligned one
NARROW = 4  # bytes of an access below which that is done
LONGER = 1 << 14  # elements from which it is done for every access that is not the widest
IN_FLIGHT = (
    1024  # threads of a multiprocessor where rows are kept in shared memory: 64 registers for each
)
STATIC = 48 * 1024  # bytes of shared memory that a kernel may declare itself
MOST_SHARED = 1 << 20  # bytes of a multiprocessor for rows; the chip has less
MOST_OPS = 4000  # ops of a thread beyond which rows are walked in a loop


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel | None:
    """Return a kernel for nests that share rows, or that reduce what lies side by side; None for any other unit."""
    unit = inner_last(unit)
    rows = unit.rows or len(unit.nests[0].parallel)
    phases = [phase_of(nest, rows) for nest in unit.nests]
    if not _suits(unit, rows):
        return None
    chip = CHIPS[target.chip]
    shape, flow = _shape(unit, rows, phases, facts, chip)
    blocks = -(-shape.rows // shape.together)
    if blocks > MOST_BLOCKS:
        return None
    slots = _results(unit)
    shared = _shared_bytes(shape, flow, slots)
    dynamic = shared > STATIC
    frame = frame_for(
        "rows", unit, facts, shape.group * shape.together, phases=len(phases),
        shared_bytes=0 if dynamic else shared, dynamic_shared=dynamic,
        min_blocks=IN_FLIGHT // shape.group if shape.slots else 0,
    )  # fmt: skip
    RowCode(frame, flow, shape, rows, slots).write()
    numerics = DETERMINISTIC if slots else BIT_EXACT
    return DeviceKernel.of(frame.writer, blocks, "rows", numerics, shared if dynamic else 0)


def _results(unit: KernelUnit) -> int:
    """Return the results that one reduction of a unit has, at most."""
    return max((len(n.stores) for n in unit.nests if n.reductions), default=0)


def _shared_bytes(shape: RowShape, flow: RowFlow, slots: int) -> int:
    """Return the shared memory of a block: what threads meet in, and the rows that are kept there."""
    rows = shape.slots * shape.slot_bytes(flow.kept_at_once()[1]) if shape.slots else 0
    return groups.shared_bytes(shape.group, slots) + rows


def suits(unit: KernelUnit) -> bool:
    """Tell whether a unit of one nest is a reduction along what lies side by side."""
    unit = inner_last(unit)
    return _suits(unit, len(unit.nests[0].parallel))


def along_memory(unit: KernelUnit) -> bool:
    """Tell whether nests that share rows are for this family, and each of its reductions reads along memory."""
    unit = inner_last(unit)
    return _suits(unit, unit.rows) and all(_streams(nest) for nest in unit.nests if nest.reductions)


def volume(unit: KernelUnit) -> tuple[int, int]:
    """Return the results of a unit of one nest, and the elements that each is reduced from."""
    (nest,) = unit.nests
    elements = math.prod(nest.sizes[d] for d in nest.reductions)
    return math.prod(nest.sizes) // elements, elements


def inner_last(unit: KernelUnit) -> KernelUnit:
    """Return the unit with the reduction that walks memory with step 1 as the innermost loop."""
    nests = []
    for nest in unit.nests:
        dims = sorted(nest.reductions)
        ones = [d for d in dims if any(a.strides[d] == 1 for a in nest.accesses)]
        if ones and dims == list(range(len(nest.parallel), len(nest.sizes))):
            last = max(ones, key=lambda d: nest.sizes[d])
            order = [d for d in range(len(nest.sizes)) if d != last]
            nest = reordered(nest, [*order, last])
        nests.append(nest)
    return replace(unit, nests=nests)


def _suits(unit: KernelUnit, rows: int) -> bool:
    """Tell whether each nest is a map, a reduction or a computation per row, over rows of one length."""
    if any(0 in nest.sizes for nest in unit.nests):
        return False
    lengths = {math.prod(n.sizes[rows:]) for n in unit.nests if len(n.sizes) > rows}
    if len(lengths) != 1:
        return False
    for nest in unit.nests:
        inner = len(nest.sizes) - rows
        if nest.reductions and (len(nest.reductions) != inner or combiners(nest) is None):
            return False
    return len(unit.nests) > 1 or (bool(unit.nests[0].reductions) and _streams(unit.nests[0]))


def _streams(nest: LoopNest) -> bool:
    """Tell whether a lone reduction reads along its innermost loop, and nothing much more than once."""
    last = len(nest.sizes) - 1
    along = [n.access for n in nest.loads if any(n.access.strides[d] for d in nest.reductions)]
    if not along:
        return False
    volume = max(math.prod(n for n, s in zip(nest.sizes, a.strides) if s) for a in along)
    together = all(a.strides[last] in (0, 1) for a in along)
    return together and math.prod(nest.sizes) <= REUSE * volume


def _lanes(unit: KernelUnit, rows: int, facts: Facts) -> int:
    """Return the neighbouring elements of a thread, so that the widest accesses have 16 bytes."""
    count = 1
    for nest in unit.nests:
        if len(nest.sizes) == rows:
            continue
        last = len(nest.sizes) - 1
        count = max(count, *(piece(facts.alignments, each, last) for each in nest.strided))
    inner = [n.sizes[-1] for n in unit.nests if len(n.sizes) > rows]
    while any(size % count for size in inner):
        count //= 2
    return count


def _smallest(unit: KernelUnit) -> int:
    """Return the bytes of the smallest element that a row has many of."""
    return min(element_bytes(each.type) for nest in unit.nests for each in nest.strided)


def _odd(unit: KernelUnit, rows: int, facts: Facts) -> tuple[int, tuple[int, ...]]:
    """Return the lanes of rows that begin anywhere, and how they lie in memory; no strides where that does not help.

    All that lies along rows must lie alike; it is moved 16 bytes at a time, but for the ends of a row.
    """
    lying = dict[tuple[int, ...], int]()
    for nest in unit.nests:
        if len(nest.sizes) == rows:
            continue
        if len(nest.sizes) != rows + 1:
            return 1, ()
        for each in nest.strided:
            pointer, strides = each.access
            if strides[-1] not in (0, 1) or (strides[-1] and facts.alignments[pointer] < MOST):
                return 1, ()
            if strides[-1]:
                nbytes = element_bytes(each.type)
                lying[strides] = min(nbytes, lying.get(strides, nbytes))
    if len(lying) != 1:
        return 1, ()
    ((strides, nbytes),) = lying.items()
    return WIDEST // nbytes, strides[:-1]


def _shape(
    unit: KernelUnit, rows: int, phases: list[NestAccesses], facts: Facts, chip: Chip
) -> tuple[RowShape, RowFlow]:
    """Decide how many threads a row gets, and whether it stays in their registers or in shared memory."""
    nests = unit.nests
    count = math.prod(nests[0].sizes[:rows])
    elements = next(math.prod(n.sizes[rows:]) for n in nests if len(n.sizes) > rows)
    lanes = _lanes(unit, rows, facts)
    odd: tuple[int, ...] = ()
    if elements >= LONG and lanes * _smallest(unit) < (MOST if elements >= LONGER else NARROW):
        wide, odd = _odd(unit, rows, facts)
        lanes = wide if odd else lanes
    ops = sum(len(needed(n.code, n.results)) for n in nests)
    flow = RowFlow(unit, phases, facts, True)
    group = min(groups.WARP, _power(-(-elements // lanes)))

    def shape(held: bool) -> RowShape:
        together = BLOCK // group if group <= groups.WARP else 1
        least = max(1, groups.WARP // group)
        return RowShape(
            count, elements, lanes, group, max(least, min(together, _power(count))), held, odd
        )

    def fits() -> bool:
        here = shape(True)
        values = here.turns * lanes
        most = FEWER if group == MOST_THREADS else REGISTERS
        return values * flow.most_held() <= most and values * ops <= MOST_OPS

    while group < MOST_THREADS and (
        shape(True).turns > CHUNKS
        or not fits()
        or (shape(True).turns > 1 and count * group < BUSY and group >= groups.WARP)
    ):
        if shape(True).turns == 1:
            break
        group *= 2
    if fits():
        return shape(True), flow
    kept = _in_shared(shape(True), flow, _results(unit), chip)
    if kept is not None and kept.turns * lanes * ops <= MOST_OPS:
        return kept, flow
    again = recomputed(unit, rows, facts)
    return shape(False), RowFlow(again, [phase_of(n, rows) for n in again.nests], facts, False)


def _in_shared(shape: RowShape, flow: RowFlow, slots: int, chip: Chip) -> RowShape | None:
    """Return the shape of rows that are kept in shared memory, or None; two blocks share a processor where they fit."""
    most = flow.kept_at_once()[0]
    if not most or shape.group < MOST_THREADS:
        return None
    for blocks in (2, 1):
        found = replace(shape, slots=most, group=MOST_THREADS // blocks)
        whole = (_shared_bytes(found, flow, slots) + chip.reserved_bytes) * blocks
        if whole <= min(MOST_SHARED, chip.shared_bytes + chip.reserved_bytes):
            return found
    return None


def _power(number: int) -> int:
    """Return the least power of 2 that is not smaller."""
    return 1 << max(0, number - 1).bit_length()
