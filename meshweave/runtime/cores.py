"""Ranks that wait for each other stay on cores apart.

A thread that looks for work without sleeping is seldom moved by the system: where two of them begin on one core, they
share it for long, though another is idle.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_libc: Any = ctypes.CDLL(None)


def current_core() -> int:
    """The core that this thread runs on."""
    return int(_libc.sched_getcpu())


def own_cores(cores: set[int], index: int, count: int, taken: int) -> set[int]:
    """Of the cores those of thread `index` of `count`: no two threads share one, and none has the core that is `taken`.
    All, where there are too few.
    """
    free = sorted(cores - {taken})
    return set(free[index::count]) if count <= len(free) else cores


@contextmanager
def kept_on(index: int, count: int, taken: int) -> Iterator[None]:
    """Inside, this thread stays on its own cores."""
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, own_cores(before, index, count, taken))
    except OSError:  # a system that does not allow it places threads itself
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
