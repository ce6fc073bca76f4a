"""Write plain kernels, for any unit: a thread per parallel iteration, reductions one value after another.

Nests that share rows are done row by row, a block for each: its threads do the iterations of a
nest, then meet, then do the next nest's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.hints.fast_paths import BIT_EXACT, DETERMINISTIC
from meshweave.ir.expressions import Accumulator
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.launch import (
    each_row,
    frame_for,
    global_thread,
    threads_for,
)
from meshweave.lowering.gpu.families.reduction import combiners, loop
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nodes import DeviceFrame, DeviceIteration
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel:
    """Return a kernel for `unit`."""
    counts = [math.prod(_parallel_sizes(nest, unit.rows)) for nest in unit.nests]
    threads = threads_for(max(counts))
    frame = frame_for("plain", unit, facts, threads, phases=len(unit.nests))
    writer = frame.writer
    if len(unit.nests) == 1 and not unit.rows:
        blocks = -(-max(counts[0], 1) // writer.threads)
        thread = global_thread(frame)
        inside = writer.compare("ult", thread, counts[0])
        writer.if_(inside, lambda: _iteration(frame, unit.nests[0], [], thread))
    else:
        rows = unit.nests[0].sizes[: unit.rows]
        blocks = each_row(frame, math.prod(rows), lambda row: _row(frame, unit, row))
    return DeviceKernel.of(writer, blocks, "plain", numerics(unit))


def numerics(unit: KernelUnit) -> str:
    """Return the class of a unit.

    Reductions that another slicing of the program would do in other parts are not bit-exact.
    """
    free = any(n.reductions and combiners(n) is not None for n in unit.nests)
    return DETERMINISTIC if free else BIT_EXACT


def _parallel_sizes(nest: LoopNest, rows: int) -> list[int]:
    return [nest.sizes[d] for d in nest.parallel if d >= rows]


def _row(frame: DeviceFrame, unit: KernelUnit, row: Value) -> None:
    """Write all nests in one iteration of the rows, threads side by side within each nest."""
    writer = frame.writer
    outer = frame.digits(row, unit.nests[0].sizes[: unit.rows])
    for k, nest in enumerate(unit.nests):
        if k:
            writer.barrier()
        count = math.prod(_parallel_sizes(nest, unit.rows))
        first = frame.as_index(writer.thread())

        def inside(number: Value, _: Sequence[Value], nest: LoopNest = nest) -> None:
            _iteration(frame, nest, outer, number)

        writer.for_(first, count, writer.threads, [], inside, frame.index)


def _iteration(frame: DeviceFrame, nest: LoopNest, outer: Sequence[Value], number: Value) -> None:
    """Write iteration `number` of the parallel loops inside the rows, with all its reductions."""
    parallel = [d for d in nest.parallel if d >= len(outer)]
    digits = frame.digits(number, [nest.sizes[d] for d in parallel])
    index: list[Value | None] = [None] * len(nest.sizes)
    for d, value in [*enumerate(outer), *zip(parallel, digits)]:
        index[d] = value
    here = DeviceIteration(frame, nest, index)
    finals = _reduced(frame, nest, index, here) if nest.reductions else _mapped(nest, here)
    for store, value in zip(nest.stores, finals):
        here.store(store, value)


def _mapped(nest: LoopNest, here: DeviceIteration) -> list[Value]:
    """Return the results of a nest without reductions; some add to what is there."""
    for number, node in enumerate(nest.code):
        if isinstance(node, Accumulator):
            here.values[number] = here.start(nest.stores[node.number])
    return here.compute([s.value for s in nest.stores])


def _reduced(
    frame: DeviceFrame, nest: LoopNest, index: Sequence[Value | None], outside: DeviceIteration
) -> list[Value]:
    """Return the results of the reduction loops, done in order."""
    joined = combiners(nest)
    current = starts = [outside.start(s) for s in nest.stores]
    if joined is not None:
        current = [c.given(frame, v) for c, v in zip(joined, starts)]
    place = list(index)

    def loops(dims: list[int], carried: list[Value]) -> list[Value]:
        def body(iv: Value, inner: list[Value]) -> list[Value]:
            place[dims[0]] = iv
            return loops(dims[1:], inner) if dims[1:] else step(inner)

        inner = math.prod(nest.sizes[d] for d in dims[1:])
        return loop(frame, joined or [], carried, 0, nest.sizes[dims[0]], 1, body, inner)

    def step(carried: list[Value]) -> list[Value]:
        here = DeviceIteration(frame, nest, place)
        if joined is not None:
            values = here.compute([c.value for c in joined])
            return [c.join(frame, a, c.given(frame, v)) for c, a, v in zip(joined, carried, values)]
        for k, node in enumerate(nest.code):
            if isinstance(node, Accumulator):
                here.values[k] = carried[node.number]
        return here.compute([s.value for s in nest.stores])

    found = loops(sorted(nest.reductions), current)
    if joined is not None:
        found = [c.finished(frame, v) for c, v in zip(joined, found)]
    return found
