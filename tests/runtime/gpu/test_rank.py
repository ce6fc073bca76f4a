"""What a rank does besides launching and moving: constants, shared memory, waits within a step,
events, a device's error log; what its worker does with calls that nobody needs any more.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket

import numpy as np
import pytest
from runtime.gpu.numpy_kernels import NumpyKernels
from runtime.gpu.programs import Collect, Fetch, Launch, engine, program

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.gpu.call import RankCall
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.gpu.worker import GpuWorker
from meshweave.runtime.gpu.wrapped import NvtxLibrary
from meshweave.runtime.processes.bootstrap import JobRank, MemoryStore
from meshweave.runtime.processes.wire import receive
from meshweave.runtime.program import buffer_bytes, place_buffers
from meshweave.simulator.driver.move import move
from meshweave.simulator.driver.recorder import InjectedFailure, Recorder
from meshweave.simulator.driver.replay import Scheduler

N = 64
IN, OUT = ("input", 0), ("output", 0)
PORT = [("f32", (N,))]


def test_constants_are_on_the_device():
    constants = np.arange(2 * N, dtype="f4")
    steps = [Launch("twice", ("constants", 4 * N), OUT, N)]
    bundle = program("x=1", [], PORT, PORT, steps, constants=constants.tobytes())
    executable = engine().load(bundle)
    outputs = executable.run([[np.zeros(N, "f4")]])
    assert np.array_equal(outputs[0][0], 2 * constants[N:])
    assert "twice(constants+256, out0, 64)" in executable.recorder.text(0)


def test_a_kernel_may_not_read_constants_that_nobody_has_waited_for(monkeypatch):
    """Their copy from pageable memory is in no stream that kernels wait for."""
    monkeypatch.setattr(GpuRank, "settle", lambda rank: None)
    constants, steps = np.ones(N, "f4").tobytes(), [Launch("twice", ("constants", 0), OUT, N)]
    bundle = program("x=1", [], PORT, PORT, steps, constants=constants)
    line = r"race on rank 0: twice\(constants, .* and copy to device host -> m\d 256 bytes read and write"
    with pytest.raises(RankError, match=line):
        engine().load(bundle).run([[np.zeros(N, "f4")]])


def of_one_rank(bundle, kernels):
    """The rank of a program of one, on a recorder, and what runs it."""
    library, board = Recorder(1, kernels, Scheduler(move)), StatusBoard.private(1)
    store = MemoryStore(lambda ready, what: None)
    rank = GpuRank(bundle, JobRank(0, 1, 0), library, store, board.address(0))
    return RankCall(rank, board, False), library


def test_an_arena_of_80_gib():
    """Offsets of host code have 64 bits."""
    far = (80 << 30) - 4 * N
    steps = [Launch("twice", IN, ("arena", far), N), Launch("plus_one", ("arena", far), OUT, N)]
    call, library = of_one_rank(program("x=1", [], PORT, PORT, steps, 80 << 30), NumpyKernels())
    library.memory.view(0, call.input(0), 4 * N, "test").view("f4")[:] = np.arange(N)
    call.step(call.inputs, call.outputs)
    call.wait()
    found = library.memory.view(0, call.output(0), 4 * N, "test").view("f4")
    assert np.array_equal(found, 2 * np.arange(N) + 1)


def test_much_shared_memory_is_asked_for():
    bundle = program("x=1", [], PORT, PORT, [Launch("twice", IN, OUT, N)], shared=96 << 10)
    executable = engine().load(bundle)
    executable.run([[np.ones(N, "f4")]])
    assert "cuFuncSetAttribute" in executable.recorder.calls[0]
    assert "4x1x1 of 64x1x1 +98304" in executable.recorder.text(0)


FETCHING = [
    Launch("twice", IN, ("arena", 0), N),
    Collect("mw_all_reduce_sum_f32", 0, ("arena", 0), ("arena", 4 * N), (N,)),
    Fetch(("arena", 4 * N)),
    Launch("plus_one", ("arena", 4 * N), OUT, N),
]


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_step_may_wait_for_its_device(seed):
    """Both ranks wait within their steps until their collective has run."""
    bundle = program("x=2", [("x",)], PORT, PORT, FETCHING, 8 * N, graph=False)
    executable = engine(seed=seed).load(bundle)
    outputs = executable.run([[np.full(N, rank + 1, "f4")] for rank in range(2)])
    assert [row[0][0] for row in outputs] == [7, 7]
    assert "copy to host arena+256 -> m" in executable.recorder.text(1)


def test_a_wait_within_a_graph_is_refused():
    bundle = program("x=2", [("x",)], PORT, PORT, FETCHING, 8 * N, graph=True)
    call = engine(graph=True).load(bundle).bind([[np.ones(N, "f4")]] * 2)
    call()
    line = r"failed in fetch at test.mlir:3:1: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED \(900\)"
    with pytest.raises(RankError, match=line):
        call()


def test_events_tell_how_far_a_device_is():
    bundle = program("x=2", [("x",)], PORT, PORT, FETCHING, 8 * N, graph=False)
    executable = engine().load(bundle)
    executable.run([[np.ones(N, "f4")]] * 2)
    rank = executable.ranks()[0]
    assert rank.reached() == 1 << 32 | 0b11  # a step is done, and both of its events have passed
    rank.captured = True
    assert rank.reached() == 1 << 32  # those of a graph may not be asked for


def test_a_broken_rank_is_of_no_more_use():
    executable = engine().load(program("x=1", [], PORT, PORT, [Launch("twice", IN, OUT, N)]))
    rank = executable.ranks()[0]
    rank.broken = True
    with pytest.raises(RankError, match=r"^rank 0: an earlier run has failed: load the program"):
        rank.launch(0)


class Refusing(NumpyKernels):
    def module(self, ptx):
        raise MeshweaveError("line 3: no such instruction")


def test_the_error_log_of_the_driver_is_told(monkeypatch):
    """The recorder has none of its own; what the driver writes is read."""
    from contextlib import ExitStack

    from meshweave.device import DeviceModule
    from meshweave.runtime.gpu.driver import Device, Driver, load_module

    library = Recorder(1, Refusing(), Scheduler(move))
    made = Driver(library, 0)
    code = made.code

    def writing(name, *arguments):
        if name == "cuModuleLoadDataEx":
            values = (ctypes.c_void_p * 2).from_address(arguments[4])
            ctypes.memmove(values[0], b"ptxas: line 3;\n fatal\0", 22)
        return code(name, *arguments)

    monkeypatch.setattr(made, "code", writing)
    line = r"CUDA_ERROR_INVALID_PTX \(218\): ptxas: line 3; fatal$"
    with ExitStack() as held, pytest.raises(RankError, match=line):
        load_module(
            made, held, DeviceModule("sm_80", ".version 8.0"), Device(0, "G", (9, 0), 13000)
        )


@pytest.fixture
def worker():
    """A rank's worker, in this process, with a program loaded and its memory."""
    library = Recorder(1, NumpyKernels(), Scheduler(move))
    made = GpuWorker(JobRank(0, 1, 0), library)
    bundle = program("x=1", [], PORT, PORT, [Launch("twice", IN, OUT, N)])
    board, memory = os.memfd_create("board"), os.memfd_create("test")
    nbytes = -(-buffer_bytes(bundle.manifest) // mmap.PAGESIZE) * mmap.PAGESIZE
    os.ftruncate(memory, nbytes)
    os.ftruncate(board, StatusBoard.nbytes(1))
    load = {
        "do": "load",
        "program": 1,
        "graph": False,
        "awaited": False,
        "nvtx": False,
        "store": "",
    }
    assert made._load(load, bundle.to_bytes(), [board]) == {"window": False}
    bind = {"do": "bind", "call": 7, "program": 1, "nbytes": nbytes}
    made._bind(bind, b"", [memory])
    inputs, outputs = place_buffers(bundle.manifest, mmap.mmap(memory, nbytes))
    yield made, library, inputs, outputs
    os.close(memory)
    os.close(board)


def test_a_worker_copies_runs_and_lets_go(worker):
    made, library, inputs, outputs = worker
    inputs[0][:] = 3
    assert made._run({"do": "run", "call": 7}, b"", [])["seconds"] > 0
    assert (outputs[0] == 6).all()
    made._drop({"do": "drop", "call": 7}, b"", [])
    made._drop({"do": "drop", "call": 8}, b"", [])
    made._unload({"do": "unload", "program": 1}, b"", [])
    assert library.live() == []


def test_unloading_lets_go_of_calls(worker):
    made, library, _, _ = worker
    made._unload({"do": "unload", "program": 1}, b"", [])
    assert library.live() == []


def test_a_worker_that_nccl_leaves_says_so_and_ends(worker, monkeypatch):
    made, *_ = worker
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    ours, theirs = socket.socketpair()
    made._link = ours
    made._give_up("rank 0: ncclRemoteError (6)")
    message, _, _ = receive(theirs)
    assert message == {"error": "rank 0: ncclRemoteError (6)", "kind": "RankError"}
    assert ended == [75]
    ours.close()
    theirs.close()


def test_a_failing_query_is_told_by_the_watcher():
    from meshweave.runtime.gpu.progress import Progress

    executable = engine().load(program("x=1", [], PORT, PORT, [Launch("twice", IN, OUT, N)]))
    rank, said = executable.ranks()[0], []
    executable.recorder.failures.append(
        # It fails in the next call, of the watcher.
        InjectedFailure(0, len(executable.recorder.calls[0]) + 1, 700)
    )
    with Progress(rank, executable.board, said.append) as watcher:
        watcher._thread.join(5)
    assert said == ["rank 0: cuCtxSetCurrent failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)"]


class Ranges:
    """Stands in for NVTX: what was begun and ended, in order."""

    def __init__(self):
        self.said = []

    def nvtxRangePushA(self, name):
        self.said.append(name.decode())

    def nvtxRangePop(self):
        self.said.append("")


def test_nvtx_is_told_each_launch_and_copy_by_its_name(monkeypatch):
    ranges, library = Ranges(), Recorder(1, NumpyKernels(), Scheduler(move))
    monkeypatch.setattr("meshweave.runtime.gpu.wrapped.opened_nvtx", lambda: ranges)
    steps = [Launch("twice", IN, OUT, N), Launch("plus_one", OUT, OUT, N)]
    bundle = program("x=1", [], PORT, PORT, steps)
    told = NvtxLibrary(library)
    rank = GpuRank(
        bundle,
        JobRank(0, 1, 0),
        told,
        MemoryStore(lambda ready, what: None),
        StatusBoard.private(1).address(0),
    )
    given, taken = (rank.buffers(rank._held, [4 * N], "data")[0] for _ in "io")
    rank.enqueue(int(rank.bound([given], [taken]).ctypes.data))
    assert ranges.said == ["twice", "", "plus_one", ""]
    assert library.calls[0].count("cuLaunchKernel") == 2
    rank.close()
    ranges.said.clear()
    library.functions = dict.fromkeys(library.functions, lambda *arguments: 0)
    told = NvtxLibrary(library)
    for name in ("ncclGroupStart", "ncclGroupEnd", "ncclAllReduce"):
        told.around(name)()
    assert ranges.said == ["ncclGroupStart", "", "ncclAllReduce", ""]
    assert told.around("ncclSend") is None and told.around("cuEventRecord") is None


def test_without_nvtx_the_line_says_what_to_install(monkeypatch):
    def nothing(name):
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", nothing)
    with pytest.raises(MeshweaveError, match=r"libnvtx3interop\.so\.1: pip install nvidia-nvtx"):
        NvtxLibrary(Recorder(1, NumpyKernels(), Scheduler(move)))
