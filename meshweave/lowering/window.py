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

from meshweave.abi import ALIGNMENT, OUTSIDE, STAGING, EarlyArea, GroupRecord, WorldLayout, rounded
from meshweave.lowering import early, local
from meshweave.lowering.phrases import (
    GROUP,
    SLEEP,
    SYSCALL,
    WAKE,
    at,
    constants,
    copy,
    field,
    futex,
    post,
    wait_for_members,
)
from meshweave.lowering.reductions import NBYTES
from meshweave.lowering.steps import Place, Root, Step

if TYPE_CHECKING:
    from meshweave.lowering.collectives import Collective

EXTERNALS = ("sched_yield", "syscall", "MPI_Iprobe")
_POLL_TAG = 79  # of messages that nobody sends
_NAP = 2_000_000  # nanoseconds of a sleep


def _member(name: str, index: str) -> str:
    """The address of a member's part of a record."""
    return f"""
  {name}_offset = llvm.mul {index}, %cmember : i64{at(f"{name}_from", "%group", GroupRecord.MEMBERS)}
{at(name, f"{name}_from", f"{name}_offset")}"""


_CONSTANTS = constants(zero=0, one=1, cmember=GroupRecord.MEMBER)

_TO_REST = """
  llvm.call @mw_rest(%group, %me, %counter, %count, %n)
    : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()"""

