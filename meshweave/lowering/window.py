"""Collectives of the `mpi` engine between ranks of one host: straight through shared memory.

A rank's arena lies in an MPI shared window; its inputs and outputs lie in shared memory too where
the engine has made them. So the same functions serve as for ranks that are threads
(lowering/local.py); only how members meet, and how a member finds another's buffers, differs: it
publishes a place, and each reader adds the address at which it sees that member's memory.

An operand that lies elsewhere, in memory of the user, is copied to a part of the window that the
compiler has asked for (`staging_bytes`). Where there is no room for it, its member publishes
`NOWHERE`: all members see that when they meet, and all call the MPI library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from meshweave.bundle import ALIGNMENT, OUTSIDE, STAGING, EarlyArea, GroupRecord, WorldLayout
from meshweave.lowering import early, local
from meshweave.lowering.reductions import NBYTES
from meshweave.lowering.steps import Place, Root, Step

if TYPE_CHECKING:
    from meshweave.lowering.collectives import Collective

EXTERNALS = ("sched_yield", "syscall", "MPI_Iprobe")
_POLL_TAG = 79  # of messages that nobody sends
_NAP = 2_000_000  # nanoseconds of a sleep
_FUTEX = 202  # the number of the system call on x86-64
_SYSCALL = "i64, !llvm.ptr, i64, i64, !llvm.ptr, i64, i64"


def _field(name: str, offset: int, kind: str = "i64", base: str = "%group") -> str:
    """Load a field of a record, or of one member of it."""
    return f"""
  %{name}_at = llvm.getelementptr {base}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8
  %{name} = llvm.load %{name}_at : !llvm.ptr -> {kind}"""


def _member(name: str, index: str) -> str:
    """The address of a member's part of a record."""
    return f"""
  %{name}_offset = llvm.mul {index}, %cmember : i64
  %{name}_from = llvm.getelementptr %group[{GroupRecord.MEMBERS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %{name} = llvm.getelementptr %{name}_from[%{name}_offset]
    : (!llvm.ptr, i64) -> !llvm.ptr, i8"""


_CONSTANTS = f"""
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %cmember = llvm.mlir.constant({GroupRecord.MEMBER} : i64) : i64"""

# Whoever meets looks at every member's line, so it sees at no cost who published NOWHERE. Only the
# first meeting of a collective may look: in the second, a member may be in its next collective.
_MEET = f"""
llvm.func @sched_yield() -> i32
llvm.func @mw_meet(%group: !llvm.ptr, %me: i64) -> i32 attributes {{no_inline}} {{{_CONSTANTS}
  %ok = llvm.mlir.constant(0 : i32) : i32
  %outside = llvm.mlir.constant({OUTSIDE} : i32) : i32
  %nowhere = llvm.mlir.constant({GroupRecord.NOWHERE} : i64) : i64
  %size = llvm.load %group : !llvm.ptr -> i64{_field("spins", GroupRecord.SPINS)}{_member("own", "%me")}
  %mine = llvm.load %own : !llvm.ptr -> !llvm.ptr
  %before = llvm.load %mine : !llvm.ptr -> i64
  %now = llvm.add %before, %one : i64
  %low = llvm.and %now, %one : i64
  %first = llvm.icmp "eq" %low, %one : i64
  %ignored = llvm.atomicrmw xchg %mine, %now seq_cst : !llvm.ptr, i64
  %sleepers_at = llvm.getelementptr %mine[{GroupRecord.SLEEPERS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %sleepers = llvm.load %sleepers_at atomic seq_cst {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %asleep = llvm.icmp "ne" %sleepers, %zero : i64
  llvm.cond_br %asleep, ^wake, ^member(%zero, %zero, %ok : i64, i64, i32)
^wake:
  llvm.call @mw_wake(%mine) : (!llvm.ptr) -> ()
  llvm.br ^member(%zero, %zero, %ok : i64, i64, i32)
^member(%j: i64, %seen: i64, %result: i32):
  %more = llvm.icmp "slt" %j, %size : i64
  llvm.cond_br %more, ^start, ^done
^start:{_member("peer", "%j")}
  %other = llvm.load %peer : !llvm.ptr -> !llvm.ptr
  %next = llvm.add %j, %one : i64
  llvm.br ^look(%seen : i64)
^look(%n: i64):
  %arrived = llvm.load %other atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %there = llvm.icmp "sge" %arrived, %now : i64
  llvm.cond_br %there, ^there, ^wait
^there:{_field("source", GroupRecord.SOURCE, base="%other")}
  %lost_at = llvm.icmp "eq" %source, %nowhere : i64
  %lost = llvm.and %lost_at, %first : i1
  %told = llvm.select %lost, %outside, %result : i1, i32
  llvm.br ^member(%next, %n, %told : i64, i64, i32)
^wait:
  %soon = llvm.icmp "slt" %n, %spins : i64
  %n1 = llvm.add %n, %one : i64
  llvm.cond_br %soon, ^pause, ^yield
^pause:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  llvm.br ^look(%n1 : i64)
^yield:
  llvm.call @mw_rest(%group, %me, %other, %arrived, %n)
    : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
  llvm.br ^look(%n1 : i64)
^done:
  llvm.return %result : i32
}}
"""

