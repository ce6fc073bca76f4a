"""`mw.trace`: slices of each rank, the file, and what is left when it is over."""

import itertools
import json
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from commands import meshweave

import meshweave as mw
from meshweave.abi import StatusRow, TraceBuffer
from meshweave.bundle import Manifest, OpInfo
from meshweave.errors import MeshweaveError, RankError, UsageError
from meshweave.lowering.host.slices import ALONE
from meshweave.runtime.tracing import Marks, Slice
from meshweave.see.trace import RankTrace, slices_of

X = np.arange(64, dtype=np.float32).reshape(8, 8)
W = np.ones((8, 8), np.float32)


@pytest.fixture
def layer() -> mw.Program:
    f = mw.jit(
        lambda x, w: mw.exp(x @ w * 1e-3) @ w,
        mesh="dp=2, tp=2", in_layouts=("[dp, tp]", "[tp, _]"), out_layouts="[dp, _]",
    )  # fmt: skip
    yield f
    f.close()


def outer(slices: tuple[Slice, ...], rank: int) -> list[Slice]:
    """The slices of a rank that lie in no other."""
    found: list[Slice] = []
    for each in (s for s in slices if s.rank == rank):
        if found and each.start < found[-1].end - 1e-6:
            assert each.kind == "wait" and each.end <= found[-1].end + 1e-6
        else:
            found.append(each)
    return found


def test_each_rank_has_its_slices_in_order(layer: mw.Program) -> None:
    plain = np.asarray(layer(X, W))
    ops = [c.op for c in layer._last.program.bundle.manifest.collectives]
    with mw.trace() as t:
        for _ in range(3):
            assert np.array_equal(np.asarray(layer(X, W)), plain)
    assert (t.calls, t.dropped, t.unseen) == (3, 0, 0)
    for rank in range(4):
        row = outer(t.slices, rank)
        moved = [s for s in row if s.kind == "collective"]
        assert [s.name.partition("[")[0] for s in moved] == ops * 3
        assert [s.call for s in row] == sorted(s.call for s in row)
        assert {"matrix product"} <= {s.name for s in row if s.kind == "kernel"}
        assert all(s.duration >= 0 and "test_trace.py:" in s.where for s in row)


def test_a_first_call_and_short_calls_are_traced_alike(layer: mw.Program) -> None:
    with mw.trace() as t:
        for _ in range(4):
            layer(X, W)
    counts = {(s.rank, s.call): 0 for s in t.slices}
    for s in t.slices:
        counts[s.rank, s.call] += s.kind != "wait"
    assert len(counts) == 16 and len(set(counts.values())) == 1


def test_nothing_is_recorded_when_it_is_over(layer: mw.Program) -> None:
    with mw.trace() as t:
        layer(X, W)
    count = len(t.slices)
    layer(X, W)
    executable = layer._last.program.executable
    assert len(t.slices) == count and executable._marks is None
    assert not executable._board.rows[:, StatusRow.TRACE].any()


def test_a_trace_ends_when_the_call_of_another_thread_has(layer: mw.Program) -> None:
    layer(X, W)
    executable = layer._last.program.executable
    executable._busy.acquire()  # as a call does, whose ranks may be about to write a mark
    executable._marks = marks = Marks(range(4), 8)
    marks.show(executable._board)
    ending = Thread(target=executable.untrace)
    ending.start()
    ending.join(0.1)
    assert executable._marks is marks and executable._board.rows[:, StatusRow.TRACE].all()
    executable._busy.release()
    ending.join()
    assert executable._marks is None and not executable._board.rows[:, StatusRow.TRACE].any()


def test_marks_beyond_the_room_are_counted(layer: mw.Program) -> None:
    layer(X, W)
    with mw.trace() as t:
        layer(X, W)
    per_rank = len(outer(t.slices, 0)) + 1  # a slice ends at the next mark
    with mw.trace(room=2) as small:
        layer(X, W)
    assert small.dropped == 4 * (per_rank - 2)
    assert all(len(outer(small.slices, rank)) == 1 for rank in range(4))
    with mw.trace(room=3 * per_rank - 1) as t:  # all of the third call but its end
        for _ in range(5):
            layer(X, W)
    calls = [[s.name for s in outer(t.slices, 0) if s.call == call] for call in range(4)]
    assert (t.calls, t.dropped) == (3, 4 * (2 * per_rank + 1))
    assert len(calls[0]) == per_rank - 1 and calls == [calls[0], calls[0], calls[0][:-1], []]


