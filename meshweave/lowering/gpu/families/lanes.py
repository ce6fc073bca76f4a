"""Compute several neighbouring iterations of a nest in one thread.

Loads and stores have up to 16 bytes where strides and alignment allow; what does not depend on the
loop between them is computed once.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from meshweave.ir.expressions import Index, Load, inputs, needed
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.nodes import DeviceFrame, DeviceIteration, guarded_load
from meshweave.lowering.gpu.writer import Guard
from meshweave.lowering.nests.bind import Access, LoopNest, Store, loops_of
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.writer import Value

WIDEST = 16  # bytes that one instruction moves


def piece(
    alignments: Sequence[int], touch: Load[Access] | Store, dim: int, count: int = WIDEST
) -> int:
    """Return the elements along loop `dim` that one instruction can move, a power of 2.

    alignments: of the pointers, in bytes. Iterations come in groups of `count` that begin at multiples of it.
    """
    pointer, strides = touch.access
    if strides[dim] != 1:
        return 1
    nbytes = element_bytes(touch.type)
    found = min(count, WIDEST // nbytes)
    apart = [stride for d, stride in enumerate(strides) if d != dim]
    while found > 1 and (alignments[pointer] % (found * nbytes) or any(s % found for s in apart)):
        found //= 2
    return found


class Lanes:
    """Compute `count` iterations of a nest along loop `dim`, from `index` on. guard: whether they exist."""

    def __init__(
        self,
        frame: DeviceFrame,
        nest: LoopNest,
        index: Sequence[Value | None],
        dim: int,
        count: int,
        guard: Guard = None,
        aligned: Container[tuple[int, ...]] | None = None,
    ) -> None:
        """aligned: where iterations do not begin at multiples of `count`, the strides of accesses that yet do."""
        self.frame, self.nest, self.dim, self.count, self.guard = frame, nest, dim, count, guard
        self.aligned = aligned
        self.index = list(index)
        self.shared = DeviceIteration(frame, nest, index, guard=guard)
        self.varying = {k for k, dims in enumerate(loops_of(nest)) if dim in dims}

    def compute(
        self, numbers: Sequence[int], known: Mapping[int, Sequence[Value]] | None = None
    ) -> list[list[Value]]:
        """Return the values of these nodes, one per iteration.

        known: nodes that are known already; their values may differ from iteration to iteration.
        """
        known = dict(known or {})
        varying = self._varying(known)
        wanted = needed(self.nest.code, numbers, known)
        self._load(sorted(wanted), varying, known)
        same = {k: v[0] for k, v in known.items() if k not in varying}
        self.shared.values |= same
        self.shared.compute(sorted(wanted - varying - same.keys()))
        lanes = []
        for lane in range(self.count):
            mine = {k: v[lane] for k, v in known.items() if k in varying}
            values = self.shared.values | mine
            index = self._index(lane, wanted)
            here = DeviceIteration(self.frame, self.nest, index, values, self.guard)
            lanes.append(here.compute(numbers))
        return [list(values) for values in zip(*lanes)] if numbers else []

    def _varying(self, known: Mapping[int, Sequence[Value]]) -> set[int]:
        """Return the nodes that differ between the iterations."""
        found: set[int] = set()
        for number, node in enumerate(self.nest.code):
            if number in known:
                different = len({v.name for v in known[number]}) > 1
            elif isinstance(node, (Load, Index)):
                different = number in self.varying
            else:
                different = any(k in found for k in inputs(node))
            if different:
                found.add(number)
        return found

    def _index(self, lane: int, wanted: set[int]) -> list[Value | None]:
        """Return the indices of one iteration; written only where a node asks for them."""
        asked = any(isinstance(self.nest.code[k], Index) for k in wanted & self.varying)
        if not lane or not asked:
            return self.index
        index = list(self.index)
        first = index[self.dim]
        assert first is not None
        index[self.dim] = first + self.frame.constant(lane)
        return index

    def _piece(self, touch: Load[Access] | Store, count: int) -> int:
        """Return the elements that one instruction moves."""
        if self.aligned is not None:
            begins = touch.access.strides in self.aligned
            return min(count, WIDEST // element_bytes(touch.type)) if begins else 1
        return piece(self.frame.alignments, touch, self.dim, count)

    def _load(
        self, wanted: list[int], varying: set[int], known: dict[int, Sequence[Value]]
    ) -> None:
        """Do the loads, which then are known."""
        for number in wanted:
            node = self.nest.code[number]
            if isinstance(node, Load):
                count = self.count if number in varying else 1
                values = self.load(node, count)
                known[number] = values if count > 1 else values * self.count

    def load(self, read: Load[Access] | Store, count: int) -> list[Value]:
        """Load `count` elements along the loop, or the one that all iterations read."""
        frame, writer, kind = self.frame, self.frame.writer, stored(str(read.type))
        nbytes = element_bytes(read.type)
        step = read.access.strides[self.dim] * nbytes
        size = self._piece(read, count)
        address = frame.address(read.access, str(read.type), self.index)
        values: list[Value] = []
        for k in range(0, count, size):
            place = writer.offset(address, k * step)
            if size == 1:
                values.append(guarded_load(writer, self.guard, place, kind))
            else:
                vector = f"vector<{size}x{kind}>"
                found = guarded_load(writer, self.guard, place, vector, size * nbytes)
                values += [writer.lane(found, lane) for lane in range(size)]
        return [frame.loaded(v, str(read.type)) for v in values]

    def store(self, store: Store, values: Sequence[Value]) -> None:
        """Store the results of all iterations."""
        self.frame.writer.where(self.guard, lambda: self._store(store, values))

    def _store(self, store: Store, values: Sequence[Value]) -> None:
        frame, writer, access = self.frame, self.frame.writer, store.access
        nbytes = element_bytes(store.type)
        step = access.strides[self.dim] * nbytes
        size = self._piece(store, len(values))
        address = frame.address(access, str(store.type), self.index)
        raw = [frame.in_memory(v) for v in values]
        for k in range(0, len(raw), size):
            place = writer.offset(address, k * step)
            if size > 1:
                writer.store(writer.vector(raw[k : k + size]), place, size * nbytes)
            else:
                writer.store(raw[k], place)