# Who has looked in vain for a while gives the processor away: first by yielding it, which costs
# little where another member is next in line; then by sleeping on the other's count of arrivals,
# so that the system runs whoever is waited for, not us, on a busy machine. Both sides agree by one
# order of all: the sleeper says so before it checks the count, the other changes the count before
# it looks for sleepers. A nap ends by itself, because a library of MPI may move messages only
# while it is called: a rank that waits here must not hold up what it has sent to another host.
_REST = f"""
llvm.mlir.global private constant @mw_nap(dense<[0, {_NAP}]> : tensor<2xi64>) : !llvm.array<2 x i64>
llvm.func @mw_rest(%group: !llvm.ptr, %me: i64, %other: !llvm.ptr, %seen: i64, %n: i64)
    attributes {{no_inline}} {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
{_field("yields", GroupRecord.YIELDS)}{_field("spins", GroupRecord.SPINS)}
{_field("scratch", GroupRecord.POLL, "!llvm.ptr")}
  %most = llvm.add %spins, %yields : i64
  %soon = llvm.icmp "slt" %n, %most : i64
  llvm.cond_br %soon, ^yield, ^sleep
^yield:
  %ignored0 = llvm.call @sched_yield() : () -> i32
  llvm.return
^sleep:
  %number = llvm.mlir.constant({_FUTEX} : i64) : i64
  %sleepers = llvm.getelementptr %other[{GroupRecord.SLEEPERS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %ignored1 = llvm.atomicrmw add %sleepers, %one seq_cst : !llvm.ptr, i64
  %nap = llvm.mlir.addressof @mw_nap : !llvm.ptr
  %low = llvm.trunc %seen : i64 to i32
  %value = llvm.zext %low : i32 to i64
  %ignored2 = llvm.call @syscall(%number, %other, %zero, %value, %nap, %zero, %zero)
    : ({_SYSCALL}) -> i64
  %ignored3 = llvm.atomicrmw sub %sleepers, %one seq_cst : !llvm.ptr, i64
  %none = llvm.mlir.zero : !llvm.ptr
  %wanted = llvm.icmp "ne" %scratch, %none : !llvm.ptr
  llvm.cond_br %wanted, ^poll, ^done
^poll:{_field("comm", GroupRecord.COMM)}
  %tag = llvm.mlir.constant({_POLL_TAG} : i32) : i32
  %source = llvm.trunc %me : i64 to i32
  %status = llvm.getelementptr %scratch[64] : (!llvm.ptr) -> !llvm.ptr, i8
  %ignored4 = llvm.call @MPI_Iprobe(%source, %tag, %comm, %scratch, %status)
    : (i32, i32, i64, !llvm.ptr, !llvm.ptr) -> i32
  llvm.br ^done
^done:
  llvm.return
}}
llvm.func @mw_wake(%line: !llvm.ptr) attributes {{no_inline}} {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %number = llvm.mlir.constant({_FUTEX} : i64) : i64
  %all = llvm.mlir.constant({(1 << 31) - 1} : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %ignored = llvm.call @syscall(%number, %line, %one, %all, %null, %zero, %zero)
    : ({_SYSCALL}) -> i64
  llvm.return
}}
"""

_SEGMENTS = (
    ("window", GroupRecord.MEMBER_WINDOW, GroupRecord.WINDOW_BYTES),
    ("buffers", GroupRecord.MEMBER_BUFFERS, GroupRecord.BUFFERS_BYTES),
)


def _offsets() -> str:
    """Where the address %address lies in the own window and the own buffers: %in_window, ..."""
    text = ""
    for name, base, nbytes in _SEGMENTS:
        text += f"""{_field(name, base, base="%own")}{_field(name + "_bytes", nbytes)}
  %{name}_offset = llvm.sub %address, %{name} : i64
  %in_{name} = llvm.icmp "ult" %{name}_offset, %{name}_bytes : i64"""
    return text


