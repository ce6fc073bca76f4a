"""The sources of the collective runtime: they fit together, and each helper does what it says."""

import ctypes
import threading
import time
from importlib.resources import files

import numpy as np
import pytest

from meshweave.abi import ABORTED, WorldLayout
from meshweave.errors import CompileError
from meshweave.lowering.cpu.collectives.library import (
    Instance,
    abi_numbers,
    link,
    read_source,
)
from meshweave.lowering.cpu.collectives.objects import (
    Collective,
    collectives_object,
    compile_text,
    window_module,
)
from meshweave.lowering.cpu.collectives.serve import SYMBOLS, serve_object
from meshweave.plan.collectives import ROWS
from meshweave.runtime.loader import LoadedCode, load

LIBC = ctypes.CDLL(None)
ROOT = files("meshweave.lowering.cpu.collectives").joinpath("library")
SOURCES = [str(path.relative_to(ROOT).with_suffix("")) for path in sorted(ROOT.rglob("*.mlir"))]
SYSTEM = {"sched_yield", "syscall"}
PRIVATE = {"FUTEX_WAIT": 128, "FUTEX_WAKE": 129, "WAKE_MOST": 1}
LOCAL = [Instance(name) for name in ("table", "meeting", "async", "local")]


def compiled(instances, *exports, **callbacks) -> LoadedCode:
    addresses = {name: ctypes.cast(f, ctypes.c_void_p).value for name, f in callbacks.items()}
    code = load([compile_text(*link(instances, exports))], addresses, [LIBC])
    code.callbacks = callbacks
    return code


def function(code: LoadedCode, name: str, arguments: int, result: type | None = None):
    types = [ctypes.c_int64] * arguments
    made = ctypes.CFUNCTYPE(result, *types)(code.address(name))
    made.code = code  # which lives as long as its function does
    return made


def is_body(text):
    return "{\n" in text or text.startswith("llvm.mlir.global")


@pytest.mark.parametrize("row", [row for row in ROWS if row.mpi], ids=lambda row: row.op)
def test_a_collective_of_the_library_calls_the_function_of_its_row(row):
    symbol = f"mw_{row.op}_sum_f32" if row.reduces else f"mw_{row.op}"
    symbol += "_4" if row.op == "merge" else ""  # of elements of 4 bytes
    assert row.mpi in window_module([Collective.parse(symbol)]).externals


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_as_it_lies_has_the_numbers_of_the_abi(name):
    numbers = abi_numbers()
    for alias, text in read_source(name).aliases.items():
        if alias in numbers:
            assert text.split(":")[0].strip() == str(numbers[alias]), alias
        else:  # a number of the file's own; those of a layout would be a mistake
            assert not alias[1:].split("_")[0].endswith(("Layout", "Record", "Area", "Table"))
            assert not alias[1:].split("_")[0].endswith(("Block", "Words"))


def test_sources_declare_what_others_define_and_nothing_that_they_do_not_use():
    defined, declared = set(SYSTEM), {}
    for name in SOURCES:
        source = read_source(name)
        bodies = "".join(text for text in source.functions.values() if is_body(text))
        for symbol, text in source.functions.items():
            if is_body(text):
                defined.add(symbol)
            else:
                declared.setdefault(symbol, name)
                assert f"@{symbol}(" in bodies, f"{name}.mlir declares @{symbol} for nothing"
        for alias in source.aliases:
            rest = "".join(source.functions.values())
            assert alias in rest, f"{name}.mlir has no use for {alias}"
    unknown = {
        symbol
        for symbol in set(declared) - defined
        if not symbol.startswith(("MPI_", "window_", "copy_block", "Py"))
    }
    assert not unknown


def test_words_and_pointers_are_read():
    code = compiled([Instance("table")], "word", "load_i64", "load_ptr")
    numbers = np.arange(1, 9, dtype=np.int64)
    at = numbers.ctypes.data
    assert function(code, "word", 2, ctypes.c_int64)(at, 2) == 3
    assert function(code, "load_i64", 2, ctypes.c_int64)(at, 40) == 6
    assert function(code, "load_ptr", 2, ctypes.c_void_p)(at, 56) == 8


