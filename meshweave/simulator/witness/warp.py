"""Answer what the threads of a warp do together: shuffles and matrices.

Values are 64-bit slots, [warp, lane, slot]. Fragments are laid out as in "Matrix multiply-accumulate operation"
of the PTX ISA: which row and column of a matrix an element of a lane is.
"""

from __future__ import annotations

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


def matrices_read(name: str, rows: Callable[[Array, int], Array], values: Array) -> Array:
    """Return the elements of 4 matrices of 8 x 8 and 16 bits that lanes get. rows: reads so many bytes at addresses."""
    where = values[:, :, 0].reshape(len(values), 4, 8)
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


SUMS = _fragment([(0, 0), (0, 1), (8, 0), (8, 1)], True)
LEFT16 = _fragment([(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)], True)
_FACTORS = {  # shape -> A and B, and how many of their elements a slot holds
    "m16n8k16": (LEFT16, _fragment([(0, 0), (0, 1), (0, 8), (0, 9)], True, True), 2),
    "m16n8k8": (
        _fragment([(0, 0), (8, 0), (0, 4), (8, 4)], False),
        _fragment([(0, 0), (0, 4)], False, True),
        1,
    ),
}


def multiplied(name: str, values: Array) -> Array:
    """Return C + A B, summed in f64 and rounded once; of a warp each."""
    _, shape, _, _, kind, *_ = name.split(".")
    kind = "f16" if kind == "f32" else kind  # `mma.m16n8k16.row.col.f32.f32` names its sums alone
    a, b, held = _FACTORS[shape]
    first = a.rows.shape[1] // held
    second = first + b.rows.shape[1] // held
    left, right = decoded(values[..., :first], kind), decoded(values[..., first:second], kind)
    sums = decoded(values[..., second : second + 4], "f32")
    with np.errstate(all="ignore"):
        total = np.matmul(a.gathered(left), b.gathered(right)) + SUMS.gathered(sums)
        return SUMS.dealt(total).astype(np.float32).view(np.uint32).astype(np.uint64)


def decoded(slots: Array, kind: str) -> Array:
    """Return numbers in f64; two of 16 bits from each slot."""
    words = np.ascontiguousarray(slots.astype(np.uint32))
    if kind == "tf32":
        words &= np.uint32(0xFFFFE000)
    if kind in ("tf32", "f32"):
        return words.view(np.float32).astype(np.float64)
    halves = words.view(ml_dtypes.bfloat16 if kind == "bf16" else np.float16)
    return halves.astype(np.float64)
