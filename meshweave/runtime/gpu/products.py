"""Make what cuBLASLt has to know of a program's products, once: descriptors, layouts, algorithms."""

from __future__ import annotations

import ctypes
import math
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from meshweave.device import GemmInfo, GemmRecord
from meshweave.runtime.gpu.driver import Driver
from meshweave.runtime.gpu.interface import (
    COMPUTE_TYPES,
    CUDA_TYPES,
    DESC_TRANSPOSE_A,
    DESC_TRANSPOSE_B,
    LAYOUT_BATCH,
    LAYOUT_STRIDE,
    LT_UNSUPPORTED,
    PREFERENCE_ALIGNMENTS,
    PREFERENCE_WORKSPACE,
    TRANSPOSE,
    Heuristic,
)

WORKSPACE_BYTES = 32 << 20  # device memory for the library's own use


class Products:
    """Hold the library's handle and the record of each product (`GemmRecord`); they live until `held` is closed."""

    def __init__(self, driver: Driver, held: ExitStack, infos: tuple[GemmInfo, ...]) -> None:
        """Make all records."""
        self._driver, self._held = driver, held
        self.handle = driver.made(held, "cublasLtCreate", "cublasLtDestroy")
        self._algorithms: list[Heuristic] = []
        self.records = [self._record(info) for info in infos]

    def _record(self, info: GemmInfo) -> npt.NDArray[np.int64]:
        """Return the words that host code finds at a product's slot.

        The library computes D' = B' A' on matrices by columns: so one bias for each column of D can be its epilogue.
        """
        record = np.zeros(GemmRecord.COUNT, np.int64)
        scale = "f64" if info.dtype == "f64" else "f32"
        compute = "f64" if info.dtype == "f64" else info.compute
        desc = self._made("MatmulDesc", COMPUTE_TYPES[compute], CUDA_TYPES[scale])
        for attribute, turned in (
            (DESC_TRANSPOSE_A, info.transpose_b),
            (DESC_TRANSPOSE_B, info.transpose_a),
        ):
            self._set("MatmulDesc", desc, attribute, TRANSPOSE if turned else 0, 4)
        a = (info.k, info.m) if info.transpose_a else (info.m, info.k)
        b = (info.n, info.k) if info.transpose_b else (info.k, info.n)
        record[GemmRecord.DESC] = desc
        kind = info.dtype
        record[GemmRecord.A] = self._layout(info, kind, *a, info.lda, info.stride_a)
        record[GemmRecord.B] = self._layout(info, kind, *b, info.ldb, info.stride_b)
        kind = info.result or info.dtype
        record[GemmRecord.D] = self._layout(info, kind, info.m, info.n, info.ldd, info.stride_d)
        record[GemmRecord.ALGORITHM] = self._algorithm(info, record)
        return record

    def _layout(
        self, info: GemmInfo, kind: str, rows: int, columns: int, lead: int, stride: int
    ) -> int:
        """Describe a matrix by rows as its transpose by columns."""
        layout = self._made("MatrixLayout", CUDA_TYPES[kind], columns, rows, lead)
        if info.batch > 1:
            self._set("MatrixLayout", layout, LAYOUT_BATCH, info.batch, 4)
            self._set("MatrixLayout", layout, LAYOUT_STRIDE, stride, 8)
        return layout

    def _made(self, kind: str, *arguments: int) -> int:
        name = f"cublasLt{kind}"
        return self._driver.made(self._held, f"{name}Create", f"{name}Destroy", *arguments)

    def _set(self, kind: str, handle: int, attribute: int, value: int, nbytes: int) -> None:
        data = ctypes.create_string_buffer(value.to_bytes(nbytes, "little", signed=True), nbytes)
        name = f"cublasLt{kind}SetAttribute"
        self._driver(name, handle, attribute, ctypes.addressof(data), nbytes)

    def _algorithm(self, info: GemmInfo, record: npt.NDArray[np.int64]) -> int:
        """Return the address of the algorithm that the library thinks best; 0 where it has none."""
        with ExitStack() as asked:
            name = "cublasLtMatmulPreference"
            preference = self._driver.made(asked, f"{name}Create", f"{name}Destroy")
            self._set("MatmulPreference", preference, PREFERENCE_WORKSPACE, WORKSPACE_BYTES, 8)
            for attribute in PREFERENCE_ALIGNMENTS:
                self._set("MatmulPreference", preference, attribute, alignment(info), 4)
            found, count = Heuristic(), ctypes.c_int32()
            desc, a, b, d = (
                int(record[k]) for k in (GemmRecord.DESC, GemmRecord.A, GemmRecord.B, GemmRecord.D)
            )
            code = self._driver.code(
                "cublasLtMatmulAlgoGetHeuristic", self.handle, desc, b, a, d, d, preference, 1,
                ctypes.addressof(found), ctypes.addressof(count),
            )  # fmt: skip
        if code == LT_UNSUPPORTED or (code == 0 and count.value == 0):
            return 0
        if code:
            raise self._driver.error("cublasLtMatmulAlgoGetHeuristic", code)
        self._algorithms.append(found)
        return ctypes.addressof(found)


def alignment(info: GemmInfo) -> int:
    """Return the bytes that every row of every matrix begins at a multiple of, at least those of an element.

    The library's own default, 256, would promise too much.
    """
    nbytes = {"f64": 8, "f32": 4}.get(info.dtype, 2)
    steps = (info.lda, info.ldb, info.ldd, info.stride_a, info.stride_b, info.stride_d)
    known = math.gcd(info.alignment, *(step * nbytes for step in steps))
    return max(nbytes, known & -known)
