"""Play cuBLASLt: descriptors, a heuristic that always finds one algorithm, and products in NumPy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshweave.errors import RankError
from meshweave.runtime.gpu.interface import (
    COMPUTE_NAMES,
    CUDA_NAMES,
    DESC_TRANSPOSE_A,
    DESC_TRANSPOSE_B,
    LAYOUT_BATCH,
    LAYOUT_ORDER,
    LAYOUT_STRIDE,
    LT_INVALID,
    LT_UNSUPPORTED,
    ORDER_ROW,
    PREFERENCE_ALIGNMENTS,
    TRANSPOSE,
    Heuristic,
)
from meshweave.simulator.driver.memory import put
from meshweave.simulator.driver.move import elements, itemsize, narrowed, widened
from meshweave.simulator.driver.races import Ranges, merged, no_ranges, one_range
from meshweave.simulator.driver.session import Session

_ALGORITHM = 0x6D77  # in the first word of every algorithm that the recorder gives out


@dataclass(eq=False)
class LtHandle:
    """Stand for a library handle."""


@dataclass(eq=False)
class LtProduct:
    """Hold a matmul descriptor: the types that it computes in, and its attributes."""

    compute: int
    scale: int
    attributes: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class LtLayout:
    """Hold a matrix layout."""

    dtype: str
    rows: int
    columns: int
    lead: int
    attributes: dict[int, int] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Return the number of matrices."""
        return self.attributes.get(LAYOUT_BATCH, 1)

    def indices(self) -> Any:
        """Return the element number of each element, of shape (batch, rows, columns)."""
        steps = self.lead, 1
        if self.attributes.get(LAYOUT_ORDER, 0) != ORDER_ROW:
            steps = 1, self.lead
        rows, columns = np.arange(self.rows) * steps[0], np.arange(self.columns) * steps[1]
        starts = np.arange(self.batch) * self.attributes.get(LAYOUT_STRIDE, 0)
        return starts[:, None, None] + rows[:, None] + columns

    def ranges(self, address: int) -> Ranges:
        """Return the bytes of the matrices: a range for each row or column of consecutive elements."""
        width = itemsize(self.dtype)
        index = self.indices()
        if self.attributes.get(LAYOUT_ORDER, 0) != ORDER_ROW:
            index = index.swapaxes(1, 2)
        first = index[..., 0].reshape(-1) * width + address
        return merged(np.stack((first, first + index.shape[2] * width), axis=1).astype(np.int64))


@dataclass(eq=False)
class LtPreference:
    """Hold what a heuristic may assume and must respect."""

    attributes: dict[int, int] = field(default_factory=dict)


