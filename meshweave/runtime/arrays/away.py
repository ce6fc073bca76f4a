"""Say what an Array needs to know of shards that do not lie in this process's memory: how to fetch them."""

from __future__ import annotations

from typing import Protocol

from meshweave.runtime.memory import Values


class AwayShards(Protocol):
    """Hold the shards of an Array where NumPy does not reach: on devices, say."""

    def fetched(self) -> tuple[Values, ...]:
        """Return new arrays that hold the same. Raises RankError where they are lost."""
