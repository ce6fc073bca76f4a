"""Loads, stores, atomics and copies, and the errors of those that must not be."""

from __future__ import annotations

import numpy as np
import pytest
from simulator.kernels import HEAD, entry, run

from meshweave.simulator.ptx import Checks, EmulationError, GlobalMemory, launch, parse

SHARED = ".shared .align 16 .b8 tile[1024];\n"


def spread(count: int, dtype: str = "u4", seed: int = 0) -> np.ndarray:
    """Random bits."""
    return (
        np.random.default_rng(seed)
        .integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8)
        .view(dtype)
    )


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_vectors_of_elements(bits, parts):
    if bits * parts > 128:
        parts = 2
    letter = {16: "h", 32: "r", 64: "d"}[bits]
    registers = ", ".join(f"%{letter}{n + 1}" for n in range(parts))
    vector = f".v{parts}" if parts > 1 else ""
    registers = f"{{{registers}}}" if parts > 1 else registers
    size = bits * parts // 8
    body = f"""mad.wide.u32 %d10, %r30, {size}, %d20; mad.wide.u32 %d11, %r30, {size}, %d21;
    ld.global.nc{vector}.b{bits} {registers}, [%d10]; st.global{vector}.b{bits} [%d11], {registers};"""
    x = spread(64 * parts, f"u{bits // 8}")
    out = np.zeros_like(x)
    run(entry(body, 2), [x, out], grid=2, block=32)
    assert np.array_equal(out, x)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("s8", "i1"), ("u8", "u1"), ("s16", "i2"), ("u16", "u2")]
)
def test_narrow_loads_fill_the_register(kind, dtype):
    size = np.dtype(dtype).itemsize
    body = f"""mad.wide.u32 %d10, %r30, {size}, %d20; mad.wide.u32 %d11, %r30, 4, %d21;
    ld.global.{kind} %r1, [%d10]; st.global.u32 [%d11], %r1;"""
    x, out = spread(64, dtype), np.zeros(64, np.int32)
    run(entry(body, 2), [x, out], grid=2)
    assert np.array_equal(out, x.astype(np.int32))


def test_parameters_of_all_sizes():
    text = f"""{HEAD}.visible .entry k(.param .u64 .ptr .global .align 16 p, .param .u8 a,
    .param .f32 b, .param .align 8 .b8 c[12], .param .s16 e) {{
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .b16 %h<9>;
    ld.param.u64 %d1, [p]; ld.param.u8 %h1, [a]; ld.param.b32 %r1, [b]; ld.param.b32 %r2, [c+8];
    ld.param.s16 %r4, [e]; cvt.u32.u16 %r3, %h1;
    st.global.v4.b32 [%d1], {{%r1, %r2, %r3, %r4}}; ret; }}"""
    out, memory, module = np.zeros(4, np.uint32), GlobalMemory(), parse(text)
    memory.add(out.ctypes.data, out.view(np.uint8), "out")
    values = [
        int(out.ctypes.data).to_bytes(8, "little"), b"\x07", np.float32(2.5).tobytes(),
        b"abcdefgh" + (99).to_bytes(4, "little"), (-3).to_bytes(2, "little", signed=True),
    ]  # fmt: skip
    launch(module, "k", (1, 1, 1), (1, 1, 1), 0, values, memory)
    assert out.view(np.float32)[0] == 2.5 and out[1:].view(np.int32).tolist() == [99, 7, -3]
    with pytest.raises(EmulationError, match="k: 5 parameters, 1 given"):
        launch(module, "k", (1, 1, 1), (1, 1, 1), 0, values[:1], memory)
    with pytest.raises(EmulationError, match="parameter 1 has 1 bytes, 2 given"):
        launch(module, "k", (1, 1, 1), (1, 1, 1), 0, [values[0], b"ab", *values[2:]], memory)


