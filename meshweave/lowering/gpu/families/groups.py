"""Reduce among threads: `size` neighbours in a block, a power of 2.

Up to a warp they shuffle; more of them meet in shared memory, and then are the whole block.

The order of a sum depends on the size alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshweave.lowering.gpu.families.reduction import Combiner
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.gpu.writer import DeviceWriter
from meshweave.lowering.writer import Value

WARP = 32
SLOT = 8  # bytes of shared memory for a warp's part of a value, at most


@dataclass
class Group:
    """Describe a group of `size` threads of a kernel.

    slots: values that one reduction reduces at once, at most; thread: the number of the thread in
    its block.
    """

    frame: DeviceFrame
    size: int
    slots: int
    thread: Value
    _turn: int = field(default=0)

    def synchronise(self) -> None:
        """Make what any thread of the group wrote visible to all."""
        if self.size > WARP:
            self.frame.writer.barrier()
        elif self.size > 1:
            self.frame.writer.warp_barrier()

    def reduce(self, combiners: list[Combiner], values: list[Value]) -> list[Value]:
        """Join each thread's values; every thread has the result."""
        found = [self._shuffled(c, v, min(self.size, WARP)) for c, v in zip(combiners, values)]
        return found if self.size <= WARP else self._across_warps(combiners, found)

    def _shuffled(self, combiner: Combiner, value: Value, width: int) -> Value:
        distance = width // 2
        while distance:
            other = shuffled(self.frame.writer, value, distance, width)
            value = combiner.join(self.frame, value, other)
            distance //= 2
        return value

    def _across_warps(self, combiners: list[Combiner], values: list[Value]) -> list[Value]:
        """Join the values of warps.

        Two halves of shared memory take turns, so that one barrier is enough: who writes to a half
        again has passed the barrier after its last use.
        """
        writer, warps = self.frame.writer, self.size // WARP
        start, self._turn = self._turn * self.slots * warps * SLOT, 1 - self._turn
        warp, lane = self.thread // WARP, self.thread % WARP
        stored = [self.frame.in_memory(v) for v in values]

        def write() -> None:
            for k, value in enumerate(stored):
                place = writer.shared(start + k * warps * SLOT)
                writer.store(value, writer.offset(place, warp * word_bytes(value.type)))

        writer.if_(writer.compare("eq", lane, 0), write)
        writer.barrier()
        found = []
        for k, (combiner, value) in enumerate(zip(combiners, stored)):
            place = writer.shared(start + k * warps * SLOT)
            place = writer.offset(place, (lane % warps) * word_bytes(value.type))
            part = writer.load(place, value.type)
            part = self.frame.loaded(part, combiner.type)
            found.append(self._shuffled(combiner, part, warps))
        return found


def shared_bytes(size: int, slots: int) -> int:
    """Return the shared memory of a group of that size which reduces at most `slots` values at once."""
    return 2 * slots * (size // WARP) * SLOT if size > WARP else 0


def word_bytes(kind: str) -> int:
    """Return the bytes from one value to the next in shared memory.

    They are whole words, so that threads side by side use different banks.
    """
    return max(4, int(kind.lstrip("bfi")) // 8)


def shuffled(writer: DeviceWriter, value: Value, distance: int, width: int) -> Value:
    """Return the value, of any type, of the thread whose lane differs in bit `distance`."""
    kind = value.type
    if kind in ("f32", "i32"):
        return writer.shuffle_xor(value, distance, width)
    if kind == "index":
        whole = writer.convert("arith.index_cast", value, "i64")
        back = shuffled(writer, whole, distance, width)
        return writer.convert("arith.index_cast", back, "index")
    if kind in ("f64", "i64"):
        pair = writer.convert("llvm.bitcast", value, "vector<2xi32>")
        halves = [writer.shuffle_xor(writer.lane(pair, k), distance, width) for k in range(2)]
        return writer.convert("llvm.bitcast", writer.vector(halves), kind)
    word = writer.convert("arith.extui", value, "i32")
    return writer.convert("arith.trunci", writer.shuffle_xor(word, distance, width), kind)