def test_a_call_that_fails_is_traced_until_then(times: int) -> None:
    @mw.jit(mesh="x=2", in_layouts=("[]", "[x]"), timeout=0.3 * times)
    def count(n: mw.Array, v: mw.Array) -> mw.Array:
        start = (mw.asarray(0, dtype=mw.int64), v)
        return mw.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + 1.0), start)[1]

    few, most, v = np.int64(3), np.int64(2 * 10**12), np.ones(8, np.float32)
    with mw.trace() as t:
        count(few, v)
        with pytest.raises(RankError):
            count(most, v)
        count(few, v)
    assert t.calls == 3
    for rank in range(2):
        loops = [s for s in outer(t.slices, rank) if s.name == "loop"]
        assert [s.call for s in loops] == [0, 1, 2]
        assert (
            loops[1].duration > 0.25e9 * times > loops[2].duration
            and "test_trace.py:" in loops[0].where
        )
    count.close()


def test_small_kernels_share_a_slice() -> None:
    @mw.jit
    def chain(x: mw.Array) -> mw.Array:
        for _ in range(20):
            x = (x + mw.sum(x, axis=0, keepdims=True)) * 0.5
        rounds = (mw.asarray(0), x)
        return mw.while_loop(lambda c: c[0] < 50, lambda c: (c[0] + 1, c[1] + c[1].T), rounds)[1]

    with mw.trace() as t:
        chain(X)
    kernels = [s.name for s in t.slices if s.rank == 0]
    assert kernels[:ALONE] == ["loops"] * (ALONE - 1) + [f"loops and {40 - ALONE} more"]
    assert kernels[ALONE:] == ["loop"]


def test_the_engine_mpi_writes_marks() -> None:
    f = mw.jit(
        lambda x: mw.exp(x), mesh="x=2", in_layouts="[x, _]", out_layouts="[_, _]", engine="mpi"
    )
    with mw.trace() as t:
        assert np.allclose(np.asarray(f(X * 0)), 1)
        f(X)
    for rank in range(2):
        assert [s.kind for s in outer(t.slices, rank)] == ["kernel", "collective"] * 2
    f.close()


def test_a_wait_ends_when_the_last_member_arrives() -> None:
    manifest = Manifest(
        *("x=2, y=2", "local", (), (), 0),
        ops=(OpInfo(1, "all_reduce[x] f32 4", "a.py:3:1", 8, ("x",)),),
        marks=(OpInfo(0, "loops", "a.py:2:1"), OpInfo(1, "copy", "a.py:1:1")),
    )
    kernel, copy = TraceBuffer.KERNEL, TraceBuffer.KERNEL + 1
    begins = {0: 10.0, 1: 30.0, 2: 25.0, 3: 12.0}  # groups over x: ranks 0 and 2, 1 and 3
    spans = {
        rank: np.array([[0.0, 5.0, kernel], [5.0, at, copy], [at, 40.0, 1]])
        for rank, at in begins.items()
    }
    found = list(slices_of(manifest, 0, spans))
    waits = {s.rank: (s.start, s.end, s.waits_for) for s in found if s.kind == "wait"}
    assert waits == {0: (10.0, 25.0, 2), 3: (12.0, 30.0, 1)}
    assert [(s.kind, s.start, s.end, s.nbytes) for s in found if s.rank == 1] == [
        *(("kernel", 0.0, 5.0, 0), ("copy", 5.0, 30.0, 0), ("collective", 30.0, 40.0, 8)),
    ]


def test_the_file_has_a_track_for_each_rank(tmp_path: Path, layer: mw.Program) -> None:
    with mw.trace() as t:
        layer(X, W)
    file = tmp_path / "t.json"
    t.save(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {rank: f"rank {rank}" for rank in range(4)}
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(t.slices) and {e["tid"] for e in complete} == set(range(4))
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["pid"] == 0 for e in complete)
    assert all(e["args"]["bytes"] > 0 for e in complete if e["cat"] == "collective")
    assert all("x @ w" in e["args"]["code"] for e in complete if e["name"] == "matrix product")


