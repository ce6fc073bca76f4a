"""A rank that the launcher has started: `python -m mpi4py -m meshweave.runtime.worker SOCKET`.

It waits for messages without using the processor, does what they say and answers each but `bind`
and `drop`: load (a bundle, and the status board's memory), bind (memory with a rank's inputs and
outputs, and those of the others), run, drop, unload, exit.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.launch import mpi_memory, remove
from meshweave.runtime.mpirank import MpiRank, code_meaning
from meshweave.runtime.program import Values, fault, place_buffers
from meshweave.runtime.watchdog import StatusBoard
from meshweave.runtime.wire import receive, send

_PARENT_DEATH_SIGNAL = 1  # prctl


class _Bound(NamedTuple):
    """A call: its program, its table, and all ranks' inputs and outputs, `nbytes` for each."""

    program: int
    table: Values
    memory: Values
    nbytes: int


class Server:
    """A rank that does what messages say: `{"do": "run"}` by its method `_run`."""

    def __init__(self, rank: int, nranks: int) -> None:
        self.rank, self.nranks = rank, nranks

    def serve(self, link: socket.socket) -> None:
        """Answer messages until `exit`. EOFError when the launcher is gone."""
        while True:
            message, payload, files = receive(link)
            if message["do"] == "exit":
                return
            try:
                answer = getattr(self, "_" + message["do"])(message, payload, files)
            except Exception as error:  # the launcher ends the job and shows the line
                send(link, {"error": one_line(error), "kind": type(error).__name__})
                continue
            finally:
                for file in files:
                    os.close(file)
            if answer is not None:
                send(link, answer)


class Worker(Server):
    """The programs that this rank has loaded and the calls that are bound."""

    def __init__(self, rank: int, nranks: int) -> None:
        super().__init__(rank, nranks)
        self._programs: dict[int, tuple[MpiRank, StatusBoard]] = {}
        self._calls: dict[int, _Bound] = {}
        self._last: dict[int, int] = {}  # of each program, the call that ran last

    def _load(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        board = StatusBoard(mmap.mmap(files[0], StatusBoard.nbytes(self.nranks)), self.nranks)
        bundle = Bundle.from_bytes(payload)
        program = MpiRank(bundle, board, window=message["window"])
        self._programs[message["program"]] = program, board
        return {"shared": sorted(mpi_memory("self")), "window": all(program.groups.shared)}

    def _unload(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        program, _ = self._programs.pop(message["program"])
        program.close()
        return {}

    def _bind(self, message: dict[str, Any], payload: bytes, files: list[int]) -> None:
        program, _ = self._programs[message["program"]]
        nbytes = message["nbytes"]
        memory = np.frombuffer(mmap.mmap(files[0], nbytes * self.nranks), np.uint8)
        start = self.rank * nbytes
        inputs, outputs = place_buffers(program.manifest, memory[start : start + nbytes])
        table = program.table.bound(inputs, outputs)
        self._calls[message["call"]] = _Bound(message["program"], table, memory, nbytes)

    def _drop(self, message: dict[str, Any], payload: bytes, files: list[int]) -> None:
        self._calls.pop(message["call"], None)

    def _run(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        call = self._calls[message["call"]]
        program, board = self._programs[call.program]
        if self._last.get(call.program) != message["call"]:
            self._last[call.program] = message["call"]
            program.groups.buffers(int(call.memory.ctypes.data), call.nbytes)
        context = int(call.table.ctypes.data)
        board.begin(self.rank)
        start = time.perf_counter()
        code = program.step(context)
        seconds = time.perf_counter() - start
        board.end(self.rank)
        if code:
            raise RankError(fault(program.manifest, self.rank, code, code_meaning(code)))
        return {"seconds": seconds}


def one_line(error: BaseException) -> str:
    """An exception as one line: its text for a mistake that we explain, else its kind, text and
    place.
    """
    text = " ".join(str(error).split())
    if isinstance(error, MeshweaveError):
        return text
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = (
        f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        if trace
        else ""
    )
    return f"{type(error).__name__}: {text}{place}"


def leave(status: int) -> None:
    """End this process at once, without MPI, and remove the shared memory that MPI would leave."""
    remove(mpi_memory("self"))
    os._exit(status)


def hold(lifeline: socket.socket) -> None:
    """Wait for the launcher's end, whatever this rank is doing then, and end with it."""
    with contextlib.suppress(OSError):
        lifeline.recv(1)
    leave(0)


def connect(path: str, kind: str, rank: int) -> socket.socket:
    """A link to who has started the ranks."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    send(
        link, {"link": kind, "rank": rank, "pid": os.getpid(), "shared": sorted(mpi_memory("self"))}
    )
    return link


def follow() -> None:
    """End with the process that has started this one, and leave Ctrl-C to it."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def link_to(path: str, rank: int) -> socket.socket:
    """The link to the launcher that listens at `path`; this process ends when the launcher does."""
    lifeline = connect(path, "life", rank)
    link = connect(path, "control", rank)
    threading.Thread(target=hold, args=(lifeline,), daemon=True).start()
    return link


def main(path: str) -> None:
    """Serve the launcher that listens at `path`."""
    follow()
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    link = link_to(path, rank)
    try:
        Worker(rank, MPI.COMM_WORLD.size).serve(link)
    except (EOFError, OSError):
        leave(0)


if __name__ == "__main__":
    main(sys.argv[1])
