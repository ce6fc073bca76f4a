"""Run a rank of the `nccl` engine: `python -m meshweave.runtime.gpu.worker SOCKET SHARE`.

It serves the same messages as a rank of engine mpi (processes/server.py). Inputs and outputs lie in memory that it
shares with the process that asks; they are copied to and from its device.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from meshweave.bundle import Bundle
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.gpu.call import RankCall
from meshweave.runtime.gpu.driver import Library
from meshweave.runtime.gpu.libraries import SystemLibrary
from meshweave.runtime.gpu.marks import record_of
from meshweave.runtime.gpu.progress import Progress
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.gpu.resident import DeviceBuffers, Places, run_placed
from meshweave.runtime.gpu.wrapped import AwaitedLibrary, NvtxLibrary
from meshweave.runtime.memory import Values
from meshweave.runtime.processes.bootstrap import JobRank, discover, open_store
from meshweave.runtime.processes.server import Server, follow, link_to
from meshweave.runtime.processes.wire import send
from meshweave.runtime.program import place_buffers
from meshweave.runtime.tracing import hide

FAILED = 75  # status of a rank whose collectives NCCL has given up


class _GpuProgram(NamedTuple):
    rank: GpuRank
    board: StatusBoard
    graph: bool


class _GpuCall(NamedTuple):
    program: int
    bound: RankCall
    inputs: list[Values]
    outputs: list[Values]


class GpuWorker(Server):
    """Hold the programs that this rank has loaded and the calls that are bound."""

    def __init__(self, place: JobRank, library: Library, share: bool = False) -> None:
        super().__init__(place.rank, place.nranks)
        self._place, self._library, self._share = place, library, share
        self._programs: dict[int, _GpuProgram] = {}
        self._calls: dict[int, _GpuCall] = {}
        self._buffers: DeviceBuffers | None = None  # what Arrays lie in, from the first program on
        self._queued: list[
            RankCall
        ] = []  # of which steps may be under way, those of each program after the one before
        self._link: socket.socket | None = None

    def serve(self, link: socket.socket) -> None:
        """Answer messages until `exit`. Raises EOFError when the launcher is gone."""
        self._link = link
        super().serve(link)

    def _load(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        board = StatusBoard(mmap.mmap(files[0], StatusBoard.nbytes(self.nranks)), self.nranks)
        board.announce(self.rank)
        place = JobRank(self.rank, self.nranks, self._place.local_rank, message["store"])
        self._wait()
        if self._buffers is not None:
            self._buffers.release()
        library: Library = AwaitedLibrary(self._library) if message["awaited"] else self._library
        library = NvtxLibrary(library) if message["nvtx"] else library
        store = open_store(place)
        try:
            rank = GpuRank(
                Bundle.from_bytes(payload), place, library, store,
                board.address(self.rank), self._share,
            )  # fmt: skip
        finally:
            store.close()
        self._programs[message["program"]] = _GpuProgram(rank, board, message["graph"])
        self._buffers = self._buffers or DeviceBuffers(rank)
        return {"window": False}

    def _unload(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        number = message["program"]
        self._wait()
        for call in [n for n, made in self._calls.items() if made.program == number]:
            self._calls.pop(call).bound.close()
        self._programs.pop(number).rank.close()
        return {}

    def _watch(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        """Have the device mark what it does in the steps of a program from here on."""
        self._wait()
        rank, board, _ = self._programs[message["program"]]
        rank.attach()
        rank.trace(message["room"]).show(board, self.rank)
        return {}

    def _unwatch(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        """End that, and tell what it has done."""
        self._wait()
        rank, board, _ = self._programs[message["program"]]
        hide(board, [self.rank])
        rank.attach()
        calls, dropped = record_of(rank.untrace())
        return {"calls": [rows.tolist() for rows in calls], "dropped": dropped}

    def _bind(self, message: dict[str, Any], payload: bytes, files: list[int]) -> None:
        program = self._programs[message["program"]]
        nbytes = message["nbytes"]
        whole = memoryview(mmap.mmap(files[0], nbytes * self.nranks))
        start = self.rank * nbytes
        inputs, outputs = place_buffers(program.rank.manifest, whole[start : start + nbytes])
        bound = RankCall(program.rank, program.board, program.graph)
        self._calls[message["call"]] = _GpuCall(message["program"], bound, inputs, outputs)

    def _drop(self, message: dict[str, Any], payload: bytes, files: list[int]) -> None:
        """Let go of a call, or of what Arrays of this process's starter lie in."""
        found = self._calls.pop(message["call"], None)
        if found is not None:
            self._wait()
            found.bound.close()
        elif self._buffers is not None:
            self._buffers.drop(message["call"])

    def _run(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        call = self._calls[message["call"]]
        program = self._programs[call.program]
        program.rank.attach()
        start = time.perf_counter()
        with Progress(program.rank, program.board, self._give_up):
            if "places" in message:
                self._run_placed(call, message)
            else:
                self._come_next(call.bound)
                call.bound.run(call.inputs, call.outputs)
        return {"seconds": time.perf_counter() - start}

    def _enqueue(self, message: dict[str, Any], payload: bytes, files: list[int]) -> None:
        """Enqueue a step that copies nothing, without an answer; watched only where that may wait for the device."""
        call = self._calls[message["call"]]
        rank, board, _ = self._programs[call.program]
        rank.attach()
        watch: AbstractContextManager[object] = (
            nullcontext() if rank.is_free else Progress(rank, board, self._give_up)
        )
        with watch:
            self._run_placed(call, message)

    def _run_placed(self, call: _GpuCall, message: dict[str, Any]) -> None:
        assert self._buffers is not None
        self._come_next(call.bound)
        run_placed(call.bound, self._buffers, Places(*message["places"]), call.inputs)

    def _come_next(self, call: RankCall) -> None:
        """Let what a call is about to enqueue come behind the steps of all programs."""
        if self._queued and self._queued[-1].rank is not call.rank:
            call.rank.come_after(self._queued[-1].rank)
        others = [other for other in self._queued if other.rank is not call.rank]
        self._queued = [*others, call]

    def _wait(self) -> None:
        """Wait for all steps. Raises RankError when something has failed on the device."""
        last = self._queued[-1:]
        for call in self._queued:
            call.rank.attach()
            with Progress(call.rank, last[0].board, self._give_up):
                call.wait()
        self._queued = []

    def _fetch(self, message: dict[str, Any], payload: bytes, files: list[int]) -> dict[str, Any]:
        """Copy what lies under a number to memory that all ranks share, `room` bytes for each."""
        room, nbytes = message["room"], message["nbytes"]
        whole = np.frombuffer(mmap.mmap(files[0], room * self.nranks), np.uint8)
        self._wait()
        assert self._buffers is not None
        self._buffers.fetch(message["number"], whole[room * self.rank :][:nbytes])
        return {}

    def _give_up(self, line: str) -> None:
        """End this rank: NCCL has failed while it waits in a call that may never return."""
        assert self._link is not None
        send(self._link, {"error": line, "kind": "RankError"})
        os._exit(FAILED)


def main(path: str, share: bool, library: Library | None = None) -> None:
    """Serve the process that listens at `path`. library: instead of the real ones."""
    follow()
    place = discover({"MESHWEAVE_STORE": "", **os.environ})
    link = link_to(path, place.rank)
    try:
        GpuWorker(place, library or SystemLibrary(), share).serve(link)
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "1")
