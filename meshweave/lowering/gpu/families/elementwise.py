"""Compute maps: each thread does neighbouring elements, which it reads and writes 16 bytes at a time.

Several maps of one unit follow one another on the same elements, values handed over in registers. Where one loop is all
there is, the elements left over after whole groups get a thread each.
"""

from __future__ import annotations

import math

from meshweave.hints.fast_paths import BIT_EXACT
from meshweave.ir.expressions import needed
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.flow import RowFlow, Spot, phase_of
from meshweave.lowering.gpu.families.lanes import Lanes, piece
from meshweave.lowering.gpu.families.launch import (
    MOST_BLOCKS,
    frame_for,
    global_thread,
    threads_for,
)
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

MOST_OPS = 1000  # ops of a thread, beyond which it computes fewer elements


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel | None:
    """Return a kernel for maps over the same elements, else None.

    It is also None where a map needs what another thread wrote, and where there is nothing to gain.
    """
    if not _suits(unit):
        return None
    flow = RowFlow(unit, [phase_of(nest, 0) for nest in unit.nests], facts, True)
    count = _lanes(unit.nests, facts.alignments)
    if any(flow.barriers) or (count == 1 and len(unit.nests) == 1):
        return None
    size = unit.nests[0].sizes[-1]
    rows, (chunks, rest) = math.prod(unit.nests[0].sizes[:-1]), divmod(size, count)
    total = rows * chunks
    threads = threads_for(total + rest)
    blocks = -(-(total + rest) // threads)
    if blocks > MOST_BLOCKS:
        return None
    frame = frame_for("elementwise", unit, facts, threads)
    writer, thread = frame.writer, global_thread(frame)

    def element() -> None:
        _elements(frame, flow, thread + frame.constant(chunks * (count - 1)), 1)

    def last() -> None:
        writer.if_(writer.compare("ult", thread, total + rest), element)

    if blocks * threads == total:
        _elements(frame, flow, thread, count)
    else:
        writer.if_(
            writer.compare("ult", thread, total),
            lambda: _elements(frame, flow, thread, count),
            last if rest else None,
        )
    return DeviceKernel.of(writer, blocks, "elementwise", BIT_EXACT)


def _suits(unit: KernelUnit) -> bool:
    """Tell whether all nests are maps over equally many elements."""
    for nest in unit.nests:
        if nest.reductions or not nest.sizes or 0 in nest.sizes or nest.accumulates:
            return False
    return len({math.prod(nest.sizes) for nest in unit.nests}) == 1


def _lanes(nests: list[LoopNest], alignments: tuple[int, ...]) -> int:
    """Return the elements of a thread: enough to make the widest accesses 16 bytes.

    The number divides the last loop of each nest unless it is the only one.
    """
    count = max(_widest(nest, alignments) for nest in nests)
    ops = sum(len(needed(nest.code, nest.results)) for nest in nests)
    flat = all(len(nest.sizes) == 1 for nest in nests)
    while count > 1 and (
        ops * count > MOST_OPS or (not flat and any(n.sizes[-1] % count for n in nests))
    ):
        count //= 2
    return count


def _widest(nest: LoopNest, alignments: tuple[int, ...]) -> int:
    """Return the most elements that any access along the last loop can move at once."""
    dim = len(nest.sizes) - 1
    if all(s.access.strides[dim] != 1 for s in nest.stores):
        return 1
    return max(piece(alignments, each, dim) for each in nest.strided)


def _elements(frame: DeviceFrame, flow: RowFlow, group: Value, count: int) -> None:
    """Compute group number `group` of `count` neighbouring elements, through all maps."""
    values: dict[Spot, list[Value]] = {}
    for number, phase in enumerate(flow.phases):
        nest = phase.nest
        index = frame.digits(group, [*nest.sizes[:-1], nest.sizes[-1] // count])
        lanes = Lanes(frame, nest, [*index[:-1], index[-1] * count], len(index) - 1, count)
        known = {k: values[s] for k, s in phase.loads.items() if s in flow.known[number]}
        fresh = [k for k, s in phase.loads.items() if s in flow.kept[number] and k not in known]
        found = lanes.compute([*(s.value for s in nest.stores), *fresh], known)
        values |= {phase.loads[k]: v for k, v in zip(fresh, found[len(nest.stores) :])}
        values |= dict(zip(phase.stores, found))  # a map may write where it reads
        for k, store in enumerate(nest.stores):
            if k not in flow.skipped[number]:
                lanes.store(store, found[k])
