"""The shared window of engine mpi: wherever operands lie, whoever shares a host, and when there is
no window.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest
from depth import DEEP, sampled, some, thinned
from lowering.harness import compile_text
from runtime.programs import CallOf, on_rank, program, started

from meshweave.abi import STAGING
from meshweave.errors import RankError
from meshweave.runtime.mpi.engine import MpiEngine, mpiexec
from meshweave.runtime.mpi.window import VARIABLE, populated, wanted
from meshweave.runtime.processes.shared_files import ownerless
from meshweave.runtime.program import load_code

COUNT, RANKS = 100, 3
BYTES = COUNT * 4
AT = 448  # bytes between arena buffers
OPS = ("all_reduce", "in_place", "reduce_scatter", "all_gather", "all_to_all", "permute")


def blocks(op):
    """Blocks of COUNT elements in source and result."""
    found = {"reduce_scatter": (RANKS, 1), "all_gather": (1, RANKS), "all_to_all": (RANKS, RANKS)}
    return found.get(op, (1, 1))


def call(op, src, dst):
    if op in ("all_reduce", "in_place", "reduce_scatter"):
        name = "reduce_scatter" if op == "reduce_scatter" else "all_reduce"
        return CallOf(f"mw_{name}_sum_i32", 0, src, src if op == "in_place" else dst, (COUNT,))
    if op == "permute":
        return CallOf("mw_permute", 0, src, dst, (BYTES, (1, 2, 0), (2, 0, 1)))
    return CallOf(f"mw_{op}", 0, src, dst, (BYTES,))


def moved(src, dst, nbytes):
    """A copy within a rank."""
    own = tuple(range(RANKS))
    return CallOf("mw_permute", 0, src, dst, (nbytes, own, own))


def placed(op, where, staging=0):
    """A program with one collective whose operands lie in the arena, the ports, or one in each."""
    source, target = blocks(op)
    arena, second = ("arena", AT), ("arena", 8 * AT)
    src = arena if where[0] == "arena" else ("input", 0)
    dst = second if where[1] == "arena" else ("output", 0)
    calls = [moved(("input", 0), arena, source * BYTES)] if src == arena else []
    calls.append(call(op, src, dst))
    end = src if op == "in_place" else dst
    if end != ("output", 0):
        calls.append(moved(end, ("output", 0), target * BYTES))
    return program(
        f"x={RANKS}", "mpi", [("x",)],
        [("i32", (source * COUNT,))], [("i32", (target * COUNT,))],
        calls, arena_bytes=16 * AT, staging=staging,
    )  # fmt: skip


def numbers(op):
    size = blocks(op)[0] * COUNT
    return [np.arange(size, dtype="i4") * 7 + 1000 * rank for rank in range(RANKS)]


def right(op, sources, rank):
    own = slice(rank * COUNT, (rank + 1) * COUNT)
    return {
        "all_reduce": lambda: sum(sources),
        "in_place": lambda: sum(sources),
        "reduce_scatter": lambda: sum(sources)[own],
        "all_gather": lambda: np.concatenate(sources),
        "all_to_all": lambda: np.concatenate([s[own] for s in sources]),
        "permute": lambda: sources[(rank + 1) % RANKS],
    }[op]()


@pytest.fixture(scope="module")
def ranks():
    made = started("mpi")
    yield made
    made.close()


WHERES = [("arena", "arena"), ("port", "arena"), ("arena", "port"), ("port", "port")]


@sampled(4)
@pytest.mark.parametrize("op", OPS)
def test_operands_in_the_arena_and_in_ports(ranks, op):
    sources = numbers(op)
    for where in WHERES:
        executable = ranks.load(placed(op, where))
        assert executable.through_window
        found = executable.run([[source] for source in sources])
        for rank in range(RANKS):
            assert (found[rank][0] == right(op, sources, rank)).all(), where
        executable.close()


def test_calls_in_turn_use_their_own_buffers(ranks):
    executable = ranks.load(placed("all_gather", ("port", "port")))
    other = ranks.load(placed("all_reduce", ("port", "port")))
    first = executable.bind([[np.full(COUNT, r + 1, "i4")] for r in range(RANKS)])
    second = executable.bind([[np.full(COUNT, r + 5, "i4")] for r in range(RANKS)])
    third = other.bind([[np.full(COUNT, r + 9, "i4")] for r in range(RANKS)])
    for turn in range(20):
        for bound in (first, second, third, first):
            bound.inputs[1][0][:] = turn
            bound()
        assert first.outputs[2][0][::COUNT].tolist() == [1, turn, 3]
        assert second.outputs[0][0][::COUNT].tolist() == [5, turn, 7]
        assert third.outputs[1][0][0] == 9 + turn + 11
    executable.close()
    other.close()


def test_two_engines_at_once(ranks):
    other = started("mpi")
    bundle = placed("all_reduce", ("arena", "arena"))
    sources = numbers("all_reduce")
    programs = [running.load(bundle) for running in (ranks, other)]
    calls = [executable.bind([[s] for s in sources]) for executable in programs]
    for _ in range(5):
        for bound in calls:
            bound.outputs[0][0][:] = 0
            bound()
            assert (bound.outputs[0][0] == sum(sources)).all()
    other.close()


def test_the_window_is_a_choice(monkeypatch):
    assert wanted(None) and wanted(True) and not wanted(False)
    monkeypatch.setenv(VARIABLE, "0")
    assert wanted(True) and not wanted(None)
    assert not MpiEngine().window


def test_memory_that_is_not_there_is_noticed():
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        base = np.frombuffer(memory, np.uint8).ctypes.data
        assert populated(base, mmap.PAGESIZE)
        os.ftruncate(file.fileno(), 0)  # to write there now would be a bus error
        assert not populated(base, mmap.PAGESIZE)


def test_files_of_windows_that_nobody_uses_are_found():
    began = time.time() - 1
    file, path = tempfile.mkstemp(prefix="mpich_shar_tmp", dir="/dev/shm")
    try:
        os.ftruncate(file, mmap.PAGESIZE)
        assert path not in ownerless(began)
        memory = mmap.mmap(file, mmap.PAGESIZE)
        os.close(file)
        assert path not in ownerless(began)
        memory.close()
        assert path in ownerless(began)
        assert path not in ownerless(time.time() + 10)
    finally:
        os.unlink(path)


def test_ranks_killed_while_they_load_leave_nothing():
    bundle = placed("all_reduce", ("arena", "arena"))
    began = time.time()
    for turn in thinned(range(6), 2):
        running = started("mpi", 60.0)
        job = running.job(RANKS)
        pids = job.pids
        threading.Timer(0.004 * turn, os.kill, (pids[turn % RANKS], signal.SIGKILL)).start()
        with pytest.raises(RankError, match=r"rank \d (died|takes no message)"):
            executable = running.load(bundle)
            bound = executable.bind([[source] for source in numbers("all_reduce")])
            while True:
                bound()
        running.close()
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    end = time.monotonic() + 60  # tests of other processes kill ranks, too, and then tidy up
    while ownerless(began) and time.monotonic() < end:
        time.sleep(0.05)
    assert not ownerless(began)


# Under an mpiexec of the user, inputs and outputs are memory of each rank alone.

INSIDE = """
import json, sys
import numpy as np
from mpi4py import MPI
from meshweave.bundle import Bundle
from meshweave.runtime.mpi.inside import InsideProgram
from meshweave.runtime.processes.shared_files import mpi_memory
rank = MPI.COMM_WORLD.rank
found = {}
for path in sys.argv[1:]:
    program = InsideProgram(Bundle.read(path), timeout=60.0)
    size = program.manifest.inputs[0].local_shape[0]
    runs = [program.run([np.arange(size, dtype="i4") * 7 + 1000 * rank]) for _ in range(3)]
    assert all((run[0] == runs[0][0]).all() for run in runs)
    found[path] = [program._program.groups.shared, runs[0][0].tolist()]
    program.close()
