"""How a call reaches the ranks of the `local` engine: compiled code in each rank's thread waits for the next one, so
that a call is a few stores and Python is on nobody's path.

`mw_serve(block, rank)` is where the thread of a rank other than 0 stays: it looks for the next call for a while, then
sleeps until it is woken. `mw_call(block, contexts)` hands each rank its table, runs rank 0 itself, and waits for the
others; `mw_finish(block)` waits again where it gave up waiting for a moment. `mw_stop(block)` lets the ranks leave.
Where things lie is said by `abi.ServeBlock`.

No call is missed by who sleeps: see `phrases.post`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from meshweave.abi import RETURNED, RUNNING, STATE, ServeBlock, Slots, WorldLayout
from meshweave.lowering.collectives import kept_text
from meshweave.lowering.phrases import (
    PAUSE,
    PRIVATE,
    SLEEP,
    SYSCALL,
    WAKE,
    at,
    constants,
    field,
    futex,
    load_atomic,
    post,
    store_release,
)

SYMBOLS = ("mw_serve", "mw_call", "mw_finish", "mw_stop")
_TICK = 50_000_000  # nanoseconds that `mw_finish` sleeps before it comes back to its caller


@lru_cache(maxsize=1)
def serve_object() -> bytes:
    """The ELF object with the functions."""
    return kept_text(_TEXT, ("syscall", "sched_yield"))


def can_be_served(bodies: Iterable[Sequence[Any]]) -> bool:
    """Whether every call of a program ends for sure, whatever its data: the caller cannot leave it. bodies: the
    entries of its functions.
    """
    return not any(_loops(entries) for entries in bodies)


def _loops(entries: Sequence[Any]) -> bool:
    """Whether there is a loop that data may keep going."""
    for entry in entries:
        if getattr(entry, "what", "") == "scf.while":
            return True
        if any(_loops(body) for body in getattr(entry, "bodies", ())):
            return True
    return False


def _line(rank: str) -> str:
    """%line: the rank's part of the block."""
    return f"""{constants(line_bytes=ServeBlock.RANK_BYTES)}
  %line_offset = llvm.mul {rank}, %line_bytes : i64
{at("%lines", "%block", ServeBlock.RANKS)}{at("%line", "%lines", "%line_offset")}
{at("%go", "%line", ServeBlock.GO)}{at("%context_at", "%line", ServeBlock.CONTEXT)}
{at("%server_sleeps", "%line", ServeBlock.SERVER_SLEEPS)}{at("%done", "%line", ServeBlock.DONE)}
{at("%result_at", "%line", ServeBlock.RESULT)}
{at("%caller_sleeps", "%line", ServeBlock.CALLER_SLEEPS)}"""


_CONSTANTS = f"""{constants(zero=0, one=1)}
  %null = llvm.mlir.zero : !llvm.ptr"""

# A rank's step, with its row of the status board, its result, and the abort flag.
_RUN = f"""
llvm.func @mw_serve_run(%block: !llvm.ptr, %rank: i64, %context: !llvm.ptr) {{
  {_CONSTANTS}{_line("%rank")}{constants(running=RUNNING, returned=RETURNED)}
  %ok = llvm.mlir.constant(0 : i32) : i32
{field("%row", "%context", 8 * Slots.status, "!llvm.ptr")}
{at("%finished", "%row", 8)}{at("%state", "%row", 8 * STATE)}
  llvm.store volatile %zero, %row : i64, !llvm.ptr
  llvm.store volatile %zero, %finished : i64, !llvm.ptr
  llvm.store volatile %running, %state : i64, !llvm.ptr
{field("%step", "%block", ServeBlock.STEP, "!llvm.ptr")}
  %code = llvm.call %step(%context) : !llvm.ptr, (!llvm.ptr) -> i32
  %wide = llvm.zext %code : i32 to i64
  llvm.store %wide, %result_at : i64, !llvm.ptr
  %bad = llvm.icmp "ne" %code, %ok : i32
  llvm.cond_br %bad, ^abort, ^end
^abort:{field("%world", "%block", ServeBlock.WORLD, "!llvm.ptr")}
{at("%flag", "%world", WorldLayout.ABORT)}{store_release("%one", "%flag")}
  llvm.br ^end
^end:
  llvm.store volatile %returned, %state : i64, !llvm.ptr
  llvm.return
}}
"""

