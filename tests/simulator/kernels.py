"""Small PTX kernels for tests: text around a few instructions, and their launch on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.simulator.ptx import Checks, Counts, GlobalMemory, launch, parse

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
REGISTERS = """
.reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .b64 %d<32>;
"""
BITS = {
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "f16x2": 32,
    "bf16x2": 32,
    "pred": 1,
    "tf32": 32,
}
NUMPY = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}


def entry(body: str, parameters: int, shared: str = "", name: str = "k") -> str:
    """A module with one kernel; %d20, %d21, ... hold its pointers, %r30 the thread's number in the
    grid (x alone), %r31 its number in the block.
    """
    names = [f"p{number}" for number in range(parameters)]
    declared = ", ".join(f".param .u64 {parameter}" for parameter in names)
    loads = "".join(
        f"ld.param.u64 %d{20 + n}, [{parameter}];\n" for n, parameter in enumerate(names)
    )
    return f"""{HEAD}{shared}
.visible .entry {name}({declared})
{{{REGISTERS}{loads}
mov.u32 %r31, %tid.x; mov.u32 %r30, %ctaid.x; mov.u32 %r29, %ntid.x;
mad.lo.s32 %r30, %r30, %r29, %r31;
{body}
ret;
}}"""


def run(
    ptx: str,
    arrays: Sequence[np.ndarray],
    grid: int | tuple[int, int, int] = 1,
    block: int | tuple[int, int, int] = 32,
    shared: int = 0,
    checks: Checks | None = None,
) -> Counts:
    """Launch the only kernel of `ptx` on arrays, in place; one pointer each."""
    memory, parameters = GlobalMemory(), []
    for number, array in enumerate(arrays):
        memory.add(array.ctypes.data, array.reshape(-1).view(np.uint8), f"array {number}")
        parameters.append(int(array.ctypes.data).to_bytes(8, "little"))
    module = parse(ptx)
    grid3 = (grid, 1, 1) if isinstance(grid, int) else grid
    block3 = (block, 1, 1) if isinstance(block, int) else block
    return launch(module, module.entries[0], grid3, block3, shared, parameters, memory, checks)


def bits_of(kind: str) -> int:
    """Bits of a PTX type."""
    return BITS.get(kind) or int(kind[1:])


def numpy_of(kind: str) -> Any:
    """The NumPy type that tests give and get for a PTX type."""
    if kind in NUMPY:
        return NUMPY[kind]
    bits = 8 if kind == "pred" else bits_of(kind)
    return np.dtype(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}")


def evaluate(
    instruction: str, kinds: Sequence[str], result: str, *operands: np.ndarray
) -> np.ndarray:
    """What an instruction gives for each element of the operands.

    instruction: with `d` for the result and `x`, `y`, `z`, `w` for the operands of types `kinds`.
    """
    count = len(operands[0])
    letters = {8: "h", 16: "h", 32: "r", 64: "d", 1: "p"}
    body, names = "cvt.u64.u32 %d0, %r30;\n", {}
    for number, kind in enumerate(kinds):
        bits, letter = bits_of(kind), "xyzw"[number]
        names[letter] = f"%{letters[bits]}{number + 1}"
        size = max(1, bits // 8)
        body += f"mad.lo.s64 %d10, %d0, {size}, %d{20 + number};\n"
        if kind == "pred":
            body += f"ld.global.u8 %h{number + 9}, [%d10]; setp.ne.s16 {names[letter]}, %h{number + 9}, 0;\n"
        else:
            body += f"ld.global.b{bits} {names[letter]}, [%d10];\n"
    bits = bits_of(result)
    names["d"] = f"%{letters[bits]}8"
    body += " ".join(names.get(word, word) for word in _words(instruction)) + ";\n"
    size = max(1, bits // 8)
    body += f"mad.lo.s64 %d10, %d0, {size}, %d{20 + len(kinds)};\n"
    if result == "pred":
        body += "selp.u16 %h9, 1, 0, %p8; st.global.u8 [%d10], %h9;\n"
    else:
        body += f"st.global.b{bits} [%d10], {names['d']};\n"
    out = np.zeros(count, numpy_of(result))
    assert count % 32 == 0
    arrays = [np.ascontiguousarray(operand) for operand in operands]
    run(entry(body, len(kinds) + 1), [*arrays, out], grid=count // 32, block=32)
    return out


def _words(instruction: str) -> list[str]:
    for mark in ",{}|;":
        instruction = instruction.replace(mark, f" {mark} ")
    return instruction.split()


def patterns(seed: int, kind: str, count: int = 128) -> np.ndarray:
    """Operands of a type: special values first, then random bits, then numbers of usual size."""
    rng = np.random.default_rng(seed)
    bits = 8 if kind == "pred" else bits_of(kind)
    raw = rng.integers(0, 1 << min(bits, 63), count, dtype=np.uint64)
    raw ^= rng.integers(0, 2, count, dtype=np.uint64) << np.uint64(bits - 1)
    if kind == "pred":
        return (raw & np.uint64(1)).astype(np.uint8)
    values = raw.astype(f"u{bits // 8}")
    if kind in ("f16", "f32", "f64"):
        floats = values.view(NUMPY[kind]).copy()
        floats[count // 2 :] = rng.standard_normal(count - count // 2).astype(NUMPY[kind])
        info = np.finfo(NUMPY[kind])
        special = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            np.inf,
            -np.inf,
            np.nan,
            info.max,
            info.tiny,
            info.tiny / 4,
        ]
        floats[: len(special)] = np.array(special, NUMPY[kind])
        rng.shuffle(floats)
        return floats
    if kind not in BITS:
        special = np.array([0, 1, 2, 31, 32, 33, (1 << bits) - 1, 1 << (bits - 1)], np.uint64)
        values[: len(special)] = special.astype(values.dtype)
        values[count // 2 : count // 2 + 8] = rng.integers(0, 70, 8)
        rng.shuffle(values)
    return values.view(numpy_of(kind))