class RecordedLt:
    """Implement the functions cublasLt*. Each returns an error code, or None for success."""

    def __init__(self, session: Session) -> None:
        self._r = session

    def cublasLtCreate(self, handle: int) -> None:
        put(handle, self._r.new(LtHandle()))

    def cublasLtDestroy(self, handle: int | None) -> int | None:
        return self._dropped(handle, LtHandle)

    def cublasLtMatmulDescCreate(self, desc: int, compute: int, scale: int) -> int | None:
        if compute not in COMPUTE_NAMES or scale not in CUDA_NAMES:
            return LT_INVALID
        put(desc, self._r.new(LtProduct(compute, scale)))
        return None

    def cublasLtMatmulDescDestroy(self, desc: int | None) -> int | None:
        return self._dropped(desc, LtProduct)

    def cublasLtMatmulDescSetAttribute(
        self, desc: int | None, attribute: int, value: int, nbytes: int
    ) -> int | None:
        return self._set(desc, LtProduct, attribute, value, nbytes)

    def cublasLtMatrixLayoutCreate(
        self, layout: int, dtype: int, rows: int, columns: int, lead: int
    ) -> int | None:
        if dtype not in CUDA_NAMES or not rows or not columns:
            return LT_INVALID
        put(layout, self._r.new(LtLayout(CUDA_NAMES[dtype], rows, columns, lead)))
        return None

    def cublasLtMatrixLayoutDestroy(self, layout: int | None) -> int | None:
        return self._dropped(layout, LtLayout)

    def cublasLtMatrixLayoutSetAttribute(
        self, layout: int | None, attribute: int, value: int, nbytes: int
    ) -> int | None:
        return self._set(layout, LtLayout, attribute, value, nbytes)

    def cublasLtMatmulPreferenceCreate(self, preference: int) -> None:
        put(preference, self._r.new(LtPreference()))

    def cublasLtMatmulPreferenceDestroy(self, preference: int | None) -> int | None:
        return self._dropped(preference, LtPreference)

    def cublasLtMatmulPreferenceSetAttribute(
        self, preference: int | None, attribute: int, value: int, nbytes: int
    ) -> int | None:
        return self._set(preference, LtPreference, attribute, value, nbytes)

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: int | None, desc: int | None, a: int | None, b: int | None, c: int | None,
        d: int | None, preference: int | None, wanted: int, results: int, count: int,
    ) -> int | None:  # fmt: skip
        product = self._product(desc, a, b, c, d)
        if product is None or wanted < 1:
            return LT_INVALID
        put(count, 0, ctypes.c_int32)
        if not _fits(*product):
            return LT_UNSUPPORTED
        found = Heuristic.from_address(results)
        asked = self._r.find(preference, LtPreference)
        if asked is None:
            return LT_INVALID
        found.algorithm[0], found.workspace, found.state = _ALGORITHM, 0, 0
        found.algorithm[1] = max(asked.attributes.get(k, 256) for k in PREFERENCE_ALIGNMENTS)
        put(count, 1, ctypes.c_int32)
        return None

    def cublasLtMatmul(
        self, handle: int | None, desc: int | None, alpha: int, a: int, a_layout: int | None,
        b: int, b_layout: int | None, beta: int, c: int, c_layout: int | None, d: int,
        d_layout: int | None, algorithm: int | None, workspace: int | None, nbytes: int,
        stream: int | None,
    ) -> int | None:  # fmt: skip
        product = self._product(desc, a_layout, b_layout, c_layout, d_layout)
        if self._r.find(handle, LtHandle) is None or product is None or not _fits(*product):
            return LT_INVALID
        if algorithm:
            chosen = (ctypes.c_uint64 * 8).from_address(algorithm)
            if chosen[0] != _ALGORITHM:
                return LT_INVALID
            self._check_alignment(int(chosen[1]), (a, b, d))
        made, la, lb, lc, ld = product
        kind = ctypes.c_double if CUDA_NAMES[made.scale] == "f64" else ctypes.c_float
        scale, add = kind.from_address(alpha).value, kind.from_address(beta).value
        for address, layout in ((a, la), (b, lb), (c, lc), (d, ld)):
            if add or layout is not lc:
                self._check(address, layout)

        def work() -> tuple[Ranges, Ranges]:
            total = _multiplied(made, (a, la), (b, lb)) * made_dtype(made)(scale)
            if add:
                total = total + _read(c, lc) * made_dtype(made)(add)
            _write(d, ld, total)
            reads = [la.ranges(a), lb.ranges(b), lc.ranges(c) if add else no_ranges()]
            writes = [ld.ranges(d), one_range(workspace or 0, nbytes if workspace else 0)]
            return merged(np.concatenate(reads)), merged(np.concatenate(writes))

        name = self._r.memory.describe
        sizes = f"{ld.rows}x{ld.columns}x{_inner(made, la)}" + (
            f" batch {ld.batch}" if ld.batch > 1 else ""
        )
        what = f"matmul {ld.dtype} {sizes} {name(a)}, {name(b)} -> {name(d)}"
        code = self._r.streams.submit(stream, what + (f" + {add:g} of it" if add else ""), work)
        return LT_INVALID if code else None

    def _check(self, address: int, layout: LtLayout) -> None:
        """Raise RankError when a matrix does not lie in the rank's memory."""
        nbytes = int(layout.indices().max() + 1) * itemsize(layout.dtype)
        self._r.memory.view(self._r.rank, address, nbytes, "cublasLtMatmul")

    def _check_alignment(self, wanted: int, addresses: tuple[int, ...]) -> None:
        """Raise RankError when a matrix is not aligned as the heuristic was told."""
        for address in addresses:
            if address % wanted:
                where = self._r.memory.describe(address)
                raise RankError(
                    f"rank {self._r.rank}: cublasLtMatmul: {where} is no multiple of {wanted} bytes, "
                    "as its algorithm was promised"
                )

    def _product(self, desc: int | None, *layouts: int | None) -> Any:
        found = [self._r.find(desc, LtProduct), *(self._r.find(one, LtLayout) for one in layouts)]
        return None if None in found else found

    def _set(
        self, handle: int | None, kind: type, attribute: int, value: int, nbytes: int
    ) -> int | None:
        found = self._r.find(handle, kind)
        if found is None or nbytes not in (4, 8):
            return LT_INVALID
        found.attributes[attribute] = int.from_bytes(
            ctypes.string_at(value, nbytes), "little", signed=True
        )
        return None

    def _dropped(self, handle: int | None, kind: type) -> int | None:
        if self._r.drop(handle, kind):
            raise RankError(f"rank {self._r.rank}: gives back a {kind.__name__} that it has not")
        return None