# Publish a number that somebody may sleep on.
_POST = f"""
llvm.func @mw_serve_post(%word: !llvm.ptr, %number: i64, %sleeps: !llvm.ptr) {{
  {_CONSTANTS}{post("%word", "%number", "%sleeps", futex(WAKE | PRIVATE, "%word", "%one", "%null"))}
}}
"""

# Wait until the number is no longer `seen`: look again soon, after a while let others have the processor between two
# looks, then sleep, once, until woken or for as long as `timeout` says. Returns the number, which may still be `seen`.
_WAIT = f"""
llvm.func @mw_serve_wait(%block: !llvm.ptr, %word: !llvm.ptr, %seen: i64, %sleeps: !llvm.ptr,
    %timeout: !llvm.ptr) -> i64 attributes {{no_inline}} {{{_CONSTANTS}{constants(half=(1 << 32) - 1)}
{field("%spins", "%block", ServeBlock.SPINS)}{field("%yields", "%block", ServeBlock.YIELDS)}
  %most = llvm.add %spins, %yields : i64
  llvm.br ^look(%zero : i64)
^look(%n: i64):{load_atomic("%number", "%word", "acquire")}
  %same = llvm.icmp "eq" %number, %seen : i64
  llvm.cond_br %same, ^again, ^out(%number : i64)
^again:
  %n1 = llvm.add %n, %one : i64
  %soon = llvm.icmp "slt" %n, %spins : i64
  llvm.cond_br %soon, ^pause, ^later
^pause:{PAUSE}
  llvm.br ^look(%n1 : i64)
^later:
  %awake = llvm.icmp "slt" %n, %most : i64
  llvm.cond_br %awake, ^yield, ^sleep
^yield:
  %ignored = llvm.call @sched_yield() : () -> i32
  llvm.br ^look(%n1 : i64)
^sleep:
  %told = llvm.atomicrmw xchg %sleeps, %one seq_cst : !llvm.ptr, i64
  {load_atomic("%now", "%word", "seq_cst")}
  %still = llvm.icmp "eq" %now, %seen : i64
  llvm.cond_br %still, ^down, ^up
^down:
  %low = llvm.and %seen, %half : i64{futex(SLEEP | PRIVATE, "%word", "%low", "%timeout")}
  llvm.br ^up
^up:{store_release("%zero", "%sleeps")}{load_atomic("%last", "%word", "acquire")}
  llvm.br ^out(%last : i64)
^out(%result: i64):
  llvm.return %result : i64
}}
"""


def _wait(name: str, word: str, seen: str, sleeps: str, timeout: str) -> str:
    return f"""
  {name} = llvm.call @mw_serve_wait(%block, {word}, {seen}, {sleeps}, {timeout})
    : (!llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i64"""


_SERVE = f"""
llvm.func @mw_serve(%block: !llvm.ptr, %rank: i64) {{
  {_CONSTANTS}{_line("%rank")}
  %before = llvm.load %done : !llvm.ptr -> i64
  llvm.br ^look(%before : i64)
^look(%seen: i64):{_wait("%asked", "%go", "%seen", "%server_sleeps", "%null")}
  %new = llvm.icmp "ne" %asked, %seen : i64
  llvm.cond_br %new, ^run, ^look(%seen : i64)
^run:
  %context = llvm.load %context_at : !llvm.ptr -> !llvm.ptr
  %none = llvm.icmp "eq" %context, %null : !llvm.ptr
  llvm.cond_br %none, ^leave, ^call
^call:
  llvm.call @mw_serve_run(%block, %rank, %context) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.call @mw_serve_post(%done, %asked, %caller_sleeps) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.br ^look(%asked : i64)
^leave:
  llvm.call @mw_serve_post(%done, %asked, %caller_sleeps) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.return
}}
"""

