"""Define what gpu code and its runtime agree on: a program's kernels, its library products, and the host code's table.

The table is at the `private` slot. Plain values; no other file writes these numbers down.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceRates:
    """Hold what the data sheet of a GPU promises: bytes a second of its memory, floating operations a second.

    gpu: its name. f32, f64: without tensor cores; tensor: with them, by the type of the factors (dense, sums in f32).
    """

    gpu: str
    memory: float
    f32: float
    f64: float
    tensor: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Chip:
    """Describe what code is made for.

    capability: of the GPUs. ptx: version of the PTX. processors: multiprocessors of the largest GPU. shared_bytes: of
    shared memory that a block may have. tensor_cores: whether our kernels for them run: asynchronous copies to shared
    memory, and products of bf16, f16 and tf32. threads, blocks: that a multiprocessor has at a time, at most. rates: of
    a GPU with this chip; None: unknown here.
    """

    capability: tuple[int, int]
    ptx: str
    processors: int
    shared_bytes: int
    tensor_cores: bool = True
    threads: int = 2048
    blocks: int = 32
    rates: DeviceRates | None = None

    @property
    def reserved_bytes(self) -> int:
        """Return the shared memory that each block has besides its own."""
        return 1024 if self.capability >= (8, 0) else 0


_SMALL, _LARGE, _LARGEST = 101_376, 166_912, 232_448
# NVIDIA A100 Tensor Core GPU, data sheet 1758950 r4, column of the 80 GB SXM.
_A100 = DeviceRates(
    "A100 SXM 80 GB", 2.039e12, 19.5e12, 9.7e12,
    (("f16", 312e12), ("bf16", 312e12), ("tf32", 156e12), ("f64", 19.5e12)),
)  # fmt: skip
# NVIDIA H100 Tensor Core GPU, data sheet, column of the SXM: it gives tensor cores with sparsity, which is twice as
# much: 1979 for f16 and bf16, 989 for tf32. The H200 has the same rates but for its memory, 4.8 TB/s.
_H100 = DeviceRates(
    "H100 SXM", 3.35e12, 67e12, 34e12,
    (("f16", 989.5e12), ("bf16", 989.5e12), ("tf32", 494.5e12), ("f64", 67e12)),
)  # fmt: skip
CHIPS = {
    "sm_75": Chip((7, 5), "8.0", 72, 65_536, False, 1024, 16),
    "sm_80": Chip((8, 0), "8.0", 108, _LARGE, rates=_A100),
    "sm_86": Chip((8, 6), "8.0", 84, _SMALL, threads=1536, blocks=16),
    "sm_87": Chip((8, 7), "8.0", 16, _LARGE, threads=1536, blocks=16),
    "sm_89": Chip((8, 9), "8.0", 142, _SMALL, threads=1536, blocks=24),
    "sm_90": Chip((9, 0), "8.3", 132, _LARGEST, rates=_H100),
    "sm_90a": Chip((9, 0), "8.6", 132, _LARGEST, rates=_H100),
    "sm_100": Chip((10, 0), "8.6", 148, _LARGEST),
    "sm_103": Chip((10, 3), "8.8", 160, _LARGEST),
    "sm_120": Chip((12, 0), "8.7", 188, _SMALL, threads=1536, blocks=24),
    "sm_121": Chip((12, 1), "8.8", 48, _SMALL, threads=1536, blocks=24),
}
"""Each chip by its name. Code for one whose name ends in "a" runs on that capability alone, other code on later ones.
"""


@dataclass(frozen=True)
class KernelInfo:
    """Describe a kernel of the program: its module (number of a `DeviceModule`) and entry, and how it is launched.

    parameters: "ptr" for each pointer, then the types of the scalars ("i64", "f32"), in the order of the launch.
    shared_bytes: dynamic shared memory; what the kernel declares itself is not counted.
    """

    module: int
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: tuple[str, ...]
    family: str
    location: str


@dataclass(frozen=True)
class DeviceModule:
    """Hold one compiled device module: its PTX, and its cubin where ptxas was available to make it."""

    chip: str
    ptx: str
    cubin: bytes | None = None


@dataclass(frozen=True)
class GemmInfo:
    """Describe a product that cuBLASLt does: D = A B (+ C), row-major, `batch` times.

    m, n, k: sizes; lda, ldb, ldd: elements between rows; stride_*: elements between the matrices of a batch (0: the
    same one). transpose_a, transpose_b: the operand is stored transposed (A as k x m, B as n x k). dtype: of A and B;
    compute: "f32" or "tf32"; accumulate: whether D is added to; result: type of D, "" where it is that of A and B.
    alignment: bytes that A, B and D are known to begin at multiples of; 1: nothing is known, and the library uses
    algorithms that read element by element.
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


