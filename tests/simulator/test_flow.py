"""Divergence and reconvergence: each thread gets what it would get alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.kernels import entry, run

from meshweave.simulator.ptx import Checks, EmulationError, parse
from meshweave.simulator.ptx.flow import EXIT, flow_of

LOAD = "mad.wide.u32 %d1, %r30, 4, %d20; ld.global.u32 %r1, [%d1];\n"
STORE = "mad.wide.u32 %d2, %r30, 4, %d21; st.global.u32 [%d2], %r2;\n"


def results(body: str, x: np.ndarray, block: int = 64, **more) -> np.ndarray:
    """%r2 of each thread, after a body that finds its element of x in %r1."""
    out = np.full(len(x), 0xFFFFFFFF, np.uint32)
    x = x.astype(np.uint32)
    run(entry(LOAD + body + STORE, 2), [x, out], grid=len(x) // block, block=block, **more)
    return out


def numbers(seed: int, count: int = 128, below: int = 20) -> np.ndarray:
    """Small numbers, one a thread."""
    return np.random.default_rng(seed).integers(0, below, count)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_loops_with_different_trip_counts(seed):
    x = numbers(seed)
    body = """mov.u32 %r2, 0; mov.u32 %r3, 0;
    LOOP: setp.ge.u32 %p1, %r3, %r1; @%p1 bra DONE;
    add.u32 %r2, %r2, %r3; add.u32 %r3, %r3, 1; bra LOOP;
    DONE: add.u32 %r2, %r2, 1000;\n"""
    assert np.array_equal(results(body, x), x * (x - 1) // 2 + 1000)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_collatz_with_a_loop_and_a_branch_inside(seed):
    x = numbers(seed, below=40) + 1
    body = """mov.u32 %r2, 0;
    LOOP: setp.eq.u32 %p1, %r1, 1; @%p1 bra DONE;
    add.u32 %r2, %r2, 1; and.b32 %r4, %r1, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra EVEN;
    mad.lo.u32 %r1, %r1, 3, 1; bra LOOP;
    EVEN: shr.u32 %r1, %r1, 1; bra.uni LOOP;
    DONE:\n"""

    def steps(value: int) -> int:
        count = 0
        while value != 1:
            value = 3 * value + 1 if value & 1 else value // 2
            count += 1
        return count

    assert np.array_equal(results(body, x), [steps(v) for v in x.tolist()])


def test_a_side_that_lies_after_the_join_in_the_text():
    body = """mov.u32 %r5, 7; setp.lt.u32 %p1, %r1, 10; @%p1 bra COLD;
    mov.u32 %r2, 1;
    JOIN: add.u32 %r2, %r2, 100; mov.u32 %r6, %r5; add.u32 %r2, %r2, %r6; bra END;
    COLD: mov.u32 %r2, 2; bra JOIN;
    END:\n"""
    x = numbers(0)
    assert np.array_equal(results(body, x), np.where(x < 10, 109, 108))


def test_nested_branches_and_early_exits():
    body = """mov.u32 %r2, 0; setp.gt.u32 %p1, %r1, 15; @%p1 bra OUT;
    setp.gt.u32 %p2, %r1, 5; @%p2 bra BIG;
    setp.gt.u32 %p3, %r1, 2; @%p3 bra MIDDLE;
    mov.u32 %r2, 1; bra MEET;
    MIDDLE: mov.u32 %r2, 2; bra MEET;
    BIG: setp.eq.u32 %p4, %r1, 9; @%p4 ret; mov.u32 %r2, 3;
    MEET: add.u32 %r2, %r2, 10; bra SAVE;
    OUT: mov.u32 %r2, 4;
    SAVE:\n"""
    x = numbers(1)
    want = np.select([x > 15, x == 9, x > 5, x > 2], [4, 0xFFFFFFFF, 13, 12], 11)
    assert np.array_equal(results(body, x), want)


def test_predicated_instructions_keep_what_others_have():
    body = """mov.u32 %r2, 5; setp.lt.u32 %p1, %r1, 10; @%p1 add.u32 %r2, %r1, 1;
    @!%p1 mul.lo.u32 %r2, %r1, 2; setp.eq.u32 %p2, %r1, %r1; @!%p2 mov.u32 %r2, 77;\n"""
    x = numbers(2)
    assert np.array_equal(results(body, x), np.where(x < 10, x + 1, 2 * x))


def test_predicated_loads_and_stores_touch_nothing_else():
    x, out = np.arange(40, dtype=np.uint32), np.zeros(40, np.uint32)
    body = "setp.lt.u32 %p1, %r30, 40;" + LOAD.replace("ld.g", "@%p1 ld.g")
    body += "mov.u32 %r2, %r1;" + STORE.replace("st.g", "@%p1 st.g")
    run(entry(body, 2), [x, out], grid=1, block=64)
    assert np.array_equal(out, x)


def test_a_warp_that_only_some_blocks_enter():
    body = """mov.u32 %r2, %ctaid.x; and.b32 %r3, %r2, 1; setp.eq.u32 %p1, %r3, 1; @%p1 bra ODD;
    mov.u32 %r2, 50; bra END; ODD: add.u32 %r2, %r2, 60; END:\n"""
    x = numbers(3, 256)
    block = np.arange(256) // 64
    assert np.array_equal(results(body, x), np.where(block % 2 == 1, block + 60, 50))


def test_threads_get_their_places_in_three_dimensions():
    out = np.zeros((2, 3, 2, 2, 4, 8), np.uint32)  # grid z y x, block z y x
    body = ["mov.u32 %r1, 0;"]
    for name, sizes in (("ctaid", (2, 3, 2)), ("tid", (2, 4, 8))):
        for axis, size in zip("zyx", sizes):
            body.append(f"mov.u32 %r2, %{name}.{axis}; mad.lo.u32 %r1, %r1, {size}, %r2;")
    body.append("mad.wide.u32 %d1, %r1, 4, %d20; add.u32 %r1, %r1, 1; st.global.u32 [%d1], %r1;")
    run(entry("\n".join(body), 1), [out], grid=(2, 3, 2), block=(8, 4, 2))
    assert np.array_equal(out.reshape(-1), np.arange(out.size) + 1)


def test_blocks_that_are_no_multiple_of_a_warp():
    x = numbers(4, 120)
    assert np.array_equal(results("add.u32 %r2, %r1, 1;", x, block=40), x + 1)


def test_lane_registers():
    out = np.zeros((4, 64), np.uint32)
    names = ("laneid", "warpid", "lanemask_lt", "lanemask_ge")
    body = "mad.wide.u32 %d1, %r30, 4, %d20;\n"
    for number, name in enumerate(names):
        body += f"mov.u32 %r1, %{name}; st.global.u32 [%d1+{256 * number}], %r1;\n"
    run(entry(body, 1), [out], block=64)
    lane = np.arange(64) % 32
    assert np.array_equal(out[0], lane) and np.array_equal(out[1], np.arange(64) // 32)
    below = (1 << lane.astype(np.uint64)) - 1
    assert np.array_equal(out[2], below) and np.array_equal(out[3], 0xFFFFFFFF ^ below)


def test_scoped_registers_and_labels_of_inline_code():
    body = """mov.u32 %r2, 0;
    { .reg .pred q; .reg .b32 t; setp.lt.u32 q, %r1, 10; @q bra skip; mov.u32 t, 5;
      add.u32 %r2, %r2, t; skip: }
    { .reg .pred q; .reg .b32 t; setp.lt.u32 q, %r1, 15; @q bra skip; mov.u32 t, 7;
      add.u32 %r2, %r2, t; skip: }\n"""
    x = numbers(5)
    assert np.array_equal(results(body, x), 5 * (x >= 10) + 7 * (x >= 15))


def test_what_is_the_same_for_all_threads_is_found():
    text = entry(
        """mov.u32 %r1, %ntid.x; mov.u32 %r3, 0;
        LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r1; @%p1 bra LOOP;
        mov.u32 %r4, 0; mov.u32 %r5, 0; setp.lt.u32 %p2, %r30, 3; @%p2 bra SIDE;
        bra MEET; SIDE: mov.u32 %r4, 1; MEET: add.u32 %r6, %r5, 1;""",
        1,
    )
    flow = flow_of(parse(text).functions["k"])
    assert {"%r3", "%p1", "%r5", "%r6", "%d20"} <= flow.uniform
    assert not {"%r4", "%p2", "%r30", "%r31"} & flow.uniform
    assert flow.blocks[-1].successors == (EXIT,)


def test_a_loop_without_end_is_an_error():
    text = entry("LOOP: add.u32 %r1, %r30, 1; bra LOOP;", 1)
    with pytest.raises(EmulationError, match="no end after"):
        run(text, [np.zeros(4, np.uint8)], checks=Checks(limit=10_000))


def test_counts_are_sums_over_threads():
    counts = run(entry("add.u32 %r1, %r30, 1;", 1), [np.zeros(4, np.uint8)], grid=3, block=64)
    assert counts.instructions == 192 * 7  # one load, three moves, mad, add, ret
    assert counts.steps == 7