# Each rank's next table; a null pointer lets it leave.
_START = f"""
llvm.func @mw_serve_start(%block: !llvm.ptr, %rank: i64, %number: i64, %context: !llvm.ptr) {{
  {_CONSTANTS}{_line("%rank")}
  llvm.store %context, %context_at : !llvm.ptr, !llvm.ptr
  llvm.call @mw_serve_post(%go, %number, %server_sleeps) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.return
}}
"""


def _for_each_rank(body: str) -> str:
    """Loop over the ranks from 1 on: %rank; `body` ends where the loop goes on."""
    return f"""{field("%ranks", "%block", ServeBlock.NRANKS)}
  llvm.br ^rank(%one : i64)
^rank(%rank: i64):
  %more = llvm.icmp "slt" %rank, %ranks : i64
  llvm.cond_br %more, ^each, ^after
^each:{body}
  %next = llvm.add %rank, %one : i64
  llvm.br ^rank(%next : i64)
^after:"""


_NUMBER = field("%number", "%block", ServeBlock.NUMBER)
_NEXT = f"""{_NUMBER}
  %new = llvm.add %number, %one : i64
  llvm.store %new, %number_at : i64, !llvm.ptr"""

_CALL = f"""
llvm.func @mw_call(%block: !llvm.ptr, %contexts: !llvm.ptr) -> i32 {{
  {_CONSTANTS}{_NEXT}{
    _for_each_rank(f'''
{at("%entry", "%contexts", "%rank", "!llvm.ptr")}
  %context = llvm.load %entry : !llvm.ptr -> !llvm.ptr
{field("%row", "%context", 8 * Slots.status, "!llvm.ptr")}{at("%state", "%row", 8 * STATE)}
  llvm.store volatile %zero, %state : i64, !llvm.ptr
  llvm.call @mw_serve_start(%block, %rank, %new, %context)
    : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()''')
}
  %own = llvm.load %contexts : !llvm.ptr -> !llvm.ptr
  llvm.call @mw_serve_run(%block, %zero, %own) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  %result = llvm.call @mw_finish(%block) : (!llvm.ptr) -> i32
  llvm.return %result : i32
}}
llvm.func @mw_stop(%block: !llvm.ptr) {{
  {_CONSTANTS}{_NEXT}{
    _for_each_rank('''
  llvm.call @mw_serve_start(%block, %rank, %new, %null) : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()''')
}
  llvm.return
}}
"""

# 0: all ranks are done; PENDING: one is not, so far.
_FINISH = f"""
llvm.mlir.global private constant @mw_serve_tick(dense<[0, {
    _TICK
}]> : tensor<2xi64>) : !llvm.array<2 x i64>
llvm.func @mw_finish(%block: !llvm.ptr) -> i32 {{
  {_CONSTANTS}{_NUMBER}
  %tick = llvm.mlir.addressof @mw_serve_tick : !llvm.ptr
  %ok = llvm.mlir.constant(0 : i32) : i32
  %pending = llvm.mlir.constant({ServeBlock.PENDING} : i32) : i32{
    _for_each_rank(f'''{_line("%rank")}{load_atomic("%ended", "%done", "acquire")}
  %there = llvm.icmp "eq" %ended, %number : i64
  llvm.cond_br %there, ^on, ^wait
^wait:{_wait("%late", "%done", "%ended", "%caller_sleeps", "%tick")}
  %now = llvm.icmp "eq" %late, %number : i64
  llvm.cond_br %now, ^on, ^leave
^leave:
  llvm.return %pending : i32
^on:''')
}
  llvm.return %ok : i32
}}
"""

_TEXT = f"""module {{
llvm.func @syscall{SYSCALL}
llvm.func @sched_yield() -> i32
{_RUN}{_POST}{_WAIT}{_SERVE}{_START}{_CALL}{_FINISH}}}"""
