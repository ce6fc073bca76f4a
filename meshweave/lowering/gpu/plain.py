"""Plain kernels, for any unit: a thread per parallel iteration, reductions one value after another.

Nests that share rows are done row by row, a block for each: its threads do the iterations of a
nest, then meet, then do the next nest's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.fast_paths import BIT_EXACT, DETERMINISTIC
from meshweave.lowering.bind import Nest, Store
from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.gpu.facts import Facts, parameter_types, parameters_of
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.launch import (
    each_row,
    entry_name,
    global_thread,
    index_type,
    threads_for,
)
from meshweave.lowering.gpu.nodes import Frame, Iteration, frame_of
from meshweave.lowering.gpu.reduction import combiners
from meshweave.lowering.rows import Unit


def build(unit: Unit, target: Target, facts: Facts) -> DeviceKernel:
    """A kernel for `unit`."""
    name = entry_name("plain", unit)
    counts = [math.prod(_parallel_sizes(nest, unit.rows)) for nest in unit.nests]
    builder = Builder(name, parameters_of(unit, facts, len(unit.nests)), threads_for(max(counts)))
    frame = frame_of(builder, unit, index_type(unit))
    if len(unit.nests) == 1 and not unit.rows:
        blocks = -(-max(counts[0], 1) // builder.threads)
        thread = global_thread(builder, frame.index)
        inside = builder.compare("ult", thread, counts[0])
        builder.if_(inside, lambda: _iteration(frame, unit.nests[0], [], thread))
    else:
        rows = unit.nests[0].sizes[: unit.rows]
        blocks = each_row(builder, math.prod(rows), frame.index, lambda row: _row(frame, unit, row))
    kernel = DeviceKernel(
        entry=name,
        text=builder.text(),
        grid=(blocks, 1, 1),
        block=(builder.threads, 1, 1),
        shared_bytes=0,
        parameters=parameter_types(unit),
        family="plain",
        numerics=numerics(unit),
    )
    return kernel


def numerics(unit: Unit) -> str:
    """Reductions that another slicing of the program would do in other parts are not bit-exact."""
    free = any(n.reductions and combiners(n) is not None for n in unit.nests)
    return DETERMINISTIC if free else BIT_EXACT


def _parallel_sizes(nest: Nest, rows: int) -> list[int]:
    return [n for d, n in enumerate(nest.sizes) if d >= rows and d not in nest.reductions]


def _row(frame: Frame, unit: Unit, row: Value) -> None:
    """All nests in one iteration of the rows, threads side by side within each nest."""
    builder = frame.builder
    outer = frame.digits(row, unit.nests[0].sizes[: unit.rows])
    for k, nest in enumerate(unit.nests):
        if k:
            builder.barrier()
        count = math.prod(_parallel_sizes(nest, unit.rows))
        thread = builder.thread()
        first = builder.wide(thread) if frame.index == "i64" else thread

        def inside(number: Value, _: Sequence[Value], nest: Nest = nest) -> None:
            _iteration(frame, nest, outer, number)

        builder.for_(first, count, builder.threads, [], inside, frame.index)


def _iteration(frame: Frame, nest: Nest, outer: Sequence[Value], number: Value) -> None:
    """Iteration `number` of the parallel loops inside the rows, with all its reductions."""
    parallel = [d for d in range(len(outer), len(nest.sizes)) if d not in nest.reductions]
    digits = frame.digits(number, [nest.sizes[d] for d in parallel])
    index: list[Value | None] = [None] * len(nest.sizes)
    for d, value in [*enumerate(outer), *zip(parallel, digits)]:
        index[d] = value
    here = Iteration(frame, nest, index)
    finals = _reduced(frame, nest, index, here) if nest.reductions else _mapped(nest, here)
    for store, value in zip(nest.stores, finals):
        here.store(store, value)


def _start(here: Iteration, store: Store) -> Value:
    """What a result begins with: its start value, or what its place holds."""
    return here.held(store) if store.initial is None else here.compute([store.initial])[0]


def _mapped(nest: Nest, here: Iteration) -> list[Value]:
    """The results of a nest without reductions; some add to what is there."""
    for number, node in enumerate(nest.code):
        if node[0] == "acc":
            here.values[number] = _start(here, nest.stores[node[1]])
    return here.compute([s.value for s in nest.stores])


def _reduced(
    frame: Frame, nest: Nest, index: Sequence[Value | None], outside: Iteration
) -> list[Value]:
    """The results of the reduction loops, done in order."""
    joined = combiners(nest)
    current = starts = [_start(outside, s) for s in nest.stores]
    if joined is not None:
        current = [c.given(frame, v) for c, v in zip(joined, starts)]
    place = list(index)

    def loop(dims: list[int], carried: list[Value]) -> list[Value]:
        def body(iv: Value, inner: list[Value]) -> list[Value]:
            place[dims[0]] = iv
            return loop(dims[1:], inner) if dims[1:] else step(inner)

        return frame.builder.for_(0, nest.sizes[dims[0]], 1, carried, body, frame.index)

    def step(carried: list[Value]) -> list[Value]:
        here = Iteration(frame, nest, place)
        if joined is not None:
            values = here.compute([c.value for c in joined])
            return [c.join(frame, a, c.given(frame, v)) for c, a, v in zip(joined, carried, values)]
        accs = {k: node[1] for k, node in enumerate(nest.code) if node[0] == "acc"}
        here.values |= {k: carried[number] for k, number in accs.items()}
        return here.compute([s.value for s in nest.stores])

    found = loop(sorted(nest.reductions), current)
    if joined is not None:
        found = [c.finished(frame, v) for c, v in zip(joined, found)]
    return found
