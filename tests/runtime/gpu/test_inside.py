"""A program on ranks that somebody else has started: with the recorder for each, meeting by TCP;
arrays of other packages in and out.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from depth import sampled
from ports import free_port
from runtime.gpu.numpy_kernels import NumpyKernels
from runtime.gpu.programs import Launch, program

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.flight.dump import read_dumps
from meshweave.runtime.gpu.device_array import DeviceArray, foreign, is_foreign
from meshweave.runtime.gpu.inside import GpuProgram
from meshweave.simulator.driver.move import move
from meshweave.simulator.driver.recorder import InjectedFailure, Recorder
from meshweave.simulator.driver.replay import Scheduler

N = 64


def twice(nranks=1, dtype="f32"):
    port = [(dtype, (N,))]
    steps = [Launch("twice", ("input", 0), ("output", 0), N)]
    return program(f"x={nranks}", [], port, port, steps)


def recorder(devices, **options):
    return Recorder(devices, NumpyKernels(), Scheduler(move), **options)


@pytest.fixture
def alone():
    library = recorder(1)
    made = GpuProgram(twice(), library=library, environ={})
    yield made, library
    made.close()
    assert library.live() == []


def two_ranks(names, more, **options):
    """What each of two ranks gives, or says; names: the variables of its rank, their number and its local rank."""
    found = {}

    def run(rank):
        environ = dict(zip(names, (str(rank), "2", str(rank)))) | more
        library = recorder(**options)
        library.set_current(rank)
        try:
            made = GpuProgram(twice(2), library=library, environ=environ)
            found[rank] = made.run([np.full(N, rank + 1, "f4")])[0][0]
            made.close()
        except RankError as error:
            found[rank] = str(error)
        assert library.live() == []

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


def test_two_ranks_of_torchrun():
    more = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1), "MESHWEAVE_TOKEN": "a secret",
    }  # fmt: skip
    assert two_ranks(TORCHRUN, more, devices=2) == {0: 2, 1: 4}


def test_ranks_of_slurm_that_see_a_gpu_each(tmp_path):
    store = {"MESHWEAVE_STORE": f"file://{tmp_path}"}
    assert two_ranks(SLURM, store, devices=2, own_alone=True) == {0: 2, 1: 4}


def test_ranks_that_have_the_same_gpu_are_refused(tmp_path):
    store = {"MESHWEAVE_STORE": f"file://{tmp_path}"}
    line = "ranks 0 and 1 have the same GPU: use more GPUs or a smaller mesh; share=True lets ranks share one"
    assert two_ranks(SLURM, store, devices=1) == {0: line, 1: line}


def test_a_job_of_another_size_is_refused():
    with pytest.raises(MeshweaveError, match=r"the mesh \(x=2\) has 2 ranks, this job has 1"):
        GpuProgram(twice(2), library=recorder(2), environ={})


class Elsewhere:
    """An array of another package on the recorder's device."""

    def __init__(self, library, values, **changed):
        self.place = library.memory.add(0, values.nbytes)
        self.place.data[:] = values.view(np.uint8)
        self.__cuda_array_interface__ = {
            "shape": values.shape, "typestr": values.dtype.str, "data": (self.place.address, False),
            "version": 3, "strides": None, **changed,
        }  # fmt: skip


def test_arrays_on_the_device_go_in_and_out(alone):
    made, library = alone
    given = Elsewhere(library, np.arange(N, dtype="f4"))
    output = made.run_on_device([given])[0]
    view = library.memory.view(0, output.address, output.nbytes, "test").view(np.float32)
    assert np.array_equal(view, 2 * np.arange(N))
    again = made.run([output])[0]  # its own result, as DLPack gives it
    assert np.array_equal(again, 4 * np.arange(N))
    copies = [line for line in library.text(0).splitlines() if "copy" in line]
    assert len(copies) == 2 and "copy to host" in copies[1]  # its own result, which the step writes
    library.memory.remove(given.place.address)


