"""Run a rank that a launcher has started: ours by a fork, `mpiexec` by `python -m mpi4py -m` and this module."""

from __future__ import annotations

import mmap
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from meshweave.abi import TraceBuffer
from meshweave.bundle import Bundle
from meshweave.errors import RankError
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.memory import Values
from meshweave.runtime.mpi.rank import MpiRank, code_meaning
from meshweave.runtime.processes.server import Server, follow, leave, link_to
from meshweave.runtime.processes.shared_files import mpi_memory
from meshweave.runtime.program import fault, place_buffers


class _MpiCall(NamedTuple):
    """Hold a bound call: its program, its table, and all ranks' inputs and outputs, `nbytes` for each."""

    program: int
    table: Values
    memory: Values
    nbytes: int


class MpiWorker(Server):
    """Hold the programs that this rank has loaded and the calls that are bound."""

    def __init__(self, rank: int, nranks: int) -> None:
        super().__init__(rank, nranks)
        self._programs: dict[int, tuple[MpiRank, StatusBoard]] = {}
        self._calls: dict[int, _MpiCall] = {}
        self._last: dict[int, int] = {}  # of each program, the call that ran last

    def _load(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        board = StatusBoard(mmap.mmap(files[0], StatusBoard.nbytes(self.nranks)), self.nranks)
        board.announce(self.rank)
        bundle = Bundle.from_bytes(payload)
        program = MpiRank(bundle, board, window=message["window"], cores=message["cores"])
        self._programs[message["program"]] = program, board
        shared = sorted(mpi_memory("self"))
        return {"shared": shared, "window": all(program.groups.shared), "cores": program.cores}

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
        self._calls[message["call"]] = _MpiCall(message["program"], table, memory, nbytes)

    def _drop(self, message: dict[str, Any], payload: bytes, files: list[int]) -> None:
        self._calls.pop(message["call"], None)

    def _trace(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        program, _ = self._programs[message["program"]]
        room = message["room"]
        if room == 0:
            return {"clock": program.untrace()}
        memory = np.frombuffer(mmap.mmap(files[0], 0), np.int64)
        return {"clock": program.trace(room, memory[self.rank * TraceBuffer.words(room) :])}

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


def main(path: str) -> None:
    """Serve the launcher that listens at `path`."""
    follow()
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    link = link_to(path, rank)
    try:
        MpiWorker(rank, MPI.COMM_WORLD.size).serve(link)
    except (EOFError, OSError):
        leave(0)


if __name__ == "__main__":
    main(sys.argv[1])
