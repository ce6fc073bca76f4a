"""Loads that read more bytes than are used: `.pragma "used_bytes_mask"`."""

from __future__ import annotations

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.kernels import entry, run

from meshweave.simulator.ptx import AccessSets, Checks, EmulationError, launch, parse
from meshweave.simulator.ptx.memory import GlobalMemory

SHARED = ".shared .align 16 .b8 tile[1024];\n"
V4 = "ld.{space}.v4.b32 {{%r1, %r2, %r3, %r4}}, [{at}];"
KEEP = "mad.wide.u32 %d2, %r30, 16, %d21; st.global.v4.b32 [%d2], {%r1, %r2, %r3, %r4};"


def mask(used: int) -> str:
    """The pragma."""
    return f'.pragma "used_bytes_mask {used:#x}";\n'


def loaded(x: np.ndarray, used: int, at: int = 0, threads: int = 1) -> np.ndarray:
    """Four words for each thread, from byte `at` of x and 16 bytes further each."""
    out = np.zeros((threads, 4), np.uint32)
    load = V4.format(space="global", at=f"%d1+{at}")
    body = f"mad.wide.u32 %d1, %r30, 16, %d20;\n{mask(used)}{load}\n{KEEP}"
    run(entry(body, 2), [x, out], block=threads)
    return out


def words(count: int) -> np.ndarray:
    """Words at a multiple of 16 bytes."""
    room = np.arange(100, 100 + count + 4, dtype=np.uint32)
    room = np.concatenate([room, room])
    start = -room.ctypes.data % 16 // 4
    out = room[start : start + count]
    out[:] = np.arange(100, 100 + count)
    return out


@given(used=st.integers(0, 0xFFFF), threads=st.sampled_from([1, 5, 32]))
@settings(max_examples=examples(60), deadline=None)
def test_used_bytes_are_read_and_others_are_poison(used, threads):
    x = words(4 * threads)
    found = loaded(x, used, threads=threads).view(np.uint8).reshape(threads, 16)
    wanted = np.full((threads, 16), 0xFF, np.uint8)
    which = [k for k in range(16) if used >> k & 1]
    wanted[:, which] = x.view(np.uint8).reshape(threads, 16)[:, which]
    assert np.array_equal(found, wanted)


def test_bytes_past_the_end_need_not_be_there():
    assert loaded(words(7), 0xFFF, threads=2)[:, :3].tolist() == [[100, 101, 102], [104, 105, 106]]
    with pytest.raises(
        EmulationError, match=r"thread \(1, 0, 0\): ld.global.v4.b32: .* past the end"
    ):
        loaded(words(7), 0xFFFF, threads=2)
    with pytest.raises(EmulationError, match=r"4 bytes at 0x\w+ are out of bounds: 3 bytes after"):
        loaded(words(6), 0xFFF, threads=2)


def test_the_whole_load_must_be_aligned():
    with pytest.raises(EmulationError, match="is not a multiple of 16"):
        loaded(words(8), 0x00F, at=4)


def test_a_mask_is_for_the_next_load_alone():
    out = np.zeros((1, 4), np.uint32)
    body = mask(0xF) + "ld.global.v2.b32 {%r1, %r2}, [%d20]; ld.global.v2.b32 {%r3, %r4}, [%d20];"
    run(entry(body + KEEP, 2), [words(4), out], block=1)
    assert out[0].tolist() == [100, 0xFFFFFFFF, 100, 101]


def test_a_mask_that_is_none():
    with pytest.raises(
        EmulationError, match=r'cannot read "used_bytes_mask 0xg" as a mask of bytes'
    ):
        parse(entry('.pragma "used_bytes_mask 0xg"; ld.global.b32 %r1, [%d20];', 1))


def test_unused_bytes_race_with_nothing():
    """The last word of each row is written by a thread of the other warp."""
    head = """mad.wide.u32 %d1, %r30, 16, %d20; xor.b32 %r5, %r30, 32; mad.wide.u32 %d3, %r5, 16, %d20;
    st.global.u32 [%d3+12], %r30;\n"""
    load = V4.format(space="global", at="%d1") + KEEP
    x, out = words(256), np.zeros((64, 4), np.uint32)
    run(entry(head + mask(0x0FFF) + load, 2), [x, out], block=64)
    assert np.array_equal(out[:, :3], x.reshape(64, 4)[:, :3])
    with pytest.raises(EmulationError, match=r"ld.global.v4.b32: race: reads array 0"):
        run(entry(head + mask(0xF000) + load, 2), [x, out], block=64)


