"""Maps: each thread computes neighbouring elements, which it reads and writes 16 bytes at a time.

Several maps of one unit are done one after the other on the same elements, values handed over in
registers. Where one loop is all there is, the elements that make no whole group are a thread's each.
"""

from __future__ import annotations

import math

from meshweave.fast_paths import BIT_EXACT
from meshweave.lowering.bind import Nest
from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.gpu.facts import Facts, parameter_types, parameters_of
from meshweave.lowering.gpu.flow import Flow, Spot, phase_of
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.lanes import WIDEST, Lanes, aligned_piece
from meshweave.lowering.gpu.launch import (
    MOST_BLOCKS,
    entry_name,
    global_thread,
    index_type,
    threads_for,
)
from meshweave.lowering.gpu.nodes import Frame, frame_of, needed, results, width
from meshweave.lowering.rows import Unit

MOST_OPS = 1000  # ops of a thread, beyond which it computes fewer elements


def build(unit: Unit, target: Target, facts: Facts) -> DeviceKernel | None:
    """A kernel for maps over the same elements, none of which needs what another thread wrote; None
    for any other unit, and for one map that has nothing to gain.
    """
    if not _suits(unit):
        return None
    flow = Flow(unit, [phase_of(nest, 0) for nest in unit.nests], facts, True)
    count = _lanes(unit.nests, facts.alignments)
    if any(flow.barriers) or (count == 1 and len(unit.nests) == 1):
        return None
    size = unit.nests[0].sizes[-1]
    rows, (chunks, rest) = math.prod(unit.nests[0].sizes[:-1]), divmod(size, count)
    total = rows * chunks
    name, threads = entry_name("elementwise", unit), threads_for(total + rest)
    blocks = -(-(total + rest) // threads)
    if blocks > MOST_BLOCKS:
        return None
    builder = Builder(name, parameters_of(unit, facts), threads)
    frame = frame_of(builder, unit, index_type(unit))
    thread = global_thread(builder, frame.index)

    def element() -> None:
        _elements(frame, flow, thread + frame.constant(chunks * (count - 1)), 1)

    def last() -> None:
        builder.if_(builder.compare("ult", thread, total + rest), element)

    if blocks * threads == total:
        _elements(frame, flow, thread, count)
    else:
        builder.if_(
            builder.compare("ult", thread, total),
            lambda: _elements(frame, flow, thread, count),
            last if rest else None,
        )
    return DeviceKernel(
        entry=name,
        text=builder.text(),
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=0,
        parameters=parameter_types(unit),
        family="elementwise",
        numerics=BIT_EXACT,
    )


def _suits(unit: Unit) -> bool:
    """Whether all nests are maps over equally many elements."""
    for nest in unit.nests:
        codes = {node[0] for node in nest.code}
        if nest.reductions or not nest.sizes or 0 in nest.sizes or "acc" in codes:
            return False
    return len({math.prod(nest.sizes) for nest in unit.nests}) == 1


def _lanes(nests: list[Nest], alignments: tuple[int, ...]) -> int:
    """Elements of a thread: as many as make the widest accesses 16 bytes, and divide the last loop
    of each nest unless it is the only one.
    """
    count = max(_widest(nest, alignments) for nest in nests)
    ops = sum(len(needed(nest, results(nest))) for nest in nests)
    flat = all(len(nest.sizes) == 1 for nest in nests)
    while count > 1 and (
        ops * count > MOST_OPS or (not flat and any(n.sizes[-1] % count for n in nests))
    ):
        count //= 2
    return count


def _widest(nest: Nest, alignments: tuple[int, ...]) -> int:
    """The most elements that any access along the last loop can move at once."""
    dim = len(nest.sizes) - 1
    typed = [(node[1], node[2]) for node in nest.code if node[0] == "load"]
    typed += [(store.access, store.type) for store in nest.stores]
    along = [(a, width(t)) for a, t in typed if a.strides[dim] == 1]
    if not along or all(s.access.strides[dim] != 1 for s in nest.stores):
        return 1
    return max(
        aligned_piece(alignments[a.pointer], [a.const, *a.strides[:dim]], nbytes, WIDEST // nbytes)
        for a, nbytes in along
    )


def _elements(frame: Frame, flow: Flow, group: Value, count: int) -> None:
    """Group number `group` of `count` neighbouring elements, through all maps."""
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
