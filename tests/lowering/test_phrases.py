"""The phrases of host code, each run; and that objects which are loaded together define no name twice."""

import ctypes
import threading
import time

import numpy as np
import pytest

from meshweave.lowering import phrases
from meshweave.lowering.collectives import collectives_object, compile_text
from meshweave.lowering.serve import serve_object
from meshweave.runtime.loader import LoadedCode, load

LIBC = ctypes.CDLL(None)
OUTSIDE = ("syscall", "sched_yield", "memcpy", "memmove")


def compiled(text: str) -> LoadedCode:
    declared = f"llvm.func @syscall{phrases.SYSCALL}\nllvm.func @sched_yield() -> i32\n"
    return load([compile_text(f"module {{{declared}{text}}}", OUTSIDE)], libraries=[LIBC])


def function(code: LoadedCode, name: str, arguments: int, result: type | None = None):
    types = [ctypes.c_int64] * arguments
    made = ctypes.CFUNCTYPE(result, *types)(code.address(name))
    made.code = code  # which lives as long as its function does
    return made


def test_fields_words_and_copies():
    code = compiled(f"""
llvm.func @move(%from: !llvm.ptr, %to: !llvm.ptr, %i: i64) -> i64 {{
{phrases.constants(nbytes=16, less=-5)}{phrases.field("%a", "%from", 4, "i32")}
{phrases.word("%b", "%from", 2)}{phrases.at("%c_at", "%from", "%i", "i64")}
  %c = llvm.load %c_at : !llvm.ptr -> i64{phrases.copy("%to", "%from", "%nbytes")}
  %a_wide = llvm.sext %a : i32 to i64
  %ab = llvm.mul %a_wide, %b : i64
  %abc = llvm.add %ab, %c : i64
  %sum = llvm.add %abc, %less : i64
  llvm.return %sum : i64
}}""")
    source, target = np.arange(1, 9, dtype=np.int64), np.zeros(8, np.int64)
    source.view(np.int32)[1] = -3
    made = function(code, "move", 3, ctypes.c_int64)(source.ctypes.data, target.ctypes.data, 5)
    assert made == -3 * 3 + 6 - 5
    assert list(target[:2]) == list(source[:2]) and not target[2:].any()


def test_a_group_is_found_in_the_table_of_a_rank():
    code = compiled(f"""
llvm.func @group(%ctx: !llvm.ptr, %number: i64) -> i64 {{{phrases.GROUP}
  %size = llvm.load %group : !llvm.ptr -> i64
  %sum = llvm.mul %size, %me : i64
  llvm.return %sum : i64
}}""")
    record = np.array([7], np.int64)
    table = np.array([0, 0, 0, 0, -1, -1, record.ctypes.data, 6], np.int64)
    assert function(code, "group", 2, ctypes.c_int64)(table.ctypes.data, 1) == 42


def test_a_loop_goes_on_until_a_call_fails_and_looks_both_ways():
    code = compiled(f"""
llvm.func @sum(%me: i64, %size: i64, %bad: i64) -> i64 {{
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %cell = llvm.alloca %c1 x i64 : (i64) -> !llvm.ptr
  llvm.store %c0, %cell : i64, !llvm.ptr
  %ok = arith.constant 0 : i32
  %all = scf.for %distance = %c0 to %size step %c1 iter_args(%sofar = %ok) -> (i32) : i64 {{
{phrases.around("%to", "%from")}{
        phrases.unless_failed('''
    %old = llvm.load %cell : !llvm.ptr -> i64
    %ten = arith.constant 10 : i64
    %hundred = arith.constant 100 : i64
    %shifted = arith.muli %old, %hundred : i64
    %tens = arith.muli %to, %ten : i64
    %both = arith.addi %tens, %from : i64
    %new = arith.addi %shifted, %both : i64
    llvm.store %new, %cell : i64, !llvm.ptr
    %fails = arith.cmpi eq, %distance, %bad : i64
    %r = arith.extui %fails : i1 to i32''')
    }
  }}
  %found = llvm.load %cell : !llvm.ptr -> i64
  %wide = arith.extsi %all : i32 to i64
  %tens_found = arith.constant 10 : i64
  %before = arith.muli %found, %tens_found : i64
  %kept = arith.addi %before, %wide : i64
  llvm.return %kept : i64
}}""")
    run = function(code, "sum", 3, ctypes.c_int64)
    assert run(1, 4, -1) == 11_20_33_02_0  # (to, from) at each distance, then the code
    assert run(1, 4, 2) == 11_20_33_1


