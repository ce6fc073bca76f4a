"""Several neighbouring iterations of a nest in one thread: loads and stores of up to 16 bytes where
strides and alignment allow; what does not depend on the loop between them is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshweave.lowering.bind import Access, Nest, Store
from meshweave.lowering.gpu.builder import Value
from meshweave.lowering.gpu.nodes import (
    Frame,
    Iteration,
    dims_of,
    guarded_load,
    needed,
    stored,
    width,
)

WIDEST = 16  # bytes that one instruction moves
Guard = Value | None  # an i1 that says whether memory may be touched; None: it may


def piece(frame: Frame, nest: Nest, access: Access, type_: Any, dim: int, count: int) -> int:
    """Elements along loop `dim` that one instruction can move, a power of 2; iterations come in
    groups of `count` that begin at multiples of it.
    """
    if access.strides[dim] != 1:
        return 1
    return aligned_piece(
        frame.alignments[access.pointer],
        [access.const, *(s for d, s in enumerate(access.strides) if d != dim)],
        width(type_),
        count,
    )


def aligned_piece(alignment: int, steps: Iterable[int], nbytes: int, count: int) -> int:
    """Elements of `nbytes` in one access, at most `count`: alignment in bytes, steps in elements
    that its place is made of.
    """
    found = min(count, WIDEST // nbytes)
    steps = list(steps)
    while found > 1 and (alignment % (found * nbytes) or any(s % found for s in steps)):
        found //= 2
    return found


class Lanes:
    """`count` iterations of a nest along loop `dim`, from `index` on. guard: whether they exist."""

    def __init__(
        self,
        frame: Frame,
        nest: Nest,
        index: Sequence[Value | None],
        dim: int,
        count: int,
        guard: Guard = None,
    ) -> None:
        self.frame, self.nest, self.dim, self.count, self.guard = frame, nest, dim, count, guard
        self.index = list(index)
        self.shared = Iteration(frame, nest, index, guard=guard)
        self.varying = {k for k, dims in enumerate(dims_of(nest)) if dim in dims}

    def compute(
        self, numbers: Sequence[int], known: Mapping[int, Sequence[Value]] | None = None
    ) -> list[list[Value]]:
        """The values of these nodes, one per iteration. known: nodes that are known already; their
        values may differ from iteration to iteration.
        """
        known = dict(known or {})
        varying = self._varying(known)
        wanted = needed(self.nest, numbers, known)
        self._load(sorted(wanted), varying, known)
        same = {k: v[0] for k, v in known.items() if k not in varying}
        self.shared.values |= same
        self.shared.compute(sorted(wanted - varying - same.keys()))
        lanes = []
        for lane in range(self.count):
            mine = {k: v[lane] for k, v in known.items() if k in varying}
            values = self.shared.values | mine
            index = self._index(lane, wanted)
            here = Iteration(self.frame, self.nest, index, values, self.guard)
            lanes.append(here.compute(numbers))
        return [list(values) for values in zip(*lanes)] if numbers else []

    def _varying(self, known: Mapping[int, Sequence[Value]]) -> set[int]:
        """Nodes that differ between the iterations."""
        found: set[int] = set()
        for number, node in enumerate(self.nest.code):
            if number in known:
                different = len({v.name for v in known[number]}) > 1
            elif node[0] in ("load", "index"):
                different = number in self.varying
            else:
                inputs = node[3] if node[0] in ("op", "gather") else ()
                different = any(k in found for k in inputs)
            if different:
                found.add(number)
        return found

    def _index(self, lane: int, wanted: set[int]) -> list[Value | None]:
        """The indices of one iteration; written only where a node asks for them."""
        asked = any(self.nest.code[k][0] == "index" for k in wanted & self.varying)
        if not lane or not asked:
            return self.index
        index = list(self.index)
        first = index[self.dim]
        assert first is not None
        index[self.dim] = first + self.frame.constant(lane)
        return index

    def _load(
        self, wanted: list[int], varying: set[int], known: dict[int, Sequence[Value]]
    ) -> None:
        """Do the loads, which then are known."""
        for number in wanted:
            node = self.nest.code[number]
            if node[0] == "load":
                count = self.count if number in varying else 1
                values = self.load(node[1], node[2], count)
                known[number] = values if count > 1 else values * self.count

    def load(self, access: Access, type_: Any, count: int) -> list[Value]:
        """`count` elements along the loop, or the one that all iterations read."""
        frame, kind = self.frame, stored(str(type_))
        step = access.strides[self.dim] * width(type_)
        size = piece(frame, self.nest, access, type_, self.dim, count)
        address = frame.address(access, str(type_), self.index)
        values: list[Value] = []
        for k in range(0, count, size):
            values += self._guarded_load(address, k * step, kind, size)
        return [frame.loaded(v, str(type_)) for v in values]

    def _guarded_load(self, address: Value, nbytes: int, kind: str, size: int) -> list[Value]:
        builder, place = self.frame.builder, self.frame.builder.offset(address, nbytes)
        if size == 1:
            return [guarded_load(builder, self.guard, place, kind)]
        align = size * _bytes(kind)
        found = guarded_load(builder, self.guard, place, f"vector<{size}x{kind}>", align)
        return [builder.lane(found, k) for k in range(size)]

    def store(self, store: Store, values: Sequence[Value]) -> None:
        """Put the results of all iterations where they belong."""
        if self.guard is None:
            self._store(store, values)
        else:
            self.frame.builder.if_(self.guard, lambda: self._store(store, values))

    def _store(self, store: Store, values: Sequence[Value]) -> None:
        frame, builder, access = self.frame, self.frame.builder, store.access
        nbytes = width(store.type)
        step = access.strides[self.dim] * nbytes
        size = piece(frame, self.nest, access, store.type, self.dim, len(values))
        address = frame.address(access, str(store.type), self.index)
        raw = [frame.in_memory(v) for v in values]
        for k in range(0, len(raw), size):
            place = builder.offset(address, k * step)
            if size > 1:
                builder.store(builder.vector(raw[k : k + size]), place, size * nbytes)
            else:
                builder.store(raw[k], place)


def _bytes(kind: str) -> int:
    """Bytes of an element of a type that memory holds."""
    return 2 if kind == "bf16" else int(kind[1:]) // 8
