"""Races between warps, and barriers that do not meet."""

from __future__ import annotations

import numpy as np
import pytest
from simulator.kernels import entry, run

from meshweave.simulator.ptx import Checks, EmulationError

TILE = ".shared .align 16 .b8 tile[1024];\n"
OFF = Checks(races=False)
MINE = "mad.wide.u32 %d1, %r30, 4, %d20; mul.lo.u32 %r1, %r31, 4; xor.b32 %r2, %r1, 128;\n"


def go(body: str, threads: int = 64, grid: int = 1, checks: Checks | None = None) -> np.ndarray:
    """Run a body on 1024 words at %d20."""
    out = np.zeros(1024, np.uint32)
    run(entry(MINE + body, 1, TILE), [out], grid=grid, block=threads, checks=checks)
    return out


RACES = {
    "shared: read after write": (
        "st.shared.u32 [%r1], %r30; ld.shared.u32 %r3, [%r2];",
        r"ld.shared.u32: race: reads shared byte 128, which warp 1 of block 0 wrote",
    ),
    "shared: write after read": (
        "st.shared.u32 [%r1], %r30; bar.sync 0; ld.shared.u32 %r3, [%r2]; st.shared.u32 [%r1], %r3;",
        r"st.shared.u32: race: writes shared byte 0, which warp 1 of block 0 read",
    ),
    "shared: write after write": (
        "st.shared.u32 [%r1], %r30; st.shared.u32 [%r2], %r30;",
        r"st.shared.u32: race: writes shared byte 128, which warp 1 of block 0 wrote",
    ),
    "shared: two lanes at once": (
        "st.shared.u32 [tile], %r31;",
        r"race: another thread writes another value to the same place",
    ),
    "global: read after write": (
        "st.global.u32 [%d1], %r30; xor.b32 %r3, %r30, 32; mad.wide.u32 %d2, %r3, 4, %d20;"
        "ld.global.u32 %r4, [%d2];",
        r"ld.global.u32: race: reads array 0 at 0x\w+, which warp 1 of block 0 wrote in this launch",
    ),
    "global: write after read": (
        "ld.global.u32 %r4, [%d20]; add.u32 %r4, %r4, 5; setp.eq.u32 %p1, %r31, 40;"
        "@%p1 st.global.u32 [%d20], %r4;",
        r"st.global.u32: race: writes array 0 at 0x\w+, which warp 0 of block 0 read in this launch",
    ),
    "global: write after write": (
        "st.global.u32 [%d1], %r30; add.u32 %r3, %r30, 7; xor.b32 %r5, %r30, 32;"
        "mad.wide.u32 %d2, %r5, 4, %d20; st.global.u32 [%d2], %r3;",
        r"st.global.u32: race: writes array 0 at 0x\w+, which warp 1 of block 0 wrote in this launch",
    ),
    "global: part of a wider write": (
        "mad.wide.u32 %d2, %r30, 8, %d20; st.global.v2.u32 [%d2], {%r30, %r30};"
        "ld.global.u16 %h1, [%d20+258];",
        r"ld.global.u16: race: reads array 0",
    ),
    "global: read after atomic": (
        "red.global.add.u32 [%d20], 3; ld.global.u32 %r4, [%d20];",
        r"ld.global.u32: race: reads array 0 at 0x\w+, which warp \d of block 0 changed by an atomic in",
    ),
    "global: write after atomic": (
        "setp.eq.u32 %p1, %r31, 40; red.global.add.u32 [%d20], 3; @%p1 st.global.u32 [%d20], %r31;",
        r"st.global.u32: race: writes array 0 at 0x\w+, which warp 0 of block 0 changed by an atomic in",
    ),
    "global: atomic after read": (
        "ld.global.u32 %r4, [%d20]; red.global.add.u32 [%d20], 3;",
        r"red.global.add.u32: race: changes array 0 at 0x\w+, which warp 1 of block 0 read in",
    ),
    "global: atomic after write": (
        "st.global.u32 [%d1], %r30; xor.b32 %r3, %r30, 32; mad.wide.u32 %d2, %r3, 4, %d20;"
        "atom.global.max.u32 %r4, [%d2], 3;",
        r"atom.global.max.u32: race: changes array 0 at 0x\w+, which warp 1 of block 0 wrote in",
    ),
    "shared: read after atomic": (
        "st.shared.u32 [%r1], %r31; bar.sync 0; atom.shared.add.u32 %r4, [%r2], 3;"
        "ld.shared.u32 %r3, [%r1];",
        r"ld.shared.u32: race: reads shared byte 0, which warp 1 of block 0 changed by an atomic in",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_noticed(name):
    body, message = RACES[name]
    with pytest.raises(EmulationError, match=message):
        go(body)
    go(body, checks=OFF)


@pytest.mark.parametrize("name", [n for n in RACES if "lanes" not in n and "wider" not in n])
def test_a_barrier_orders_the_two(name):
    head, last = RACES[name][0].removesuffix(";").rsplit(";", 1)
    go(f"{head}; bar.sync 0; {last};")


def test_atomics_do_not_race_with_each_other():
    out = go("red.global.add.u32 [%d20], 1; atom.global.max.u32 %r4, [%d20+4], %r30;", grid=3)
    assert out[:2].tolist() == [192, 191]


def test_an_atomic_of_one_of_many_warps_is_remembered():
    """The last atomic is the reader's own; the one before it is another warp's."""
    body = """setp.eq.u32 %p1, %r31, {who}; red.global.add.u32 [%d20], 1;
    @!%p1 bra END; ld.global.u32 %r4, [%d20]; END: mov.u32 %r9, 0;"""
    for who in (0, 40):
        with pytest.raises(EmulationError, match="changed by an atomic"):
            go(body.format(who=who))


def test_blocks_are_never_ordered():
    body = """st.global.u32 [%d1], %r30; bar.sync 0; add.u32 %r3, %r30, 64; and.b32 %r3, %r3, 127;
    mad.wide.u32 %d2, %r3, 4, %d20; ld.global.u32 %r4, [%d2];"""
    with pytest.raises(EmulationError, match="which warp 0 of block 1 wrote"):
        go(body, grid=2)


def test_blocks_of_different_batches_are_compared():
    body = """setp.ne.u32 %p1, %r31, 0; add.u32 %r3, %r30, 1; @%p1 bra END; st.global.u32 [%d20], %r3;
    END: mov.u32 %r9, 0;"""
    with pytest.raises(
        EmulationError, match=r"block \(8, 0, 0\).* which warp 0 of block \d+ wrote|another"
    ):
        go(body, threads=1024, grid=9)


def test_each_launch_starts_afresh():
    out = np.zeros(1024, np.uint32)
    for shift in (0, 32, 0):
        body = (
            f"add.u32 %r3, %r30, {shift}; mad.wide.u32 %d2, %r3, 4, %d20; st.global.u32 [%d2], %r3;"
        )
        run(entry(body, 1), [out], block=64)


def test_equal_values_do_no_harm():
    out = go("mov.u32 %r3, 9; st.global.u32 [%d20], %r3; st.shared.u32 [tile], %r3;", grid=3)
    assert out[0] == 9


def test_a_thread_may_read_back_what_it_wrote():
    out = go("""st.global.u32 [%d1], %r30; ld.global.u32 %r4, [%d1]; add.u32 %r4, %r4, 1;
    st.global.u32 [%d1], %r4; st.shared.u32 [%r1], %r4; ld.shared.u32 %r5, [%r1];""")  # fmt: skip
    assert np.array_equal(out[:64], np.arange(64) + 1)


def test_reads_of_many_are_remembered():
    """Two warps read, one of them writes: the other's read is the hazard."""
    body = """ld.global.u32 %r4, [%d20]; setp.ne.u32 %p1, %r31, {who}; mov.u32 %r5, 3;
    @!%p1 st.global.u32 [%d20], %r5;"""
    for who in (0, 40):
        with pytest.raises(EmulationError, match="race: writes array 0"):
            go(body.format(who=who))


# -- barriers


def test_barriers_in_separate_branches_meet():
    """Barriers count threads, wherever these are: a producer and a consumer warp."""
    body = """setp.lt.u32 %p1, %r31, 32; @%p1 bra FIRST;
    bar.sync 1, 64; xor.b32 %r3, %r1, 128; ld.shared.u32 %r4, [%r3]; st.global.u32 [%d1], %r4; bra END;
    FIRST: st.shared.u32 [%r1], %r30; bar.sync 1, 64;
    END: add.u32 %r9, %r30, 1;"""
    assert np.array_equal(go(body)[32:64], np.arange(32))


def test_warps_may_come_to_barriers_of_their_own_by_one_instruction():
    """Warps 0 and 1 meet, and warps 2 and 3: who reads what the others wrote has not met them."""
    body = """shr.u32 %r5, %r31, 6; add.u32 %r5, %r5, 1; st.shared.u32 [%r1], %r30; bar.sync %r5, 64;
    xor.b32 %r3, %r1, {apart}; ld.shared.u32 %r4, [%r3]; st.global.u32 [%d1], %r4;"""
    assert np.array_equal(go(body.format(apart=128), threads=128)[:128], np.arange(128) ^ 32)
    with pytest.raises(EmulationError, match="race: reads shared"):
        go(body.format(apart=256), threads=128)


def test_a_barrier_of_a_number_of_threads_counts_whole_warps():
    """A block of 48: its second warp counts as 32."""
    body = """setp.lt.u32 %p1, %r31, 32; @%p1 bra FIRST; bar.sync 1, 64; bra END;
    FIRST: st.shared.u32 [%r1], %r30; bar.sync 1, 64; ld.shared.u32 %r4, [%r1]; st.global.u32 [%d1], %r4;
    END: add.u32 %r9, %r30, 1;"""
    assert np.array_equal(go(body, threads=48)[:32], np.arange(32))


def test_arriving_does_not_wait():
    body = """setp.lt.u32 %p1, %r31, 32; @%p1 bra FIRST;
    bar.sync 1, 64; xor.b32 %r3, %r1, 128; ld.shared.u32 %r4, [%r3]; st.global.u32 [%d1], %r4; bra END;
    FIRST: st.shared.u32 [%r1], %r30; bar.arrive 1, 64;
    END: add.u32 %r9, %r30, 1;"""
    assert np.array_equal(go(body, grid=3)[32:64], np.arange(32))


ARRIVALS = {
    "what follows an arrival": (
        "bar.arrive 1, 64; st.shared.u32 [%r1], %r30;",
        "bar.sync 1, 64; xor.b32 %r3, %r1, 128; ld.shared.u32 %r4, [%r3]; st.global.u32 [%d1], %r4;",
    ),
    "what comes before the wait": (
        "bar.arrive 1, 64; st.shared.u32 [%r1], %r30;",
        "xor.b32 %r3, %r1, 128; st.shared.u32 [%r3], %r30; bar.sync 1, 64;",
    ),
}


@pytest.mark.parametrize("name", ARRIVALS)
@pytest.mark.parametrize("turned", [False, True])
def test_arriving_orders_what_comes_before_it_and_nothing_for_who_arrives(name, turned):
    """turned: which of the two warps arrives, and so is the first to run."""
    one, other = ARRIVALS[name][::-1] if turned else ARRIVALS[name]
    body = f"""setp.lt.u32 %p1, %r31, 32; @%p1 bra FIRST; {one} bra END;
    FIRST: {other} END: add.u32 %r9, %r30, 1;"""
    with pytest.raises(EmulationError, match=r"race: (reads|writes) shared"):
        go(body, checks=Checks(uninitialised=False))


def test_a_barrier_orders_only_those_that_meet():
    """Warps 0 and 1 meet; warp 2 reads what warp 0 wrote without having met it."""
    body = """setp.ge.u32 %p1, %r31, 64; @%p1 bra LATE; st.shared.u32 [%r1], %r30; bar.sync 1, 64; bra END;
    LATE: xor.b32 %r3, %r1, 256; ld.shared.u32 %r4, [%r3];
    END: add.u32 %r9, %r30, 1;"""
    with pytest.raises(EmulationError, match=r"which nothing wrote|race: (?:reads|writes) shared"):
        go(body, threads=96)


def test_threads_that_have_ended_are_not_waited_for():
    body = """setp.ge.u32 %p1, %r31, 32; @%p1 ret; st.shared.u32 [%r1], %r30; bar.sync 0;
    ld.shared.u32 %r4, [%r1]; st.global.u32 [%d1], %r4;"""
    assert np.array_equal(go(body)[:32], np.arange(32))


FAULTS = {
    "part of a warp": (
        "setp.lt.u32 %p1, %r31, 7; @!%p1 bra END; bar.sync 0; END: add.u32 %r9, %r30, 1;",
        r"ptx line \d+, block \(0, 0, 0\) thread \(0, 0, 0\): barrier reached by part of a warp",
    ),
    "different barriers": (
        """setp.lt.u32 %p1, %r31, 32; @%p1 bra OTHER; bar.sync 1, 64; bra END; OTHER: bar.sync 2, 64;
        END: add.u32 %r9, %r30, 1;""",
        r"deadlock: 32 threads at barrier \d \(ptx line \d+\), 32 threads at barrier \d \(ptx line \d+\)",
    ),
    "too few": (
        "bar.sync 1, 96;",
        r"deadlock: 64 threads at barrier 1 \(ptx line \d+\), and nobody else comes",
    ),
    "those that have ended": (
        "setp.ge.u32 %p1, %r31, 32; @%p1 ret; bar.sync 1, 64; add.u32 %r9, %r30, 1;",
        r"deadlock: 32 threads at barrier 1 \(ptx line \d+\), and nobody else comes",
    ),
    "several counts": (
        "and.b32 %r5, %r31, 32; add.u32 %r5, %r5, 32; bar.sync 1, %r5;",
        "barrier of 32, 64 threads; a multiple of 32 is needed, the same for all",
    ),
    "no whole warps": ("bar.sync 1, 40;", "barrier of 40 threads; a multiple of 32 is needed"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_barriers_that_do_not_meet(name):
    body, message = FAULTS[name]
    with pytest.raises(EmulationError, match=message):
        go(body)
