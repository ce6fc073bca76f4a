"""Buffers that live together get different places in one block of memory; the others share.

Lifetimes are known exactly, so the peak is known before anything runs. Larger buffers are placed
first, each at the lowest free offset that fits best. A result may take the place of an operand that
dies where it is made, when the kernel reads each element before it writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshweave.abi import rounded


@dataclass
class Block:
    """A buffer's size in bytes and the steps, first and last, between which it holds something.
    `at`: its offset.
    """

    nbytes: int
    first: int
    last: int
    at: int = -1


def plan(blocks: Iterable[Block]) -> int:
    """Give every block its offset; bytes of the arena they fit in."""
    placed: list[Block] = []
    total = 0
    for block in sorted(blocks, key=lambda b: (-b.nbytes, b.first, b.last)):
        block.at = _place(block, placed)
        placed.append(block)
        total = max(total, block.at + rounded(block.nbytes))
    return total


def _place(block: Block, placed: list[Block]) -> int:
    """The start of the smallest hole that `block` fits in, among those that live at the same time."""
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