# A field is named as in a `bundle.WorldLayout`, whose lines hold the same fields in the same order.
_WORD = f"""
llvm.func @mw_word(%group: !llvm.ptr, %me: i64, %p: !llvm.ptr) -> i64 {{{_CONSTANTS}
  %nowhere = llvm.mlir.constant({GroupRecord.NOWHERE} : i64) : i64{_member("own", "%me")}
  %address = llvm.ptrtoint %p : !llvm.ptr to i64{_offsets()}
  %first = llvm.shl %window_offset, %one : i64
  %even = llvm.shl %buffers_offset, %one : i64
  %second = llvm.or %even, %one : i64
  %other = llvm.select %in_buffers, %second, %nowhere : i1, i64
  %word = llvm.select %in_window, %first, %other : i1, i64
  llvm.return %word : i64
}}
llvm.func @mw_publish(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %dst: !llvm.ptr) {{{_CONSTANTS}
{_member("own", "%me")}
  %line = llvm.load %own : !llvm.ptr -> !llvm.ptr
  %source = llvm.call @mw_word(%group, %me, %src) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %target = llvm.call @mw_word(%group, %me, %dst) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %source_at = llvm.getelementptr %line[{GroupRecord.SOURCE}] : (!llvm.ptr) -> !llvm.ptr, i8
  %target_at = llvm.getelementptr %line[{GroupRecord.TARGET}] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %source, %source_at : i64, !llvm.ptr
  llvm.store %target, %target_at : i64, !llvm.ptr
  llvm.return
}}
llvm.func @mw_peer(%group: !llvm.ptr, %member: i64, %field: i64) -> !llvm.ptr {{{_CONSTANTS}
  %three = llvm.mlir.constant(3 : i64) : i64{_member("peer", "%member")}
  %line = llvm.load %peer : !llvm.ptr -> !llvm.ptr
  %fields = llvm.getelementptr %line[{-WorldLayout.MEMBERS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %word_at = llvm.getelementptr %fields[%field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %word = llvm.load %word_at : !llvm.ptr -> i64
  %segment = llvm.and %word, %one : i64
  %entry = llvm.shl %segment, %three : i64
  %bases = llvm.getelementptr %peer[{GroupRecord.MEMBER_WINDOW}] : (!llvm.ptr) -> !llvm.ptr, i8
  %base_at = llvm.getelementptr %bases[%entry] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %base = llvm.load %base_at : !llvm.ptr -> !llvm.ptr
  %offset = llvm.ashr %word, %one : i64
  %found = llvm.getelementptr %base[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %found : !llvm.ptr
}}
"""

# Where the others can reach %nbytes that this rank has at %p: there, or in the staging from byte
# %at; null when they do not fit.
_REACH = f"""
llvm.func @mw_reach(%group: !llvm.ptr, %me: i64, %p: !llvm.ptr, %nbytes: i64, %at: i64)
    -> !llvm.ptr {{{_CONSTANTS}{_member("own", "%me")}
  %address = llvm.ptrtoint %p : !llvm.ptr to i64{_offsets()}
  %here = llvm.or %in_window, %in_buffers : i1
  llvm.cond_br %here, ^found(%p : !llvm.ptr), ^elsewhere
^elsewhere:{_field("staging", GroupRecord.STAGING, "!llvm.ptr")}
{_field("staging_bytes", GroupRecord.STAGING_BYTES)}
  %null = llvm.mlir.zero : !llvm.ptr
  %end = llvm.add %at, %nbytes : i64
  %fits = llvm.icmp "sle" %end, %staging_bytes : i64
  %to = llvm.getelementptr %staging[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %place = llvm.select %fits, %to, %null : i1, !llvm.ptr
  llvm.br ^found(%place : !llvm.ptr)
^found(%result: !llvm.ptr):
  llvm.return %result : !llvm.ptr
}}
"""
# What early.py asks of an engine. An arena lies at the same place in every window.
_EARLY = f"""
llvm.func @mw_base(%group: !llvm.ptr, %member: i64) -> !llvm.ptr {{{_CONSTANTS}
{_member("peer", "%member")}{_field("base", GroupRecord.MEMBER_WINDOW, "!llvm.ptr", "%peer")}
  llvm.return %base : !llvm.ptr
}}
llvm.func @mw_signal(%counter: !llvm.ptr, %value: i64) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %ignored = llvm.atomicrmw xchg %counter, %value seq_cst : !llvm.ptr, i64
  %sleepers_at = llvm.getelementptr %counter[{GroupRecord.SLEEPERS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %sleepers = llvm.load %sleepers_at atomic seq_cst {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %asleep = llvm.icmp "ne" %sleepers, %zero : i64
  llvm.cond_br %asleep, ^wake, ^out
^wake:
  llvm.call @mw_wake(%counter) : (!llvm.ptr) -> ()
  llvm.br ^out
^out:
  llvm.return
}}
"""
_AWAIT = early.awaiting(
    _field("spins", GroupRecord.SPINS),
    "",
    """  llvm.call @mw_rest(%group, %me, %counter, %count, %n)
    : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()""",
)
assert EarlyArea.ACTIVE != GroupRecord.SLEEPERS < EarlyArea.REQUESTS
_REACH_TYPE = "(!llvm.ptr, i64, !llvm.ptr, i64, i64) -> !llvm.ptr"
_OUTSIDE = f"""
llvm.func @MPI_Iprobe(i32, i32, i64, !llvm.ptr, !llvm.ptr) -> i32
llvm.func @syscall({_SYSCALL}) -> i64"""


