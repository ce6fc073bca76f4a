"""Loops that their data keeps going end with the call's limit and with Ctrl-C, and the program can be called again."""

from __future__ import annotations

import os
import signal
import threading
import time
from unittest.mock import patch

import numpy as np
import pytest

import meshweave as mw
from meshweave.errors import RankError

ENDLESS = np.int64(2 * 10**12)
MESHES = (None, "x=2", "x=3")


def counting(mesh, **options):
    """Add 1 to a cut vector until `n` rounds are done."""

    @mw.jit(mesh=mesh, in_layouts=("[]", f"[{'x' if mesh else '_'}]"), **options)
    def count(n, v):
        start = (mw.asarray(0, dtype=mw.int64), v)
        return mw.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + 1.0), start)[1]

    return count


def made_short(count):
    """Call it until its calls are known to be short; return the last result."""
    for _ in range(5):
        made = count(np.int64(10), np.ones(7, np.float32))
    return np.asarray(made).tolist()


@pytest.mark.parametrize("engine", ["local", "mpi"])
@pytest.mark.parametrize("mesh", MESHES)
def test_a_loop_that_does_not_end_is_ended_by_a_stated_limit(mesh, engine, times):
    count = counting(mesh, engine=engine, timeout=0.4 * times)
    for _ in range(2):
        assert made_short(count) == [11.0] * 7
        began = time.monotonic()
        with pytest.raises(
            RankError, match=r"no progress for .* s: rank.* compute.*, before the first coll"
        ):
            count(ENDLESS, np.ones(7, np.float32))
        assert time.monotonic() - began < 20 * times
    assert made_short(count) == [11.0] * 7


@pytest.mark.parametrize("mesh", MESHES)
def test_ctrl_c_ends_a_loop_that_does_not_end(mesh):
    count = counting(mesh)
    for _ in range(2):
        assert made_short(count) == [11.0] * 7
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            count(ENDLESS, np.ones(7, np.float32))
    assert made_short(count) == [11.0] * 7


def test_a_long_loop_has_no_limit_unless_one_is_stated():
    count = counting(None)
    with patch("meshweave.runtime.watchdog.WAITING", 0.05):
        rounds = 1 << 20
        while True:
            began = time.monotonic()
            made = count(np.int64(rounds), np.zeros(7, np.float32))
            if time.monotonic() - began > 0.3:
                break
            rounds *= 4
    assert np.asarray(made).tolist() == [float(min(rounds, 1 << 24))] * 7
