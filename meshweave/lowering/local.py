"""Collectives of the `local` engine: ranks are threads of one process, so each reads and writes the
others' buffers.

Every collective is: publish own pointers, meet, work, meet again. A meeting is one store to the
member's own cache line and a look at everybody else's; who waits looks at the abort flag too, so
that a rank that fails frees the others, and yields the processor after a while, so that more ranks
than cores get on. Where things lie is said by `abi.WorldLayout`.

Reductions are deterministic: each member reduces its own part of the elements over all members in
member order, and writes it to everybody, so all ranks hold the same bits. Narrow floats are summed
in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshweave.abi import ABORTED, WorldLayout
from meshweave.lowering import early
from meshweave.lowering.copies import blocks_text, copy_block, piece_text
from meshweave.lowering.exchange_code import EXCHANGED, pulling_text, relayout_text
from meshweave.lowering.phrases import (
    GROUP,
    at,
    constants,
    copy,
    field,
    load_atomic,
    store_release,
    wait_for_members,
)
from meshweave.lowering.reductions import NBYTES, memory_types, reduce_block

if TYPE_CHECKING:
    from meshweave.lowering.collectives import Collective

EXTERNALS = ("sched_yield", "memcpy", "memmove", "memset")
TABLED = {"exchange", "relayout"}  # whose pieces are in a table
BOXES = {"all_gather_box", "all_to_all_box"}  # that read and write where the elements belong
BLOCK = 1024  # elements reduced at a time: the running value stays in the first-level cache
GRAIN = 64  # elements: parts of a reduction begin at multiples, so that members share no cache line

# How long to look, and where the abort flag is.
_PATIENCE = f"""
  %left = llvm.mlir.constant({ABORTED} : i32) : i32{field("%world", "%group", WorldLayout.WORLD, "!llvm.ptr")}
{field("%spins", "%world", WorldLayout.SPINS)}{at("%abort", "%world", WorldLayout.ABORT)}"""
_UNLESS_ABORTED = f"""{load_atomic("%flag", "%abort", "monotonic")}
  %failed = llvm.icmp "ne" %flag, %zero : i64
  llvm.cond_br %failed, ^out(%left : i32), ^patience
