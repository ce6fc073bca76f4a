"""What gpu code and its runtime agree on: the kernels of a program, its library products, and the
table that host code finds at the `private` slot. Plain values; nobody else writes these numbers
down.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from meshweave import records

CHIPS = ("sm_80", "sm_90", "sm_90a")


@dataclass(frozen=True)
class KernelInfo:
    """A kernel of the program: its module (number of a `DeviceModule`) and entry, how it is
    launched, and what it is.

    parameters: "ptr" for each pointer, then the types of the scalars ("i64", "f32"), in the order
    of the launch. shared_bytes: dynamic shared memory; what the kernel declares itself is not
    counted.
    """

    module: int
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: tuple[str, ...]
    family: str
    location: str


def kernel_info(value: Any, what: str) -> KernelInfo:
    """Read from JSON. MeshweaveError names the field that is wrong."""
    three = records.exactly(3, records.count)
    readers = {
        "module": records.count,
        "grid": three,
        "block": three,
        "shared_bytes": records.count,
    }
    readers["parameters"] = records.several(records.text)
    info: KernelInfo = records.record(KernelInfo, value, what, readers)
    return info


@dataclass(frozen=True)
class DeviceModule:
    """One compiled device module: its PTX, and its cubin where ptxas was there to make it."""

    chip: str
    ptx: str
    cubin: bytes | None = None


@dataclass(frozen=True)
class GemmInfo:
    """A product that cuBLASLt does: D = A B (+ C), row-major, `batch` times.

    m, n, k: sizes; lda..ldd: elements between rows; stride_*: elements between the matrices of a
    batch (0: the same one). transpose_a, transpose_b: the operand lies transposed (A as k x m, B as
    n x k). dtype: of A and B; compute: "f32" or "tf32"; accumulate: whether D is added to; result:
    type of D, "" where it is that of A and B.
    alignment: bytes that A, B and D are known to begin at multiples of; 1: nothing is known, and
    the library takes algorithms that read element by element.
    """

    dtype: str
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldd: int
    transpose_a: bool = False
    transpose_b: bool = False
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_d: int = 0
    accumulate: bool = False
    compute: str = "f32"
    alignment: int = 1
    result: str = ""


def gemm_info(value: Any, what: str) -> GemmInfo:
    """Read from JSON. MeshweaveError names the field that is wrong."""
    kinds: dict[str, records.Reader] = {
        "int": records.count,
        "bool": records.flag,
        "str": records.text,
    }
    readers = {field.name: kinds[str(field.type)] for field in fields(GemmInfo)}
    info: GemmInfo = records.record(GemmInfo, value, what, readers)
    return info


class GpuTable:
    """Places in the table of 8-byte slots at the `private` slot of a gpu program.

    compute, comm: streams. constants: device memory with the program's constants. lt: the
    cublasLt handle; workspace and its bytes: device memory for the library. host: 64 bytes of
    pinned host memory, for single elements that host code reads and writes. Then the function of
    each kernel, the record (`GemmRecord`) of each library product, the events, and of each compute
    stream its handle and a workspace of its own.

    compute and workspace are those of the stream that host code launches on: it changes them.
    """

    COMPUTE, COMM, CONSTANTS, LT, WORKSPACE, WORKSPACE_BYTES, HOST = range(7)
    _FIXED = 8

    def __init__(self, kernels: int, gemms: int, events: int, streams: int = 1) -> None:
        """streams: for computing; the first is where a step begins and ends."""
        self.kernels, self.gemms, self.events, self.streams = kernels, gemms, events, streams

    def function(self, kernel: int) -> int:
        """Slot of a kernel's CUfunction."""
        return self._FIXED + kernel

    def gemm(self, gemm: int) -> int:
        """Slot of the pointer to a product's record."""
        return self._FIXED + self.kernels + gemm

    def event(self, event: int) -> int:
        """Slot of a CUevent."""
        return self._FIXED + self.kernels + self.gemms + event

    def stream(self, stream: int) -> int:
        """Slot of a compute stream's handle."""
        return self._FIXED + self.kernels + self.gemms + self.events + stream

    def workspace(self, stream: int) -> int:
        """Slot of the workspace that belongs to a compute stream."""
        return self.stream(self.streams) + stream

    @property
    def count(self) -> int:
        """Slots in the table."""
        return self.workspace(self.streams)


class GemmRecord:
    """Slots of a library product's record: pointers to the cublasLt descriptor, the layouts of A,
    B and D (C lies as D does), and the algorithm (0: the library's own choice at the call).
    """

    DESC, A, B, D, ALGORITHM = range(5)
    COUNT = 5
