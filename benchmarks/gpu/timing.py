"""How a step on a GPU is timed: the same way for meshweave and for its peers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

SAMPLES = 5
REST_SECONDS = 0.2
LEAST_SECONDS = 0.005  # of what is timed


def each(run: Callable[[int], None], repeat: int) -> float:
    """Return the seconds of one of at least `repeat` runs, without what all runs have in common: the median of several.

    The device rests before, for large products run at the power that it may take, and what ran before would decide how
    fast they are; then it works until its clock is up. The least of several would be a difference that is too small.
    """
    run(2)
    time.sleep(REST_SECONDS)
    while _seconds(run, repeat) < LEAST_SECONDS:
        repeat *= 2
    found = []
    for _ in range(SAMPLES):
        once, twice = _seconds(run, repeat), _seconds(run, 2 * repeat)
        found.append((twice - once) / repeat)
    return statistics.median(found)


def _seconds(run: Callable[[int], None], count: int) -> float:
    began = time.perf_counter()
    run(count)
    return time.perf_counter() - began