def _turned(made: LtProduct, layout: LtLayout, attribute: int) -> tuple[int, int]:
    """Return the rows and columns of a factor as the product uses it."""
    if made.attributes.get(attribute) == TRANSPOSE:
        return layout.columns, layout.rows
    return layout.rows, layout.columns


def _inner(made: LtProduct, a: LtLayout) -> int:
    return _turned(made, a, DESC_TRANSPOSE_A)[1]


def _fits(made: LtProduct, a: LtLayout, b: LtLayout, c: LtLayout, d: LtLayout) -> bool:
    """Tell whether the sizes and leading dimensions of a product belong together."""
    m, k = _turned(made, a, DESC_TRANSPOSE_A)
    inner, n = _turned(made, b, DESC_TRANSPOSE_B)
    leads = all(
        one.lead >= (one.columns if one.attributes.get(LAYOUT_ORDER) == ORDER_ROW else one.rows)
        for one in (a, b, c, d)
    )
    shapes = (m, n) == (d.rows, d.columns) == (c.rows, c.columns)
    return leads and shapes and k == inner and len({x.batch for x in (a, b, c, d)}) == 1


def made_dtype(made: LtProduct) -> Any:
    """Return the NumPy type that a product is computed in."""
    return np.float64 if COMPUTE_NAMES[made.compute] == "f64" else np.float32


def _memory(address: int, layout: LtLayout) -> tuple[Any, Any]:
    """Return the elements that a layout reaches, flat, and the numbers of those that its matrices have."""
    index = layout.indices()
    count = int(index.max()) + 1
    return elements(address, count, layout.dtype), index


def _read(address: int, layout: LtLayout) -> Any:
    """Return the matrices as f32 (f64 for f64)."""
    flat, index = _memory(address, layout)
    values = flat[index]
    if layout.dtype == "bf16":
        return widened(values)
    return values.astype(np.float64 if layout.dtype == "f64" else np.float32)


def _write(address: int, layout: LtLayout, values: Any) -> None:
    flat, index = _memory(address, layout)
    with np.errstate(over="ignore"):
        flat[index] = narrowed(values) if layout.dtype == "bf16" else values.astype(flat.dtype)


def rounded_tf32(values: Any) -> Any:
    """Round f32 to the 10 bits of TF32's mantissa, to nearest even; NaN and infinities stay."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    near = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), near.view(np.float32), values)


def _multiplied(made: LtProduct, a: Any, b: Any) -> Any:
    left, right = _read(*a), _read(*b)
    if made.attributes.get(DESC_TRANSPOSE_A) == TRANSPOSE:
        left = left.swapaxes(1, 2)
    if made.attributes.get(DESC_TRANSPOSE_B) == TRANSPOSE:
        right = right.swapaxes(1, 2)
    if COMPUTE_NAMES[made.compute] == "tf32":
        left, right = rounded_tf32(left), rounded_tf32(right)
    return np.matmul(left, right)
