"""The table of C signatures, codes and enumerations against NVIDIA's headers, where their packages
are installed.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

import pytest

from meshweave.runtime.gpu import interface
from meshweave.runtime.gpu.interface import ERRORS, SIGNATURES

_NUMBERS = {"int", "unsigned int", "unsigned char", "CUdevice", "ncclDataType_t", "ncclRedOp_t",
            "cublasComputeType_t", "cudaDataType_t", "cudaDataType"}  # fmt: skip
_ENUMS = re.compile(r"CU\w+_(attribute|flags)(_enum)?|CUstreamCaptureMode|cublasLt\w+Attributes?_t")


def header(name):
    """The text of a header, without comments. Skips where no package has it."""
    found = [
        path
        for folder in sys.path
        for path in (Path(folder) / "nvidia").glob(f"*/include/{name}")
        if path.is_file()
    ]
    if not found:
        pytest.skip(f"no package nvidia-* with {name} is installed")
    text = re.sub(r"/\*.*?\*/", " ", found[0].read_text(errors="replace"), flags=re.S)
    return re.sub(r"//[^\n]*", " ", text)


HEADERS = {"cuda": "cuda.h", "nccl": "nccl.h", "cublaslt": "cublasLt.h"}


def widths(text, name):
    """Bytes of each argument of a function, as it is declared."""
    renamed = re.search(rf"#define\s+(\w+)\s+(?:__CUDA_API_PT[DS][SZ]\()?{name}\b", text)
    base = renamed[1] if renamed else name
    declared = r"\b(?:CUDAAPI|CUBLASWINAPI|ncclResult_t|\*)\s*"
    found = re.search(rf"{declared}{base}\s*\(([^)]*)\)", text)
    assert found, f"{name} is not declared"
    listed = [each.strip() for each in found[1].split(",") if each.strip() not in ("", "void")]
    return [width(each) for each in listed]


def width(argument):
    """Of `const void *image`, 8."""
    if "*" in argument or "[" in argument:
        return 8
    kind = re.sub(r"\b(const|enum)\b", "", argument).split()
    kind = " ".join(kind[:-1]) if len(kind) > 1 else kind[0]
    if kind == "ncclUniqueId":
        return 128
    return 4 if kind in _NUMBERS or _ENUMS.fullmatch(kind) else 8


@pytest.mark.parametrize("library", HEADERS)
def test_signatures(library):
    text = header(HEADERS[library])
    for name, signature in SIGNATURES.items():
        if signature.library == library:
            ours = [ctypes.sizeof(kind) for kind in signature.arguments]
            assert ours == widths(text, name), name


@pytest.mark.parametrize(("library", "name"), [("cuda", "cuda.h"), ("nccl", "nccl.h"),
                                               ("cublaslt", "cublas_api.h")])  # fmt: skip
def test_codes(library, name):
    text = header(name)
    for code, meaning in ERRORS[library].items():
        assert re.search(rf"\b{meaning}\s*=\s*{code}\b", text), meaning


ENUMERATIONS = {
    "cuda.h": {
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": interface.CAPABILITY_MAJOR,
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": interface.CAPABILITY_MINOR,
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": interface.DYNAMIC_SHARED,
        "CU_STREAM_NON_BLOCKING": interface.STREAM_NON_BLOCKING,
        "CU_EVENT_DISABLE_TIMING": interface.EVENT_NO_TIMING,
        "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": interface.CAPTURE_THREAD_LOCAL,
        "CU_JIT_ERROR_LOG_BUFFER": 5, "CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES": 6,
    },
    "nccl.h": {
        **{f"nccl{n}": interface.NCCL_TYPES[t] for n, t in (
            ("Int8", "i8"), ("Uint8", "u8"), ("Int32", "i32"), ("Uint32", "ui32"), ("Int64", "i64"),
            ("Uint64", "ui64"), ("Float16", "f16"), ("Float32", "f32"), ("Float64", "f64"),
            ("Bfloat16", "bf16"),
        )},
        **{f"nccl{name.title()}": code for code, name in interface.NCCL_OPS.items()},
    },
    "cublasLt.h": {
        "CUBLASLT_ORDER_ROW": interface.ORDER_ROW,
        "CUBLASLT_MATRIX_LAYOUT_ORDER": interface.LAYOUT_ORDER,
        "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": interface.LAYOUT_BATCH,
        "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": interface.LAYOUT_STRIDE,
        "CUBLASLT_MATMUL_DESC_TRANSA": interface.DESC_TRANSPOSE_A,
        "CUBLASLT_MATMUL_DESC_TRANSB": interface.DESC_TRANSPOSE_B,
        "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": interface.PREFERENCE_WORKSPACE,
        **{f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{x}_BYTES": k
           for x, k in zip("ABCD", interface.PREFERENCE_ALIGNMENTS)},
    },
    "cublas_api.h": {
        "CUBLAS_OP_T": interface.TRANSPOSE, "CUBLAS_COMPUTE_32F": interface.COMPUTE_TYPES["f32"],
        "CUBLAS_COMPUTE_64F": interface.COMPUTE_TYPES["f64"],
        "CUBLAS_COMPUTE_32F_FAST_TF32": interface.COMPUTE_TYPES["tf32"],
    },
    "library_types.h": {
        "CUDA_R_32F": interface.CUDA_TYPES["f32"], "CUDA_R_64F": interface.CUDA_TYPES["f64"],
        "CUDA_R_16F": interface.CUDA_TYPES["f16"], "CUDA_R_16BF": interface.CUDA_TYPES["bf16"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumerations(name):
    text = header(name)
    for word, value in ENUMERATIONS[name].items():
        found = re.search(rf"\b{word}\s*=\s*(0x[0-9a-fA-F]+|\d+)", text)
        assert found and int(found[1], 0) == value, word


def test_each_function_has_a_stand_in():
    """And each stand-in takes as many arguments as the function."""
    import inspect

    from runtime.gpu.numpy_kernels import NumpyKernels

    from meshweave.simulator.driver.cuda import RecordedCuda
    from meshweave.simulator.driver.lt import RecordedLt
    from meshweave.simulator.driver.move import move
    from meshweave.simulator.driver.nccl import RecordedNccl
    from meshweave.simulator.driver.recorder import Recorder
    from meshweave.simulator.driver.replay import Scheduler
    from meshweave.simulator.driver.streams import RecordedStreams

    parts = RecordedCuda, RecordedStreams, RecordedNccl, RecordedLt
    assert set(Recorder(1, NumpyKernels(), Scheduler(move)).functions) == set(SIGNATURES)
    for name, signature in SIGNATURES.items():
        method = next(getattr(part, name) for part in parts if hasattr(part, name))
        assert len(inspect.signature(method).parameters) == 1 + len(signature.arguments), name
