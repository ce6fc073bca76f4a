"""Redistribute between blocks by copying boxes, where all shards are at hand.

Each rank's block is put together from the boxes that it shares with the blocks of the source. A box comes from the
rank that `exchange.Table` takes it from: the one that differs in the axes that the source cuts dims over, and in no
other.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from meshweave.layout.digits import Values, padding
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh


class Part(NamedTuple):
    """Locate what a block of the target shares with a block of the source, along one dim.

    offset: of the sender's rank, from the rank at coordinate 0 of the source's axes.
    given, taken: where it lies in the sender's block, and in the receiver's.
    """

    offset: int
    given: slice
    taken: slice


def copied(
    source: Layout, target: Layout, mesh: Mesh, shape: Sequence[int], shards: Sequence[Values]
) -> list[Values]:
    """Return new shards in the layout `target` of a tensor whose shards lie in `source`.

    Both layouts are in blocks, with the same reductions pending.
    """
    assert source.is_block and target.is_block and source.partial == target.partial
    local = target.local_shape(mesh, shape)
    cuts = zip(shape, source.block_axes(), target.block_axes(), strict=True)
    rows = [_Dim(mesh, *cut) for cut in cuts]
    even = all(row.even for row in rows)
    found = []
    for rank in range(mesh.nranks):
        block: Values = np.empty(local, shards[0].dtype)
        if not even:
            block[...] = padding(block.dtype)
        parts = [row.parts(rank) for row in rows]
        base = rank - sum(row.offset(rank) for row in rows)
        for box in product(*parts):
            sender = shards[base + sum(part.offset for part in box)]
            taken: tuple[Any, ...] = tuple(part.taken for part in box)
            block[taken or ...] = sender[tuple(part.given for part in box)]
        found.append(block)
    return found


class _Dim:
    """Cut a dim of `size`, given in pieces over the axes `given`, into pieces over the axes `wanted`."""

    def __init__(self, mesh: Mesh, size: int, given: Sequence[str], wanted: Sequence[str]) -> None:
        self.size = size
        self.given = [(mesh.size(axis), mesh.stride(axis)) for axis in given]
        self.wanted = [(mesh.size(axis), mesh.stride(axis)) for axis in wanted]
        self.chunks = tuple(-(-size // mesh.axis_count(axes)) for axes in (given, wanted))
        self.even = self.chunks[1] * mesh.axis_count(wanted) == size
        self.offsets = [0]  # of the ranks at each coordinate over the given axes
        for count, stride in self.given:
            self.offsets = [at + k * stride for at in self.offsets for k in range(count)]
        self.known: dict[int, list[Part]] = {}

    def offset(self, rank: int) -> int:
        """Return what the given axes contribute to the number of the rank."""
        return sum(rank // stride % count * stride for count, stride in self.given)

    def parts(self, rank: int) -> list[Part]:
        """Return the parts that the block of a rank is made of."""
        at = 0
        for count, stride in self.wanted:
            at = at * count + rank // stride % count
        if at not in self.known:
            self.known[at] = list(self._parts(at))
        return self.known[at]

    def _parts(self, at: int) -> Iterator[Part]:
        theirs, mine = self.chunks
        low, high = at * mine, min(self.size, (at + 1) * mine)
        for k in range(low // theirs, -(-high // theirs)) if low < high else ():
            first, last = max(low, k * theirs), min(high, (k + 1) * theirs)
            given = slice(first - k * theirs, last - k * theirs)
            yield Part(self.offsets[k], given, slice(first - low, last - low))
