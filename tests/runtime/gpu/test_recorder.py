"""The recorder: what it records, and that every call may fail without harm."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from depth import sampled
from runtime.gpu.programs import Collect, Launch, engine, program

from meshweave.errors import RankError
from meshweave.runtime.gpu import interface
from meshweave.simulator.driver.recorder import InjectedFailure

N = 64
OPS = [
    Launch("twice", ("input", 0), ("arena", 0), N),
    Collect("mw_all_reduce_sum_f32", 0, ("arena", 0), ("arena", 4 * N), (N,)),
    Launch("plus_one", ("arena", 4 * N), ("output", 0), N),
]


def steps(mesh="x=2", **options):
    """Twice, sum over x, plus one."""
    port = [("f32", (N,))]
    return program(mesh, [("x",)], port, port, OPS, 8 * N, **options)


def inputs(ranks=2):
    return [[np.full(N, rank + 1, "f4")] for rank in range(ranks)]


def test_the_sequence_of_a_step():
    executable = engine().load(steps("x=2,y=2"))
    outputs = executable.run(inputs(4))
    assert [row[0][0] for row in outputs] == [9, 13, 9, 13]
    assert executable.recorder.text(3) == "\n".join(
        [
            "s0: copy to device host -> in0 256 bytes",
            "s0: record e2",  # behind it, the pinned memory is free again
            "s0: twice(in0, arena, 64) 4x1x1 of 64x1x1",
            "s0: record e0",
            "s1: wait e0",
            "s1: all_reduce_sum f32 64 arena -> arena+256 on ranks 1,3",
            "s1: record e1",
            "s0: wait e1",
            "s0: plus_one(arena+256, out0, 64) 4x1x1 of 64x1x1",
            "s0: record e3",  # the step is done
            "s0: copy to host out0 -> host 256 bytes",
        ]
    )


def test_only_the_last_call_is_kept():
    executable = engine().load(steps())
    for _ in range(3):
        executable.run(inputs())
    assert len(executable.recorder.text(0).splitlines()) == 11
    assert len(executable.recorder.scheduler.executed) == 22  # with the events behind copies


def test_what_is_made_is_given_back():
    executable = engine().load(steps())
    call = executable.bind(inputs())
    call()
    assert "Memory" in executable.recorder.live()
    executable.close()
    assert executable.recorder.live() == []


def test_a_graph_does_the_same_and_is_recorded_at_each_launch():
    executable = engine(seed=3, graph=True).load(steps())
    call = executable.bind(inputs())
    for scale in (1, 2, 3):
        for rank in range(2):
            call.inputs[rank][0][:] = scale * (rank + 1)
        call()
        assert [row[0][0] for row in call.outputs] == [6 * scale + 1] * 2
    calls = executable.recorder.calls[0]
    assert calls.count("cuGraphLaunch") == 2
    assert calls.count("cuLaunchKernel") == 4  # one run, one capture
    assert calls.count("cuStreamBeginCapture_v2") == 1
    executable.close()
    assert executable.recorder.live() == []


def test_a_program_that_waits_is_no_graph():
    call = engine(graph=True).load(steps(graph=False)).bind(inputs())
    call()
    with pytest.raises(Exception, match="cannot be a graph"):
        call()


def without_join(texts):
    """The compute stream does not wait for the end of the collective."""
    lines = texts.collectives.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if "@cuStreamWaitEvent(%" in line)
    name = lines[last].split(" = ")[0].strip()
    lines[last] = f"{name} = llvm.mlir.constant(0 : i32) : i32\n"
    return type(texts)(texts.step, "".join(lines))


def test_a_capture_that_is_not_joined_is_refused():
    call = engine(checks=False, graph=True).load(steps(change=without_join)).bind(inputs())
    call()
    with pytest.raises(RankError, match="CUDA_ERROR_STREAM_CAPTURE_UNJOINED"):
        call()


def traced_calls():
    """The functions that rank 1 calls from load to the end of a run, in order."""
    executable = engine().load(steps())
    executable.run(inputs())
    executable.close()
    return executable.recorder.calls[1]


CALLS = traced_calls()


@sampled(4)
@pytest.mark.parametrize("number", range(1, len(CALLS) + 1))
def test_any_call_may_fail(number):
    """Its name and code are told, nothing is left, and the other rank does not hang."""
    name = CALLS[number - 1]
    code = {"cuda": 2, "nccl": 3, "cublaslt": 3}[interface.SIGNATURES[name].library]
    made = engine(failures=[InjectedFailure(1, number, code)], timeout=5.0)
    closing = number > CALLS.index("cuMemcpyDtoHAsync_v2") + 3  # of what failed then, nobody asks
    seen = []

    def load_and_run():
        executable = made.load(steps())
        seen.append(executable)
        executable.run(inputs())

    if closing:
        load_and_run()
    else:
        meaning = interface.error_name(interface.SIGNATURES[name].library, code)
        with pytest.raises(RankError) as caught:
            load_and_run()
        line = str(caught.value)
        assert "\n" not in line and meaning in line and line.startswith("rank 1")
    for executable in seen:
        executable.close()
        if not closing:
            assert executable.recorder.live() == []


def test_a_failed_program_is_loaded_anew_by_the_next_run():
    failing = InjectedFailure(1, 1, 700, "cuLaunchKernel")
    executable = engine(failures=[failing]).load(steps())
    line = r"^rank 1 failed in twice at test.mlir:1:1: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)$"
    with pytest.raises(RankError, match=line):
        executable.run(inputs())
    executable.engine.failures = ()
    assert executable.run(inputs())[0][0][0] == 7


def test_a_failed_collective_is_named():
    executable = engine(failures=[InjectedFailure(0, 1, 2, "ncclAllReduce")]).load(steps())
    line = r"^rank 0 failed in all_reduce_sum_f32 at test.mlir:2:1: ncclSystemError \(2\)$"
    with pytest.raises(RankError, match=line):
        executable.run(inputs())


def test_host_code_and_runtime_agree_on_every_signature():
    """What the compiler declares is what the table says."""
    from meshweave.lowering.gpu.host.calls import SIGNATURES

    kinds = {"!llvm.ptr": 8, "i64": 8, "i32": 4}
    assert set(SIGNATURES) <= set(interface.HOST)
    for name, types in SIGNATURES.items():
        table = interface.SIGNATURES[name]
        assert [kinds[t] for t in types] == [ctypes.sizeof(t) for t in table.arguments], name


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0x42BC, "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
        (0x2006, "ncclRemoteError (6)"),
        (0x100F, "CUBLAS_STATUS_NOT_SUPPORTED (15)"),
        (0x4123, "cuda error 291"),
        (7, "code 7"),
    ],
)
def test_what_codes_mean(code, said):
    assert interface.meaning(code) == said


def test_structures_have_the_sizes_of_the_libraries():
    assert ctypes.sizeof(interface.UniqueId) == 128
    assert ctypes.sizeof(interface.Heuristic) == 96
