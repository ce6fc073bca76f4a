"""Answer what the threads of a warp do together: shuffles, votes, matrices.

Values are 64-bit slots, [warp, lane, slot]. Fragments are laid out as in "Matrix multiply-accumulate operation"
of the PTX ISA: which row and column of a matrix an element of a lane is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

Array = np.ndarray
WARP = 32
_LANES = np.arange(WARP)
_GROUP, _IN_GROUP = _LANES // 4, _LANES % 4


def shuffled(name: str, values: Array) -> Array:
    """Return a lane's value of another lane, and whether there is one. values: mask, value, distance or lane, clamp."""
    way = name.split(".")[2]
    value = values[..., 1]
    by, clamp = (values[..., k].astype(np.int64) for k in (2, 3))
    segment, bound = clamp >> 8 & 31, clamp & 31
    highest, lowest = (_LANES & segment) | (bound & ~segment & 31), _LANES & segment
    source = {
        "up": _LANES - (by & 31),
        "down": _LANES + (by & 31),
        "bfly": _LANES ^ (by & 31),
        "idx": lowest | (by & 31 & ~segment),
    }[way]
    there = source >= highest if way == "up" else source <= highest
    source = np.where(there, source, _LANES)
    return np.stack([np.take_along_axis(value, source & 31, 1), there.astype(np.uint64)], -1)


def voted(name: str, values: Array) -> Array:
    """Return the ballot of the lanes, or what all or any say. values: mask, predicate."""
    said = (values[..., 1] & np.uint64(1)).astype(np.uint64)
    if ".ballot" in name:
        result = (said << _LANES.astype(np.uint64)).sum(-1, keepdims=True, dtype=np.uint64)
    else:
        result = (
            said.all(-1, keepdims=True) if ".all" in name else said.any(-1, keepdims=True)
        ).astype(np.uint64)
    return np.broadcast_to(result, said.shape)[..., None]


def matrices_read(name: str, rows: Callable[[Array, int], Array], values: Array) -> Array:
    """Return the elements of 8 x 8 matrices of 16 bits that lanes get. rows: reads so many bytes at addresses."""
    count = int(re.search(r"\.x(\d)", name)[1])  # type: ignore[index]
    where = values[:, : 8 * count, 0].reshape(len(values), count, 8)
    matrix = rows(where, 16).view(np.uint16)  # warp, matrix, row, column
    if ".trans" in name:
        matrix = matrix.swapaxes(2, 3)
    pairs = matrix[:, :, _GROUP[:, None], 2 * _IN_GROUP[:, None] + np.arange(2)]
    pairs = np.ascontiguousarray(pairs.swapaxes(1, 2))  # warp, lane, matrix, element
    return pairs.view(np.uint32)[..., 0].astype(np.uint64)


@dataclass(frozen=True)
class LaneFragment:
    """Say where the elements of each lane are: [lane, element] -> row, column."""

    rows: Array
    columns: Array

    def gathered(self, values: Array) -> Array:
        """Return the matrix that the elements of a warp's lanes are. values: [.., lane, element]."""
        out = np.zeros(
            (*values.shape[:-2], int(self.rows.max()) + 1, int(self.columns.max()) + 1),
            values.dtype,
        )
        out[..., self.rows, self.columns] = values
        return out

    def dealt(self, matrix: Array) -> Array:
        """Return each lane's elements of a matrix."""
        return matrix[..., self.rows, self.columns]


def _fragment(elements: list[tuple[int, int]], pair: bool, turned: bool = False) -> LaneFragment:
    """elements: how far each lies from the lane's first one; pair: a lane's elements lie in pairs of columns."""
    rows = _GROUP[:, None] + np.array([r for r, _ in elements])
    columns = _IN_GROUP[:, None] * (2 if pair else 1) + np.array([c for _, c in elements])
    return LaneFragment(columns, rows) if turned else LaneFragment(rows, columns)


_PAIRED = [(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)]
SUMS = _fragment([(0, 0), (0, 1), (8, 0), (8, 1)], True)
LEFT16 = _fragment(_PAIRED, True)
_SHAPES = {  # depth and kind: A, B, C, and how the two factors are kept in slots
    "m16n8k16 16": (LEFT16, _fragment([(0, 0), (0, 1), (0, 8), (0, 9)], True, True), SUMS),
    "m16n8k8 16": (_fragment(_PAIRED[:4], True), _fragment([(0, 0), (0, 1)], True, True), SUMS),
    "m16n8k8 32": (_fragment([(0, 0), (8, 0), (0, 4), (8, 4)], False), _fragment([(0, 0), (0, 4)], False, True), SUMS),
    "m16n8k4 32": (_fragment([(0, 0), (8, 0)], False), _fragment([(0, 0)], False, True), SUMS),
    "m8n8k4 64": (_fragment([(0, 0)], False), _fragment([(0, 0)], False, True), _fragment([(0, 0), (0, 1)], True)),
}  # fmt: skip


def multiplied(name: str, values: Array) -> Array:
    """Return C + A B, summed in f64 and rounded once; of a warp each."""
    shape, kind = name.split(".")[1], _kind(name)
    width = {"bf16": 16, "f16": 16, "tf32": 32, "f64": 64}[kind]
    a, b, c = _SHAPES[f"{shape} {width}"]
    counts = [f.rows.shape[1] * width // max(width, 32) for f in (a, b)]
    left = decoded(values[..., : counts[0]], kind)
    right = decoded(values[..., counts[0] : sum(counts)], kind)
    sums = decoded(
        values[..., sum(counts) : sum(counts) + c.rows.shape[1]], "f64" if width == 64 else "f32"
    )
    with np.errstate(all="ignore"):
        total = np.matmul(a.gathered(left), b.gathered(right)) + c.gathered(sums)
        result = c.dealt(total)
        if width == 64:
            return np.ascontiguousarray(result).view(np.uint64)
        return result.astype(np.float32).view(np.uint32).astype(np.uint64)


def _kind(name: str) -> str:
    """Return the type of the factors: `mma.m16n8k16.row.col.f32.f32` has f16 ones, sums from f32 to f32."""
    last = name.split(".")[4:]
    return {"f32.f32": "f16"}.get(".".join(last), last[0])


def decoded(slots: Array, kind: str) -> Array:
    """Return numbers in f64; two of 16 bits from each slot."""
    if kind == "f64":
        return np.ascontiguousarray(slots).view(np.float64)
    words = np.ascontiguousarray(slots.astype(np.uint32))
    if kind == "tf32":
        words &= np.uint32(0xFFFFE000)
    if kind in ("tf32", "f32"):
        return words.view(np.float32).astype(np.float64)
    halves = words.view(ml_dtypes.bfloat16 if kind == "bf16" else np.float16)
    return halves.astype(np.float64)