def test_a_program_in_a_file_and_its_bundle_are_traced(tmp_path: Path) -> None:
    program = tmp_path / "p.mlir"
    program.write_text(
        'func.func @main(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x]">})\n'
        '    -> (tensor<8xf32> {dist.layout = #dist.layout<"[_]">}) {\n'
        "  %e = math.exp %a : tensor<8xf32>\n  return %e : tensor<8xf32>\n}\n"
        '"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()\n'
    )
    bundle, out = tmp_path / "p.mwb", tmp_path / "t.json"
    assert meshweave("compile", program, "-o", bundle).status == 0
    for file in (program, bundle):
        assert meshweave("run", file, "--trace", out, "--repeat", 2).status == 0
        events = json.loads(out.read_text())["traceEvents"]
        gathers = [e for e in events if e.get("cat") == "collective"]
        assert len(gathers) == 4 and "p.mlir:3:8" in gathers[0]["args"]["where"]
        out.unlink()
    refused = meshweave("run", program, "--trace", tmp_path / "none" / "t.json")
    assert refused.status == 2 and refused.err.count("\n") == 1, refused


def test_a_trace_within_a_trace_is_refused() -> None:
    with mw.trace(), pytest.raises(UsageError, match="a trace is under way already"), mw.trace():
        pass
    with pytest.raises(UsageError, match="room=0, a number of marks of at least 1"):
        RankTrace(0)


def test_room_that_there_is_no_memory_for_is_refused(layer: mw.Program) -> None:
    layer(X, W)
    refused = (
        r"trace: no memory for .*, 1,1\S* marks of each of 4 ranks: a smaller room= takes less"
    )
    with mw.trace(room=1 << 60), pytest.raises(MeshweaveError, match=refused):
        layer(X, W)
    assert np.asarray(layer(X, W)).shape == (8, 8)


def test_engine_emulate_says_what_each_device_did() -> None:
    pytest.importorskip("llvmlite")
    f = mw.jit(
        lambda a, b: mw.tanh(a @ b),
        mesh="x=2, y=2", in_layouts=("[x, _]", "[_, y]"), out_layouts="[_, y]", engine="emulate",
    )  # fmt: skip
    a, b = np.ones((16, 32), np.float32), np.ones((32, 8), np.float32)
    f(a, b)
    with mw.trace() as t:
        found = f(a, b)
        assert np.allclose(np.asarray(found), np.tanh(a @ b), rtol=1e-5)
    manifest = f.lower(a, b).compile().program.bundle.manifest
    assert (t.calls, t.unseen) == (1, 0)
    for rank in range(4):
        own = [s for s in t.slices if s.rank == rank]
        moves = [s for s in own if s.kind == "collective"]
        assert [s.nbytes for s in moves] == [info.bytes for info in manifest.collectives]
        assert {"kernel", "copy"} <= {s.kind for s in own}
        work = [s for s in own if s.kind != "wait"]
        assert all(s.duration > 0 and s.start >= 0 for s in work)
        assert all(a.end <= b.start for a, b in itertools.pairwise(work))
    waits = [s for s in t.slices if s.kind == "wait"]
    assert waits and all(s.waits_for != s.rank and s.waits_for in range(4) for s in waits)
    marks = 2 * sum(s.rank == 0 and s.kind != "wait" for s in t.slices)
    executable = f._last.program.executable
    calls = executable.recorder.calls[0]
    f(a, b)
    calls.clear()
    f(a, b)
    untraced = calls.count("cuEventRecord")
    assert "cuEventElapsedTime" not in calls
    assert not executable.board.rows[:, StatusRow.TRACE].any()
    with mw.trace(room=2 * marks) as t:  # events are read before the third call
        for _ in range(4):
            calls.clear()
            f(a, b)
    found = [
        [s.name for s in t.slices if (s.rank, s.call) == (1, n) and s.kind != "wait"]
        for n in range(4)
    ]
    assert t.dropped == 0 and len(found[0]) == marks // 2 and found == [found[0]] * 4
    with mw.trace(room=marks // 2) as t:
        f(a, b)
    assert t.dropped == 4 * (marks // 2 - marks // 4)
    calls.clear()
    f(a, b)
    assert calls.count("cuEventRecord") == untraced
    f.close()