found["files"] = sorted(mpi_memory("self"))
for line in MPI.COMM_WORLD.gather(json.dumps(found)) or []:
    print(line)
"""


def inside(tmp_path, bundles, ranks=RANKS, **environment):
    """What each rank found: for each bundle, which groups are shared, and the first output."""
    paths = []
    for index, bundle in enumerate(bundles):
        paths.append(str(tmp_path / f"{index}.mwb"))
        bundle.write(paths[-1])
    script = tmp_path / "script.py"
    script.write_text(INSIDE)
    done = subprocess.run(
        [mpiexec(), "-n", str(ranks), sys.executable, "-m", "mpi4py", str(script), *paths],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [file for row in found for file in row["files"] if os.path.exists(file)]
    return [[row[path] for path in paths] for row in found]


@pytest.mark.parametrize("staging", some([BYTES, 0, 16 * AT], 3))
def test_memory_of_the_user_goes_through_the_staging_or_the_library(tmp_path, staging):
    cases = thinned([(op, where) for op in OPS for where in WHERES], 3)
    found = inside(tmp_path, [placed(op, where, staging) for op, where in cases])
    for rank, row in enumerate(found):
        for (op, where), (shared, values) in zip(cases, row, strict=True):
            assert shared == [True]
            assert values == right(op, numbers(op), rank).tolist(), (op, where)


def test_one_member_whose_operand_lies_elsewhere_takes_all_to_the_library(tmp_path):
    text = (
        on_rank(1, "", "z")
        + f"""
  %other = llvm.select %isz, %src1, %dst1 : i1, !llvm.ptr
  %nbytes = llvm.mlir.constant({BYTES} : i64) : i64
  %which = llvm.mlir.constant(0 : i64) : i64
  %to = llvm.getelementptr %out_at[0] : (!llvm.ptr) -> !llvm.ptr, i64
  %out = llvm.load %to : !llvm.ptr -> !llvm.ptr
  %mixed = llvm.call @mw_all_gather(%ctx, %which, %other, %out, %nbytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32"""
    )
    place = "\n  %out_at = llvm.getelementptr %ctx[7] : (!llvm.ptr) -> !llvm.ptr, i64"
    bundle = program(
        f"x={RANKS}", "mpi", [("x",)], [("i32", (COUNT,))], [("i32", (RANKS * COUNT,))],
        [moved(("input", 0), ("arena", AT), BYTES), place + text,
         call("all_gather", ("arena", AT), ("arena", 4 * AT))],
        arena_bytes=16 * AT,
    )  # fmt: skip
    found = inside(tmp_path, [bundle])
    for row in found:
        assert row[0] == [[True], np.concatenate(numbers("all_gather")).tolist()]


GROUPS = [("x",), ("y",), ("x", "y")]


def naps(turn):
    """Text: sleep a tenth of a second."""
    return f"""
  %micro{turn} = llvm.mlir.constant(100000 : i32) : i32
  %napped{turn} = llvm.call @usleep(%micro{turn}) : (i32) -> i32"""


def over_groups():
    """all_reduce over each group of a mesh x=2, y=2, several times, between ranks that do and do
    not share a host, while one rank is late.
    """
    calls, last = [], ("input", 0)
    for turn in range(4):
        calls.append(on_rank(turn, naps(turn), f"n{turn}"))
        for group in range(len(GROUPS)):
            following = ("arena", AT * (1 + group % 2 + turn % 2 * 2))
            calls.append(CallOf("mw_all_reduce_sum_i32", group, last, following, (COUNT,)))
            last = following
    calls.append(CallOf("mw_all_reduce_max_i32", 1, last, ("output", 0), (COUNT,)))
    ports = [("i32", (COUNT,))]
    return program(
        "x=2, y=2",
        "mpi",
        GROUPS,
        ports,
        ports,
        calls,
        arena_bytes=8 * AT,
        externals=("usleep", "sleep", "_exit"),
    )


def summed(shared):
    """What over_groups gives."""
    value = np.zeros((2, 2, COUNT), "i4")
    value[:] = np.arange(COUNT) * 7
    value += (1000 * np.arange(4)).reshape(2, 2, 1).astype("i4")
    for _ in range(4):
        for axes in ((0,), (1,), (0, 1)):
            value[:] = value.sum(axis=axes, keepdims=True, dtype="i4")
    return [shared, value[0, 0].tolist()]


def test_hosts_go_through_windows_and_between_them_by_the_library(tmp_path):
    bundle = over_groups()
    found = inside(tmp_path, [bundle], 4, MPIR_CVAR_NUM_CLIQUES="2")
    assert [row[0] for row in found] == [summed([True, False, False])] * 4
    found = inside(tmp_path, [bundle], 4)
    assert [row[0] for row in found] == [summed([True, True, True])] * 4
    if DEEP:
        found = inside(tmp_path, [bundle], 4, **{VARIABLE: "0"})
        assert [row[0] for row in found] == [summed([False, False, False])] * 4


LOCAL = """
module {
  "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
  func.func @main(%a: tensor<12xi32>) -> (tensor<BACKxi32>, tensor<12xi32>) {
    %b = arith.addi %a, %a : tensor<12xi32>
    %0 = "dist.all_reduce"(%b) {axes = ["x"], kind = "sum"} : (tensor<12xi32>) -> tensor<12xi32>
    %1 = OP
    return %1, %0 : tensor<BACKxi32>, tensor<12xi32>
  }
}
"""
GATHER = """"dist.all_gather"(%a) {axes = ["x"], dim = 0} : (tensor<12xi32>) -> tensor<24xi32>"""
REDUCE = (
    """"dist.all_reduce"(%a) {axes = ["x"], kind = "max"} : (tensor<12xi32>) -> tensor<12xi32>"""
)


@sampled(1)
@pytest.mark.parametrize(("op", "back", "most"), [(GATHER, 24, 48), (REDUCE, 12, 112)])
def test_the_compiler_asks_for_room_for_operands_in_memory_of_the_user(tmp_path, op, back, most):
    bundle = compile_text(LOCAL.replace("OP", op).replace("BACK", str(back)), "mpi")
    code, _ = load_code(bundle)
    # The sum is written where it is returned, which members write to: 64 + 48 bytes.
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address(STAGING))() == max(most, 112)
    rows = inside(tmp_path, [bundle], 2)
    sources = [np.arange(12) * 7, np.arange(12) * 7 + 1000]
    first = np.concatenate(sources) if back == 24 else np.maximum(*sources)
    assert rows == [[[[True], first.tolist()]]] * 2
