"""Place buffers in one block of memory: those that live at the same time apart, the others may share.

Lifetimes are known exactly, so the peak is known before anything runs. Larger buffers are placed
first, each at the lowest free offset that fits best. A result may take the place of an operand that
dies where it is made, when the kernel reads each element before it writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshweave.abi import rounded


@dataclass
class ArenaBlock:
    """Describe a buffer of the arena.

    nbytes: its size. first, last: the steps between which it holds something. at: its offset, once it has one.
    """

    nbytes: int
    first: int
    last: int
    at: int = -1


def plan(blocks: Iterable[ArenaBlock]) -> int:
    """Give every block its offset; return the bytes of the arena that holds them."""
    placed: list[ArenaBlock] = []
    total = 0
    for block in sorted(blocks, key=lambda b: (-b.nbytes, b.first, b.last)):
        block.at = _place(block, placed)
        placed.append(block)
        total = max(total, block.at + rounded(block.nbytes))
    return total


def _place(block: ArenaBlock, placed: list[ArenaBlock]) -> int:
    """Return the start of the smallest hole that `block` fits in, among those that live at the same time."""
    wanted = rounded(block.nbytes)
    busy = sorted(
        (b.at, b.at + rounded(b.nbytes))
        for b in placed
        if b.first <= block.last and block.first <= b.last
    )
    best, best_size, end = -1, 0, 0
    for start, stop in busy:
        hole = start - end
        if hole >= wanted and (best < 0 or hole < best_size):
            best, best_size = end, hole
        end = max(end, stop)
    return best if best >= 0 else end