# Whoever meets looks at every member's line, so it sees at no cost who published NOWHERE. Only the
# first meeting of a collective may look: in the second, a member may be in its next collective.
_MEET = f"""
llvm.func @mw_meet(%group: !llvm.ptr, %me: i64) -> i32 attributes {{no_inline}} {{{_CONSTANTS}
  %ok = llvm.mlir.constant(0 : i32) : i32
  %outside = llvm.mlir.constant({OUTSIDE} : i32) : i32{constants(nowhere=GroupRecord.NOWHERE)}
  %size = llvm.load %group : !llvm.ptr -> i64{field("%spins", "%group", GroupRecord.SPINS)}
{_member("%own", "%me")}
  %mine = llvm.load %own : !llvm.ptr -> !llvm.ptr
  %before = llvm.load %mine : !llvm.ptr -> i64
  %wanted = llvm.add %before, %one : i64
  %low = llvm.and %wanted, %one : i64
  %first = llvm.icmp "eq" %low, %one : i64
  llvm.call @mw_signal(%mine, %wanted) : (!llvm.ptr, i64) -> (){
    wait_for_members(
        f'''{_member("%peer", "%j")}
  %counter = llvm.load %peer : !llvm.ptr -> !llvm.ptr''',
        "",
        _TO_REST,
        f'''{field("%source", "%counter", GroupRecord.SOURCE)}
  %is_lost = llvm.icmp "eq" %source, %nowhere : i64
  %lost = llvm.and %is_lost, %first : i1
  %told = llvm.select %lost, %outside, %result : i1, i32''',
        "%told",
    )
}
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
    attributes {{no_inline}} {{{constants(zero=0, one=1, half=(1 << 32) - 1)}
  %null = llvm.mlir.zero : !llvm.ptr
{field("%yields", "%group", GroupRecord.YIELDS)}{field("%spins", "%group", GroupRecord.SPINS)}
{field("%scratch", "%group", GroupRecord.POLL, "!llvm.ptr")}
  %most = llvm.add %spins, %yields : i64
  %soon = llvm.icmp "slt" %n, %most : i64
  llvm.cond_br %soon, ^yield, ^sleep
^yield:
  %ignored0 = llvm.call @sched_yield() : () -> i32
  llvm.return
^sleep:{at("%sleepers", "%other", GroupRecord.SLEEPERS)}
  %ignored1 = llvm.atomicrmw add %sleepers, %one seq_cst : !llvm.ptr, i64
  %nap = llvm.mlir.addressof @mw_nap : !llvm.ptr
  %low = llvm.and %seen, %half : i64{futex(SLEEP, "%other", "%low", "%nap")}
  %ignored2 = llvm.atomicrmw sub %sleepers, %one seq_cst : !llvm.ptr, i64
  %wanted = llvm.icmp "ne" %scratch, %null : !llvm.ptr
  llvm.cond_br %wanted, ^poll, ^done
^poll:{field("%comm", "%group", GroupRecord.COMM)}
  %tag = llvm.mlir.constant({_POLL_TAG} : i32) : i32
  %source = llvm.trunc %me : i64 to i32{at("%status", "%scratch", 64)}
  %ignored3 = llvm.call @MPI_Iprobe(%source, %tag, %comm, %scratch, %status)
    : (i32, i32, i64, !llvm.ptr, !llvm.ptr) -> i32
  llvm.br ^done
^done:
  llvm.return
}}
llvm.func @mw_wake(%word: !llvm.ptr) attributes {{no_inline}} {{
  {constants(zero=0, all=(1 << 31) - 1)}
  %null = llvm.mlir.zero : !llvm.ptr{futex(WAKE, "%word", "%all", "%null")}
  llvm.return
}}
llvm.func @mw_signal(%counter: !llvm.ptr, %value: i64) {{
  {constants(zero=0)}{at("%sleepers", "%counter", GroupRecord.SLEEPERS)}{
    post(
        "%counter",
        "%value",
        "%sleepers",
        '''
  llvm.call @mw_wake(%counter) : (!llvm.ptr) -> ()''',
    )
}
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
        text += f"""{field(f"%{name}", "%own", base)}{field(f"%{name}_bytes", "%group", nbytes)}
  %{name}_offset = llvm.sub %address, %{name} : i64
  %in_{name} = llvm.icmp "ult" %{name}_offset, %{name}_bytes : i64"""
    return text


# A field is named as in an `abi.WorldLayout`, whose lines hold the same fields in the same order.
_WORD = f"""
llvm.func @mw_word(%group: !llvm.ptr, %me: i64, %p: !llvm.ptr) -> i64 {{{_CONSTANTS}
  {constants(nowhere=GroupRecord.NOWHERE)}{_member("%own", "%me")}
  %address = llvm.ptrtoint %p : !llvm.ptr to i64{_offsets()}
  %first = llvm.shl %window_offset, %one : i64
  %even = llvm.shl %buffers_offset, %one : i64
  %second = llvm.or %even, %one : i64
  %other = llvm.select %in_buffers, %second, %nowhere : i1, i64
  %word = llvm.select %in_window, %first, %other : i1, i64
  llvm.return %word : i64
}}
llvm.func @mw_publish(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %dst: !llvm.ptr) {{{_CONSTANTS}
{_member("%own", "%me")}
  %line = llvm.load %own : !llvm.ptr -> !llvm.ptr
  %source = llvm.call @mw_word(%group, %me, %src) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %target = llvm.call @mw_word(%group, %me, %dst) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  {at("%source_at", "%line", GroupRecord.SOURCE)}{at("%target_at", "%line", GroupRecord.TARGET)}
  llvm.store %source, %source_at : i64, !llvm.ptr
  llvm.store %target, %target_at : i64, !llvm.ptr
  llvm.return
}}
llvm.func @mw_peer(%group: !llvm.ptr, %member: i64, %field: i64) -> !llvm.ptr {{{_CONSTANTS}
  {constants(three=3)}{_member("%peer", "%member")}
  %line = llvm.load %peer : !llvm.ptr -> !llvm.ptr
  {at("%fields", "%line", -WorldLayout.MEMBERS)}{at("%word_at", "%fields", "%field")}
  %word = llvm.load %word_at : !llvm.ptr -> i64
  %segment = llvm.and %word, %one : i64
  %entry = llvm.shl %segment, %three : i64
  {at("%bases", "%peer", GroupRecord.MEMBER_WINDOW)}{at("%base_at", "%bases", "%entry")}
  %base = llvm.load %base_at : !llvm.ptr -> !llvm.ptr
  %offset = llvm.ashr %word, %one : i64{at("%found", "%base", "%offset")}
  llvm.return %found : !llvm.ptr
}}
"""

# Where the others can reach %nbytes that this rank has at %p: there, or in the staging from byte
# %at; null when they do not fit.
_REACH = f"""
llvm.func @mw_reach(%group: !llvm.ptr, %me: i64, %p: !llvm.ptr, %nbytes: i64, %at: i64)
    -> !llvm.ptr {{{_CONSTANTS}{_member("%own", "%me")}
  %address = llvm.ptrtoint %p : !llvm.ptr to i64{_offsets()}
  %here = llvm.or %in_window, %in_buffers : i1
  llvm.cond_br %here, ^found(%p : !llvm.ptr), ^elsewhere
^elsewhere:{field("%staging", "%group", GroupRecord.STAGING, "!llvm.ptr")}
{field("%staging_bytes", "%group", GroupRecord.STAGING_BYTES)}
  %null = llvm.mlir.zero : !llvm.ptr
  %end = llvm.add %at, %nbytes : i64
  %fits = llvm.icmp "sle" %end, %staging_bytes : i64{at("%to", "%staging", "%at")}
  %place = llvm.select %fits, %to, %null : i1, !llvm.ptr
  llvm.br ^found(%place : !llvm.ptr)
^found(%result: !llvm.ptr):
  llvm.return %result : !llvm.ptr
}}
"""
# What early.py asks of an engine. An arena lies at the same place in every window.
_EARLY = f"""
llvm.func @mw_base(%group: !llvm.ptr, %member: i64) -> !llvm.ptr {{{_CONSTANTS}
{_member("%peer", "%member")}{field("%base", "%peer", GroupRecord.MEMBER_WINDOW, "!llvm.ptr")}
  llvm.return %base : !llvm.ptr
}}
{early.awaiting(field("%spins", "%group", GroupRecord.SPINS), "", _TO_REST)}"""
assert EarlyArea.ACTIVE != GroupRecord.SLEEPERS < EarlyArea.REQUESTS
_REACH_TYPE = "(!llvm.ptr, i64, !llvm.ptr, i64, i64) -> !llvm.ptr"
_OUTSIDE = f"""
llvm.func @sched_yield() -> i32
llvm.func @MPI_Iprobe(i32, i32, i64, !llvm.ptr, !llvm.ptr) -> i32
llvm.func @syscall{SYSCALL}"""


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
    texts.append(_EARLY if any(c.early for c in collectives) else "")
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
llvm.func @{STAGING}() -> i64 {{{constants(nbytes=nbytes)}
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
    return f"""{constants(width=NBYTES[collective.dtype])}
  %unit = llvm.mul %count, %width : i64
  %sent = llvm.mul %unit, {blocks} : i64"""


# The record of the group, and %window: whether its members meet in the window.
_SHARED = f"""{constants(zero=0)}{GROUP}{field("%shared", "%group", GroupRecord.SHARED)}
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
    %ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr{declared}) -> i32 {{{constants(one=1)}
  %ok = llvm.mlir.constant(0 : i32) : i32
  %outside = llvm.mlir.constant({OUTSIDE} : i32) : i32
  %null = llvm.mlir.zero : !llvm.ptr{_SHARED}
  %size = llvm.load %group : !llvm.ptr -> i64
  llvm.cond_br %window, ^window, ^library
^window:{_source_bytes(collective)}
  {found} = llvm.call @mw_reach(%group, %me, %src, %sent, %zero) : {_REACH_TYPE}{before}
  %staged = llvm.icmp "ne" %from, %src : !llvm.ptr
  %there = llvm.icmp "ne" %from, %null : !llvm.ptr
  %copy = llvm.and %staged, %there : i1
  llvm.cond_br %copy, ^stage, ^run
^stage:{copy("%from", "%src", "%sent")}
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
    before = f"""{constants(round=ALIGNMENT - 1, clear=-ALIGNMENT)}
  %up = llvm.add %sent, %round : i64
  %behind = llvm.and %up, %clear : i64
  %to = llvm.call @mw_reach(%group, %me, %dst, %sent, %behind) : {_REACH_TYPE}
  %to_lost = llvm.icmp "eq" %to, %null : !llvm.ptr
  %from = llvm.select %to_lost, %null, %from_found : i1, !llvm.ptr"""
    after = f"""
  %elsewhere = llvm.icmp "ne" %to, %dst : !llvm.ptr
  llvm.cond_br %elsewhere, ^unstage, ^leave
^unstage:{copy("%dst", "%to", "%sent")}
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
            needed = rounded(_nbytes(source)) + _nbytes(target)
        most = max(most, needed)
    return most


def _nbytes(place: Place) -> int:
    return math.prod(place.shape) * place.width