def test_variables_of_the_module():
    head = """.global .align 4 .u32 table[4] = {10, 20, 0x1E, 40};
    .const .align 2 .b8 small[4] = {1, 0, 2, 0};\n"""
    body = """and.b32 %r1, %r30, 3; mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, table; add.s64 %d1, %d1, %d2;
    ld.global.u32 %r2, [%d1]; ld.const.u16 %r3, [small+2]; add.u32 %r2, %r2, %r3;
    mad.wide.u32 %d3, %r30, 4, %d20; st.global.u32 [%d3], %r2;"""
    out = np.zeros(32, np.uint32)
    run(entry(body, 1, head), [out])
    assert np.array_equal(out, np.tile([12, 22, 32, 42], 8))


def test_local_memory_belongs_to_each_thread():
    body = """.local .align 8 .b8 depot[16];
    mov.u64 %d1, depot; cvta.local.u64 %d2, %d1; st.local.u32 [%d1+4], %r30; ld.u32 %r2, [%d2+4];
    mad.wide.u32 %d3, %r30, 4, %d20; st.global.u32 [%d3], %r2;"""
    out = np.zeros(128, np.uint32)
    run(entry(body, 1), [out], grid=2, block=64)
    assert np.array_equal(out, np.arange(128))


def test_generic_addresses_of_shared_memory():
    body = """mov.u64 %d1, tile; cvta.shared.u64 %d1, %d1; mad.wide.u32 %d1, %r31, 4, %d1;
    st.u32 [%d1], %r30; ld.u32 %r2, [%d1]; mad.wide.u32 %d3, %r30, 4, %d20; st.u32 [%d3], %r2;"""
    out = np.zeros(128, np.uint32)
    run(entry(body, 1, SHARED), [out], grid=2, block=64)
    assert np.array_equal(out, np.arange(128))


def test_dynamic_shared_memory_lies_after_the_rest():
    shared = ".shared .align 4 .b8 fixed[64];\n.extern .shared .align 128 .b8 rest[];\n"
    body = """mov.u32 %r1, fixed; mov.u32 %r2, rest; mad.lo.u32 %r3, %r31, 4, %r2;
    st.shared.u32 [%r3], %r2; ld.shared.u32 %r4, [%r3]; sub.u32 %r4, %r4, %r1;
    mad.wide.u32 %d3, %r30, 4, %d20; st.global.u32 [%d3], %r4;"""
    out = np.zeros(32, np.uint32)
    run(entry(body, 1, shared), [out], shared=128)
    assert (out == 128).all()
    with pytest.raises(
        EmulationError, match="4 bytes at shared byte 248 are out of bounds: it has 248"
    ):
        run(entry(body, 1, shared), [out], shared=120)


def test_an_address_of_32_bits_wraps_around():
    """As of a loop that counts up from below 0, whose offset makes up for it."""
    body = """mov.u32 %r1, tile; mad.lo.u32 %r1, %r31, 4, %r1; sub.u32 %r1, %r1, 65536;
    st.shared.u32 [%r1+65536], %r30; ld.shared.u32 %r2, [%r1+65536];
    mad.wide.u32 %d3, %r30, 4, %d20; st.global.u32 [%d3], %r2;"""
    out = np.zeros(32, np.uint32)
    run(entry(body, 1, SHARED), [out])
    assert np.array_equal(out, np.arange(32))


def test_lanes_may_read_several_buffers_at_once():
    x, y, out = spread(32), spread(32, seed=1), np.zeros(32, np.uint32)
    body = """setp.lt.u32 %p1, %r30, 10; selp.b64 %d1, %d20, %d21, %p1; mad.wide.u32 %d1, %r30, 4, %d1;
    ld.global.u32 %r1, [%d1]; mad.wide.u32 %d2, %r30, 4, %d22; st.global.u32 [%d2], %r1;"""
    run(entry(body, 3), [x, y, out])
    assert np.array_equal(out, np.where(np.arange(32) < 10, x, y))


# -- atomics


@pytest.mark.parametrize("name", ["add", "min", "max", "and", "or", "xor"])
def test_atomics_without_a_result(name):
    kind = "u32" if name in ("add", "min", "max") else "b32"
    x, out = spread(128), spread(1, seed=2)
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and}.get(
        name, getattr(np, f"bitwise_{name}", None)
    )
    want = function.reduce(np.append(x, out).astype(np.uint32))
    body = f"""mad.wide.u32 %d1, %r30, 4, %d20; ld.global.u32 %r1, [%d1];
    red.global.{name}.{kind} [%d21], %r1;"""
    run(entry(body, 2), [x, out], grid=2, block=64)
    assert out[0] == np.uint32(want)


