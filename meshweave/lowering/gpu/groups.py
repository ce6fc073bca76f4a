"""Threads that reduce together: `size` neighbours in a block, a power of 2. Up to a warp they shuffle;
more of them meet in shared memory, and then are the whole block.

The order of a sum depends on the size alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.gpu.nodes import Frame
from meshweave.lowering.gpu.reduction import Combiner

WARP = 32
SLOT = 8  # bytes of shared memory for a warp's part of a value, at most


@dataclass
class Group:
    """A group of `size` threads of a kernel. slots: values that one reduction reduces at once, at
    most; thread: the number of the thread in its block.
    """

    frame: Frame
    size: int
    slots: int
    thread: Value
    _turn: int = field(default=0)

    def synchronise(self) -> None:
        """What any thread of the group wrote is seen by all."""
        if self.size > WARP:
            self.frame.builder.barrier()
        elif self.size > 1:
            self.frame.builder.warp_barrier()

    def reduce(self, combiners: list[Combiner], values: list[Value]) -> list[Value]:
        """Each thread's values together; every thread has the result."""
        found = [self._shuffled(c, v, min(self.size, WARP)) for c, v in zip(combiners, values)]
        return found if self.size <= WARP else self._across_warps(combiners, found)

    def _shuffled(self, combiner: Combiner, value: Value, width: int) -> Value:
        distance = width // 2
        while distance:
            other = shuffled(self.frame.builder, value, distance, width)
            value = combiner.join(self.frame, value, other)
            distance //= 2
        return value

    def _across_warps(self, combiners: list[Combiner], values: list[Value]) -> list[Value]:
        """Two halves of shared memory take turns, so that one barrier is enough: who writes to a
        half again has passed the barrier after its last use.
        """
        builder, warps = self.frame.builder, self.size // WARP
        start, self._turn = self._turn * self.slots * warps * SLOT, 1 - self._turn
        warp, lane = self.thread // WARP, self.thread % WARP
        stored = [self.frame.in_memory(v) for v in values]

        def write() -> None:
            for k, value in enumerate(stored):
                place = builder.shared(start + k * warps * SLOT)
                builder.store(value, builder.offset(place, warp * word_bytes(value.type)))

        builder.if_(builder.compare("eq", lane, 0), write)
        builder.barrier()
        found = []
        for k, (combiner, value) in enumerate(zip(combiners, stored)):
            place = builder.shared(start + k * warps * SLOT)
            place = builder.offset(place, (lane % warps) * word_bytes(value.type))
            part = builder.load(place, value.type)
            part = self.frame.loaded(part, combiner.type)
            found.append(self._shuffled(combiner, part, warps))
        return found


def shared_bytes(size: int, slots: int) -> int:
    """Shared memory of a group of that size which reduces at most `slots` values at once."""
    return 2 * slots * (size // WARP) * SLOT if size > WARP else 0


def word_bytes(kind: str) -> int:
    """Bytes from one value to the next in shared memory: whole words, so that threads side by side
    use different banks.
    """
    return max(4, int(kind.lstrip("bfi")) // 8)


def shuffled(builder: Builder, value: Value, distance: int, width: int) -> Value:
    """The value of the thread whose lane differs in bit `distance`, of any type."""
    kind = value.type
    if kind in ("f32", "i32"):
        return builder.shuffle_xor(value, distance, width)
    if kind == "index":
        whole = builder.convert("arith.index_cast", value, "i64")
        back = shuffled(builder, whole, distance, width)
        return builder.convert("arith.index_cast", back, "index")
    if kind in ("f64", "i64"):
        pair = builder.convert("llvm.bitcast", value, "vector<2xi32>")
        halves = [builder.shuffle_xor(builder.lane(pair, k), distance, width) for k in range(2)]
        return builder.convert("llvm.bitcast", builder.vector(halves), kind)
    word = builder.convert("arith.extui", value, "i32")
    return builder.convert("arith.trunci", builder.shuffle_xor(word, distance, width), kind)
