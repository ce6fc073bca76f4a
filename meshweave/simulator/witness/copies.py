"""Keep asynchronous copies to shared memory until somebody waits for them.

A copy may land at once, or as late as the wait for it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Copy:
    """Say what is copied where. kept: what was there when it was asked for; None: what is there when it lands."""

    target: int
    source: int
    nbytes: int
    filled: int
    kept: bytes | None

    def land(self) -> None:
        """Write it, with zeros behind what is copied."""
        data = ctypes.string_at(self.source, self.nbytes) if self.kept is None else self.kept
        data = data.ljust(self.filled, b"\0")
        ctypes.memmove(self.target, data, self.filled)


@dataclass
class Copies:
    """Hold a thread's copies: groups that are closed, and the one that is not yet."""

    groups: list[list[Copy]] = field(default_factory=list)
    last: list[Copy] = field(default_factory=list)

    def close(self) -> None:
        """End the group."""
        self.groups.append(self.last)
        self.last = []

    def wait(self, but: int, rng: np.random.Generator) -> None:
        """Let all groups land but the last `but`, in any order."""
        count = max(0, len(self.groups) - but)
        due = [copy for group in self.groups[:count] for copy in group]
        del self.groups[:count]
        for k in rng.permutation(len(due)):
            due[k].land()

    @property
    def under_way(self) -> bool:
        """Tell whether a copy has not landed."""
        return bool(self.last) or any(self.groups)
