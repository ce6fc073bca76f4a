"""Collectives of the `local` engine: ranks are threads of one process, so each reads and writes the
others' buffers.

Every collective is: publish own pointers, meet, work, meet again. A meeting is one store to the
member's own cache line and a look at everybody else's; who waits looks at the abort flag too, so
that a rank that fails frees the others, and yields the processor after a while, so that more ranks
than cores get on. Where things lie is said by `bundle.WorldLayout`.

Reductions are deterministic: each member reduces its own part of the elements over all members in
member order, and writes it to everybody, so all ranks hold the same bits. Narrow floats are summed
in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshweave.bundle import ABORTED, WorldLayout
from meshweave.lowering.copies import blocks_text, copy_block, piece_text
from meshweave.lowering.exchange_code import pulling_text, relayout_text

if TYPE_CHECKING:
    from meshweave.lowering.collectives import Collective

EXTERNALS = ("sched_yield", "memcpy", "memmove", "memset")
TABLED = {"exchange", "relayout"}  # whose pieces are in a table
BOXES = {"all_gather_box", "all_to_all_box"}  # that read and write where the elements belong
BLOCK = 1024  # elements reduced at a time: the running value stays in the first-level cache
GRAIN = 64  # elements: parts of a reduction begin at multiples, so that members share no cache line

NBYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1}
_NARROW = ("f16", "bf16")

_MEET = f"""
llvm.func @sched_yield() -> i32
llvm.func @mw_meet(%group: !llvm.ptr, %me: i64) -> i32 attributes {{no_inline}} {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %line = llvm.mlir.constant({WorldLayout.LINE} : i64) : i64
  %ok = llvm.mlir.constant(0 : i32) : i32
  %left = llvm.mlir.constant({ABORTED} : i32) : i32
  %size = llvm.load %group : !llvm.ptr -> i64
  %at = llvm.getelementptr %group[{WorldLayout.WORLD}] : (!llvm.ptr) -> !llvm.ptr, i8
  %world = llvm.load %at : !llvm.ptr -> !llvm.ptr
  %spins_at = llvm.getelementptr %world[{WorldLayout.SPINS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %spins = llvm.load %spins_at : !llvm.ptr -> i64
  %abort = llvm.getelementptr %world[{WorldLayout.ABORT}] : (!llvm.ptr) -> !llvm.ptr, i8
  %members = llvm.getelementptr %group[{WorldLayout.MEMBERS + WorldLayout.ARRIVED}]
    : (!llvm.ptr) -> !llvm.ptr, i8
  %mine_offset = llvm.mul %me, %line : i64
  %mine = llvm.getelementptr %members[%mine_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %before = llvm.load %mine : !llvm.ptr -> i64
  %now = llvm.add %before, %one : i64
  llvm.store %now, %mine atomic release {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.br ^member(%zero, %zero : i64, i64)
^member(%j: i64, %seen: i64):
  %more = llvm.icmp "slt" %j, %size : i64
  llvm.cond_br %more, ^start, ^done
^start:
  %offset = llvm.mul %j, %line : i64
  %other = llvm.getelementptr %members[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %next = llvm.add %j, %one : i64
  llvm.br ^look(%seen : i64)
^look(%n: i64):
  %arrived = llvm.load %other atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %there = llvm.icmp "sge" %arrived, %now : i64
  llvm.cond_br %there, ^member(%next, %n : i64, i64), ^wait
^wait:
  %flag = llvm.load %abort atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %failed = llvm.icmp "ne" %flag, %zero : i64
  llvm.cond_br %failed, ^leave, ^patience
^patience:
  %soon = llvm.icmp "slt" %n, %spins : i64
  llvm.cond_br %soon, ^pause, ^yield
^pause:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  %n1 = llvm.add %n, %one : i64
  llvm.br ^look(%n1 : i64)
^yield:
  %ignored = llvm.call @sched_yield() : () -> i32
  llvm.br ^look(%n : i64)
^leave:
  llvm.return %left : i32
^done:
  llvm.return %ok : i32
}}
llvm.func @mw_publish(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %dst: !llvm.ptr) {{
  %line = llvm.mlir.constant({WorldLayout.LINE} : i64) : i64
  %at = llvm.mul %me, %line : i64
  %own = llvm.getelementptr %group[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %source = llvm.getelementptr %own[{WorldLayout.MEMBERS + WorldLayout.SOURCE}]
    : (!llvm.ptr) -> !llvm.ptr, i8
  %target = llvm.getelementptr %own[{WorldLayout.MEMBERS + WorldLayout.TARGET}]
    : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %src, %source : !llvm.ptr, !llvm.ptr
  llvm.store %dst, %target : !llvm.ptr, !llvm.ptr
  llvm.return
}}
llvm.func @mw_peer(%group: !llvm.ptr, %member: i64, %offset: i64) -> !llvm.ptr {{
  %line = llvm.mlir.constant({WorldLayout.LINE} : i64) : i64
  %at = llvm.mul %member, %line : i64
  %at2 = llvm.add %at, %offset : i64
  %entry = llvm.getelementptr %group[%at2] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %value = llvm.load %entry : !llvm.ptr -> !llvm.ptr
  llvm.return %value : !llvm.ptr
}}
"""

# What every collective begins with: its group, this rank's number in it, its own pointers made
# public, a meeting.
_BEGIN = f"""
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c4 = arith.constant 4 : i64
  %ok = arith.constant 0 : i32
  %source_field = arith.constant {WorldLayout.MEMBERS + WorldLayout.SOURCE} : i64
  %target_field = arith.constant {WorldLayout.MEMBERS + WorldLayout.TARGET} : i64
  %twice = arith.muli %number, %c2 : i64
  %slot = arith.addi %twice, %c4 : i64
  %handle = llvm.getelementptr %ctx[%slot] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %group = llvm.load %handle : !llvm.ptr -> !llvm.ptr
  %index = llvm.getelementptr %handle[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %me = llvm.load %index : !llvm.ptr -> i64
  %size = llvm.load %group : !llvm.ptr -> i64
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
_ARGUMENTS = "%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr"


def _copy(to: str, source: str, nbytes: str = "%nbytes") -> str:
    return f"""
    "llvm.intr.memcpy"({to}, {source}, {nbytes}) <{{isVolatile = false}}>
      : (!llvm.ptr, !llvm.ptr, i64) -> ()"""


def _peer(name: str, member: str, field: str = "%source_field") -> str:
    return f"""
    {name} = llvm.call @mw_peer(%group, {member}, {field}) : (!llvm.ptr, i64, i64) -> !llvm.ptr"""


def _at(name: str, base: str, offset: str, kind: str = "i8") -> str:
    return f"""
    {name} = llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}"""


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
        f"{_EACH}{_peer('%from', '%j')}{_at('%to', '%dst', '%at')}{_copy('%to', '%from')}\n  }}",
    ),
    "all_to_all": (
        "%nbytes: i64",
        f"""
  %piece = arith.muli %me, %nbytes : i64{_EACH}{_peer("%peer", "%j")}
{_at("%from", "%peer", "%piece")}{_at("%to", "%dst", "%at")}{_copy("%to", "%from")}
  }}""",
    ),
    "all_gather_box": (
        "%rows: i64, %row: i64, %whole: i64",
        f"""
  %nbytes = arith.addi %row, %c0 : i64{_EACH}{_peer("%from", "%j")}{_at("%to", "%dst", "%at")}
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
{_at("%from", "%peer", "%piece")}{_at("%to", "%dst", "%at")}
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
        f"{_peer('%from', '%source')}{_copy('%dst', '%from')}",
    ),
}


def generate(collectives: Sequence[Collective]) -> str:
    """The MLIR text of the functions asked for."""
    return "module {" + _MEET + functions(collectives) + "}"


def functions(collectives: Sequence[Collective]) -> str:
    """Text of the functions asked for, for an engine that defines `mw_meet`, `mw_publish` and
    `mw_peer`.
    """
    texts = []
    for kind, dtype in sorted({(c.kind, c.dtype) for c in collectives if c.kind}):
        texts.append(reduce_block(kind, dtype))
    ops = {collective.op for collective in collectives}
    texts.append(blocks_text() if ops & (TABLED | BOXES) else "")
    texts.append(piece_text() if ops & TABLED else "")
    for collective in collectives:
        if collective.op == "exchange":
            texts.append(pulling_text(_BEGIN, _END))
        elif collective.op == "relayout":
            texts.append(relayout_text())
        elif collective.op == "all_reduce":
            texts.append(_all_reduce(collective))
        elif collective.op in ("reduce_scatter", "reduce_scatter_box"):
            texts.append(_reduce_scatter(collective))
        else:
            arguments, work = _MOVES[collective.op]
            texts.append(
                f"llvm.func @{collective.symbol}({_ARGUMENTS}, {arguments}) -> i32 "
                f"{{{_BEGIN}{work}{_END}"
            )
    return "".join(texts)


def _types(dtype: str) -> tuple[str, str]:
    """The type of an element in memory, and of the running value of its reduction."""
    memory = "i8" if dtype == "i1" else dtype
    return memory, "f32" if dtype in _NARROW else memory


def combine(kind: str, dtype: str, left: str, right: str) -> str:
    """The op that reduces two running values: max and min of floats give NaN when either is."""
    _, wide = _types(dtype)
    if wide.startswith("f"):
        name = {"sum": "addf", "prod": "mulf", "max": "maximumf", "min": "minimumf"}[kind]
    elif dtype == "i1":
        name = {"max": "maxui", "min": "minui"}[kind]
    else:
        name = {"sum": "addi", "prod": "muli", "max": "maxsi", "min": "minsi"}[kind]
    return f"arith.{name} {left}, {right} : {wide}"


def reduce_block(kind: str, dtype: str) -> str:
    """Functions on at most BLOCK elements: begin the running value, reduce one member into it, end
    it.

    Their pointers never overlap: the running value is a buffer of the caller.
    """
    memory, wide = _types(dtype)
    name = f"{kind}_{dtype}"
    load = "%x = llvm.load %p : !llvm.ptr -> " + memory
    widen = f"\n    %v = arith.extf %x : {memory} to {wide}" if memory != wide else ""
    value = "%v" if memory != wide else "%x"
    pointers = f"""
    %p = llvm.getelementptr %src[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
    %a = llvm.getelementptr %acc[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {wide}
    {load}{widen}"""
    loop = """
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %i = %c0 to %n step %c1 : i64 {"""
    arguments = "%acc: !llvm.ptr {llvm.noalias}, %src: !llvm.ptr {llvm.noalias}, %n: i64"
    text = f"""
llvm.func @mw_begin_{name}({arguments}) attributes {{no_inline}} {{
{loop}{pointers}
    llvm.store {value}, %a : {wide}, !llvm.ptr
  }}
  llvm.return
}}
llvm.func @mw_add_{name}({arguments}) attributes {{no_inline}} {{
{loop}{pointers}
    %old = llvm.load %a : !llvm.ptr -> {wide}
    %new = {combine(kind, dtype, "%old", value)}
    llvm.store %new, %a : {wide}, !llvm.ptr
  }}
  llvm.return
}}
"""
    if memory == wide:
        return text
    return f"""{text}
llvm.func @mw_round_{name}({arguments}) attributes {{no_inline}} {{
{loop}
    %p = llvm.getelementptr %src[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {wide}
    %a = llvm.getelementptr %acc[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
    %x = llvm.load %p : !llvm.ptr -> {wide}
    %v = arith.truncf %x : {wide} to {memory}
    llvm.store %v, %a : {memory}, !llvm.ptr
  }}
  llvm.return
}}
"""


def _buffers(dtype: str) -> str:
    """Stack buffers at the function's entry: the running value, and its rounded form for narrow
    floats.
    """
    memory, wide = _types(dtype)
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
    memory, wide = _types(collective.dtype)
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
    memory, wide = _types(dtype)
    return "%acc" if memory == wide else "%rounded"


def _all_reduce(collective: Collective) -> str:
    memory, _ = _types(collective.dtype)
    return f"""
llvm.func @{collective.symbol}({_ARGUMENTS}, %count: i64) -> i32 {{
{_buffers(collective.dtype)}{_BEGIN}
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
{_copy("%to", _result(collective.dtype))}
    }}
  }}
{_END}"""


def _reduce_scatter(collective: Collective) -> str:
    """Reduce the own block; of a box, the own part of every row, as long as rows have one."""
    memory, _ = _types(collective.dtype)
    if collective.op == "reduce_scatter":
        arguments = "%count: i64"
        rows = """
  %rows = arith.constant 1 : i64
  %row = arith.muli %count, %size : i64"""
    else:
        arguments, rows = "%rows: i64, %count: i64, %row: i64", ""
    return f"""
llvm.func @{collective.symbol}({_ARGUMENTS}, {arguments}) -> i32 {{
{_buffers(collective.dtype)}{_BEGIN}{rows}
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
{_copy("%to", _result(collective.dtype))}
  }}
  }}
{_END}"""


def reduce_pair(kind: str, dtype: str) -> str:
    """Body of a loop over %i that reduces element %i of %in into %inout."""
    memory, wide = _types(dtype)
    lines = [
        f"%p = llvm.getelementptr %in[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}",
        f"%q = llvm.getelementptr %inout[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}",
        f"%x = llvm.load %p : !llvm.ptr -> {memory}",
        f"%y = llvm.load %q : !llvm.ptr -> {memory}",
    ]
    left, right, value = "%x", "%y", "%new"
    if memory != wide:
        lines += [
            f"%wide_x = arith.extf %x : {memory} to {wide}",
            f"%wide_y = arith.extf %y : {memory} to {wide}",
        ]
        left, right, value = "%wide_x", "%wide_y", "%narrow"
    lines.append(f"%new = {combine(kind, dtype, left, right)}")
    if memory != wide:
        lines.append(f"%narrow = arith.truncf %new : {wide} to {memory}")
    lines.append(f"llvm.store {value}, %q : {memory}, !llvm.ptr")
    return "\n".join("    " + line for line in lines)