@pytest.mark.parametrize("space", ["shared", "generic"])
def test_unused_bytes_of_shared_memory_need_no_write(space):
    out = np.zeros((32, 4), np.uint32)
    load = V4.format(space="shared", at="%r6")
    if space == "generic":
        load = "cvt.u64.u32 %d4, %r6; cvta.shared.u64 %d4, %d4; MASK ld.v4.b32 {%r1, %r2, %r3, %r4}, [%d4];"
    head = "mul.lo.u32 %r6, %r31, 16; st.shared.u32 [%r6], %r31; st.shared.u32 [%r6+8], %r30;\n"
    for used, fine in ((0x0F0F, True), (0x0FFF, False)):
        text = load.replace("MASK", mask(used)) if "MASK" in load else mask(used) + load
        kernel = entry(head + text + KEEP, 2, SHARED)
        if fine:
            run(kernel, [words(4), out])
            assert np.array_equal(out[:, [0, 2]], np.repeat(np.arange(32)[:, None], 2, 1))
            continue
        with pytest.raises(EmulationError, match="reads shared byte 4, which nothing wrote"):
            run(kernel, [words(4), out])


def test_traffic_is_that_of_the_whole_load():
    x, out = words(128), np.zeros((32, 4), np.uint32)
    body = "mad.wide.u32 %d1, %r30, 16, %d20;\n{}" + V4.format(space="global", at="%d1") + KEEP
    counts = [
        run(entry(body.replace("{}", text, 1), 2), [x, out], checks=Checks(traffic=True)).sectors
        for text in ("", mask(0x0FF0))
    ]
    assert counts[0] == counts[1] >= 32


def test_touched_are_the_used_bytes():
    x, out = words(8), np.zeros(4, np.uint32)
    memory, touched = GlobalMemory(), AccessSets()
    for array in (x, out):
        memory.add(array.ctypes.data, array.view(np.uint8), "array")
    body = mask(0x0F0F) + V4.format(space="global", at="%d20+16")
    body += "st.global.u32 [%d21], %r1; red.global.add.u32 [%d21+8], %r3;"
    pointers = [int(a.ctypes.data).to_bytes(8, "little") for a in (x, out)]
    launch(
        parse(entry(body, 2)), "k", (1, 1, 1), (1, 1, 1), 0, pointers, memory,
        Checks(races=False), touched,
    )  # fmt: skip
    base, to = x.ctypes.data, out.ctypes.data
    reads = sorted([[base + 16, base + 20], [base + 24, base + 28], [to + 8, to + 12]])
    assert touched.reads().tolist() == reads
    assert touched.writes().tolist() == [[to, to + 4], [to + 8, to + 12]]
    assert out.tolist() == [104, 0, 106, 0]


@pytest.mark.parametrize("count", [3, 7])
def test_a_sum_whose_loads_the_compiler_has_widened(count):
    """An exact sum in order: three neighbouring loads become one of four words."""
    pytest.importorskip("llvmlite", reason="kernels become PTX by llvmlite")
    from lowering.gpu.device_runs import DeviceRun

    run = DeviceRun(_SUM.replace("COUNT", str(count)), assemble=False)
    assert "used_bytes_mask" in run.modules[0].ptx
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    want = np.float32(0)
    for value in x:
        want += value
    assert run.run(x)[0] == want


_SUM = """func.func @main(%x: tensor<COUNTxf32>) -> tensor<f32> {
  %zero = arith.constant 0.0 : f32
  %none = tensor.empty() : tensor<f32>
  %start = linalg.fill ins(%zero : f32) outs(%none : tensor<f32>) -> tensor<f32>
  %sum = linalg.reduce {arith.addf} ins(%x : tensor<COUNTxf32>) outs(%start : tensor<f32>)
    dimensions = [0] {mw.kernel = "reference"}
  return %sum : tensor<f32>
}"""