def test_state_on_the_device_is_copied_once():
    """A parameter of another package, a donated state and a row that is new in each step."""
    parameter, state, new = (("f32", (N,)) for _ in range(3))
    steps = [
        Launch("twice", ("input", 0), ("arena", 0), N),
        Launch("twice", ("input", 2), ("output", 0), N),
        Launch("plus_one", ("input", 1), ("output", 1), N),
    ]
    bundle = program("x=1", [], [parameter, state, new], [new, state], steps, 4 * N)
    taking = replace(bundle.manifest.outputs[1], takes=1)
    object.__setattr__(bundle.manifest, "outputs", (bundle.manifest.outputs[0], taking))
    library = recorder(1)
    made = GpuProgram(bundle, library=library, environ={})
    given, held = Elsewhere(library, np.ones(N, "f4")), np.zeros(N, "f4")
    for k in range(4):
        y, held = made.run_on_device([given, held, np.full(N, k, "f4")])
        assert (library.memory.view(0, y.address, y.nbytes, "test").view("f4") == 2 * k).all()
        copies = [line for line in library.text(0).splitlines() if "copy" in line]
        assert len(copies) == k + 2, copies  # the state, once; and the rows
    assert (library.memory.view(0, held.address, held.nbytes, "test").view("f4") == 4).all()
    made.close()
    library.memory.remove(given.place.address)
    assert library.live() == []


@pytest.mark.parametrize(
    ("values", "changed", "line"),
    [
        (np.zeros(N, "f8"), {}, "the elements are not f32"),
        (np.zeros(3, "f4"), {}, "shape 3, 64 is right"),
        (np.zeros(N, "f4"), {"strides": (8,)}, "it is not contiguous"),
        (np.zeros(N, "f4"), {"typestr": ">f4"}, 'typestr ">f4" cannot be read'),
    ],
)
def test_arrays_that_do_not_fit_are_named(alone, values, changed, line):
    made, library = alone
    given = Elsewhere(library, values, **changed)
    with pytest.raises(MeshweaveError, match=line):
        made.run([given])
    library.memory.remove(given.place.address)


def test_numpy_arrays_are_checked(alone):
    made, _ = alone
    with pytest.raises(MeshweaveError, match="rank 0: 0 inputs, the program has 1"):
        made.run([])
    with pytest.raises(MeshweaveError, match="dtype float64, float32 is right"):
        made.run([np.zeros(N)])


@pytest.mark.parametrize(
    ("dtype", "kind"), [("f32", (2, 32)), ("bf16", (4, 16)), ("i1", (6, 8)), ("i64", (0, 64))]
)
def test_dlpack_says_what_an_array_is(dtype, kind):
    array = DeviceArray(4096, dtype, (3, 5), 2, None)
    assert array.__dlpack_device__() == (2, 2)
    found = foreign(type("Other", (), {"__dlpack__": lambda self: array.__dlpack__()})())
    assert (found.address, found.kind, found.shape, found.dense, found.device) == (
        4096, kind, (3, 5), True, 2,
    )  # fmt: skip


def test_a_capsule_is_taken_once_and_what_it_holds_is_let_go():
    from meshweave.runtime.gpu import device_array

    array = DeviceArray(4096, "f32", (2,), 0, None)
    capsule = array.__dlpack__()
    other = type("Other", (), {"__dlpack__": lambda self: capsule})()
    before = len(device_array._exported)
    foreign(other)
    assert len(device_array._exported) == before - 1
    with pytest.raises(MeshweaveError, match="taken already"):
        foreign(other)
    array.__dlpack__()  # nobody takes it
    assert len(device_array._exported) == before - 1


def test_what_is_on_a_device():
    assert not is_foreign(np.zeros(3)) and is_foreign(DeviceArray(1, "f32", (1,), 0, None))
    assert DeviceArray(1, "f32", (1,), 0, None).__cuda_array_interface__["typestr"] == "<f4"
    assert not hasattr(DeviceArray(1, "bf16", (1,), 0, None), "__cuda_array_interface__")


