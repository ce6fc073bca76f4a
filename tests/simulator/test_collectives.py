"""Exchange of values in a warp."""

from __future__ import annotations

import numpy as np
import pytest
from simulator.kernels import entry, evaluate, run

from meshweave.simulator.ptx import Checks, EmulationError

FULL = "-1"
VALUES = np.random.default_rng(0).integers(0, 1 << 32, 96, dtype=np.uint32)
WARPS = VALUES.reshape(-1, 32)
LANE = np.arange(32)


def shuffled(mode: str, by: int, control: int) -> np.ndarray:
    """shfl.sync of VALUES."""
    text = f"shfl.sync.{mode}.b32 d, x, {by}, {control}, {FULL}"
    return evaluate(text, ["u32"], "u32", VALUES).reshape(-1, 32)


@pytest.mark.parametrize("by", [0, 1, 5, 16, 31])
def test_shuffles_over_the_whole_warp(by):
    assert np.array_equal(shuffled("bfly", by, 31), WARPS[:, LANE ^ by])
    assert np.array_equal(shuffled("idx", by, 31), np.repeat(WARPS[:, by : by + 1], 32, 1))
    down = np.where(LANE + by < 32, LANE + by, LANE)
    assert np.array_equal(shuffled("down", by, 31), WARPS[:, down])
    up = np.where(LANE - by >= 0, LANE - by, LANE)
    assert np.array_equal(shuffled("up", by, 0), WARPS[:, up])


def test_shuffles_in_segments_of_eight():
    control = (32 - 8) << 8  # segments of 8 lanes, clamp 7 (down) or 0 (up)
    assert np.array_equal(shuffled("idx", 3, control | 31), WARPS[:, LANE // 8 * 8 + 3])
    down = np.where(LANE % 8 + 2 < 8, LANE + 2, LANE)
    assert np.array_equal(shuffled("down", 2, control | 31), WARPS[:, down])
    up = np.where(LANE % 8 - 2 >= 0, LANE - 2, LANE)
    assert np.array_equal(shuffled("up", 2, control), WARPS[:, up])


def test_the_predicate_tells_who_read_inside():
    text = f"shfl.sync.down.b32 %r9|d, x, 4, 31, {FULL}"
    got = evaluate(text, ["u32"], "pred", VALUES).reshape(-1, 32)
    assert np.array_equal(got, np.broadcast_to(LANE < 28, got.shape))


@pytest.mark.parametrize("kind", ["u32", "s32"])
@pytest.mark.parametrize("name", ["add", "min", "max"])
def test_reductions(name, kind):
    values = VALUES.view(np.int32 if kind == "s32" else np.uint32)
    got = evaluate(f"redux.sync.{name}.{kind} d, x, {FULL}", [kind], kind, values)
    function = {"add": np.sum, "min": np.min, "max": np.max}[name]
    with np.errstate(all="ignore"):
        want = [function(warp.astype(np.int64)) for warp in values.reshape(-1, 32)]
    assert np.array_equal(got.reshape(-1, 32)[:, 7], np.array(want).astype(got.dtype))


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_reductions_of_bits(name):
    got = evaluate(f"redux.sync.{name}.b32 d, x, {FULL}", ["u32"], "u32", VALUES)
    want = getattr(np, f"bitwise_{name}").reduce(WARPS, axis=1)
    assert np.array_equal(got, np.repeat(want, 32))


def test_votes():
    holds = (VALUES % 3 == 0).astype(np.uint8)
    holds[32:64] = 1
    rows = holds.reshape(-1, 32)
    ballot = evaluate(f"vote.sync.ballot.b32 d, x, {FULL}", ["pred"], "u32", holds)
    assert np.array_equal(ballot[::32], (rows * (1 << LANE.astype(np.uint64))).sum(1))
    for name, want in (("all", rows.all(1)), ("any", rows.any(1))):
        got = evaluate(f"vote.sync.{name}.pred d, x, {FULL}", ["pred"], "pred", holds)
        assert np.array_equal(got[::32], want)


def test_matches():
    x = (VALUES % 4).astype(np.uint32)
    x[64:] = 9
    rows = x.reshape(-1, 32)
    bits = 1 << LANE.astype(np.uint64)
    want = ((rows[:, :, None] == rows[:, None, :]) * bits).sum(2)
    got = evaluate(f"match.any.sync.b32 d, x, {FULL}", ["u32"], "u32", x)
    assert np.array_equal(got.reshape(-1, 32), want)
    got = evaluate(f"match.all.sync.b32 %r9|d, x, {FULL}", ["u32"], "pred", x)
    assert np.array_equal(got[::32], [0, 0, 1])


def test_one_lane_is_elected():
    got = evaluate(f"elect.sync _|d, {FULL}", ["u32"], "pred", VALUES)
    assert np.array_equal(got.reshape(-1, 32), np.broadcast_to(LANE == 0, (3, 32)))


def test_activemask_shows_who_is_here():
    out = np.zeros(32, np.uint32)
    body = """mov.u32 %r1, 0; setp.ge.u32 %p1, %r30, 12; @%p1 bra END; activemask.b32 %r1;
    END: mad.wide.u32 %d1, %r30, 4, %d20; st.global.u32 [%d1], %r1;"""
    run(entry(body, 1), [out])
    assert np.array_equal(out, np.where(LANE < 12, 0xFFF, 0))


def partial(instruction: str, members: str) -> str:
    """A kernel in which 12 lanes alone execute an instruction."""
    return entry(
        f"""setp.ge.u32 %p1, %r30, 12; setp.lt.u32 %p2, %r30, 3; mov.u32 %r2, 1; @%p1 bra END;
        {instruction.format(m=members)}; END: add.u32 %r1, %r2, 1;""",
        1,
    )


COLLECTIVES = [
    "shfl.sync.bfly.b32 %r2, %r30, 1, 31, {m}", "redux.sync.add.u32 %r2, %r30, {m}",
    "vote.sync.any.pred %p3, %p2, {m}", "match.any.sync.b32 %r2, %r30, {m}", "bar.warp.sync {m}",
    "elect.sync _|%p3, {m}",
]  # fmt: skip


@pytest.mark.parametrize("instruction", COLLECTIVES, ids=lambda text: text.split(".")[0])
def test_part_of_a_warp_must_be_what_the_mask_says(instruction):
    data = [np.zeros(4, np.uint8)]
    with pytest.raises(
        EmulationError, match=r"lanes 0x00000fff of the warp are here, 0xffffffff are"
    ):
        run(partial(instruction, "-1"), data)
    run(partial(instruction, "0xFFF"), data)
    run(partial(instruction, "-1"), data, checks=Checks(collectives=False))


def test_reading_a_lane_that_is_not_there():
    with pytest.raises(EmulationError, match="reads lane 12, which is not here"):
        run(partial("shfl.sync.down.b32 %r2, %r30, 1, 31, {m}", "0xFFF"), [np.zeros(4, np.uint8)])