def test_a_group_is_found_in_the_table_of_a_rank():
    code = compiled([Instance("table")], "group_of", "member_of", "size_of")
    record = np.array([7], np.int64)
    table = np.array([0, 0, 0, 0, -1, -1, record.ctypes.data, 6], np.int64)
    group = function(code, "group_of", 2, ctypes.c_int64)(table.ctypes.data, 1)
    assert group == record.ctypes.data
    assert function(code, "size_of", 1, ctypes.c_int64)(group) == 7
    assert function(code, "member_of", 2, ctypes.c_int64)(table.ctypes.data, 1) == 6


@pytest.mark.parametrize(
    ("number", "step", "end", "part"),
    [(0, 4, 10, 4), (2, 4, 10, 2), (3, 4, 10, 0), (9, 4, 10, 0), (1, 5, 10, 5)],
)
def test_a_part_ends_where_the_whole_does(number, step, end, part):
    code = compiled([Instance("table")], "valid_part")
    assert function(code, "valid_part", 3, ctypes.c_int64)(number, step, end) == part


def test_a_message_goes_on_in_parts_until_one_fails():
    calls, fails_at = [], [99]

    @ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32,
        ctypes.c_int32, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32,
        ctypes.c_int32, ctypes.c_int64, ctypes.c_int64,
    )  # fmt: skip
    def sendrecv(src, n, kind, target, tag, dst, m, kind2, source, tag2, comm, status):
        calls.append((src, n, kind, target, dst, m, kind2, source, comm, status))
        return 5 if len(calls) == fails_at[0] else 0

    sources = [Instance("table"), Instance("mpi/common", numbers={"piece": 10})]
    code = compiled(sources, "send_and_receive", MPI_Sendrecv=sendrecv)
    run = function(code, "send_and_receive", 7, ctypes.c_int32)
    handles, record = np.array([11, 22, 33], np.int64), np.array([3, 44], np.int64)
    table = np.array([0, 0, 0, handles.ctypes.data, record.ctypes.data, 1], np.int64)
    assert run(table.ctypes.data, 0, 1000, 2000, 25, 2, 0) == 0
    rows = [(1000, 10, 2000), (1010, 10, 2010), (1020, 5, 2020)]
    assert calls == [(s, n, 33, 0, d, n, 33, 2, 44, 11) for s, n, d in rows]
    calls.clear()
    fails_at[0] = 2
    assert run(table.ctypes.data, 0, 1000, 2000, 25, 2, 0) == 5 and len(calls) == 2


def test_members_before_and_after():
    code = compiled([Instance("table"), Instance("mpi/common")], "member_after", "member_before")
    after, before = (
        function(code, f"member_{way}", 3, ctypes.c_int64) for way in ("after", "before")
    )
    pairs = [(after(1, distance, 4), before(1, distance, 4)) for distance in range(4)]
    assert pairs == [(1, 1), (2, 0), (3, 3), (0, 2)]


