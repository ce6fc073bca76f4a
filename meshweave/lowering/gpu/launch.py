"""Names, sizes and indices that all families of kernels share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from meshweave.lowering.bind import Nest
from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.gpu.nodes import needed, results, width
from meshweave.lowering.rows import Unit

MOST_BLOCKS = (1 << 31) - 1  # of a grid, along x
MOST_THREADS = 256  # of a block that has no need of more
REUSE = 8  # times that a reduction may read its largest operand, beyond which it is a product
_FAR = (1 << 31) - (1 << 12)  # less what a loop's last step may go beyond
_NAMED_OPS = 4  # of the ops of a unit that its kernel is named for


def index_type(unit: Unit) -> str:
    """i64 where an offset in bytes, or the number of an iteration, does not fit in an i32."""
    return "i64" if any(_reach(nest) > _FAR for nest in unit.nests) else "i32"


def _reach(nest: Nest) -> int:
    """The largest number that indices of a nest come to."""
    spans = [math.prod(nest.sizes)]
    typed = [(node[1], node[2]) for node in nest.code if node[0] == "load"]
    typed += [(store.access, store.type) for store in nest.stores]
    for access, type_ in typed:
        spans.append(width(type_) * (abs(access.const) + _span(nest, access.strides)))
    for node in nest.code:
        if node[0] == "index":
            spans.append(abs(node[1]) + _span(nest, node[2]))
    return max(spans)


def _span(nest: Nest, strides: tuple[int, ...]) -> int:
    return sum(abs(s) * n for s, n in zip(strides, nest.sizes))


def entry_name(family: str, unit: Unit) -> str:
    """What a kernel is called: family, sizes and type of its largest nest, and some of its ops."""
    nest = max(unit.nests, key=lambda n: math.prod(n.sizes))
    ops: dict[str, None] = {}
    for each in unit.nests:
        for number in sorted(needed(each, results(each))):
            node = each.code[number]
            if node[0] in ("op", "gather"):
                ops.setdefault(node[1].split(".")[-1] if node[0] == "op" else "gather")
    sizes = "x".join(str(n) for n in nest.sizes) or "1"
    names = [family, sizes, str(nest.stores[-1].type), *list(ops)[:_NAMED_OPS]]
    return re.sub(r"\W", "_", "_".join(names if ops else [*names, "copy"]))


def threads_for(count: int) -> int:
    """Threads of a block for that many iterations: whole warps."""
    return min(MOST_THREADS, max(32, -(-count // 32) * 32))


def global_thread(builder: Builder, kind: str) -> Value:
    """Number of the thread in the grid."""
    return as_index(builder, builder.block(), kind) * builder.threads + as_index(
        builder, builder.thread(), kind
    )


def as_index(builder: Builder, value: Value, kind: str) -> Value:
    """An i32 that is not negative, as an index."""
    return builder.wide(value) if kind == "i64" else value


def each_row(builder: Builder, rows: int, kind: str, body: Callable[[Value], None]) -> int:
    """Write `body(row)` for each row, one a block; the blocks that the grid needs."""
    blocks = min(max(rows, 1), MOST_BLOCKS)
    first = as_index(builder, builder.block(), kind)
    if rows == blocks:
        body(first)
    else:
        builder.for_(first, rows, blocks, [], lambda row, _: body(row), kind)
    return blocks