WAIT = f"""
llvm.func @wait(%counters: !llvm.ptr, %wanted: i64, %spins: i64, %size: i64) -> i32 {{
{phrases.constants(zero=0, one=1, left=99)}
  %ok = llvm.mlir.constant(0 : i32) : i32
  %gone = llvm.mlir.constant(9 : i32) : i32{
    phrases.wait_for_members(
        phrases.at("%counter", "%counters", "%j", "i64"),
        '''
  %stop = llvm.icmp "eq" %count, %left : i64
  llvm.cond_br %stop, ^out(%gone : i32), ^stay
^stay:''',
        '''
  %yielded = llvm.call @sched_yield() : () -> i32''',
        '''
  %number = llvm.trunc %j : i64 to i32
  %told = llvm.add %result, %number : i32''',
        "%told",
    )
}
}}"""


@pytest.mark.parametrize("spins", [0, 1 << 40])
def test_a_wait_ends_when_the_last_member_has_come(spins):
    wait = function(compiled(WAIT), "wait", 4, ctypes.c_int32)
    counters, ended = np.array([4, 3, 5, 2], np.int64), []
    thread = threading.Thread(
        target=lambda: ended.append(wait(counters.ctypes.data, 4, spins, 4)), daemon=True
    )
    thread.start()
    for late in (3, 1):
        time.sleep(0.02)
        assert not ended
        counters[late] = 4
    thread.join(20)
    assert ended == [0 + 1 + 2 + 3]


def test_a_wait_may_be_left():
    wait = function(compiled(WAIT), "wait", 4, ctypes.c_int32)
    counters = np.array([100, 98], np.int64)
    counters[1] = 99
    assert wait(counters.ctypes.data, 100, 4, 2) == 9
    assert wait(counters.ctypes.data, 100, 4, 1) == 0


def test_a_sleeper_is_woken_by_a_post():
    code = compiled(f"""
llvm.func @rest(%word: !llvm.ptr, %seen: i64, %sleepers: !llvm.ptr) {{{
        phrases.constants(zero=0, one=1)
    }
  %null = llvm.mlir.zero : !llvm.ptr
  %ignored = llvm.atomicrmw xchg %sleepers, %one seq_cst : !llvm.ptr, i64
{phrases.futex(phrases.SLEEP | phrases.PRIVATE, "%word", "%seen", "%null")}
  {phrases.store_release("%zero", "%sleepers")}
  llvm.return
}}
llvm.func @post(%word: !llvm.ptr, %number: i64, %sleepers: !llvm.ptr) {{{
        phrases.constants(zero=0, one=1)
    }
  %null = llvm.mlir.zero : !llvm.ptr{
        phrases.post(
            "%word",
            "%number",
            "%sleepers",
            phrases.futex(phrases.WAKE | phrases.PRIVATE, "%word", "%one", "%null"),
        )
    }
}}""")
    rest, post = function(code, "rest", 3), function(code, "post", 3)
    words = np.zeros(2, np.int64)
    word, sleepers = words.ctypes.data, words.ctypes.data + 8
    thread = threading.Thread(target=lambda: rest(word, 0, sleepers), daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not words[1] and time.monotonic() < deadline:
        time.sleep(0.001)
    post(word, 5, sleepers)
    thread.join(20)
    assert not thread.is_alive() and list(words) == [5, 0]
    rest(word, 4, sleepers)  # returns at once: the number is no longer what it had seen


def test_objects_of_one_program_define_no_name_twice():
    symbols = ["mw_all_gather", "mw_exchange", "mw_all_reduce_sum_f32"]
    wanted = [s + end for s in symbols for end in ("", "_start", "_wait")] + ["mw_all_to_all_box"]
    collectives = load([collectives_object("local", wanted)], libraries=[LIBC])
    served = load([serve_object()], libraries=[LIBC])
    names = {"mw_serve", "mw_call", "mw_finish", "mw_stop", "mw_post"}
    assert {name for name in names if name in served} == names - {"mw_post"}
    assert not set(served._symbols) & set(collectives._symbols)
