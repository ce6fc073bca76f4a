"""Tiled products written by hand, for tests that break them: text of PTX in which every barrier,
wait and address has its line.
"""

from __future__ import annotations

import numpy as np
from simulator.kernels import entry, run

from meshweave.simulator.ptx import Checks, EmulationError

# C is SIZE x SIZE, the sum over DEPTH, blocks of TILE x TILE threads.
SIZE, DEPTH, TILE = 32, 64, 16
SHARED = ".shared .align 16 .b8 at[4096];\n.shared .align 16 .b8 bt[4096];\n"
ROW = 4 * DEPTH


def _inner(offset: str) -> str:
    """Multiply a row of A's tile by a column of B's: TILE fused multiply-adds."""
    lines = []
    for k in range(TILE):
        lines += [
            f"ld.shared.f32 %r10, [%r8+{4 * k}];",
            f"ld.shared.f32 %r11, [%r9+{4 * TILE * k}];",
            "fma.rn.f32 %r12, %r10, %r11, %r12;",
        ]
    return f"add.u32 %r8, %r6, {offset};\nadd.u32 %r9, %r7, {offset};\n" + "\n".join(lines)


# %r1 column and %r2 row in the tile; %d1, %d2 what the thread loads of A and B; %r4, %r5 where it puts
# them; %r6, %r7 what it reads.
_START = f"""and.b32 %r1, %r31, 15;
shr.u32 %r2, %r31, 4;
mov.u32 %r3, %ctaid.y;
mad.lo.u32 %r3, %r3, {TILE}, %r2;
mad.wide.u32 %d1, %r3, {ROW}, %d20;
mad.wide.u32 %d1, %r1, 4, %d1;
mad.wide.u32 %d2, %r2, {4 * SIZE}, %d21;
mov.u32 %r13, %ctaid.x;
mad.lo.u32 %r13, %r13, {TILE}, %r1;
mad.wide.u32 %d2, %r13, 4, %d2;
mov.u32 %r4, at;
mad.lo.u32 %r6, %r2, {4 * TILE}, %r4;
mad.lo.u32 %r4, %r31, 4, %r4;
mov.u32 %r5, bt;
mad.lo.u32 %r7, %r1, 4, %r5;
mad.lo.u32 %r5, %r31, 4, %r5;
mov.f32 %r12, 0f00000000;
mov.u32 %r15, 0;"""
_END = f"""mad.wide.u32 %d3, %r3, {4 * SIZE}, %d22;
mad.wide.u32 %d3, %r13, 4, %d3;
st.global.f32 [%d3], %r12;"""

PLAIN = f"""{_START}
mov.u32 %r16, 0;
LOOP:
ld.global.f32 %r10, [%d1];
ld.global.f32 %r11, [%d2];
st.shared.f32 [%r4], %r10;
st.shared.f32 [%r5], %r11;
bar.sync 0;
{_inner("%r16")}
bar.sync 0;
add.s64 %d1, %d1, {4 * TILE};
add.s64 %d2, %d2, {4 * TILE * SIZE};
add.u32 %r15, %r15, 1;
setp.lt.u32 %p1, %r15, {DEPTH // TILE};
@%p1 bra LOOP;
{_END}"""

_COPY = """cp.async.ca.shared.global [%r17], [%d1], 4;
cp.async.ca.shared.global [%r18], [%d2], 4;"""
_ADVANCE = f"""add.s64 %d1, %d1, {4 * TILE};
add.s64 %d2, %d2, {4 * TILE * SIZE};"""

# Three stages of tiles: two copies under way while one is multiplied.
PIPELINED = f"""{_START}
mov.u32 %r17, %r4;
mov.u32 %r18, %r5;
{_COPY}
cp.async.commit_group;
{_ADVANCE}
add.u32 %r17, %r4, 1024;
add.u32 %r18, %r5, 1024;
{_COPY}
cp.async.commit_group;
{_ADVANCE}
mov.u32 %r16, 0;
mov.u32 %r19, 2048;
LOOP:
cp.async.wait_group 1;
bar.sync 0;
setp.ge.u32 %p2, %r15, {DEPTH // TILE - 2};
@%p2 bra LOADED;
add.u32 %r17, %r4, %r19;
add.u32 %r18, %r5, %r19;
{_COPY}
{_ADVANCE}
LOADED:
cp.async.commit_group;
{_inner("%r16")}
add.u32 %r16, %r16, 1024;
setp.eq.u32 %p3, %r16, 3072;
selp.b32 %r16, 0, %r16, %p3;
add.u32 %r19, %r19, 1024;
setp.eq.u32 %p3, %r19, 3072;
selp.b32 %r19, 0, %r19, %p3;
add.u32 %r15, %r15, 1;
setp.lt.u32 %p1, %r15, {DEPTH // TILE};
@%p1 bra LOOP;
{_END}"""


def outcome(body: str, checks: Checks | None = None) -> str:
    """ "right", "wrong result", or what the emulator says."""
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (SIZE, DEPTH)).astype(np.float32)
    b = rng.integers(-4, 5, (DEPTH, SIZE)).astype(np.float32)
    c = np.full((SIZE, SIZE), np.nan, np.float32)
    blocks = SIZE // TILE
    try:
        run(entry(body, 3, SHARED), [a, b, c], (blocks, blocks, 1), TILE * TILE, checks=checks)
    except EmulationError as error:
        return error.message
    return "right" if np.array_equal(c, a @ b) else "wrong result"