def test_atomic_floats_and_what_they_return():
    out = np.zeros(2, np.float32)
    body = """mov.f32 %r1, 0f3F000000; atom.global.add.f32 %r2, [%d20], %r1;
    mov.u32 %r5, 100; atom.global.inc.u32 %r3, [%d20+4], %r5;
    mad.wide.u32 %d1, %r30, 8, %d21; st.global.v2.b32 [%d1], {%r2, %r3};"""
    turns = np.zeros((64, 2), np.uint32)
    run(entry(body, 2), [out, turns], grid=2)
    assert out[0] == 32.0 and out.view(np.uint32)[1] == 64
    assert np.array_equal(np.sort(turns[:, 0].copy().view(np.float32)), np.arange(64) / 2)
    assert np.array_equal(np.sort(turns[:, 1]), np.arange(64))


def test_compare_and_swap_lets_one_win():
    lock, won = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    body = """add.u32 %r1, %r30, 1; atom.global.cas.b32 %r2, [%d20], 0, %r1;
    mad.wide.u32 %d1, %r30, 4, %d21; st.global.u32 [%d1], %r2;"""
    run(entry(body, 2), [lock, won], grid=2)
    assert (won == 0).sum() == 1 and lock[0] == np.flatnonzero(won == 0)[0] + 1


def test_atomics_on_shared_memory():
    body = """setp.eq.u32 %p1, %r31, 0; mov.u32 %r1, 0; @%p1 st.shared.u32 [tile], %r1;
    bar.sync 0; atom.shared.add.u32 %r2, [tile], 2; bar.sync 0; ld.shared.u32 %r3, [tile];
    mad.wide.u32 %d1, %r30, 4, %d20; st.global.u32 [%d1], %r3;"""
    out = np.zeros(128, np.uint32)
    run(entry(body, 1, SHARED), [out], grid=2, block=64)
    assert (out == 128).all()


# -- what must not be

