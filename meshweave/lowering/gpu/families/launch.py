"""Name kernels and number threads, for all families."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from meshweave.ir.expressions import Apply, Gather, needed
from meshweave.lowering.gpu.facts import Facts, parameters_of
from meshweave.lowering.gpu.nodes import DeviceFrame, frame_of
from meshweave.lowering.gpu.writer import DeviceWriter
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

MOST_BLOCKS = (1 << 31) - 1  # of a grid, along x
MOST_THREADS = 256  # of a block that has no need of more
REUSE = 8  # times that a reduction may read its largest operand, beyond which it is a product
_NAMED_OPS = 4  # of the ops of a unit that its kernel is named for


def entry_name(family: str, unit: KernelUnit) -> str:
    """Return a kernel's name: family, sizes and type of its largest nest, and some of its ops."""
    nest = max(unit.nests, key=lambda n: math.prod(n.sizes))
    ops: dict[str, None] = {}
    for each in unit.nests:
        for number in sorted(needed(each.code, each.results)):
            node = each.code[number]
            if isinstance(node, (Apply, Gather)):
                ops.setdefault(node.name.split(".")[-1] if isinstance(node, Apply) else "gather")
    sizes = "x".join(str(n) for n in nest.sizes) or "1"
    names = [family, sizes, str(nest.stores[-1].type), *list(ops)[:_NAMED_OPS]]
    return re.sub(r"\W", "_", "_".join(names if ops else [*names, "copy"]))


def frame_for(
    family: str, unit: KernelUnit, facts: Facts, threads: int, *, phases: int = 1, index: str = "",
    shared_bytes: int = 0, dynamic_shared: bool = False, min_blocks: int = 0,
) -> DeviceFrame:  # fmt: skip
    """Begin the kernel of a unit: its name, its parameters, and the frame of its iterations.

    phases: see `parameters_of`; index: see `frame_of`; the rest: see `DeviceWriter`.
    """
    writer = DeviceWriter(
        entry_name(family, unit), parameters_of(unit, facts, phases), threads,
        shared_bytes=shared_bytes, dynamic_shared=dynamic_shared, min_blocks=min_blocks,
    )  # fmt: skip
    return frame_of(writer, unit, index)


def threads_for(count: int) -> int:
    """Return the threads of a block for that many iterations: whole warps."""
    return min(MOST_THREADS, max(32, -(-count // 32) * 32))


def global_thread(frame: DeviceFrame) -> Value:
    """Return the number of the thread in the grid, as an index."""
    writer = frame.writer
    first = frame.as_index(writer.block()) * writer.threads
    return first + frame.as_index(writer.thread())


def each_row(frame: DeviceFrame, rows: int, body: Callable[[Value], None]) -> int:
    """Write `body(row)` for each row, one a block; return the blocks that the grid needs."""
    blocks = min(max(rows, 1), MOST_BLOCKS)
    first = frame.as_index(frame.writer.block())
    if rows == blocks:
        body(first)
    else:
        frame.writer.for_(first, rows, blocks, [], lambda row, _: body(row), frame.index)
    return blocks
