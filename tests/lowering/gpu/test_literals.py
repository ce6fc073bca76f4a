"""Floating-point constants from MLIR to PTX, bit for bit; what else LLVM 22 must be told in its words."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from depth import sampled
from hypothesis import given
from hypothesis import strategies as st

from meshweave.lowering.gpu.toolchain import literals

TYPES = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def patterns(name: str) -> np.ndarray:
    """Every pattern of 16 bits; of wider types random ones, and all kinds of special ones."""
    if name in ("f16", "bf16"):
        return np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(7)
    kind, fraction = (np.uint32, 23) if name == "f32" else (np.uint64, 52)
    size = kind().nbytes * 8
    random = rng.integers(0, 1 << size, 20000, dtype=kind, endpoint=False)
    payloads = rng.integers(1, 1 << fraction, 2000, dtype=kind)
    infinity = kind(((1 << (size - 1 - fraction)) - 1) << fraction)
    sign = kind(1 << (size - 1))
    decimals = np.array([0.1, 1 / 3, 1e-5, 2.5, 65504.0, 1e30, 3.0], f"f{size // 8}").view(kind)
    powers = np.array([1 << k for k in range(size)], kind)
    parts = (random, payloads | infinity, payloads | infinity | sign, payloads, payloads | sign)
    ends = np.array([0, infinity], kind)
    return np.concatenate((*parts, decimals, powers, powers - kind(1), ends, ends | sign))


def bytes_of_global(ptx: str) -> bytes:
    found = re.search(r"\.global[^;]*?\.b8 table\[\d+\] = \{([^}]*)\}", ptx)
    return bytes(int(number) for number in found[1].split(","))


@sampled(4)
@pytest.mark.parametrize("name", TYPES.values())
def test_constants_keep_their_bits_all_the_way_to_ptx(name):
    pytest.importorskip("llvmlite")
    from meshweave.lowering.gpu.toolchain import ptx

    wanted = patterns(name)
    data = f'dense<"0x{wanted.tobytes().hex()}"> : tensor<{len(wanted)}x{name}>'
    text = (
        f"llvm.mlir.global external constant @table({data})"
        f" {{addr_space = 1 : i32}} : !llvm.array<{len(wanted)} x {name}>"
    )
    made = bytes_of_global(ptx.to_ptx(ptx.device_llvm(text), "sm_80"))
    assert made == wanted.tobytes()


@given(st.integers(0, (1 << 32) - 1), st.booleans())
def test_a_float_reads_back_from_its_decimal(pattern, signed):
    (value,) = struct.unpack("<f", struct.pack("<I", pattern & 0x7F7FFFFF))
    word = f"{'-' if signed else ''}{value:.60e}"
    assert literals.bits(word, "float") == (pattern & 0x7F7FFFFF) | signed << 31


@given(st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_decimals_round_as_numpy_rounds(value):
    word = f"{abs(value):.20e}"
    double = np.float64(word)
    assert literals.bits(word, "double") == int(double.view(np.uint64))
    with np.errstate(over="ignore"):
        half, single = np.float16(double), np.float32(double)
    if double == float(word) and np.isfinite(half) and half != 65504.0:
        exact = np.float64(f"{float(half):.20e}")
        assert literals.bits(f"{float(exact):.20e}", "half") == int(half.view(np.uint16))
    if np.isfinite(single):
        assert literals.bits(f"{float(single):.20e}", "float") == int(single.view(np.uint32))


@pytest.mark.parametrize(
    "old, new",
    [
        (
            "  %1 = fadd float %x1e5.0, 1.000000e-01",
            "  %1 = fadd float %x1e5.0, 0x3FB99999A0000000",
        ),
        ("  ret double f0x3FF0000000000000", "  ret double 0x3FF0000000000000"),
        ("  store half -inf, ptr %float", "  store half 0xHFC00, ptr %float"),
        ("  store bfloat +snan(0x1), ptr %p", "  store bfloat 0xR7F81, ptr %p"),
        ("  store float +nan(0x3), ptr %p", "  store float 0x7FF8000060000000, ptr %p"),
        ('@s = constant [9 x i8] c"float 1.0"', '@s = constant [9 x i8] c"float 1.0"'),
        ("  %a = add i32 %b, 1 ; float 1.0", "  %a = add i32 %b, 1 ; float 1.0"),
        ("  %r = udiv i32 %b, 10", "  %r = udiv i32 %b, 10"),
        (
            "attributes #0 = { denormal_fpenv(preservesign) }",
            'attributes #0 = { "denormal-fp-math"="preserve-sign,preserve-sign" }',
        ),
        (
            "attributes #0 = { denormal_fpenv(float: preservesign|ieee) }",
            'attributes #0 = { "denormal-fp-math-f32"="preserve-sign,ieee" }',
        ),
        ("declare void @llvm.nvvm.barrier() #3", "declare void @llvm.nvvm.barrier()"),
        ("declare void @other() #3", "declare void @other() #3"),
    ],
)
def test_lines_in_the_words_of_llvm_22(old, new):
    assert literals.readable(old) == new
