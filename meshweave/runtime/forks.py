"""What becomes of programs in a process that was forked from the one that runs them: it has their memory, but neither
the threads of their ranks nor, as its children, their processes. Those of a first call are started anew.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What runs threads or processes for others."""

    def forked(self) -> None:
        """This process is a copy: let go of them, without a word to them."""


_RUNNING: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell_of_forks(runner: Forkable) -> None:
    """Let it know in every process that is forked from this one."""
    _RUNNING.add(runner)


def _in_child() -> None:
    for runner in list(_RUNNING):
        runner.forked()


os.register_at_fork(after_in_child=_in_child)
