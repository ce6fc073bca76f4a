"""Count the shared memory that a program needs for operands that may lie in memory of the user."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from meshweave.abi import rounded
from meshweave.lowering.buffers.steps import MemrefPlace, Step
from meshweave.lowering.nests.rows import Entry, in_order
from meshweave.plan.collectives import row_of_symbol


def staging_bytes(entries: Iterable[Entry], symbols: Sequence[str]) -> int:
    """Return the bytes of the window that the collectives of a program need, one at a time.

    They are for operands that are inputs, outputs or constants of the program: those may lie in memory of the user.

    symbols[i]: the function that collective i calls.
    """
    most = 0
    for entry in in_order(entries):
        if not isinstance(entry, Step) or entry.what != "collective" or entry.ticket >= 0:
            continue
        row = row_of_symbol(symbols[entry.number])
        if row is None:
            continue
        source, target = entry.operands[0], entry.outputs[0]
        needed = _nbytes(source) if source.root.kind != "arena" else 0
        if row.in_place and target.root.kind != "arena":  # the others write to it
            needed = rounded(_nbytes(source)) + _nbytes(target)
        most = max(most, needed)
    return most


def _nbytes(place: MemrefPlace) -> int:
    return math.prod(place.shape) * place.width
