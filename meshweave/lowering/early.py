"""Collectives that are started before they are waited for, between ranks that see each other's memory.

`mw_all_gather_start` copies what this rank sends to its area (`abi.EarlyArea`) and says so; it waits
for nobody, unless a member has not yet read what was sent two starts ago. `mw_all_gather_wait` waits
until all members have started, and pulls what it needs out of their areas: it never waits for a member
to come to its own wait, so a rank that is late holds nobody up before its result is wanted. Each
collective of a program has an area of its own, at the same place in the arena of every rank, so any
number of them may be on their way at once.

A reduction is done by every member for itself, over all members in their order: the same bits as when
nothing is started early.

An engine gives `mw_base` (where in this process a member's memory begins), `mw_await` (wait until a
counter of every member has come so far) and `mw_signal` (set a counter of one's own).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.abi import ALIGNMENT, EarlyArea, rounded
from meshweave.lowering.phrases import at, constants, copy, wait_for_members

ARGUMENTS = "%area: !llvm.ptr, %area_bytes: i64"
AWAIT = "(!llvm.ptr, i64, i64, i64) -> i32"

COMMON = f"""
llvm.func @mw_area_offset(%group: !llvm.ptr, %me: i64, %area: !llvm.ptr) -> i64 {{
  %base = llvm.call @mw_base(%group, %me) : (!llvm.ptr, i64) -> !llvm.ptr
  %from = llvm.ptrtoint %base : !llvm.ptr to i64
  %to = llvm.ptrtoint %area : !llvm.ptr to i64
  %offset = llvm.sub %to, %from : i64
  llvm.return %offset : i64
}}
llvm.func @mw_slot_offset(%generation: i64, %nbytes: i64) -> i64 {{
  {constants(slots=EarlyArea.SLOTS, first=EarlyArea.SLOT, round=ALIGNMENT - 1, clear=-ALIGNMENT)}
  %up = llvm.add %nbytes, %round : i64
  %step = llvm.and %up, %clear : i64
  %turn = llvm.urem %generation, %slots : i64
  %behind = llvm.mul %turn, %step : i64
  %offset = llvm.add %first, %behind : i64
  llvm.return %offset : i64
}}
llvm.func @mw_posted(%group: !llvm.ptr, %member: i64, %offset: i64) -> !llvm.ptr {{
  %base = llvm.call @mw_base(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
  {at("%place", "%base", "%offset")}
  llvm.return %place : !llvm.ptr
}}
llvm.func @mw_post(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %area: !llvm.ptr,
    %nbytes: i64) -> i32 {{{constants(one=1, slots=EarlyArea.SLOTS, waited=EarlyArea.WAITED)}
  %ok = llvm.mlir.constant(0 : i32) : i32
  %before = llvm.load %area : !llvm.ptr -> i64
  %generation = llvm.add %before, %one : i64
  %read = llvm.sub %generation, %slots : i64
  %offset = llvm.call @mw_area_offset(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %counters = llvm.add %offset, %waited : i64
  %free = llvm.call @mw_await(%group, %me, %counters, %read) : {AWAIT}
  %fine = llvm.icmp "eq" %free, %ok : i32
  llvm.cond_br %fine, ^copy, ^out
^copy:
  %slot = llvm.call @mw_slot_offset(%generation, %nbytes) : (i64, i64) -> i64
  {at("%to", "%area", "%slot")}{copy("%to", "%src", "%nbytes")}
  llvm.call @mw_signal(%area, %generation) : (!llvm.ptr, i64) -> ()
  llvm.br ^out
^out:
  llvm.return %free : i32
}}
"""

START = """
  %posted = llvm.call @mw_post(%group, %me, %src, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %posted : i32
}
"""

# What a wait begins with, behind the group: all have started; %source_field is where the slot lies in
# the memory of each, for @mw_posted.
BEGIN_WAIT = f"""
  %generation = llvm.load %area : !llvm.ptr -> i64
  %area_at = llvm.call @mw_area_offset(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %met = llvm.call @mw_await(%group, %me, %area_at, %generation) : {AWAIT}
  %slot_at = llvm.call @mw_slot_offset(%generation, %area_bytes) : (i64, i64) -> i64
  %source_field = arith.addi %area_at, %slot_at : i64
  %go = arith.cmpi eq, %met, %ok : i32
  cf.cond_br %go, ^work, ^out(%met : i32)
^work:
"""
END_WAIT = f"""{at("%waited_at", "%area", EarlyArea.WAITED)}
  llvm.call @mw_signal(%waited_at, %generation) : (!llvm.ptr, i64) -> ()
  cf.br ^out(%ok : i32)
^out(%rc: i32):
  llvm.return %rc : i32
}}
"""


def awaiting(begin: str, waiting: str, rest: str) -> str:
    """`mw_await`: wait until the counters at %place of all members' memory have come to %wanted.

    begin: leaves %spins, and what the others need; waiting, rest: see `wait_for_members`.
    """
    counter = f"""
  %base = llvm.call @mw_base(%group, %j) : (!llvm.ptr, i64) -> !llvm.ptr
  {at("%counter", "%base", "%place")}"""
    return f"""
llvm.func @mw_await(%group: !llvm.ptr, %me: i64, %place: i64, %wanted: i64) -> i32
    attributes {{no_inline}} {{{constants(zero=0, one=1)}
  %ok = llvm.mlir.constant(0 : i32) : i32
  %size = llvm.load %group : !llvm.ptr -> i64{begin}{wait_for_members(counter, waiting, rest)}
}}
"""


def pulled(work: str) -> str:
    """The work of a collective with the members' slots in the place of their sources."""
    return work.replace("llvm.call @mw_peer(", "llvm.call @mw_posted(")


def areas(sent: Sequence[int], end: int) -> tuple[dict[int, int], int]:
    """Where in the arena, behind `end`, each call that is started early keeps its `EarlyArea`, by
    number; and where the last one ends. An area is of no function alone: it outlives their frames.

    sent: the bytes that each call sends, 0 where it is not started early.
    """
    places: dict[int, int] = {}
    for number, nbytes in enumerate(sent):
        if nbytes:
            places[number] = end = rounded(end)
            end += EarlyArea.nbytes(nbytes)
    return places, end