FAULTS = {
    "past the end": (
        "mad.wide.u32 %d1, %r30, 4, %d20; ld.global.u32 %r1, [%d1+4];",
        r"k: ptx line \d+, block \(0, 0, 0\) thread \(31, 0, 0\): ld.global.u32: 4 bytes at 0x\w+ are "
        r"out of bounds: 3 bytes after the end of array 0",
    ),
    "before the start": (
        "mad.wide.u32 %d1, %r30, 4, %d20; st.global.u32 [%d1+-8], %r30;",
        r"thread \(0, 0, 0\): st.global.u32: 4 bytes at 0x\w+ are out of bounds",
    ),
    "half outside": (
        "mad.wide.u32 %d1, %r30, 4, %d20; ld.global.v2.u32 {%r1, %r2}, [%d1+120];",
        r"out of bounds",
    ),
    "misaligned": (
        "mad.wide.u32 %d1, %r30, 4, %d20; setp.lt.u32 %p1, %r30, 8; @%p1 ld.global.v4.u32 {%r1, %r2, "
        "%r3, %r4}, [%d1];",
        r"thread \(1, 0, 0\): ld.global.v4.u32: address 0x\w+ is not a multiple of 16",
    ),
    "no pointer": (
        "mov.u64 %d1, 64; ld.global.u32 %r1, [%d1];",
        r"4 bytes at 0x40 are out of bounds: before every buffer",
    ),
    "shared past the end": (
        "mad.lo.u32 %r1, %r31, 4, 1000; st.shared.u32 [%r1], %r31;",
        r"thread \(6, 0, 0\): st.shared.u32: 4 bytes at shared byte 1024 are out of bounds: it has 1024",
    ),
    "shared misaligned": (
        "st.shared.u32 [tile+2], %r31;",
        r"shared byte 2 is not a multiple of 4",
    ),
    "shared never written": (
        "mul.lo.u32 %r1, %r31, 8; st.shared.u32 [%r1], %r31; ld.shared.v2.u32 {%r2, %r3}, [%r1];",
        r"thread \(0, 0, 0\): ld.shared.v2.u32: reads shared byte 4, which nothing wrote",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_access_is_one_line_with_its_place(name):
    body, message = FAULTS[name]
    data = np.zeros(36, np.uint32)
    at = 4 - data.ctypes.data % 16 // 4
    aligned = data[at : at + 32]
    with pytest.raises(EmulationError, match=message) as caught:
        run(entry(body, 1, SHARED), [aligned])
    assert "\n" not in str(caught.value)


def test_unwritten_shared_memory_is_poison_when_not_checked():
    body = """mov.u32 %r1, 8; ld.shared.f32 %r2, [%r1]; mad.wide.u32 %d1, %r30, 4, %d20;
    st.global.f32 [%d1], %r2;"""
    out = np.zeros(32, np.float32)
    run(entry(body, 1, SHARED), [out], checks=Checks(uninitialised=False))
    assert np.isnan(out).all()


def test_buffers_must_not_overlap_and_can_be_removed():
    memory, data = GlobalMemory(), np.zeros(64, np.uint8)
    memory.add(1000, data, "first")
    with pytest.raises(
        EmulationError, match=r"second at 0x427 \(64 bytes\) overlaps first at 0x3e8"
    ):
        memory.add(1063, data, "second")
    memory.add(1064, data, "third")
    memory.remove(1000)
    with pytest.raises(EmulationError, match="no buffer starts at 0x3e8"):
        memory.remove(1000)


# -- cp.async

COPY = """mad.wide.u32 %d1, %r31, 16, %d20; mul.lo.u32 %r1, %r31, 16;
cp.async.cg.shared.global [%r1], [%d1], 16{size}; cp.async.commit_group; {wait}
ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r1];
mad.wide.u32 %d2, %r31, 16, %d21; st.global.v4.u32 [%d2], {{%r2, %r3, %r4, %r5}};"""


def copied(wait: str, size: str = "") -> tuple[np.ndarray, np.ndarray]:
    """32 threads copy 16 bytes each through shared memory."""
    x, out = spread(128), np.zeros(128, np.uint32)
    run(entry(COPY.format(wait=wait, size=size), 2, SHARED), [x, out])
    return x, out


@pytest.mark.parametrize("wait", ["cp.async.wait_group 0;", "cp.async.wait_all;"])
def test_copies_land_at_the_wait(wait):
    x, out = copied(wait)
    assert np.array_equal(x, out)


def test_bytes_that_are_not_copied_are_zero():
    x, out = copied("cp.async.wait_all;", ", 8")
    x.reshape(-1, 4)[:, 2:] = 0
    assert np.array_equal(x, out)


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;"])
def test_a_read_before_the_wait_is_an_error(wait):
    with pytest.raises(
        EmulationError, match=r"reads shared byte 0, where a cp\.async is in flight"
    ):
        copied(wait)


def test_a_kernel_must_wait_for_its_copies():
    body = "mad.wide.u32 %d1, %r31, 16, %d20; mul.lo.u32 %r1, %r31, 16; cp.async.ca.shared.global [%r1], [%d1], 16;"
    with pytest.raises(EmulationError, match=r"cp\.async that nothing waits for"):
        run(entry(body, 1, SHARED), [spread(128)])


# -- traffic


def test_sectors_and_wavefronts_are_counted():
    words = spread(4096 + 8)
    x = words[-words.ctypes.data % 32 // 4 :][:4096]  # begins where a sector does
    for stride, sectors, wavefronts in ((4, 4, 1), (8, 8, 2), (128, 32, 32), (0, 1, 1)):
        body = f"""mad.wide.u32 %d1, %r31, {stride}, %d20; ld.global.u32 %r1, [%d1];
        mov.u32 %r3, 7; mul.lo.u32 %r2, %r31, {stride}; st.shared.u32 [%r2], %r3;"""
        shared = ".shared .align 16 .b8 big[8192];\n"
        counts = run(entry(body, 1, shared), [x], checks=Checks(traffic=True))
        assert (counts.sectors, counts.wavefronts) == (sectors, wavefronts)
        assert counts.least_sectors == (4 if stride else 1) and counts.least_wavefronts == 1
