"""Compute what NCCL's operations do, in NumPy, in the fixed order of the members, rounding at each step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshweave.simulator.driver.races import Ranges, no_ranges, one_range
from meshweave.simulator.driver.replay import NcclOp

Values = npt.NDArray[Any]
_DTYPES: dict[str, type[np.generic]] = {
    "i8": np.int8, "u8": np.uint8, "i32": np.int32, "ui32": np.uint32, "i64": np.int64,
    "ui64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16,
}  # fmt: skip
# Of NaN and a number, NCCL's max and min give the number.
_REDUCTIONS: dict[str, Callable[[Values, Values], Values]] = {
    "sum": np.add, "prod": np.multiply, "max": np.fmax, "min": np.fmin, "avg": np.add,
}  # fmt: skip


def itemsize(dtype: str) -> int:
    """Return the bytes of an element of an NCCL dtype."""
    return np.dtype(_DTYPES[dtype]).itemsize


def widened(bits: Values) -> Values:
    """Convert bf16, as its bits, to f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: Values) -> Values:
    """Convert f32 to the bits of bf16, to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def reduced(parts: Sequence[Values], dtype: str, how: str) -> Values:
    """Reduce equal arrays one after the other; each step gives `dtype` again."""
    function = _REDUCTIONS[how]
    total = parts[0]
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            if dtype == "bf16":
                total = narrowed(function(widened(total), widened(part)))
            else:
                total = function(total, part).astype(total.dtype)
        if how == "avg" and dtype == "bf16":
            total = narrowed(widened(total) / np.float32(len(parts)))
        elif how == "avg":
            total = (total / len(parts)).astype(total.dtype)
    return total


def elements(address: int, count: int, dtype: str) -> Values:
    """View elements in memory."""
    nbytes = count * itemsize(dtype)
    raw: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    found: Values = np.frombuffer(raw, np.uint8).view(_DTYPES[dtype])
    return found


def move(items: Sequence[NcclOp]) -> list[tuple[Ranges, Ranges]]:
    """Do a collective, whose items are in the order of members, or a send (first) and its recv.

    Returns what each has read and written.
    """
    first = items[0]
    count, dtype = first.signature[:2]
    nbytes = count * itemsize(dtype)
    if count == 0:
        return [(no_ranges(), no_ranges())] * len(items)
    if first.kind == "send":
        elements(items[1].target, count, dtype)[:] = elements(first.source, count, dtype)
        return [
            (one_range(first.source, nbytes), no_ranges()),
            (no_ranges(), one_range(items[1].target, nbytes)),
        ]
    size = len(items)
    given = count * size if first.kind == "reduce_scatter" else count
    parts = [elements(item.source, given, dtype).copy() for item in items]
    if first.kind == "all_gather":
        result = np.concatenate(parts)
    else:
        result = reduced(parts, dtype, first.signature[2])
    touched = []
    for index, item in enumerate(items):
        mine = result
        if first.kind == "reduce_scatter":
            mine = result[index * count : (index + 1) * count]
        elements(item.target, len(mine), dtype)[:] = mine
        reads = one_range(item.source, given * itemsize(dtype))
        touched.append((reads, one_range(item.target, len(mine) * itemsize(dtype))))
    return touched
