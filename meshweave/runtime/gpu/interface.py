"""Declare what is called of the CUDA driver, NCCL and cuBLASLt: C signatures, codes and enumerations.

One table serves the code that calls the libraries, the recorder that stands in for them, and the host code of
programs, whose calls are resolved to either.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

UNIQUE_ID_BYTES = 128


class UniqueId(ctypes.Structure):
    """Mirror ncclUniqueId, which goes by value."""

    _fields_ = (("data", ctypes.c_char * UNIQUE_ID_BYTES),)

    @staticmethod
    def of(data: bytes) -> UniqueId:
        """Return the id with these bytes."""
        return UniqueId.from_buffer_copy(data)


class Heuristic(ctypes.Structure):
    """Mirror cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int32),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int32 * 4),
    )


# p: pointer or handle, i: int, u: unsigned, q: int64, z: size_t, w: uint64, s: text, U: UniqueId.
_LETTERS: dict[str, Any] = {
    "p": ctypes.c_void_p, "i": ctypes.c_int32, "u": ctypes.c_uint32, "q": ctypes.c_int64,
    "z": ctypes.c_size_t, "w": ctypes.c_uint64, "s": ctypes.c_char_p, "U": UniqueId,
}  # fmt: skip

_CUDA = {
    "cuInit": "u", "cuDriverGetVersion": "p", "cuDeviceGetCount": "p", "cuDeviceGet": "pi",
    "cuDeviceGetName": "pii", "cuDeviceGetAttribute": "pii", "cuDeviceGetUuid_v2": "pi",
    "cuDevicePrimaryCtxRetain": "pi", "cuDevicePrimaryCtxRelease_v2": "i", "cuCtxSetCurrent": "p",
    "cuCtxSynchronize": "", "cuMemAlloc_v2": "pz", "cuMemFree_v2": "p", "cuMemHostAlloc": "pzu",
    "cuMemFreeHost": "p", "cuMemcpyHtoD_v2": "ppz", "cuMemcpyDtoH_v2": "ppz",
    "cuMemcpyHtoDAsync_v2": "ppzp",
    "cuMemcpyDtoHAsync_v2": "ppzp", "cuMemcpyDtoDAsync_v2": "ppzp",
    "cuModuleLoadDataEx": "ppupp", "cuModuleUnload": "p", "cuModuleGetFunction": "pps",
    "cuFuncSetAttribute": "pii", "cuLaunchKernel": "puuuuuuuppp",
    "cuStreamCreateWithPriority": "pui", "cuStreamDestroy_v2": "p", "cuStreamSynchronize": "p",
    "cuStreamWaitEvent": "ppu", "cuEventCreate": "pu", "cuEventDestroy_v2": "p",
    "cuEventRecord": "pp", "cuEventQuery": "p", "cuEventSynchronize": "p", "cuEventElapsedTime": "ppp",
    "cuStreamBeginCapture_v2": "pi",
    "cuStreamEndCapture": "pp", "cuGraphInstantiateWithFlags": "ppw", "cuGraphLaunch": "pp",
    "cuGraphExecDestroy": "p", "cuGraphDestroy": "p",
}  # fmt: skip
_NCCL = {
    "ncclGetVersion": "p", "ncclGetUniqueId": "p", "ncclCommInitRank": "piUi",
    "ncclCommSplit": "piipp", "ncclCommDestroy": "p", "ncclCommAbort": "p",
    "ncclCommGetAsyncError": "pp", "ncclGetLastError": "p", "ncclAllReduce": "ppziipp",
    "ncclAllGather": "ppzipp", "ncclReduceScatter": "ppziipp",
    "ncclSend": "pziipp", "ncclRecv": "pziipp", "ncclGroupStart": "", "ncclGroupEnd": "",
}  # fmt: skip
_CUBLASLT = {
    "cublasLtCreate": "p", "cublasLtDestroy": "p", "cublasLtMatmulDescCreate": "pii",
    "cublasLtMatmulDescDestroy": "p", "cublasLtMatmulDescSetAttribute": "pipz",
    "cublasLtMatrixLayoutCreate": "piwwq", "cublasLtMatrixLayoutDestroy": "p",
    "cublasLtMatrixLayoutSetAttribute": "pipz", "cublasLtMatmulPreferenceCreate": "p",
    "cublasLtMatmulPreferenceDestroy": "p", "cublasLtMatmulPreferenceSetAttribute": "pipz",
    "cublasLtMatmulAlgoGetHeuristic": "pppppppipp", "cublasLtMatmul": "ppppppppppppppzp",
}  # fmt: skip
_TEXTS = ("ncclGetLastError",)  # these return the address of a text, all others a code


@dataclass(frozen=True)
class Signature:
    """Describe a C function: its library ("cuda", "nccl" or "cublaslt"), its arguments' types and its result's."""

    library: str
    arguments: tuple[Any, ...]
    result: Any

    def prototype(self) -> Any:
        """Return the ctypes type of such a function."""
        return ctypes.CFUNCTYPE(self.result, *self.arguments)


SIGNATURES = {
    name: Signature(
        library,
        tuple(_LETTERS[letter] for letter in letters),
        ctypes.c_void_p if name in _TEXTS else ctypes.c_int32,
    )
    for library, functions in (("cuda", _CUDA), ("nccl", _NCCL), ("cublaslt", _CUBLASLT))
    for name, letters in functions.items()
}

# What the host code of a program may call.
HOST = (
    "cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize",
    "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2",
    "cublasLtMatmul", "ncclAllReduce", "ncclAllGather", "ncclReduceScatter",
    "ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd",
)  # fmt: skip

