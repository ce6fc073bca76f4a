"""Write a dump of the status board when a run ends in a fault."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.bundle import Manifest
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.diagnosis import account
from meshweave.runtime.flight.dump import Dump, write_dump
from meshweave.runtime.flight.records import RankRecord


@dataclass(frozen=True)
class FlightRecorder:
    """Hold what a dump is made of.

    folder: where dumps go; None: nowhere. incident: names the fault in the dumps of all hosts; empty: each dump is one
    of its own.
    """

    board: StatusBoard
    manifest: Manifest
    folder: str | None = None
    incident: str = ""

    def written(self, reason: str, line: str, ranks: Sequence[RankRecord] | None = None) -> str:
        """Write a dump, if there is a folder, and return `line`, with the file's name where there is one.

        reason: see `Dump`. ranks: as they are now, unless given. Nothing is written before a first call, nor raised.
        """
        if self.folder is None:
            return line
        ranks = self.board.records() if ranks is None else ranks
        if not any(rank.calls for rank in ranks):
            return line
        try:
            return f"{line}; flight recorder: {write_dump(self._dump(reason, line, ranks), self.folder)}"
        except OSError as error:
            return f"{line}; flight recorder: cannot be written: {error.strerror or error}"

    def interrupted(self, error: BaseException) -> str:
        """Write a dump of a run that `error` ends, such as Ctrl-C; return what it says."""
        reason = "failure" if isinstance(error, Exception) else "signal"
        ranks = self.board.records()
        line = f"ended by {type(error).__name__}: {account(ranks, self.manifest.op)}"
        return self.written(reason, line, ranks)

    def _dump(self, reason: str, line: str, ranks: Sequence[RankRecord]) -> Dump:
        manifest = self.manifest
        return Dump(
            self.incident or new_incident(), reason, line, os.uname().nodename, int(time.time() * 1000),
            manifest.symbol.rpartition("_")[2][:16], manifest.engine, manifest.mesh, manifest.ops,
            tuple(ranks),
        )  # fmt: skip


def new_incident() -> str:
    """Return a name that no other fault has."""
    return os.urandom(6).hex()
