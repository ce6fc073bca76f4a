"""wgmma against NumPy, and what a kernel that forgets a fence or a wait is told."""

from __future__ import annotations

import numpy as np
import pytest
from simulator.kernels import entry, run
from simulator.test_matrix import _numbers

from meshweave.simulator.ptx import EmulationError

ROOM = 32_768
SHARED = f".shared .align 1024 .b8 tile[{ROOM}];\n"
B = 16_384  # where B begins; A begins at 0
DEPTH, STEP = 64, 2  # of the tiles; of the four wgmmas that they are for, the third is done


def placed(matrix: np.ndarray, across: bool) -> np.ndarray:
    """The bytes of a tile [rows, depth] in shared memory, swizzled by 128 bytes.

    across: lines go along the rows, 64 in each, one line for each of the depth; else along the depth.
    """
    depth = matrix.shape[1]
    row, k = (grid.reshape(-1) for grid in np.indices(matrix.shape))
    line, column = (k + row // 64 * depth, row % 64) if across else (row, k)
    chunk = (column // 8) ^ (line % 8)
    image = np.zeros(ROOM // 4, np.uint16)
    image[line * 64 + chunk * 8 + column % 8] = matrix.reshape(-1).view(np.uint16)
    return image


def descriptor(start: int, across: bool) -> int:
    """Address, bytes from one 64 rows to the next and from 8 lines to the next, swizzle of 128 bytes."""
    start += STEP * (16 * 128 if across else 32)
    return start >> 4 | (DEPTH * 128 >> 4) << 16 | (1024 >> 4) << 32 | 1 << 62


def kernel(
    columns: int, kind: str = "bf16", across: tuple[bool, bool] = (False, False), added: int = 1
) -> list[str]:
    """The lines of D = A B (+ 1 where `added`), a warpgroup's 64 rows by so many columns."""
    sums = [f"%a{n}" for n in range(columns // 2)]
    copies = "".join(
        f"ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d1+{at}]; st.shared.v4.u32 [%r1+{at}], {{%r2, %r3, %r4, %r5}};"
        for at in range(0, ROOM, 2048)
    )
    turned = ", ".join(str(int(each)) for each in across)
    return [
        f".reg .f32 %a<{columns // 2}>; mad.wide.u32 %d1, %r31, 16, %d20; mul.lo.u32 %r1, %r31, 16;",
        copies,
        " ".join(f"mov.f32 {each}, 0f3F800000;" for each in sums),
        f"mov.b64 %d2, {descriptor(0, across[0])}; mov.b64 %d3, {descriptor(B, across[1])}; "
        f"setp.ne.b32 %p1, {added}, 0;",
        "fence.proxy.async.shared::cta;",
        "bar.sync 0;",
        "wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{', '.join(sums)}}}, %d2, %d3, "
        f"%p1, 1, 1, {turned};",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        f"mad.wide.u32 %d4, %r31, {2 * columns}, %d21;",
        "".join(f"st.global.f32 [%d4+{4 * n}], {each};" for n, each in enumerate(sums)),
    ]


def outcome(
    lines: list[str],
    columns: int,
    kind: str = "bf16",
    across: tuple[bool, bool] = (False, False),
    threads: int = 128,
) -> tuple[np.ndarray, np.ndarray]:
    """D as the kernel leaves it, and A B in double precision."""
    (a, a64), (b, b64) = _numbers((64, DEPTH), kind), _numbers((columns, DEPTH), kind)
    image = placed(a, across[0])
    image = np.concatenate([image[: B // 2], placed(b, across[1])[: (ROOM - B) // 2]])
    out = np.full((4, 8, 4, columns // 8, 2, 2), np.nan, np.float32)
    run(entry("\n".join(lines), 2, SHARED), [image, out], block=threads)
    depth = slice(16 * STEP, 16 * STEP + 16)
    # of a warp's 16 rows, 8 are in the first registers of a lane, 8 in the second
    found = out.transpose(0, 4, 1, 3, 2, 5).reshape(64, columns)
    return found, a64[:, depth] @ b64[:, depth].T


@pytest.mark.parametrize("columns", [8, 72, 128])
@pytest.mark.parametrize("across", [(False, False), (True, False), (False, True), (True, True)])
def test_a_warpgroup_multiplies_what_descriptors_name(across, columns):
    for kind, added in (("bf16", 1), ("f16", 0)):
        found, wanted = outcome(kernel(columns, kind, across, added), columns, kind, across)
        assert np.array_equal(found, wanted + added)


LINE = {line.split(".sync")[0].split(" ")[0]: at for at, line in enumerate(kernel(8))}
FENCE, BARRIER, READY = LINE["fence.proxy.async.shared::cta;"], LINE["bar"], LINE["wgmma.fence"]
COMMIT, WAIT = LINE["wgmma.commit_group"], LINE["wgmma.wait_group"]
LEFT_OUT = {
    FENCE: "reads shared byte 64, which a thread has written and not shown by fence.proxy.async",
    BARRIER: "race: reads shared byte",
    READY: "no wgmma.fence after what touched its registers before",
    COMMIT: "touches the register %a0 or one with it, to which a wgmma that nothing has waited for adds",
    WAIT: "touches the register %a0 or one with it, to which a wgmma that nothing has waited for adds",
}


@pytest.mark.parametrize("at", LEFT_OUT)
def test_what_is_left_out_is_named(at):
    lines = kernel(8)
    del lines[at]
    with pytest.raises(EmulationError, match=LEFT_OUT[at]):
        outcome(lines, 8)


PUT = "st.shared.u32 [%r1], %r2;"
WRONG = {
    "written while it is read": (WAIT, PUT, "writes shared byte 64, which a wgmma that nothing has waited for reads"),
    "written after what was shown": (BARRIER, PUT, "and not shown by fence.proxy.async"),
    "copied while it is read": (
        WAIT, "cp.async.ca.shared.global [%r1], [%d1], 4; cp.async.wait_all;",
        "cp.async.ca.shared.global: writes shared byte 64, which a wgmma",
    ),
    "touched without a fence": (READY + 1, "mov.f32 %a1, %a2;", "no wgmma.fence after"),
    "added to by hand": (WAIT, "add.f32 %a1, %a1, %a2;", "touches the register %a0 or one with it"),
    "an older group": (COMMIT + 1, "wgmma.wait_group.sync.aligned 1; mov.f32 %a1, %a2;", "touches the register"),
    "another swizzle": (FENCE, "shr.u64 %d2, %d2, 2;", "only the swizzle of 128 bytes"),
    "several descriptors": (FENCE, "cvt.u64.u32 %d5, %r31; or.b64 %d3, %d3, %d5;", "have several descriptors"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_comes_between_is_named(what):
    at, more, said = WRONG[what]
    lines = kernel(8)
    lines.insert(at, more)
    with pytest.raises(EmulationError, match=said):
        outcome(lines, 8)


def test_a_product_is_waited_for_and_done_by_a_whole_warpgroup():
    lines = kernel(8)
    with pytest.raises(
        EmulationError, match="a wgmma that nothing waits for before the kernel ends"
    ):
        outcome(lines[:WAIT], 8)
    with pytest.raises(EmulationError, match="part of a warpgroup of 128 threads is here"):
        outcome(lines, 8, threads=64)


def test_what_was_read_may_be_written_after_the_wait_and_a_barrier():
    lines = kernel(8)
    lines.insert(WAIT + 1, f"bar.sync 0; {PUT}")
    found, wanted = outcome(lines, 8)
    assert np.array_equal(found, wanted + 1)
    del lines[WAIT + 1]
    lines.insert(WAIT + 1, PUT)
    with pytest.raises(EmulationError, match=r"race: writes shared byte .* read in this launch"):
        outcome(lines, 8)


HELD = "{%r10, %r11, %r12, %r13}"


def held(lines: list[str]) -> list[str]:
    """The same kernel with the rows of A in registers, read from a third array."""
    lines = [line.replace("%d2, %d3, %p1, 1, 1, 0,", f"{HELD}, %d3, %p1, 1, 1,") for line in lines]
    load = f"mad.wide.u32 %d6, %r31, 16, %d22; ld.global.v4.u32 {HELD}, [%d6];"
    return [*lines[:FENCE], load, *lines[FENCE:]]


def held_outcome(lines: list[str], columns: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """D as the kernel leaves it, and A B in double precision."""
    (a, a64), (b, b64) = _numbers((64, 16), kind), _numbers((columns, DEPTH), kind)
    # warp, half of its rows, row; half of the depth, lane's pair, element: the halves are registers
    parts = a.view(np.uint16).reshape(4, 2, 8, 2, 4, 2).transpose(0, 2, 4, 3, 1, 5)
    image = np.zeros(ROOM // 2, np.uint16)
    image[B // 2 :] = placed(b, False)[: (ROOM - B) // 2]
    out = np.full((4, 8, 4, columns // 8, 2, 2), np.nan, np.float32)
    given = [image, out, np.ascontiguousarray(parts)]
    run(entry("\n".join(lines), 3, SHARED), given, block=128)
    found = out.transpose(0, 4, 1, 3, 2, 5).reshape(64, columns)
    return found, a64 @ b64[:, 16 * STEP : 16 * STEP + 16].T


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_rows_may_be_in_registers(kind):
    found, wanted = held_outcome(held(kernel(72, kind)), 72, kind)
    assert np.array_equal(found, wanted + 1)


def test_rows_in_registers_are_not_touched_while_they_are_read():
    said = "touches the register %r10 or one with it, to which a wgmma that nothing"
    for at, message in ((WAIT + 1, said), (READY + 2, "no wgmma.fence after what touched")):
        lines = held(kernel(8))
        lines.insert(at, "mov.u32 %r10, %r2;")
        with pytest.raises(EmulationError, match=message):
            held_outcome(lines, 8, "bf16")