def _inner(symbol: str, where: str) -> str:
    """The name of a collective's version: `mw_window_all_gather`, `mw_library_all_gather`."""
    return symbol.replace("mw_", f"mw_{where}_", 1)


def library_symbol(symbol: str) -> str:
    """The name of the version that calls the MPI library."""
    return _inner(symbol, "library")


def generate(collectives: Sequence[Collective], staging: int) -> str:
    """Text of functions of the names asked for, which go through the window or call
    `library_symbol(..)`.

    staging: bytes of the window that the program needs for operands that may lie elsewhere.
    """
    texts = [_OUTSIDE, _MEET, _REST, _WORD, _REACH, _staging(staging)]
    texts.append(_EARLY + _AWAIT if any(c.early for c in collectives) else "")
    inner = local.functions(collectives)
    for collective in collectives:
        if collective.op == "relayout":
            continue  # between a rank's own buffers: it is called as it is
        ends = ("_start", "_wait") if collective.early else ("",)
        for symbol in (collective.symbol + end for end in ends):
            inner = inner.replace(f"@{symbol}(", f"@{_inner(symbol, 'window')}(")
            texts.append(_half(collective, symbol) if collective.early else _choice(collective))
    return "".join([*texts, inner])


def _staging(nbytes: int) -> str:
    return f"""
llvm.func @{STAGING}() -> i64 {{
  %nbytes = llvm.mlir.constant({nbytes} : i64) : i64
  llvm.return %nbytes : i64
}}
"""


def _listed(collective: Collective) -> tuple[str, str, str]:
    """What a collective's function takes behind the two buffers: declared, given, and the types."""
    declared = [a.strip() for a in local.arguments_of(collective).split(",")]
    if collective.early:
        declared += [a.strip() for a in early.ARGUMENTS.split(",")]
    pairs = [argument.split(": ") for argument in declared]
    names, kinds = ("".join(f", {part}" for part in column) for column in zip(*pairs))
    return "".join(f", {argument}" for argument in declared), names, kinds


def _source_bytes(collective: Collective) -> str:
    """%sent: bytes of this rank's source; a block times the number of members where it has as
    many.
    """
    blocks = "%size" if collective.op in ("reduce_scatter", "all_to_all") else "%one"
    if not collective.kind:
        one_block = "%source_bytes" if collective.op == "exchange" else "%nbytes"
        return f"\n  %sent = llvm.mul {one_block}, {blocks} : i64"
    return f"""
  %width = llvm.mlir.constant({NBYTES[collective.dtype]} : i64) : i64
  %unit = llvm.mul %count, %width : i64
  %sent = llvm.mul %unit, {blocks} : i64"""


# The record of the group, and %window: whether its members meet in the window.
_SHARED = f"""
  %zero = llvm.mlir.constant(0 : i64) : i64
  %four = llvm.mlir.constant(4 : i64) : i64
  %twice = llvm.add %number, %number : i64
  %slot = llvm.add %twice, %four : i64
  %handle = llvm.getelementptr %ctx[%slot] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %group = llvm.load %handle : !llvm.ptr -> !llvm.ptr{_field("shared", GroupRecord.SHARED)}
  %window = llvm.icmp "ne" %shared, %zero : i64"""


def _half(collective: Collective, symbol: str) -> str:
    """The function that starts a collective, or that waits for it: what is sent is copied to the
    window first, so it does not matter where it lies.
    """
    declared, given, kinds = _listed(collective)
    types = f"(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr{kinds}) -> i32"
    called = f"(%ctx, %number, %src, %dst{given}) : {types}"
    return f"""
llvm.func @{symbol}(
    %ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr{declared}) -> i32 {{{_SHARED}
  llvm.cond_br %window, ^window, ^library
^window:
  %rc = llvm.call @{_inner(symbol, "window")}{called}
  llvm.return %rc : i32
^library:
  %called = llvm.call @{library_symbol(symbol)}{called}
  llvm.return %called : i32
}}
"""


