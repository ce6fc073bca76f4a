"""How a call reaches the ranks of the `local` engine: compiled code in each rank's thread waits for the next one, so
that a call is a few stores and Python is on nobody's path.

`mw_serve(block, rank)` is where the thread of a rank other than 0 stays: it looks for the next call for a while, then
sleeps until it is woken. `mw_call(block, contexts)` hands each rank its table, runs rank 0 itself, and waits for the
others; `mw_finish(block)` waits again where it gave up waiting for a moment. `mw_stop(block)` lets the ranks leave.
Where things lie is said by `serve_block`.

Whoever sleeps says so before a last look at what it waits for; who changes that looks for sleepers after it: both in
one order of all, so no call is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from meshweave.bundle import Slots, WorldLayout
from meshweave.lowering.collectives import compile_text
from meshweave.serve_block import RETURNED, RUNNING, STATE, ServeBlock

SYMBOLS = ("mw_serve", "mw_call", "mw_finish", "mw_stop")
_FUTEX, _WAIT, _WAKE = 202, 128, 129  # of Linux on x86-64; private to this process
_SYSCALL = "(i64, !llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr, i64) -> i64"
_TICK = 50_000_000  # nanoseconds that `mw_finish` sleeps before it comes back to its caller


@lru_cache(maxsize=1)
def serve_object() -> bytes:
    """The ELF object with the functions."""
    return compile_text(_TEXT, ("syscall", "sched_yield"))


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


def _at(name: str, base: str, offset: int) -> str:
    return f"%{name} = llvm.getelementptr {base}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8"


def _field(name: str, base: str, offset: int, type_: str = "i64") -> str:
    at = _at(f"{name}_at", base, offset)
    return f"{at}\n  %{name} = llvm.load %{name}_at : !llvm.ptr -> {type_}"


def _line(rank: str) -> str:
    """%line: the rank's part of the block."""
    return f"""
  %lines = llvm.getelementptr %block[{ServeBlock.RANKS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %nbytes = llvm.mlir.constant({ServeBlock.RANK_BYTES} : i64) : i64
  %line_offset = llvm.mul {rank}, %nbytes : i64
  %line = llvm.getelementptr %lines[%line_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  {_at("go", "%line", ServeBlock.GO)}
  {_at("context_at", "%line", ServeBlock.CONTEXT)}
  {_at("server_sleeps", "%line", ServeBlock.SERVER_SLEEPS)}
  {_at("done", "%line", ServeBlock.DONE)}
  {_at("result_at", "%line", ServeBlock.RESULT)}
  {_at("caller_sleeps", "%line", ServeBlock.CALLER_SLEEPS)}"""


_CONSTANTS = """
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr"""

# A rank's step, with its row of the status board, its result, and the abort flag.
_RUN = f"""
llvm.func @mw_run(%block: !llvm.ptr, %rank: i64, %context: !llvm.ptr) {{
  {_CONSTANTS}{_line("%rank")}
  %running = llvm.mlir.constant({RUNNING} : i64) : i64
  %returned = llvm.mlir.constant({RETURNED} : i64) : i64
  %ok = llvm.mlir.constant(0 : i32) : i32
  {_field("row", "%context", 8 * Slots.status, "!llvm.ptr")}
  {_at("finished", "%row", 8)}
  {_at("state", "%row", 8 * STATE)}
  llvm.store volatile %zero, %row : i64, !llvm.ptr
  llvm.store volatile %zero, %finished : i64, !llvm.ptr
  llvm.store volatile %running, %state : i64, !llvm.ptr
  {_field("step", "%block", ServeBlock.STEP, "!llvm.ptr")}
  %code = llvm.call %step(%context) : !llvm.ptr, (!llvm.ptr) -> i32
  %wide = llvm.zext %code : i32 to i64
  llvm.store %wide, %result_at : i64, !llvm.ptr
  %bad = llvm.icmp "ne" %code, %ok : i32
  llvm.cond_br %bad, ^abort, ^end
^abort:
  {_field("world", "%block", ServeBlock.WORLD, "!llvm.ptr")}
  {_at("flag", "%world", WorldLayout.ABORT)}
  llvm.store %one, %flag atomic release {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.br ^end
^end:
  llvm.store volatile %returned, %state : i64, !llvm.ptr
  llvm.return
}}
"""