^patience:"""
_YIELD = """
  %yielded = llvm.call @sched_yield() : () -> i32"""

_MEET = f"""
llvm.func @sched_yield() -> i32
llvm.func @mw_meet(%group: !llvm.ptr, %me: i64) -> i32 attributes {{no_inline}} {{
  {constants(zero=0, one=1, line=WorldLayout.LINE)}
  %ok = llvm.mlir.constant(0 : i32) : i32
  %size = llvm.load %group : !llvm.ptr -> i64{_PATIENCE}
{at("%members", "%group", WorldLayout.MEMBERS + WorldLayout.ARRIVED)}
  %mine_offset = llvm.mul %me, %line : i64{at("%mine", "%members", "%mine_offset")}
  %before = llvm.load %mine : !llvm.ptr -> i64
  %wanted = llvm.add %before, %one : i64{store_release("%wanted", "%mine")}{
    wait_for_members(
        f'''
  %offset = llvm.mul %j, %line : i64{at("%counter", "%members", "%offset")}''',
        _UNLESS_ABORTED,
        _YIELD,
    )
}
}}
llvm.func @mw_publish(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %dst: !llvm.ptr) {{
  {constants(line=WorldLayout.LINE)}
  %offset = llvm.mul %me, %line : i64{at("%own", "%group", "%offset")}
{at("%source", "%own", WorldLayout.MEMBERS + WorldLayout.SOURCE)}
{at("%target", "%own", WorldLayout.MEMBERS + WorldLayout.TARGET)}
  llvm.store %src, %source : !llvm.ptr, !llvm.ptr
  llvm.store %dst, %target : !llvm.ptr, !llvm.ptr
  llvm.return
}}
llvm.func @mw_peer(%group: !llvm.ptr, %member: i64, %field: i64) -> !llvm.ptr {{
  {constants(line=WorldLayout.LINE)}
  %offset = llvm.mul %member, %line : i64
  %place = llvm.add %offset, %field : i64{at("%entry", "%group", "%place")}
  %value = llvm.load %entry : !llvm.ptr -> !llvm.ptr
  llvm.return %value : !llvm.ptr
}}
"""

# What early.py asks of an engine. A counter of an area lies at the same place in every arena.
_EARLY = f"""
llvm.func @mw_base(%group: !llvm.ptr, %member: i64) -> !llvm.ptr {{
  {constants(field=WorldLayout.MEMBERS + WorldLayout.ARENA)}
  %base = llvm.call @mw_peer(%group, %member, %field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.return %base : !llvm.ptr
}}
llvm.func @mw_signal(%counter: !llvm.ptr, %value: i64) {{{store_release("%value", "%counter")}
  llvm.return
}}
{early.awaiting(_PATIENCE, _UNLESS_ABORTED, _YIELD)}"""

# What every collective begins with: its group and this rank's number in it; then, unless it is
# started early, its own pointers made public, and a meeting.
_GROUP = f"""
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32
  %target_field = arith.constant {WorldLayout.MEMBERS + WorldLayout.TARGET} : i64{GROUP}
  %size = llvm.load %group : !llvm.ptr -> i64
"""
_BEGIN = f"""{_GROUP}
  %source_field = arith.constant {WorldLayout.MEMBERS + WorldLayout.SOURCE} : i64
  llvm.call @mw_publish(%group, %me, %src, %dst) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> ()
  %met = llvm.call @mw_meet(%group, %me) : (!llvm.ptr, i64) -> i32
  %go = arith.cmpi eq, %met, %ok : i32
  cf.cond_br %go, ^work, ^out(%met : i32)
^work:
"""
_END = """
  %parted = llvm.call @mw_meet(%group, %me) : (!llvm.ptr, i64) -> i32
  cf.br ^out(%parted : i32)
^out(%rc: i32):
  llvm.return %rc : i32
}
"""
_BEGIN_WAIT = f"{_GROUP}{early.BEGIN_WAIT}"
_ARGUMENTS = "%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr"


def _peer(name: str, member: str) -> str:
    return f"""
    {name} = llvm.call @mw_peer(%group, {member}, %source_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr"""


def _valid(name: str, number: str, step: str, end: str) -> str:
    """Of piece `number` of pieces of `step`, as much as there is before `end`."""
    part = name[1:]
    return f"""
    %{part}_begin = arith.muli {number}, {step} : i64
    %{part}_left = arith.subi {end}, %{part}_begin : i64
    %{part}_some = arith.maxsi %{part}_left, %c0 : i64
    {name} = arith.minsi %{part}_some, {step} : i64"""


# Each member begins with its own block, so that not all read the same one at once.
_EACH = """
  scf.for %i = %c0 to %size step %c1 : i64 {
    %sum = arith.addi %i, %me : i64
    %j = arith.remui %sum, %size : i64
    %at = arith.muli %j, %nbytes : i64"""
_MOVES = {
    "all_gather": (
        "%nbytes: i64",
        f"{_EACH}{_peer('%from', '%j')}{at('%to', '%dst', '%at')}{copy('%to', '%from', '%nbytes')}\n  }}",
    ),
    "all_to_all": (
        "%nbytes: i64",
        f"""
  %piece = arith.muli %me, %nbytes : i64{_EACH}{_peer("%peer", "%j")}
{at("%from", "%peer", "%piece")}{at("%to", "%dst", "%at")}{copy("%to", "%from", "%nbytes")}
  }}""",
    ),
    "all_gather_box": (
        "%rows: i64, %row: i64, %whole: i64",
        f"""
  %nbytes = arith.addi %row, %c0 : i64{_EACH}{_peer("%from", "%j")}{at("%to", "%dst", "%at")}
{_valid("%run", "%j", "%row", "%whole")}
{copy_block("%to", "%from", "%c1, %c0, %c0", "%rows, %row, %whole", "%run")}
  }}""",
    ),
    "all_to_all_box": (
        "%outer: i64, %outer_source: i64, %outer_target: i64, %inner_source: i64, "
        "%inner_target: i64, %split: i64, %split_end: i64, %joined: i64, %joined_end: i64, "
        "%split_first: i64",
        f"""
  %is_split_first = arith.cmpi ne, %split_first, %c0 : i64
  %piece = arith.muli %me, %split : i64
{_valid("%own", "%me", "%split", "%split_end")}
  %nbytes = arith.addi %joined, %c0 : i64{_EACH}{_peer("%peer", "%j")}
{at("%from", "%peer", "%piece")}{at("%to", "%dst", "%at")}
{_valid("%theirs", "%j", "%joined", "%joined_end")}
    %run = arith.select %is_split_first, %theirs, %own : i64
    %span = arith.select %is_split_first, %own, %theirs : i64
    %step = arith.select %is_split_first, %inner_source, %inner_target : i64
    %inner = arith.divui %span, %step : i64
{
            copy_block(
                "%to",
                "%from",
                "%outer, %outer_source, %outer_target",
                "%inner, %inner_source, %inner_target",
                "%run",
            )
        }
  }}""",
    ),
    "permute": (
        "%nbytes: i64, %source: i64, %target: i64",
        f"{_peer('%from', '%source')}{copy('%dst', '%from', '%nbytes')}",
    ),
}


def generate(collectives: Sequence[Collective]) -> str:
    """The MLIR text of the functions asked for."""
    helpers = _MEET + (_EARLY if any(c.early for c in collectives) else "")
    return "module {" + helpers + functions(collectives) + "}"


def functions(collectives: Sequence[Collective]) -> str:
    """Text of the functions asked for, for an engine that defines `mw_meet`, `mw_publish` and
    `mw_peer`, and where some are started early what early.py asks for.
    """
    texts = []
    for kind, dtype in sorted({(c.kind, c.dtype) for c in collectives if c.kind}):
        texts.append(reduce_block(kind, dtype))
    ops = {collective.op for collective in collectives}
    units = sorted({unit for collective in collectives for unit in collective.units})
    texts.append(blocks_text(units) if ops & (TABLED | BOXES) else "")
    texts.append(piece_text() if ops & TABLED else "")
    texts.append(early.COMMON if any(c.early for c in collectives) else "")
    for collective in collectives:
        if collective.op == "relayout":
            texts.append(relayout_text())
        elif collective.early:
            texts += [_start(collective), _wait(collective)]
        else:
            texts.append(_function(collective))
    return "".join(texts)


def arguments_of(collective: Collective) -> str:
    """What its function takes behind the two buffers, declared."""
    if collective.op == "exchange":
        return EXCHANGED
    if collective.op == "reduce_scatter_box":
        return "%rows: i64, %count: i64, %row: i64"
    return "%count: i64" if collective.kind else _MOVES[collective.op][0]


def _function(collective: Collective) -> str:
    head = f"llvm.func @{collective.symbol}({_ARGUMENTS}, {arguments_of(collective)}) -> i32"
    work = _all_reduce(collective) if collective.op == "all_reduce" else _work(collective)
    return f"{head} {{{_buffers(collective)}{_BEGIN}{work}{_END}"


def _start(collective: Collective) -> str:
    arguments = f"{_ARGUMENTS}, {arguments_of(collective)}, {early.ARGUMENTS}"
    return f"llvm.func @{collective.symbol}_start({arguments}) -> i32 {{{_GROUP}{early.START}"


def _wait(collective: Collective) -> str:
    arguments = f"{_ARGUMENTS}, {arguments_of(collective)}, {early.ARGUMENTS}"
    head = f"llvm.func @{collective.symbol}_wait({arguments}) -> i32"
    work = early.pulled(_work(collective))
    return f"{head} {{{_buffers(collective)}{_BEGIN_WAIT}{work}{early.END_WAIT}"


def _work(collective: Collective) -> str:
    """What a member does that only reads the others' sources, for each kind of collective."""
    if collective.op == "exchange":
        return pulling_text()
    if collective.op == "all_reduce":
        return _all_reduce_alone(collective)
    if collective.op in ("reduce_scatter", "reduce_scatter_box"):
        return _reduce_scatter(collective)
    return _MOVES[collective.op][1]


