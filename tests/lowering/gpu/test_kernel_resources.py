"""What ptxas makes of the kernels, for every chip; and how well they use memory, as the emulator
counts it.

tests/data/gpu_kernels.json holds registers and shared memory; a few registers more may come with
another ptxas and are let through; spills never are.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from depth import sampled, some, thinned

pytest.importorskip("llvmlite")

from lowering.gpu import machine_code
from lowering.gpu import maps_and_rows as programs
from lowering.gpu.device_runs import NUMPY, DeviceRun, compiled
from lowering.gpu.maps_and_rows import generic, stored, tensor

from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.gpu.toolchain import versions as toolchain
from meshweave.simulator.ptx import Checks

TABLE = Path(__file__).parents[2] / "data" / "gpu_kernels.json"
MORE_REGISTERS = 16
OPCODES = ("LDG.128", "STG.128", "LDG.64", "STG.64", "SHFL", "BAR")


def gelu(rows: int, columns: int, dtype: str) -> str:
    """tanh of (x + bias), plus a residual: one kernel, with operands that lie as the result and one
    that is a row.
    """
    shape, whole = (rows, columns), (0, 1)
    kind = tensor(shape, dtype)
    body = [
        f"%e = tensor.empty() : {kind}",
        generic("%0", [("%a0", whole, dtype), ("%a1", (1,), dtype), ("%a2", whole, dtype)], ("%e", whole, dtype),
                shape, [], [f"%s = arith.addf %x0, %x1 : {dtype}", f"%t = math.tanh %s : {dtype}",
                            f"%r = arith.addf %t, %x2 : {dtype}"]),
    ]  # fmt: skip
    return programs.function([kind, tensor([columns], dtype), kind], body, "%0", kind)


LARGE = {
    "gelu f32": gelu(4096, 4096, "f32"),
    "gelu bf16": gelu(4096, 4096, "bf16"),
    "softmax 1024 f32": programs.softmax(4096, 1024, "f32"),
    "softmax 4096 bf16": programs.softmax(8192, 4096, "bf16"),
    "softmax 32768 bf16": programs.softmax(4096, 32768, "bf16"),
    "softmax 65536 f32": programs.softmax(4096, 65536, "f32"),
    "softmax 1000 f64": programs.softmax(4096, 1000, "f64"),
    "layer norm 768 f32": programs.layer_norm(16384, 768, "f32"),
    "layer norm 4096 bf16": programs.layer_norm(8192, 4096, "bf16"),
    "layer norm 12288 f16": programs.layer_norm(8192, 12288, "f16"),
    "row sums f32": programs.reduced((8192, 4096), [1], "f32", programs.SUM),
    "column sums f32": programs.reduced((16384, 4096), [0], "f32", programs.SUM),
    "column sums bf16": programs.reduced((16384, 65536), [0], "bf16", programs.SUM),
    "sum of all f32": programs.reduced((4096, 4096), [0, 1], "f32", programs.SUM),
    "tall columns bf16": programs.reduced((1 << 20, 64), [0], "bf16", programs.SUM),
    "transpose f32": programs.transposed((4096, 4096), (1, 0), "f32"),
    "transpose bf16": programs.transposed((4096, 4096), (1, 0), "bf16"),
    "transpose f64": programs.transposed((4096, 4096), (1, 0), "f64"),
    "transpose i8": programs.transposed((4096, 4096), (1, 0), "i8"),
    "transpose 4095 f32": programs.transposed((4095, 4095), (1, 0), "f32"),
    "heads to the front bf16": programs.transposed((8, 512, 16, 64), (0, 2, 1, 3), "bf16"),
}
NARROW = {"transpose i8", "transpose 4095 f32", "column sums f32", "column sums bf16"}


def resources(chip: str) -> dict[str, dict[str, int]]:
    """Of each large kernel, and the opcodes that tell how it works."""
    names = thinned(LARGE, 3)
    kernels = [DeviceRun(LARGE[name], Target(chip)).kernels[0] for name in names]
    found = {}
    for name, kernel, module in zip(names, kernels, compiled(kernels, chip, assemble=False)):
        cubin, taken_by = machine_code.assembled(module)
        taken, counts = taken_by[kernel.entry], opcodes(cubin)
        found[name] = {
            "registers": taken.registers,
            "spilled": taken.spill_bytes + taken.stack,
            "shared": kernel.shared_bytes + taken.static_shared,
            "threads": kernel.block[0],
            **{op: _count(counts, op) for op in OPCODES},
        }
    return found


def opcodes(cubin: bytes) -> Counter[str]:
    """How often each opcode occurs, modifiers included."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = toolchain.program("nvdisasm")
        listing = subprocess.run(
            [tool, "-c", file.name], capture_output=True, text=True, check=True
        )
    line = r"^\s*(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]+(?:\.\w+)*)[\s;]"
    return Counter(re.findall(line, listing.stdout, re.MULTILINE))