def _choice(collective: Collective) -> str:
    """The function that compiled code calls: it chooses by the group's record, which all members
    agree on, and by where operands lie, which all members see when they meet.
    """
    declared, given, kinds = _listed(collective)
    types = f"(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr{kinds}) -> i32"
    before, target, after = _target(collective)
    found = "%from_found" if before else "%from"
    return f"""
llvm.func @{collective.symbol}(
    %ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr{declared}) -> i32 {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %ok = llvm.mlir.constant(0 : i32) : i32
  %outside = llvm.mlir.constant({OUTSIDE} : i32) : i32
  %null = llvm.mlir.zero : !llvm.ptr{_SHARED}
  %index = llvm.getelementptr %handle[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %me = llvm.load %index : !llvm.ptr -> i64
  %size = llvm.load %group : !llvm.ptr -> i64
  llvm.cond_br %window, ^window, ^library
^window:{_source_bytes(collective)}
  {found} = llvm.call @mw_reach(%group, %me, %src, %sent, %zero) : {_REACH_TYPE}{before}
  %staged = llvm.icmp "ne" %from, %src : !llvm.ptr
  %there = llvm.icmp "ne" %from, %null : !llvm.ptr
  %copy = llvm.and %staged, %there : i1
  llvm.cond_br %copy, ^stage, ^run
^stage:
  "llvm.intr.memcpy"(%from, %src, %sent) <{{isVolatile = false}}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
  llvm.br ^run
^run:
  %rc = llvm.call @{_inner(collective.symbol, "window")}(%ctx, %number, %from, {target}{given})
    : {types}
  %lost = llvm.icmp "eq" %rc, %outside : i32
  llvm.cond_br %lost, ^part, ^end
^part:
  %parted = llvm.call @mw_meet(%group, %me) : (!llvm.ptr, i64) -> i32
  llvm.br ^library
^library:
  %called = llvm.call @{library_symbol(collective.symbol)}(%ctx, %number, %src, %dst{given})
    : {types}
  llvm.return %called : i32
^end:{after}
  llvm.return %rc : i32
}}
"""


def _target(collective: Collective) -> tuple[str, str, str]:
    """Of a reduction that members write to each other: how its target is found, its name, what
    comes after. Every other collective writes its own target only.
    """
    if collective.op != "all_reduce":
        return "", "%dst", ""
    before = f"""
  %round = llvm.mlir.constant({ALIGNMENT - 1} : i64) : i64
  %clear = llvm.mlir.constant({-ALIGNMENT} : i64) : i64
  %up = llvm.add %sent, %round : i64
  %behind = llvm.and %up, %clear : i64
  %to = llvm.call @mw_reach(%group, %me, %dst, %sent, %behind) : {_REACH_TYPE}
  %to_lost = llvm.icmp "eq" %to, %null : !llvm.ptr
  %from = llvm.select %to_lost, %null, %from_found : i1, !llvm.ptr"""
    after = """
  %elsewhere = llvm.icmp "ne" %to, %dst : !llvm.ptr
  llvm.cond_br %elsewhere, ^unstage, ^leave
^unstage:
  "llvm.intr.memcpy"(%dst, %to, %sent) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
  llvm.br ^leave
^leave:"""
    return before, "%to", after


def staging_bytes(
    entries: Iterable[Any], final: Callable[[Root], Root], symbols: Sequence[str]
) -> int:
    """Bytes of the window that the collectives of a program need, one at a time, for operands that
    are inputs, outputs or constants of the program: those may lie in memory of the user.

    entries: as in a Schedule; final: the buffer that a root is part of; symbols[i]: the function
    that collective i calls.
    """
    most = 0
    for entry in entries:
        if not isinstance(entry, Step):
            continue
        most = max([most, *(staging_bytes(body, final, symbols) for body in entry.bodies)])
        if entry.what != "collective" or entry.ticket >= 0:
            continue
        if symbols[entry.number] == "mw_relayout":
            continue
        source, target = entry.operands[0], entry.outputs[0]
        needed = _nbytes(source) if final(source.root).kind != "arena" else 0
        if symbols[entry.number].startswith("mw_all_reduce") and final(target.root).kind != "arena":
            needed = -(-_nbytes(source) // ALIGNMENT) * ALIGNMENT + _nbytes(target)
        most = max(most, needed)
    return most


def _nbytes(place: Place) -> int:
    return math.prod(place.shape) * place.width