def _buffers(collective: Collective) -> str:
    """Stack buffers of a reduction at the function's entry: the running value, and its rounded form
    for narrow floats.
    """
    if not collective.kind:
        return ""
    memory, wide = memory_types(collective.dtype)
    text = f"""
  %cblock = arith.constant {BLOCK} : i64
  %acc = llvm.alloca %cblock x {wide} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr
"""
    if memory != wide:
        text += f"""
  %rounded = llvm.alloca %cblock x {memory} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr
"""
    return text


def _reduce(collective: Collective, offset: str) -> str:
    """Reduce %n elements from element `offset` of every member's source. The result is in
    %result.
    """
    name = f"{collective.kind}_{collective.dtype}"
    memory, wide = memory_types(collective.dtype)
    text = f"""
    %first = llvm.call @mw_peer(%group, %c0, %source_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %first_at = llvm.getelementptr %first[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
    llvm.call @mw_begin_{name}(%acc, %first_at, %n) : (!llvm.ptr, !llvm.ptr, i64) -> ()
    scf.for %j = %c1 to %size step %c1 : i64 {{
      %peer = llvm.call @mw_peer(%group, %j, %source_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
      %peer_at = llvm.getelementptr %peer[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
      llvm.call @mw_add_{name}(%acc, %peer_at, %n) : (!llvm.ptr, !llvm.ptr, i64) -> ()
    }}
    %nbytes_element = arith.constant {NBYTES[collective.dtype]} : i64
    %nbytes = arith.muli %n, %nbytes_element : i64
"""
    if memory != wide:
        text += f"""
    llvm.call @mw_round_{name}(%rounded, %acc, %n) : (!llvm.ptr, !llvm.ptr, i64) -> ()
"""
    return text


