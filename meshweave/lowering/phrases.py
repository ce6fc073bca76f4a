"""Phrases that host code written as text is made of: addresses and fields, waits, wake-ups, copies.

Each begins with a new line. Names are given with their `%`, but for `constants`. What must be defined before a phrase
is said, and what it leaves; where it has blocks, they are its own, and end the function.
"""

from __future__ import annotations

from meshweave.abi import Slots

FUTEX = 202  # the number of the system call on x86-64
SLEEP, WAKE = 0, 1  # what it does
PRIVATE = 128  # added where no other process sleeps on the word
SYSCALL = "(i64, !llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr, i64) -> i64"

PAUSE = """
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()"""


def at(name: str, base: str, offset: int | str, unit: str = "i8") -> str:
    """The address `offset` units behind another; offset: a number or a value of i64."""
    types = "(!llvm.ptr)" if isinstance(offset, int) else "(!llvm.ptr, i64)"
    return f"""
  {name} = llvm.getelementptr {base}[{offset}] : {types} -> !llvm.ptr, {unit}"""


def field(name: str, base: str, offset: int, kind: str = "i64", unit: str = "i8") -> str:
    """What lies there, and its address under the name with `_at` behind it."""
    return f"""{at(f"{name}_at", base, offset, unit)}
  {name} = llvm.load {name}_at : !llvm.ptr -> {kind}"""


def word(name: str, base: str, index: int) -> str:
    """Word `index`, of 64 bits, of a table, and its address."""
    return field(name, base, index, unit="i64")


def constants(**values: int) -> str:
    """Numbers of i64 by name."""
    return "".join(
        f"\n  %{name} = llvm.mlir.constant({value} : i64) : i64" for name, value in values.items()
    )


def copy(to: str, source: str, nbytes: str) -> str:
    """Copy bytes between places that do not overlap."""
    return f"""
  "llvm.intr.memcpy"({to}, {source}, {nbytes}) <{{isVolatile = false}}>
    : (!llvm.ptr, !llvm.ptr, i64) -> ()"""


def unless_failed(call: str) -> str:
    """The end of a loop that carries the code %sofar: where that is %ok, `call`, which leaves %r, the next code."""
    return f"""
  %go = arith.cmpi eq, %sofar, %ok : i32
  %next = scf.if %go -> (i32) {{{call}
    scf.yield %r : i32
  }} else {{
    scf.yield %sofar : i32
  }}
  scf.yield %next : i32"""


def around(to: str, source: str) -> str:
    """The members that are %distance after and before this one, %me of %size: where to send, where from."""
    return f"""
  {to}_raw = arith.addi %me, %distance : i64
  {to} = arith.remui {to}_raw, %size : i64
  {source}_up = arith.addi %me, %size : i64
  {source}_raw = arith.subi {source}_up, %distance : i64
  {source} = arith.remui {source}_raw, %size : i64"""


def load_atomic(name: str, address: str, order: str) -> str:
    """Load a word of 64 bits."""
    return f"""
  {name} = llvm.load {address} atomic {order} {{alignment = 8 : i64}} : !llvm.ptr -> i64"""


def store_release(value: str, address: str) -> str:
    """Store a word of 64 bits, behind all that was written before."""
    return f"""
  llvm.store {value}, {address} atomic release {{alignment = 8 : i64}} : i64, !llvm.ptr"""


# A group in a rank's table: %group, its block or record, and %me, this rank's member number in it.
GROUP = f"""{constants(first_slot=Slots(0, 0, 0).handle(0))}
  %twice = llvm.add %number, %number : i64
  %slot = llvm.add %twice, %first_slot : i64{at("%handle", "%ctx", "%slot", "i64")}
  %group = llvm.load %handle : !llvm.ptr -> !llvm.ptr{word("%me", "%handle", 1)}"""


def futex(what: int, address: str, value: str, timeout: str) -> str:
    """Sleep while a word's lower half is `value`, or wake so many who do. Before: %zero, %null, and the function
    @syscall is declared.
    """
    return f"""{constants(futex=FUTEX, what=what)}
  %slept = llvm.call @syscall(%futex, {address}, %what, {value}, {timeout}, %null, %zero)
    : {SYSCALL}"""


def post(address: str, number: str, sleepers: str, wake: str) -> str:
    """Publish a number that somebody may sleep on, and end the function. Before: %zero.

    sleepers: the address of a word that is not 0 while somebody may sleep; wake: what wakes them. Whoever sleeps says
    so before a last look at the number, who changes it looks for sleepers after: both in one order of all, so nobody
    sleeps on.
    """
    return f"""
  %ignored = llvm.atomicrmw xchg {address}, {number} seq_cst : !llvm.ptr, i64
  {load_atomic("%sleeping", sleepers, "seq_cst")}
  %asleep = llvm.icmp "ne" %sleeping, %zero : i64
  llvm.cond_br %asleep, ^wake, ^end
^wake:{wake}
  llvm.br ^end
^end:
  llvm.return"""


def wait_for_members(
    counter: str, waiting: str, rest: str, there: str = "", told: str = "%result"
) -> str:
    """Look at a counter of one member after the other until it has come to %wanted, then end the function: it returns
    %ok where nothing else is said. Before: %zero, %one, %ok, %size, %wanted and %spins.

    Between two looks there is a pause, from %spins looks on a rest. Looks are counted over all members: who has waited
    long for one need not be quick about the next.

    counter: leaves %counter of member %j; waiting: begins each wait, and may leave with ^out(%rc : i32); rest: lets
    others run, where a counter of %count has not come far enough in %n looks; there: what follows when a member has
    come, and leaves `told`, the code so far, which before was %result.
    """
    return f"""
  llvm.br ^member(%zero, %zero, %ok : i64, i64, i32)
^member(%j: i64, %seen: i64, %result: i32):
  %more = llvm.icmp "slt" %j, %size : i64
  llvm.cond_br %more, ^begin, ^out(%result : i32)
^begin:{counter}
  %next = llvm.add %j, %one : i64
  llvm.br ^look(%seen : i64)
^look(%n: i64):{load_atomic("%count", "%counter", "acquire")}
  %come = llvm.icmp "sge" %count, %wanted : i64
  llvm.cond_br %come, ^there, ^wait
^there:{there}
  llvm.br ^member(%next, %n, {told} : i64, i64, i32)
^wait:{waiting}
  %soon = llvm.icmp "slt" %n, %spins : i64
  %n1 = llvm.add %n, %one : i64
  llvm.cond_br %soon, ^pause, ^rest
^pause:{PAUSE}
  llvm.br ^look(%n1 : i64)
^rest:{rest}
  llvm.br ^look(%n1 : i64)
^out(%rc: i32):
  llvm.return %rc : i32"""