def _futex(what: int, word: str, value: str, timeout: str) -> str:
    return f"""
  %futex = llvm.mlir.constant({_FUTEX} : i64) : i64
  %what = llvm.mlir.constant({what} : i64) : i64
  %slept = llvm.call @syscall(%futex, {word}, %what, {value}, {timeout}, %null, %zero)
    : {_SYSCALL}"""


# Publish a number that somebody may sleep on.
_POST = f"""
llvm.func @mw_post(%word: !llvm.ptr, %number: i64, %sleeps: !llvm.ptr) {{
  {_CONSTANTS}
  %ignored = llvm.atomicrmw xchg %word, %number seq_cst : !llvm.ptr, i64
  %asleep = llvm.load %sleeps atomic seq_cst {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %wake = llvm.icmp "ne" %asleep, %zero : i64
  llvm.cond_br %wake, ^wake, ^end
^wake:{_futex(_WAKE, "%word", "%one", "%null")}
  llvm.br ^end
^end:
  llvm.return
}}
"""

# Sleep until the number is no longer `seen`, or for a while.
_SLEEP = f"""
llvm.func @mw_sleep(%word: !llvm.ptr, %seen: i64, %sleeps: !llvm.ptr, %timeout: !llvm.ptr) {{
  {_CONSTANTS}
  %mask = llvm.mlir.constant(4294967295 : i64) : i64
  %ignored = llvm.atomicrmw xchg %sleeps, %one seq_cst : !llvm.ptr, i64
  %now = llvm.load %word atomic seq_cst {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %same = llvm.icmp "eq" %now, %seen : i64
  llvm.cond_br %same, ^sleep, ^end
^sleep:
  %low = llvm.and %seen, %mask : i64{_futex(_WAIT, "%word", "%low", "%timeout")}
  llvm.br ^end
^end:
  llvm.store %zero, %sleeps atomic release {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.return
}}
"""

# Look again soon; after a while, let others have the processor between two looks.
_PAUSE = """
llvm.func @mw_pause(%n: i64, %spins: i64) {
  %soon = llvm.icmp "slt" %n, %spins : i64
  llvm.cond_br %soon, ^pause, ^yield
^pause:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  llvm.return
^yield:
  %ignored = llvm.call @sched_yield() : () -> i32
  llvm.return
}
"""

_SERVE = f"""
llvm.func @mw_serve(%block: !llvm.ptr, %rank: i64) {{
  {_CONSTANTS}{_line("%rank")}
  {_field("spins", "%block", ServeBlock.SPINS)}
  {_field("yields", "%block", ServeBlock.YIELDS)}
  %most = llvm.add %spins, %yields : i64
  %before = llvm.load %done : !llvm.ptr -> i64
  llvm.br ^look(%before, %zero : i64, i64)
^look(%seen: i64, %n: i64):
  %asked = llvm.load %go atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %new = llvm.icmp "ne" %asked, %seen : i64
  llvm.cond_br %new, ^run, ^wait
^wait:
  %n1 = llvm.add %n, %one : i64
  %soon = llvm.icmp "slt" %n, %most : i64
  llvm.cond_br %soon, ^pause, ^sleep
^pause:
  llvm.call @mw_pause(%n, %spins) : (i64, i64) -> ()
  llvm.br ^look(%seen, %n1 : i64, i64)
^sleep:
  llvm.call @mw_sleep(%go, %seen, %server_sleeps, %null)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> ()
  llvm.br ^look(%seen, %zero : i64, i64)
^run:
  %context = llvm.load %context_at : !llvm.ptr -> !llvm.ptr
  %none = llvm.icmp "eq" %context, %null : !llvm.ptr
  llvm.cond_br %none, ^leave, ^call
^call:
  llvm.call @mw_run(%block, %rank, %context) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.call @mw_post(%done, %asked, %caller_sleeps) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.br ^look(%asked, %zero : i64, i64)
^leave:
  llvm.call @mw_post(%done, %asked, %caller_sleeps) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.return
}}
"""

# Each rank's next table; a null pointer lets it leave.
_START = f"""
llvm.func @mw_start(%block: !llvm.ptr, %rank: i64, %number: i64, %context: !llvm.ptr) {{
  {_CONSTANTS}{_line("%rank")}
  llvm.store %context, %context_at : !llvm.ptr, !llvm.ptr
  llvm.call @mw_post(%go, %number, %server_sleeps) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.return
}}
"""


