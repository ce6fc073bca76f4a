"""Tell programs that their process was forked.

The copy has their memory, but neither the threads of their ranks nor, as its children, their processes. The next call
there starts new ones.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol


class Forkable(Protocol):
    """Run threads or processes for others."""

    def forked(self) -> None:
        """Let go of threads and processes without a word to them: this process is a copy."""


_RUNNING: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell_of_forks(runner: Forkable) -> None:
    """Call `runner.forked()` in every process that is forked from this one."""
    _RUNNING.add(runner)


_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """Return a lock that is free in every process forked from this one, whoever held it here."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def new_reentrant_lock() -> threading.RLock:
    """Return such a lock that its holder may take again."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def _in_child() -> None:
    for lock in list(_LOCKS):
        lock._at_fork_reinit()  # what logging and concurrent.futures do with theirs
    for runner in list(_RUNNING):
        runner.forked()


os.register_at_fork(after_in_child=_in_child)