def _count(counts: dict[str, int], wanted: str) -> int:
    """How often an opcode occurs with all of these parts."""
    first, *rest = wanted.split(".")
    return sum(
        n
        for op, n in counts.items()
        if op.split(".")[0] == first and set(rest) <= set(op.split("."))
    )


@pytest.mark.parametrize("chip", some(("sm_80", "sm_90", "sm_90a"), 3))
def test_registers_shared_memory_and_wide_accesses(chip):
    pytest.importorskip("nvidia")
    table = json.loads(TABLE.read_text())[chip]
    for name, made in resources(chip).items():
        wanted = table[name]
        assert made["spilled"] == 0, f"{name}: {made}"
        assert made["shared"] == wanted["shared"] and made["threads"] == wanted["threads"], (
            f"{name}: {made}"
        )
        assert made["registers"] <= wanted["registers"] + MORE_REGISTERS, f"{name}: {made}"
        assert made["registers"] * made["threads"] <= 65536
        for op in OPCODES:
            assert (made[op] > 0) == (wanted[op] > 0), f"{name}: {op} {made[op]}"
        if name not in NARROW:
            assert made["LDG.128"] and (made["STG.128"] or "sum" in name), f"{name}: {made}"


# Memory traffic of small ones.

SMALL = {
    "gelu": gelu(16, 512, "f32"),
    "gelu bf16": gelu(16, 512, "bf16"),
    "softmax": programs.softmax(8, 1024, "f32"),
    "softmax of short rows": programs.softmax(64, 32, "bf16"),
    "softmax of long rows": programs.softmax(2, 40960, "f32"),
    "layer norm": programs.layer_norm(8, 512, "bf16"),
    "row sums": programs.reduced((64, 512), [1], "f32", programs.SUM),
    "column sums": programs.reduced((200, 128), [0], "f32", programs.SUM),
    "column sums f64": programs.reduced((200, 128), [0], "f64", programs.SUM),
    "transpose": programs.transposed((128, 192), (1, 0), "f32"),
    "transpose bf16": programs.transposed((128, 512), (1, 0), "bf16"),
    "tiles": programs.transposed((96, 97), (1, 0), "i64"),
}
# Rows of 97 elements begin inside a sector, and single results are less than one.
LOOSE = {"tiles": 1.4, "row sums": 1.1, "softmax of short rows": 1.0, "layer norm": 1.0}


@sampled(4)
@pytest.mark.parametrize("name", SMALL)
def test_the_least_sectors_and_no_bank_conflicts(name):
    made = DeviceRun(SMALL[name])
    rng = np.random.default_rng(3)
    inputs = []
    for value in made.inputs:
        shape, dtype = value
        x = rng.standard_normal(shape)
        inputs.append(stored(x, dtype) if dtype in programs.FLOATS else x.astype(NUMPY[dtype]))
    made.run(*inputs, checks=Checks(traffic=True))
    counts = made.counts[0]
    assert counts.sectors > 0
    assert counts.sectors <= LOOSE.get(name, 1.0) * counts.least_sectors, counts
    assert counts.wavefronts == counts.least_wavefronts, counts