def _for_each_rank(body: str) -> str:
    """Loop over the ranks from 1 on: %rank; `body` ends where the loop goes on."""
    return f"""
  {_field("ranks", "%block", ServeBlock.NRANKS)}
  llvm.br ^rank(%one : i64)
^rank(%rank: i64):
  %more = llvm.icmp "slt" %rank, %ranks : i64
  llvm.cond_br %more, ^each, ^after
^each:{body}
  %next = llvm.add %rank, %one : i64
  llvm.br ^rank(%next : i64)
^after:"""


_NUMBER = f"""
  {_field("number", "%block", ServeBlock.NUMBER)}"""
_NEXT = f"""{_NUMBER}
  %new = llvm.add %number, %one : i64
  llvm.store %new, %number_at : i64, !llvm.ptr"""

_CALL = f"""
llvm.func @mw_call(%block: !llvm.ptr, %contexts: !llvm.ptr) -> i32 {{
  {_CONSTANTS}{_NEXT}{
    _for_each_rank(f'''
  %at = llvm.getelementptr %contexts[%rank] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
  %context = llvm.load %at : !llvm.ptr -> !llvm.ptr
  {_field("row", "%context", 8 * Slots.status, "!llvm.ptr")}
  {_at("state", "%row", 8 * STATE)}
  llvm.store volatile %zero, %state : i64, !llvm.ptr
  llvm.call @mw_start(%block, %rank, %new, %context)
    : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()''')
}
  %own = llvm.load %contexts : !llvm.ptr -> !llvm.ptr
  llvm.call @mw_run(%block, %zero, %own) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  %result = llvm.call @mw_finish(%block) : (!llvm.ptr) -> i32
  llvm.return %result : i32
}}
llvm.func @mw_stop(%block: !llvm.ptr) {{
  {_CONSTANTS}{_NEXT}{
    _for_each_rank('''
  llvm.call @mw_start(%block, %rank, %new, %null) : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()''')
}
  llvm.return
}}
"""

# 0: all ranks are done; PENDING: one is not, so far.
_FINISH = f"""
llvm.mlir.global private constant @mw_tick(dense<[0, {_TICK}]> : tensor<2xi64>) : !llvm.array<2 x i64>
llvm.func @mw_finish(%block: !llvm.ptr) -> i32 {{
  {_CONSTANTS}{_NUMBER}
  {_field("spins", "%block", ServeBlock.SPINS)}
  {_field("yields", "%block", ServeBlock.YIELDS)}
  %most = llvm.add %spins, %yields : i64
  %tick = llvm.mlir.addressof @mw_tick : !llvm.ptr
  %ok = llvm.mlir.constant(0 : i32) : i32
  %pending = llvm.mlir.constant({ServeBlock.PENDING} : i32) : i32
  {_field("ranks", "%block", ServeBlock.NRANKS)}
  llvm.br ^rank(%one : i64)
^rank(%rank: i64):
  %more = llvm.icmp "slt" %rank, %ranks : i64
  llvm.cond_br %more, ^each, ^after
^each:{_line("%rank")}
  llvm.br ^look(%zero : i64)
^look(%n: i64):
  %ended = llvm.load %done atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %there = llvm.icmp "eq" %ended, %number : i64
  llvm.cond_br %there, ^on, ^wait
^wait:
  %n1 = llvm.add %n, %one : i64
  %soon = llvm.icmp "slt" %n, %most : i64
  llvm.cond_br %soon, ^pause, ^sleep
^pause:
  llvm.call @mw_pause(%n, %spins) : (i64, i64) -> ()
  llvm.br ^look(%n1 : i64)
^sleep:
  llvm.call @mw_sleep(%done, %ended, %caller_sleeps, %tick)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> ()
  %late = llvm.load %done atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %now = llvm.icmp "eq" %late, %number : i64
  llvm.cond_br %now, ^on, ^leave
^leave:
  llvm.return %pending : i32
^on:
  %next = llvm.add %rank, %one : i64
  llvm.br ^rank(%next : i64)
^after:
  llvm.return %ok : i32
}}
"""

_TEXT = (
    "module {\nllvm.func @syscall(i64, !llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr, i64) -> i64\n"
    "llvm.func @sched_yield() -> i32\n"
    + "".join((_RUN, _POST, _SLEEP, _PAUSE, _SERVE, _START, _CALL, _FINISH))
    + "}"
)