def _result(dtype: str) -> str:
    memory, wide = memory_types(dtype)
    return "%acc" if memory == wide else "%rounded"


def _all_reduce(collective: Collective) -> str:
    """Each member reduces its part, and gives it to all."""
    memory, _ = memory_types(collective.dtype)
    return f"""
  %cgrain = arith.constant {GRAIN} : i64
  %grains_all = arith.ceildivui %count, %cgrain : i64
  %grains = arith.ceildivui %grains_all, %size : i64
  %part = arith.muli %grains, %cgrain : i64
  %start_raw = arith.muli %me, %part : i64
  %start = arith.minui %start_raw, %count : i64
  %end_raw = arith.addi %start, %part : i64
  %end = arith.minui %end_raw, %count : i64
  scf.for %at = %start to %end step %cblock : i64 {{
    %left = arith.subi %end, %at : i64
    %n = arith.minui %left, %cblock : i64
{_reduce(collective, "%at")}
    scf.for %j = %c0 to %size step %c1 : i64 {{
      %peer = llvm.call @mw_peer(%group, %j, %target_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
      %to = llvm.getelementptr %peer[%at] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
{copy("%to", _result(collective.dtype), "%nbytes")}
    }}
  }}
"""


def _all_reduce_alone(collective: Collective) -> str:
    """Each member reduces everything for itself."""
    memory, _ = memory_types(collective.dtype)
    return f"""
  scf.for %at = %c0 to %count step %cblock : i64 {{
    %left = arith.subi %count, %at : i64
    %n = arith.minui %left, %cblock : i64
{_reduce(collective, "%at")}
    %to = llvm.getelementptr %dst[%at] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
{copy("%to", _result(collective.dtype), "%nbytes")}
  }}
"""


def _reduce_scatter(collective: Collective) -> str:
    """Reduce the own block; of a box, the own part of every row, as long as rows have one."""
    memory, _ = memory_types(collective.dtype)
    rows = ""
    if collective.op == "reduce_scatter":
        rows = """
  %rows = arith.constant 1 : i64
  %row = arith.muli %count, %size : i64"""
    return f"""{rows}
  %start = arith.muli %me, %count : i64
{_valid("%own", "%me", "%count", "%row")}
  scf.for %r = %c0 to %rows step %c1 : i64 {{
  %row_source = arith.muli %r, %row : i64
  %row_target = arith.muli %r, %count : i64
  %first_source = arith.addi %row_source, %start : i64
  scf.for %at = %c0 to %own step %cblock : i64 {{
    %left = arith.subi %own, %at : i64
    %n = arith.minui %left, %cblock : i64
    %from = arith.addi %first_source, %at : i64
{_reduce(collective, "%from")}
    %target = arith.addi %row_target, %at : i64
    %to = llvm.getelementptr %dst[%target] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
{copy("%to", _result(collective.dtype), "%nbytes")}
  }}
  }}
"""