def test_a_strided_capsule_is_read():
    """NumPy's own export, whose strides are there to be read."""
    from meshweave.runtime.gpu.device_array import _of_capsule

    values = np.arange(12, dtype="i4").reshape(3, 4)
    dense = _of_capsule(values.__dlpack__(), values)
    assert dense.dense and dense.address == values.ctypes.data and dense.kind == (0, 32)
    assert not _of_capsule(values.T.__dlpack__(), values).dense


def test_an_asynchronous_error_of_nccl_is_noticed():
    from meshweave.runtime.flight.board import StatusBoard
    from meshweave.runtime.gpu.progress import Progress

    made = GpuProgram(twice(), library=recorder(1), environ={})
    said, told = [], threading.Event()

    def failed(line):
        said.append(line)
        told.set()

    rank = made._program
    rank.comms.error = lambda: "rank 0: ncclCommGetAsyncError failed: ncclRemoteError (6)"
    board = StatusBoard(bytearray(StatusBoard.nbytes(1)), 1)
    with Progress(rank, board, failed):
        assert told.wait(60)
    assert said == ["rank 0: ncclCommGetAsyncError failed: ncclRemoteError (6)"]
    made.close()


STALLS = """
import time
from runtime.gpu.programs import Collect
from runtime.gpu.test_inside import *
library = recorder(1)
port, told = [("f32", (N,))], {told}
sum = Collect("mw_all_reduce_sum_f32", 0, ("input", 0), ("output", 0), (N,))
summed = program("x=1", [("x",)], port, port, [sum])
if told:
    library.functions = {{**library.functions, "ncclCommInitRank": lambda *_: time.sleep(1000)}}
else:
    library.kernels.launch = lambda *_: time.sleep(1000)
GpuProgram(summed if told else twice(), {limit}, library=library, environ={{}}).run([np.zeros(N, "f4")])
"""


@sampled(1)
@pytest.mark.parametrize(
    "line",
    [
        "no progress for {limit:g} s: rank 0 waits for its device",
        "NCCL did not make the communicators of 1 ranks within {limit:g} s: a rank is gone, or its host is not reached "
        "(NCCL_DEBUG=INFO says more)",
    ],
)
def test_a_rank_that_stalls_ends_its_process_with_a_line(line, times):
    ran = subprocess.run(
        [sys.executable, "-c", STALLS.format(told="NCCL" in line, limit=0.5 * times)],
        capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert ran.returncode == RankError.exit_status
    assert ran.stderr == f"meshweave: rank 0: {line.format(limit=0.5 * times)}\n"


def test_a_rank_that_fails_leaves_a_dump(tmp_path):
    library = recorder(1, failures=[InjectedFailure(0, 1, 700, "cuLaunchKernel")])
    made = GpuProgram(twice(), library=library, environ={}, flight=str(tmp_path))
    with pytest.raises(RankError, match=r"^rank 0 failed in twice .*; flight recorder: "):
        made.run([np.ones(N, "f4")])
    (dump,), _ = read_dumps([str(tmp_path)])
    assert (dump.reason, dump.ranks[0].calls, dump.ranks[0].pid) == ("failure", 1, os.getpid())
    made.close()


def test_nccl_reports_what_happened_in_the_background():
    library = recorder(1, failures=[InjectedFailure(0, 1, 3, "ncclCommGetAsyncError")])
    from meshweave.layout import Mesh
    from meshweave.runtime.gpu.driver import Driver
    from meshweave.runtime.gpu.groups import Communicators
    from meshweave.runtime.processes.bootstrap import MemoryStore

    store = MemoryStore(lambda ready, what: None)
    made = Communicators(Driver(library, 0), Mesh.parse("x=1"), (("x",),), store)
    with pytest.raises(RankError, match=r"ncclInternalError \(3\): recorded$"):
        made.error()
    assert made.error() == ""
    made.close()
    assert ctypes.sizeof(ctypes.c_void_p) == 8 and library.live() == []