def group_block(arrivals, spins):
    """The memory of a world and of its one group whose members have arrived so often."""
    world = np.zeros(WorldLayout.WORLD_BYTES // 8, np.int64)
    group = np.zeros(WorldLayout.group_bytes(len(arrivals)) // 8, np.int64)
    world[WorldLayout.SPINS // 8] = spins
    group[0], group[WorldLayout.WORLD // 8] = len(arrivals), world.ctypes.data
    counters = group[WorldLayout.MEMBERS // 8 :: WorldLayout.LINE // 8]
    counters[:] = arrivals
    return world, group, counters


def meeting(group, ended):
    meet = function(compiled(LOCAL, "meet"), "meet", 2, ctypes.c_int32)
    thread = threading.Thread(target=lambda: ended.append(meet(group.ctypes.data, 0)), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("spins", [0, 1 << 40])
def test_a_meeting_ends_when_the_last_member_has_come(spins):
    _world, group, counters = group_block([3, 3, 5, 2], spins)
    ended = []
    thread = meeting(group, ended)
    for late in (3, 1):
        time.sleep(0.02)
        assert not ended
        counters[late] = 4
    thread.join(20)
    assert ended == [0] and counters[0] == 4


@pytest.mark.parametrize("spins", [0, 1 << 40])
def test_a_meeting_is_left_when_a_rank_has_failed(spins):
    world, group, _counters = group_block([0, 0, 1], spins)
    ended = []
    thread = meeting(group, ended)
    time.sleep(0.02)
    assert not ended
    world[WorldLayout.ABORT // 8] = 1
    thread.join(20)
    assert ended == [ABORTED]


def test_looks_are_counted_over_all_members():
    rests = []

    @ctypes.CFUNCTYPE(
        None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
    )
    def rest(group, me, counter, count, looks):
        rests.append((count, looks))
        counters[0] += 1

    must_leave = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int64)(lambda group: counters[0] == 9)
    code = compiled([Instance("meeting")], "wait_for_counter", rest=rest, must_leave=must_leave)
    wait = function(code, "wait_for_counter", 6, ctypes.c_int64)
    counters = np.array([3], np.int64)
    assert wait(0, 0, counters.ctypes.data, 5, 0, 7) == 9 and rests == [(3, 7), (4, 8)]
    assert wait(0, 0, counters.ctypes.data, 5, 0, 9) == 9 and len(rests) == 2
    assert wait(0, 0, counters.ctypes.data, 99, 0, 0) == -1 and counters[0] == 9
    assert wait(0, 0, counters.ctypes.data, 0, 0, -1) == -1


def test_a_sleeper_is_woken_by_a_post():
    code = compiled([Instance("futex", numbers=PRIVATE)], "sleep_on", "post_and_wake")
    sleep, post = function(code, "sleep_on", 3), function(code, "post_and_wake", 3)
    words = np.array([0, 1], np.int64)  # the word, and that somebody sleeps on it
    word, sleepers = words.ctypes.data, words.ctypes.data + 8
    asleep = threading.Thread(target=lambda: sleep(word, 0, 0), daemon=True)
    asleep.start()
    time.sleep(0.05)
    assert asleep.is_alive()
    deadline = time.monotonic() + 20
    while asleep.is_alive() and time.monotonic() < deadline:  # it may not have slept yet
        post(word, 5, sleepers)
        asleep.join(0.05)
    assert not asleep.is_alive() and list(words) == [5, 1]
    sleep(word, 4, 0)  # returns at once: the number is no longer what it had seen


def test_a_module_holds_what_is_called_and_exports_what_is_asked_for():
    sources = [*LOCAL, Instance("all_gather"), Instance("all_to_all")]
    linked = link(sources, ["mw_all_gather"])
    assert linked.externals == ("sched_yield",)
    assert "all_to_all" not in linked.text and "@start(" not in linked.text
    exported = [line for line in linked.text.split("\n") if line.startswith("llvm.func @")]
    assert [line.split("(")[0] for line in exported] == [
        "llvm.func @mw_all_gather", "llvm.func @sched_yield",
    ]  # fmt: skip
    with pytest.raises(CompileError, match="the collective runtime has no function mw_gather"):
        link(sources, ["mw_gather"])


def test_objects_of_one_program_define_no_name_twice():
    symbols = ["mw_all_gather", "mw_exchange", "mw_all_reduce_sum_f32"]
    wanted = [s + end for s in symbols for end in ("", "_start", "_wait")] + ["mw_all_to_all_box"]
    collectives = load([collectives_object("local", wanted)], libraries=[LIBC])
    served = load([serve_object()], libraries=[LIBC])
    assert {name for name in served._symbols if not name.startswith("_mlir_")} == set(SYMBOLS)
    plain = {name for name in collectives._symbols if not name.startswith("_mlir_")}
    assert plain == set(wanted)


def test_the_window_module_calls_the_library_and_says_its_staging():
    from meshweave.lowering.cpu.collectives.objects import Collective

    linked = window_module([Collective("all_gather"), Collective("relayout")], staging=640)
    assert "llvm.func @mw_staging() -> i64 {\n  %nbytes = arith.constant 640 : i64" in linked.text
    assert "llvm.func internal @window_all_gather(" in linked.text
    assert "llvm.func @mw_relayout(" in linked.text and "window_relayout" not in linked.text
    assert "MPI_Allgather" in linked.externals and "MPI_Allreduce" not in linked.externals


def test_a_module_without_a_function_for_others_is_refused():
    """LLVM would end the process."""
    with pytest.raises(CompileError, match="defines no function that others may call"):
        collectives_object("local", ())