ERRORS = {
    "cuda": {
        1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY",
        3: "CUDA_ERROR_NOT_INITIALIZED", 4: "CUDA_ERROR_DEINITIALIZED",
        34: "CUDA_ERROR_STUB_LIBRARY", 46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
        100: "CUDA_ERROR_NO_DEVICE", 101: "CUDA_ERROR_INVALID_DEVICE",
        200: "CUDA_ERROR_INVALID_IMAGE", 201: "CUDA_ERROR_INVALID_CONTEXT",
        209: "CUDA_ERROR_NO_BINARY_FOR_GPU", 214: "CUDA_ERROR_ECC_UNCORRECTABLE",
        218: "CUDA_ERROR_INVALID_PTX", 221: "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", 223: "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        225: "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", 300: "CUDA_ERROR_INVALID_SOURCE",
        302: "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        303: "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", 400: "CUDA_ERROR_INVALID_HANDLE",
        500: "CUDA_ERROR_NOT_FOUND", 600: "CUDA_ERROR_NOT_READY",
        700: "CUDA_ERROR_ILLEGAL_ADDRESS", 701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        702: "CUDA_ERROR_LAUNCH_TIMEOUT", 716: "CUDA_ERROR_MISALIGNED_ADDRESS",
        719: "CUDA_ERROR_LAUNCH_FAILED", 801: "CUDA_ERROR_NOT_SUPPORTED",
        803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        900: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        901: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        904: "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        905: "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", 999: "CUDA_ERROR_UNKNOWN",
    },
    "nccl": {
        1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError",
        4: "ncclInvalidArgument", 5: "ncclInvalidUsage", 6: "ncclRemoteError",
        7: "ncclInProgress",
    },
    "cublaslt": {
        1: "CUBLAS_STATUS_NOT_INITIALIZED", 3: "CUBLAS_STATUS_ALLOC_FAILED",
        7: "CUBLAS_STATUS_INVALID_VALUE", 8: "CUBLAS_STATUS_ARCH_MISMATCH",
        11: "CUBLAS_STATUS_MAPPING_ERROR", 13: "CUBLAS_STATUS_EXECUTION_FAILED",
        14: "CUBLAS_STATUS_INTERNAL_ERROR", 15: "CUBLAS_STATUS_NOT_SUPPORTED",
    },
}  # fmt: skip
INVALID_VALUE, NO_DEVICE, NO_BINARY, INVALID_PTX, UNSUPPORTED_PTX = 1, 100, 209, 218, 222
INVALID_HANDLE, NOT_FOUND, NOT_READY, UNKNOWN = 400, 500, 600, 999
CAPTURE_UNSUPPORTED, CAPTURE_UNJOINED, CAPTURE_ISOLATION = 900, 904, 905
REFUSED_IMAGES = (200, 209, 218, 221, 222, 223, 225, 300, 302, 303, 801)
"""What the driver says of machine code that it does not take; the same module's PTX may do."""
NCCL_INVALID, NCCL_USAGE = 4, 5
LT_INVALID, LT_FAILED, LT_UNSUPPORTED = 7, 13, 15

# What host code adds to a code, so that the 16 bits that `step` returns tell the library.
_MARKS = {"cuda": 0x4000, "nccl": 0x2000, "cublaslt": 0x1000}


def error_name(library: str, code: int) -> str:
    """Name an error: `CUDA_ERROR_OUT_OF_MEMORY (2)`; an unknown code by its number alone."""
    known = ERRORS[library].get(code)
    return f"{known} ({code})" if known else f"{library} error {code}"


def meaning(code: int) -> str:
    """Name the error in the low 16 bits of a step's result: `CUDA_ERROR_ILLEGAL_ADDRESS (700)`."""
    for library, mark in _MARKS.items():
        if code & 0x7000 == mark:
            return error_name(library, code & 0x0FFF)
    return f"code {code & 0xFFFF}"


# ncclDataType_t, and the NumPy dtype of what is moved; bf16 travels as its bits.
NCCL_TYPES = {
    "i8": 0, "u8": 1, "i32": 2, "ui32": 3, "i64": 4, "ui64": 5, "f16": 6, "f32": 7, "f64": 8,
    "bf16": 9,
}  # fmt: skip
NCCL_NAMES = {number: name for name, number in NCCL_TYPES.items()}
NCCL_OPS = {0: "sum", 1: "prod", 2: "max", 3: "min", 4: "avg"}

# cudaDataType_t, cublasComputeType_t and the attributes of cublasLt that are used.
CUDA_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
CUDA_NAMES = {number: name for name, number in CUDA_TYPES.items()}
COMPUTE_TYPES = {"f32": 68, "tf32": 77, "f64": 70}
COMPUTE_NAMES = {number: name for name, number in COMPUTE_TYPES.items()}
DESC_TRANSPOSE_A, DESC_TRANSPOSE_B = 3, 4
LAYOUT_ORDER, LAYOUT_BATCH, LAYOUT_STRIDE = 1, 5, 6
ORDER_ROW = 1
TRANSPOSE = 1
PREFERENCE_WORKSPACE = 1
PREFERENCE_ALIGNMENTS = (5, 6, 7, 8)  # least, in bytes, of A, B, C and D

# CUdevice_attribute, CUfunction_attribute and flags.
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
MOST_SHARED = 97  # bytes of shared memory that a block may ask for
UUID_BYTES = 16
DYNAMIC_SHARED = 8
STREAM_NON_BLOCKING, EVENT_NO_TIMING, CAPTURE_THREAD_LOCAL = 1, 2, 1