@dataclass(frozen=True)
class GpuTable:
    """Number the 8-byte slots of the table at the `private` slot of a gpu program.

    compute, comm: streams. constants: device memory with the program's constants. lt: the cublasLt handle; workspace
    and its bytes: device memory for the library, and for parts of results between two kernels. host: 64
    bytes of pinned host memory, for single elements that host
    code reads and writes. Then the function of each kernel, the record (`GemmRecord`) of each library product, the
    events, and of each compute stream its handle and a workspace of its own.

    compute and workspace belong to the stream that host code launches on; host code changes them. streams: for
    computing; a step begins and ends on the first.
    """

    COMPUTE, COMM, CONSTANTS, LT, WORKSPACE, WORKSPACE_BYTES, HOST = range(7)
    _FIXED = 8

    kernels: int
    gemms: int
    events: int
    streams: int = 1

    def function(self, kernel: int) -> int:
        """Return the slot of a kernel's CUfunction."""
        return self._FIXED + kernel

    def gemm(self, gemm: int) -> int:
        """Return the slot of the pointer to a product's record."""
        return self._FIXED + self.kernels + gemm

    def event(self, event: int) -> int:
        """Return the slot of a CUevent."""
        return self._FIXED + self.kernels + self.gemms + event

    def stream(self, stream: int) -> int:
        """Return the slot of a compute stream's handle."""
        return self._FIXED + self.kernels + self.gemms + self.events + stream

    def workspace(self, stream: int) -> int:
        """Return the slot of the workspace that belongs to a compute stream."""
        return self.stream(self.streams) + stream

    @property
    def count(self) -> int:
        """Return the number of slots in the table."""
        return self.workspace(self.streams)


class GemmRecord:
    """Number the slots of a library product's record.

    Pointers to the cublasLt descriptor, the layouts of A, B and D (C lies as D does), and the algorithm (0: the
    library has none, and host code launches the kernel that the product names for that).
    """

    DESC, A, B, D, ALGORITHM = range(5)
    COUNT = 5


class CopyWords:
    """Number the 8-byte words of a row of a table of copies, in device memory; lengths and steps are in bytes.

    The first byte in the source and in the target, all bytes, the bytes of a run; then of each level of runs, the
    fastest first, its count and its steps in source and target.
    """

    SOURCE, TARGET, NBYTES, RUN, LEVELS = range(5)


class ExchangeWords:
    """Number the 8-byte words of a rank's section of an exchange, as host code reads it.

    Of each list of copies (what is kept, packed, unpacked) the address of its rows on the device, how many there are,
    and the bytes of the largest; the bytes that every offset and step of them is a multiple of, 16 at most; the levels
    of every row; where in the staging buffer messages leave from and come to (-1: in the source, in the target). Then
    for each member bytes to send, where they begin, bytes to receive, where they begin.
    """

    KEPT, PACKED, UNPACKED, UNIT, LEVELS, OUTBOX, INBOX, MEMBERS = 0, 3, 6, 9, 10, 11, 12, 13
