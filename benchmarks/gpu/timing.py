"""How a step on a GPU is timed: the same way for meshweave and for its peers."""

from __future__ import annotations

import time
from collections.abc import Callable

SAMPLES = 5
REST_SECONDS = 0.2


def each(run: Callable[[int], None], repeat: int) -> float:
    """Return the seconds of one of `repeat` runs, without what all runs have in common: the least of several.

    The device rests before: large products run at the power that it may take, and what ran before them would decide how
    fast they are.
    """
    run(2)
    time.sleep(REST_SECONDS)
    found = []
    for _ in range(SAMPLES):
        times = []
        for count in (repeat, 2 * repeat):
            began = time.perf_counter()
            run(count)
            times.append(time.perf_counter() - began)
        found.append((times[1] - times[0]) / repeat)
    return min(found)
