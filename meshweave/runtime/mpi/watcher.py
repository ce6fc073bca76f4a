"""Watch the ranks of a host from a process that outlives them, where the user's own launcher has started them.

When a rank dies, a launcher ends the others within a millisecond and says which process it was, if anything. This
process then says in one line which rank it was and where all were, writes a dump if a folder was named, and removes
what the MPI library leaves in /dev/shm. It has a session of its own, so that the launcher does not end it with the
ranks, and ends when the last of them has.

A launcher learns of a death when the system closes the rank's files, a moment before the process counts as ended. So
each rank keeps an end of a pipe open: the pipes close in the order in which ranks die. The rank that starts the
watcher has the system note that order at once, for a rank may die before the watcher has come up.

    python -m meshweave.runtime.mpi.watcher SETTINGS BOARD    (numbers of open files)
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshweave.bundle import Manifest
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.diagnosis import account
from meshweave.runtime.flight.faults import as_died
from meshweave.runtime.flight.processes import exit_status
from meshweave.runtime.flight.recorder import FlightRecorder
from meshweave.runtime.flight.records import ELSEWHERE, LEFT, TOLD, RankRecord
from meshweave.runtime.processes.launch import environment
from meshweave.runtime.processes.launcher import how_ended
from meshweave.runtime.processes.shared_files import mpi_memory, ownerless, remove

_CLOSING = 1.0  # seconds that a process may take to end once its files are closed


def start_watcher(
    flight: FlightRecorder, board: int, pipes: Mapping[int, int]
) -> subprocess.Popen[bytes] | None:
    """Start the watcher of this host's ranks, which have announced themselves; None where the system refuses.

    board: the open file that the board lies in. pipes: by rank, the number of the end of a pipe that it keeps open.
    """
    settings = os.memfd_create("meshweave-watcher")
    opened = [settings]
    try:
        ranks = _here(flight.board)
        what = [
            flight.manifest.to_json(),
            flight.board.nranks,
            flight.folder,
            flight.incident,
            time.time(),
            _memory(ranks),
            _ends(ranks, pipes, opened),
        ]
        os.write(settings, json.dumps(what).encode())
        os.lseek(settings, 0, os.SEEK_SET)
        command = [sys.executable, "-m", "meshweave.runtime.mpi.watcher", str(settings), str(board)]
        watcher = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment(1),
            pass_fds=(*opened, board), start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None
    finally:
        for file in opened:
            os.close(file)
    with contextlib.suppress(OSError):  # it need not start on the core that this rank is bound to
        os.sched_setaffinity(watcher.pid, range(os.cpu_count() or 1))
    return watcher


class _Ends(NamedTuple):
    """Hold what tells of the ends of ranks: open files of each, with its rank, and the file that waits for them all."""

    handles: list[tuple[int, int]]
    pipes: list[tuple[int, int]]
    waits: int


def _ends(ranks: Mapping[int, RankRecord], pipes: Mapping[int, int], opened: list[int]) -> _Ends:
    """Open what tells of the ends of these ranks, and have the system note their order. opened: gets the files."""
    handles, alive = list[tuple[int, int]](), list[tuple[int, int]]()
    waits = os.dup((ends := select.epoll()).fileno())
    opened.append(waits)
    for rank, record in ranks.items():
        for file, files in (
            (_handle(record.pid), handles),
            (_pipe(record.pid, pipes[rank]) if rank in pipes else -1, alive),
        ):
            if file >= 0:
                opened.append(file)
                files.append((file, rank))
                ends.register(file, select.EPOLLIN)
    ends.close()
    return _Ends(handles, alive, waits)


def _here(board: StatusBoard) -> dict[int, RankRecord]:
    """Return the ranks of this host."""
    return {r.rank: r for r in board.records() if r.state != ELSEWHERE and r.pid}


class Watcher:
    """Wait for the ranks of a host to end."""

    def __init__(
        self, flight: FlightRecorder, ends: _Ends, began: float, files: Mapping[str, Sequence[int]]
    ) -> None:
        """Begin. began, files: when the ranks had announced themselves, and the memory that they had made by then."""
        self._flight, self._board, self._ends = flight, flight.board, ends
        self._began = began
        self._ranks = _here(self._board)
        self._files = _memory(self._ranks) | {path: tuple(one) for path, one in files.items()}
        self._told = False

    def watch(self) -> None:
        """Return when all have ended."""
        handles, pipes = dict(self._ends.handles), dict(self._ends.pipes)
        dying: list[int] = []  # in the order in which their files were closed
        ended: dict[int, int] = {}
        with select.epoll.fromfd(self._ends.waits) as ends:  # in the order in which they end
            while handles or ended:
                found = ends.poll(_CLOSING if ended else None)
                if not found:
                    dying = [rank for rank in dying if rank in ended]  # who closed it lives on
                for file, _ in found:
                    ends.unregister(file)
                    if file in handles:
                        ended[handles.pop(file)] = file
                    rank = pipes.pop(file) if file in pipes else next(reversed(ended))
                    if rank not in dying:
                        dying.append(rank)
                while dying and dying[0] in ended:
                    self._ended(dying[0], ended[dying[0]])
                    os.close(ended.pop(dying.pop(0)))
        if self._told or self._spoken():
            remove(path for path, owner in self._files.items() if _identity(path) == owner)
            remove(ownerless(self._began))

    def _ended(self, rank: int, handle: int) -> None:
        """Note that a rank has ended; tell of it if nobody has told of anything, and it has not left the job before."""
        record = self._board.record(rank)
        status = exit_status(self._ranks[rank].pid, self._board.born(rank), handle)
        if status == 0:
            self._board.mark(rank, LEFT)
        elif record.state != LEFT and not self._told and not self._spoken():
            self._told = True
            self._tell(rank, "" if status is None else how_ended(status))

    def _spoken(self) -> bool:
        """Tell whether a rank has said what went wrong and ended the job."""
        return any(self._board.state(rank) == TOLD for rank in self._ranks)

    def _tell(self, rank: int, ending: str) -> None:
        """Say where all are, and that a rank has died, unless one has left it waiting: the launcher ended it then."""
        now, records = int(time.time() * 1000), self._board.records()
        left = [record.calls for record in records if record.state == LEFT]
        died = rank if min(left, default=records[rank].calls) >= records[rank].calls else -1
        ranks = [as_died(record, died, ending, now) for record in records]
        several = any(record.state == ELSEWHERE for record in ranks)
        host = f"on {platform.node()}: " if several else ""
        line = host + account(ranks, self._flight.manifest.op)
        line = self._flight.written("death", line, ranks)
        with contextlib.suppress(OSError):  # a launcher that was told to abort listens no more
            os.write(2, f"meshweave: {line}\n".encode())


def _handle(pid: int) -> int:
    """Return a handle of a process, readable when it has ended; of one that has ended already, an end of a pipe."""
    with contextlib.suppress(ProcessLookupError):
        return os.pidfd_open(pid)
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def alive_pipe() -> int:
    """Return an end of a pipe that the system closes when this process ends."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def _pipe(pid: int, number: int) -> int:
    """Open the other end of a pipe of a process; -1 where the system refuses."""
    with contextlib.suppress(OSError):
        return os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    return -1


def _memory(ranks: Mapping[int, RankRecord]) -> dict[str, tuple[int, ...]]:
    """Return the files of the MPI library's memory that ranks have, each with what tells it from a later one."""
    paths = set().union(*(mpi_memory(rank.pid) for rank in ranks.values()))
    return {path: _identity(path) for path in paths}


def _identity(path: str) -> tuple[int, ...]:
    """Return what tells a file from a later one of the same name; zeros where there is none."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return 0, 0


def main(settings: int, board: int) -> None:
    """Watch the ranks of this host. settings, board: open files."""
    with os.fdopen(settings) as file:
        text, nranks, folder, incident, began, files, ends = json.load(file)
    manifest = Manifest.from_json(text)
    memory = mmap.mmap(board, StatusBoard.nbytes(nranks))
    flight = FlightRecorder(StatusBoard(memory, nranks), manifest, folder, incident)
    Watcher(flight, _Ends(*ends), began, files).watch()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
