"""What a report says of launches: registers as ptxas tells them, occupancy, bytes and floating operations by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import meshweave as command
from lowering.gpu.machine_code import assembled

import meshweave as mw
from meshweave.api.program import lowered
from meshweave.device import CHIPS, GemmInfo
from meshweave.lowering.gpu.roofline import (
    WorkOfLaunch,
    blocks_at_a_time,
    launch_rows,
    least_seconds,
)
from meshweave.lowering.gpu.toolchain.cubin import kernels_of
from meshweave.lowering.gpu.toolchain.versions import program as tool
from meshweave.report import LaunchRow

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")
H100 = CHIPS["sm_90"]


def rows_of(function, *shapes: tuple[int, ...], dtype: str = "f32", chip: str = "sm_90"):
    """The rows of a program of one rank."""
    kinds = [mw.ShapeDtype(shape, dtype) for shape in shapes]
    text = mw.jit(function, mesh="x=1").lower(*kinds)
    with lowered(text.as_text(), "test", None, "emulate") as (_, program):
        return launch_rows(program, chip)


@pytest.fixture(scope="module")
def assembler() -> None:
    try:
        tool("ptxas")
    except Exception as error:
        pytest.skip(f"no ptxas: {error}")


@pytest.mark.usefixtures("assembler")
@pytest.mark.parametrize("chip", ["sm_75", "sm_86", "sm_90a", "sm_120"])
def test_registers_and_shared_memory_are_those_that_the_assembler_tells(chip: str) -> None:
    text = mw.jit(lambda x: mw.sum(mw.exp(x), axis=1), mesh="x=1").lower(np.ones((48, 9000), "f4"))
    bundle = mw.compile(text.as_text(), engine="emulate", chip=chip).bundle
    shared = 0
    for module in bundle.devices:
        cubin, told = assembled(module)
        found = kernels_of(cubin, CHIPS[chip])
        assert set(found) == set(told)
        for entry, takes in found.items():
            wanted = told[entry]
            assert takes.registers == wanted.registers > 0
            assert takes.shared_bytes == wanted.static_shared
            assert takes.stack_bytes == wanted.stack
            shared += takes.shared_bytes
    assert shared


@pytest.mark.parametrize(
    ("chip", "threads", "registers", "shared", "blocks"),
    [
        ("sm_90", 256, 32, 0, 8),  # 64 warps
        ("sm_90", 1024, 64, 0, 1),  # 32 warps of 2048 registers
        ("sm_90", 256, 48, 128, 5),  # 42 warps of 1536 registers, four at a time
        ("sm_90", 128, 220, 98_304, 2),  # 9 warps of 7168
        ("sm_90", 128, 32, 98_304, 2),  # 228 KiB
        ("sm_90", 32, 16, 0, 32),
        ("sm_80", 128, 32, 82_944, 2),  # 164 KiB, of which each block has one for itself
        ("sm_80", 128, 32, 82_945, 1),
        ("sm_86", 256, 32, 0, 6),
        ("sm_75", 256, 32, 0, 4),
        ("sm_75", 64, 32, 16_385, 3),
    ],
)
def test_blocks_that_a_multiprocessor_has_at_a_time(chip, threads, registers, shared, blocks):
    assert blocks_at_a_time(threads, registers, shared, CHIPS[chip]) == blocks


def test_a_product_of_the_library():
    (row,) = rows_of(lambda a, b: a @ b, (640, 96), (96, 64), dtype="bf16")
    assert row.kernel == "cublaslt 640x64x96 bf16" and row.registers is None
    assert row.nbytes == 2 * (640 * 96 + 96 * 64 + 640 * 64) and row.flops == 2 * 640 * 96 * 64
    assert row.seconds == row.nbytes / 3.35e12 and row.bound == "memory"


@pytest.mark.usefixtures("assembler")
def test_softmax_reads_and_writes_its_rows_once():
    def softmax(x):
        e = mw.exp(x - mw.max(x, axis=1, keepdims=True))
        return e / mw.sum(e, axis=1, keepdims=True)

    (row,) = rows_of(softmax, (1000, 512))
    assert row.nbytes == 8 * 1000 * 512 and row.flops == 5 * 1000 * 512
    assert row.registers and row.blocks and 0 < row.occupancy <= 1
    assert row.occupancy == row.blocks * row.block / 2048


def test_what_is_alike_is_a_row_and_parts_of_results_count():
    (row,) = rows_of(lambda x, y: (mw.exp(x), mw.exp(y)), (64, 64), (64, 64))
    assert (row.launches, row.nbytes, row.flops) == (2, 2 * 4 * 64 * 64, 64 * 64)
    first, second = rows_of(mw.sum, (1 << 22,))
    assert 4 << 22 < first.nbytes < 1.01 * (4 << 22) and second.nbytes < 1 << 16


def test_an_attention_counts_both_of_its_products():
    def attend(q, k, v):
        return mw.nn.dot_product_attention(q, k, v)

    (row,) = rows_of(attend, *[(1, 128, 2, 64)] * 3, dtype="bf16")
    assert row.kernel.startswith("flash") and row.nbytes == 4 * 2 * 128 * 2 * 64
    assert row.flops == 2 * 2 * 128 * 128 * (64 + 64)


def test_what_bounds_a_launch():
    large = GemmInfo("bf16", 4096, 4096, 4096, 4096, 4096, 4096)
    flops = 2 * 4096**3
    assert least_seconds(large, WorkOfLaunch(1, flops, "bf16"), H100) == (
        flops / 989.5e12,
        "arithmetic",
    )
    rounded = GemmInfo("f32", 8, 8, 8, 8, 8, 8, compute="tf32")
    assert least_seconds(rounded, WorkOfLaunch(1, flops, "f32"), H100)[0] == flops / 494.5e12
    assert least_seconds(large, WorkOfLaunch(1, flops, "bf16"), CHIPS["sm_86"]) == (None, "")


def test_the_command_lists_launches(tmp_path: Path) -> None:
    path = tmp_path / "p.mlir"
    text = mw.jit(lambda a, b: mw.exp(a @ b), mesh="x=1").lower(*[np.ones((64, 64), "f4")] * 2)
    path.write_text(text.as_text())
    done = command("report", path, "--target", "gpu", "--json")
    said = json.loads(done.out)["launches"]
    assert said[0]["kernel"] == "cublaslt 64x64x64 f32" and len(said) == 2
    assert list(said[0]) == list(LaunchRow.__dataclass_fields__)
    assert "launches" not in json.loads(command("report", path, "--json").out)
    shown = command("report", path, "--target", "gpu", "--chip", "sm_80", "--no-verify").out
    assert "blocks on an SM" in shown and "us, memory" in shown
