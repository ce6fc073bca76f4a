"""Answer products of warpgroups, whose factors tensor cores read from shared memory by themselves (`wgmma.mma_async`).

A product is computed when all 128 threads have come. What it read must lie there still when they wait for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from meshweave.simulator.witness.warp import LEFT16, WARP, decoded

Array = np.ndarray
GROUP = 128
_ROWS, _DEPTH = 64, 16
_LINE, _CHUNK = 128, 16  # bytes that lie side by side; bytes that the swizzle moves together


@dataclass
class PendingProducts:
    """Hold what a warpgroup's products have read of shared memory, by groups; the last one is not closed yet.

    A warp counts how many groups it has closed, and how many it has waited for.
    """

    read: list[list[tuple[Array, Array]]] = field(default_factory=lambda: [[]])
    closed: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)

    def close(self, warp: int) -> None:
        """End a warp's group."""
        self.closed[warp] = self.closed.get(warp, 0) + 1
        while len(self.read) <= self.closed[warp]:
            self.read.append([])

    def changed(self, warp: int, but: int, shared: Array) -> bool:
        """Tell whether something that the groups, but the last `but`, read is not there any more."""
        before, self.ended[warp] = self.ended.get(warp, 0), max(0, self.closed.get(warp, 0) - but)
        due = self.read[before : self.ended[warp]]
        return any((shared[where] != what).any() for group in due for where, what in group)

    def under_way(self, warp: int) -> bool:
        """Tell whether there are products that a warp has not waited for."""
        return any(self.read[self.ended.get(warp, 0) :])


@dataclass(frozen=True)
class GroupProduct:
    """Describe D = sums + A B of a warpgroup, by the instruction's name and the operands of its threads.

    The operands are the sums; A's descriptor or four registers; B's descriptor; and, with a descriptor of A: whether
    there are sums, two signs, whether A and B lie by columns. Else the numbers behind `.by.` in the name say so.
    """

    name: str
    values: Array  # [thread, slot]

    @property
    def columns(self) -> int:
        """Return how many columns B has."""
        return int(re.findall(r"m64n(\d+)k16", self.name)[0])

    @property
    def kind(self) -> str:
        """Return the type of the factors."""
        return "bf16" if "bf16" in self.name else "f16"

    @property
    def held(self) -> bool:
        """Tell whether A is in registers."""
        return ".by." in self.name

    @property
    def _rest(self) -> Array:
        return self.values[:, self.columns // 2 :]

    @property
    def _settings(self) -> list[int]:
        """Return: sums are added to; signs; A, B lie by columns."""
        if self.held:
            added, *signs, turned = (int(n) for n in self.name.split(".by.")[1].split("."))
            return [added, *signs, 0, turned]
        return [int(v) & 0xFFFFFFFF for v in self._rest[0, 2:7]]

    @property
    def _descriptors(self) -> Array:
        return self._rest[:, 4:5] if self.held else self._rest[:, :2]

    def refusal(self) -> str | None:
        """Return what is wrong, if anything is."""
        first = self._descriptors[0]
        if (self._descriptors != first).any():
            return "the threads of a warpgroup have several descriptors"
        if (first >> np.uint64(62) != 1).any() or (first >> np.uint64(49) & np.uint64(7)).any():
            return "only the swizzle of 128 bytes is known, at offset 0"
        if self._settings[1:3] != [1, 1]:
            return "signs are not known"
        return None

    def places(self) -> list[Array]:
        """Return where in shared memory the factors are, [line, element of 8, byte]: of A, if it is there, and B."""
        turned = self._settings[3:]
        sizes = [self.columns] if self.held else [_ROWS, self.columns]
        ways = turned[-len(sizes) :]
        return [_places(int(d), n, bool(t)) for d, n, t in zip(self._descriptors[0], sizes, ways)]

    def result(self, read: list[Array]) -> Array:
        """Return the sums of each thread as slots. read: the bytes at `places`."""
        turned = self._settings[3:]
        factors = [_matrix(data, self.kind, bool(t)) for data, t in zip(read, turned[-len(read) :])]
        if self.held:
            lanes = decoded(self._rest[:, :4], self.kind).reshape(GROUP // WARP, WARP, 8)
            factors.insert(0, LEFT16.gathered(lanes).reshape(_ROWS, _DEPTH))
        with np.errstate(all="ignore"):
            product = factors[0] @ factors[1].T
            # Rows of a warp, half of them, row, eight columns, pair, element of the pair.
            parts = product.reshape(4, 2, 8, self.columns // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5)
            mine = parts.reshape(GROUP, self.columns // 2)
            if self._settings[0]:
                mine = mine + decoded(self.values[:, : self.columns // 2], "f32")
        bits: Array = mine.astype(np.float32).view(np.uint32).astype(np.uint64)
        return bits


def _places(descriptor: int, size: int, turned: bool) -> Array:
    """Return the places of a factor's bytes. size: of rows of A (columns of B); turned: these lie side by side."""
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    lines, chunks = (_DEPTH, size // 8) if turned else (size, _DEPTH // 8)
    line, chunk = np.arange(lines)[:, None], np.arange(chunks)[None, :]
    per_line = _LINE // _CHUNK
    where = (
        start
        + line // 8 * stride
        + line % 8 * _LINE
        + chunk // per_line * leading
        + chunk % per_line * _CHUNK
    )
    where = where ^ (where >> 7 & 7) << 4
    return where[..., None] + np.arange(_CHUNK)


def _matrix(data: Array, kind: str, turned: bool) -> Array:
    """Return a factor [row of A or column of B, depth] in f64."""
    words = np.ascontiguousarray(data).reshape(len(data), -1).view(np.uint32)
    lines = decoded(words.astype(np.uint64), kind)
    return lines.T if turned else lines
