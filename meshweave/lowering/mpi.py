"""Collectives of the `mpi` engine: compiled code calls the MPI library itself.

Handles and special addresses are integers of 64 bits in the table at the `private` slot
(`abi.MpiTable`), so one object serves MPICH (handles are ints, the upper half is ignored) and
Open MPI (handles are pointers). MPI counts are 32 bits wide: what is larger goes in pieces. A code
that MPI returns is turned into its class, which fits 16 bits.

Of a collective that is started early, the library's own non-blocking call is left open in its area
(`abi.EarlyArea`) until it is waited for; what is too large for one call, and an exchange, which has
tables and packing around it, is done when it is started.

These are the functions between hosts, and wherever the engine has no shared window; ranks of one
host go through the window (lowering/window.py), which has the names that compiled code calls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from meshweave.abi import EarlyArea, GroupRecord, MpiTable, Slots, reduction_symbol
from meshweave.lowering import early, window
from meshweave.lowering.exchange_code import ALLTOALLV, messages_text
from meshweave.lowering.local import arguments_of
from meshweave.lowering.phrases import GROUP, around, at, field, unless_failed, word
from meshweave.lowering.reductions import NBYTES, reduce_pair
from meshweave.lowering.window import library_symbol

if TYPE_CHECKING:
    from meshweave.lowering.collectives import Collective

LIMIT = (1 << 31) - 1  # elements or bytes in one MPI call
PIECE = 1 << 30  # elements or bytes per call when there are more

_SIGNATURES = {
    "MPI_Allreduce": "!llvm.ptr, !llvm.ptr, i32, i64, i64, i64",
    "MPI_Reduce": "!llvm.ptr, !llvm.ptr, i32, i64, i64, i32, i64",
    "MPI_Reduce_scatter_block": "!llvm.ptr, !llvm.ptr, i32, i64, i64, i64",
    "MPI_Allgather": "!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64",
    "MPI_Alltoall": "!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64",
    "MPI_Alltoallv": ALLTOALLV,
    "MPI_Sendrecv": "!llvm.ptr, i32, i64, i32, i32, !llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr",
    "MPI_Iallreduce": "!llvm.ptr, !llvm.ptr, i32, i64, i64, i64, !llvm.ptr",
    "MPI_Ireduce_scatter_block": "!llvm.ptr, !llvm.ptr, i32, i64, i64, i64, !llvm.ptr",
    "MPI_Iallgather": "!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64, !llvm.ptr",
    "MPI_Ialltoall": "!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64, !llvm.ptr",
    "MPI_Isend": "!llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr",
    "MPI_Irecv": "!llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr",
    "MPI_Wait": "!llvm.ptr, !llvm.ptr",
    "MPI_Error_class": "i32, !llvm.ptr",
}
EXTERNALS = (*_SIGNATURES, *window.EXTERNALS, "memcpy", "memmove", "memset")

_ARGUMENTS = "%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr"


def has_own_operation(kind: str, dtype: str) -> bool:
    """Whether a reduction needs our compiled operation: MPI has no bf16, a slow f16, and lets
    max and min drop a NaN.
    """
    return dtype in ("f16", "bf16") or (dtype in ("f32", "f64") and kind in ("max", "min"))


def generate(
    collectives: list[Collective], limit: int = LIMIT, piece: int = PIECE, staging: int = 0
) -> str:
    """The MLIR text of the functions asked for, through the window and by the library.

    limit: elements (of reductions) or bytes (of moves) up to which one call of the library is made;
    piece: those of each call beyond; staging: see `window.staging_bytes`.
    """
    texts = [f"\nllvm.func @{name}({types}) -> i32" for name, types in _SIGNATURES.items()]
    texts += [_STATUS, _sendrecv(piece), window.generate(collectives, staging)]
    for kind, dtype in sorted({(c.kind, c.dtype) for c in collectives if c.kind}):
        if has_own_operation(kind, dtype):
            texts.append(_operation(kind, dtype))
    texts += [_start(c, limit) + _wait(c) for c in collectives if c.early]
    for collective in sorted({replace(c, early=False) for c in collectives}):
        if collective.op == "relayout":
            continue  # nothing moves between ranks: the window's will do
        if collective.op == "exchange":
            texts.append(_exchange(limit, piece))
        elif collective.op == "all_reduce":
            texts.append(_all_reduce(collective, limit, piece))
        elif collective.op == "reduce_scatter":
            texts.append(_reduce_scatter(collective, limit, piece))
        elif collective.op == "permute":
            texts.append(_PERMUTE)
        else:
            texts.append(_move(collective, limit))
    return "module {" + "".join(texts) + "}"


_STATUS = """
llvm.func @mw_status(%rc: i32) -> i32 {
  %ok = llvm.mlir.constant(0 : i32) : i32
  %one = llvm.mlir.constant(1 : i32) : i32
  %cell = llvm.alloca %one x i32 : (i32) -> !llvm.ptr
  %fine = llvm.icmp "eq" %rc, %ok : i32
  llvm.cond_br %fine, ^done(%ok : i32), ^failed
^failed:
  %unknown = llvm.mlir.constant(16 : i32) : i32
  llvm.store %unknown, %cell : i32, !llvm.ptr
  %ignored = llvm.call @MPI_Error_class(%rc, %cell) : (i32, !llvm.ptr) -> i32
  %class = llvm.load %cell : !llvm.ptr -> i32
  %mask = llvm.mlir.constant(32767 : i32) : i32
  %low = llvm.and %class, %mask : i32
  %none = llvm.icmp "eq" %low, %ok : i32
  %code = llvm.select %none, %one, %low : i1, i32
  llvm.br ^done(%code : i32)
^done(%r: i32):
  llvm.return %r : i32
}
"""


# The table and the group's communicator.
_BEGIN = f"""
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32{field("%table", "%ctx", 8 * Slots.private, "!llvm.ptr")}{GROUP}
  %size = llvm.load %group : !llvm.ptr -> i64{field("%comm", "%group", GroupRecord.COMM)}"""

_END = """
  %status = llvm.call @mw_status(%rc) : (i32) -> i32
  llvm.return %status : i32
}
"""


def _begin_reduction(collective: Collective, limit: int, piece: int) -> str:
    """Handles of the reduction, and %step: the whole count where one call takes it, a piece
    where it does not.
    """
    datatype = word("%dt", "%table", MpiTable.datatype(collective.dtype))
    operation = word("%op", "%table", MpiTable.reduction(collective.kind, collective.dtype))
    return f"""{_BEGIN}{datatype}{operation}
  %climit = arith.constant {limit} : i64
  %cpiece = arith.constant {piece} : i64
  %whole = arith.cmpi sle, %count, %climit : i64
  %nbytes_element = arith.constant {NBYTES[collective.dtype]} : i64"""


def _all_reduce(collective: Collective, limit: int, piece: int) -> str:
    return f"""
llvm.func @{library_symbol(collective.symbol)}({_ARGUMENTS}, %count: i64) -> i32 {{
{_begin_reduction(collective, limit, piece)}
  %step_raw = arith.select %whole, %count, %cpiece : i64
  %step = arith.maxsi %step_raw, %c1 : i64
  %same = llvm.icmp "eq" %src, %dst : !llvm.ptr{word("%in_place", "%table", MpiTable.IN_PLACE)}
  %in_place_ptr = llvm.inttoptr %in_place : i64 to !llvm.ptr
  %rc = scf.for %at = %c0 to %count step %step iter_args(%sofar = %ok) -> (i32) : i64 {{
    %left = arith.subi %count, %at : i64
    %n = arith.minsi %left, %step : i64
    %n32 = arith.trunci %n : i64 to i32
    %offset = arith.muli %at, %nbytes_element : i64
    %from_src = llvm.getelementptr %src[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %from = llvm.select %same, %in_place_ptr, %from_src : i1, !llvm.ptr
    %to = llvm.getelementptr %dst[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8{
        unless_failed(f'''
      %r = llvm.call @MPI_Allreduce(%from, %to, %n32, %dt, %op, %comm)
        : ({_SIGNATURES["MPI_Allreduce"]}) -> i32''')
    }
  }}{_END}"""


def _reduce_scatter(collective: Collective, limit: int, piece: int) -> str:
    """One call, or, for very many elements, a reduction in pieces to each member in turn."""
    return f"""
llvm.func @{library_symbol(collective.symbol)}({_ARGUMENTS}, %count: i64) -> i32 {{
{_begin_reduction(collective, limit, piece)}
  %rc = scf.if %whole -> (i32) {{
    %n32 = arith.trunci %count : i64 to i32
    %r = llvm.call @MPI_Reduce_scatter_block(%src, %dst, %n32, %dt, %op, %comm)
      : ({_SIGNATURES["MPI_Reduce_scatter_block"]}) -> i32
    scf.yield %r : i32
  }} else {{
    %all = scf.for %j = %c0 to %size step %c1 iter_args(%before = %ok) -> (i32) : i64 {{
      %root = arith.trunci %j : i64 to i32
      %start = arith.muli %j, %count : i64
      %one = scf.for %at = %c0 to %count step %cpiece iter_args(%sofar = %before) -> (i32) : i64 {{
        %left = arith.subi %count, %at : i64
        %n = arith.minsi %left, %cpiece : i64
        %n32 = arith.trunci %n : i64 to i32
        %place = arith.addi %start, %at : i64
        %from_offset = arith.muli %place, %nbytes_element : i64
        %to_offset = arith.muli %at, %nbytes_element : i64
        %from = llvm.getelementptr %src[%from_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
        %to = llvm.getelementptr %dst[%to_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8{
        unless_failed(f'''
          %r = llvm.call @MPI_Reduce(%from, %to, %n32, %dt, %op, %root, %comm)
            : ({_SIGNATURES["MPI_Reduce"]}) -> i32''')
    }
      }}
      scf.yield %one : i32
    }}
    scf.yield %all : i32
  }}{_END}"""


def _sendrecv(piece: int) -> str:
    """Send bytes to one member and receive as many from another, in pieces."""
    return f"""
llvm.func @mw_sendrecv({_ARGUMENTS}, %nbytes: i64, %source: i64, %target: i64) -> i32 {{
{_BEGIN}{word("%byte", "%table", MpiTable.BYTE)}{word("%ignored_status", "%table", MpiTable.STATUS)}
  %status_at = llvm.inttoptr %ignored_status : i64 to !llvm.ptr
  %cpiece = arith.constant {piece} : i64
  %tag = arith.constant 77 : i32
  %source32 = arith.trunci %source : i64 to i32
  %target32 = arith.trunci %target : i64 to i32
  %rc = scf.for %at = %c0 to %nbytes step %cpiece iter_args(%sofar = %ok) -> (i32) : i64 {{
    %left = arith.subi %nbytes, %at : i64
    %n = arith.minsi %left, %cpiece : i64
    %n32 = arith.trunci %n : i64 to i32
    %from = llvm.getelementptr %src[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %to = llvm.getelementptr %dst[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8{
        unless_failed(f'''
      %r = llvm.call @MPI_Sendrecv(%from, %n32, %byte, %target32, %tag,
        %to, %n32, %byte, %source32, %tag, %comm, %status_at)
        : ({_SIGNATURES["MPI_Sendrecv"]}) -> i32''')
    }
  }}
  llvm.return %rc : i32
}}
"""


def _exchange(limit: int, piece: int) -> str:
    """What goes from each member to each other one (lowering/exchange.py)."""
    begin = f"""{_BEGIN}{word("%byte", "%table", MpiTable.BYTE)}{word("%ignored_status", "%table", MpiTable.STATUS)}
  %status_at = llvm.inttoptr %ignored_status : i64 to !llvm.ptr"""
    return messages_text(library_symbol("mw_exchange"), begin, _END, limit, piece)


_SENDRECV = "(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32"
_PERMUTE = f"""
llvm.func @{library_symbol("mw_permute")}(
    {_ARGUMENTS}, %nbytes: i64, %source: i64, %target: i64) -> i32 {{
  %rc = llvm.call @mw_sendrecv(%ctx, %number, %src, %dst, %nbytes, %source, %target)
    : {_SENDRECV}{_END}"""


def _move(collective: Collective, limit: int) -> str:
    """all_gather or all_to_all: MPI's own, or, for very many bytes, an exchange with each member
    in turn.
    """
    name = {"all_gather": "MPI_Allgather", "all_to_all": "MPI_Alltoall"}[collective.op]
    # What goes to member `to`: all of the source, or the block meant for it.
    if collective.op == "all_gather":
        outgoing = "%from = llvm.getelementptr %src[%c0] : (!llvm.ptr, i64) -> !llvm.ptr, i8"
    else:
        outgoing = """%from_at = arith.muli %target, %nbytes : i64
      %from = llvm.getelementptr %src[%from_at] : (!llvm.ptr, i64) -> !llvm.ptr, i8"""
    return f"""
llvm.func @{library_symbol(collective.symbol)}({_ARGUMENTS}, %nbytes: i64) -> i32 {{
{_BEGIN}{word("%byte", "%table", MpiTable.BYTE)}
  %climit = arith.constant {limit} : i64
  %whole = arith.cmpi sle, %nbytes, %climit : i64
  %rc = scf.if %whole -> (i32) {{
    %n32 = arith.trunci %nbytes : i64 to i32
    %r = llvm.call @{name}(%src, %n32, %byte, %dst, %n32, %byte, %comm)
      : ({_SIGNATURES[name]}) -> i32
    scf.yield %r : i32
  }} else {{
    %all = scf.for %distance = %c0 to %size step %c1 iter_args(%sofar = %ok) -> (i32) : i64 {{{
        around("%target", "%source")
    }
      {outgoing}
      %to_at = arith.muli %source, %nbytes : i64
      %to = llvm.getelementptr %dst[%to_at] : (!llvm.ptr, i64) -> !llvm.ptr, i8{
        unless_failed(f'''
        %r = llvm.call @mw_sendrecv(%ctx, %number, %from, %to, %nbytes, %source, %target)
          : {_SENDRECV}''')
    }
    }}
    scf.yield %all : i32
  }}{_END}"""


_REQUESTS = f"""{at("%active_at", "%area", EarlyArea.ACTIVE)}
{at("%request", "%area", EarlyArea.REQUESTS)}{at("%second", "%request", 8)}"""


def _start(collective: Collective, limit: int) -> str:
    """A non-blocking call of the library that takes the whole at once; else all of it, now."""
    symbol = library_symbol(collective.symbol)
    given = arguments_of(collective)
    names = "".join(f", {a.split(':')[0].strip()}" for a in given.split(","))
    kinds = "".join(f", {a.split(':')[1].strip()}" for a in given.split(","))
    now = f"""
  %rc = llvm.call @{symbol}(%ctx, %number, %src, %dst{names})
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr{kinds}) -> i32
  %none = llvm.mlir.constant(0 : i64) : i64
  llvm.store %none, %active_at : i64, !llvm.ptr
  llvm.return %rc : i32"""
    head = (
        f"llvm.func @{symbol}_start({_ARGUMENTS}, {given}, {early.ARGUMENTS}) -> i32 {{{_REQUESTS}"
    )
    if collective.op == "exchange":
        return f"\n{head}{now}\n}}\n"
    unit = "%count" if collective.kind else "%nbytes"
    calls = {"all_reduce": _IALLREDUCE, "reduce_scatter": _IREDUCE_SCATTER, "permute": _ISENDRECV}
    call = calls.get(collective.op) or _imove(collective)
    handles = word("%byte", "%table", MpiTable.BYTE)
    if collective.kind:
        handles = word("%dt", "%table", MpiTable.datatype(collective.dtype))
        handles += word("%op", "%table", MpiTable.reduction(collective.kind, collective.dtype))
    return f"""
{head}{_BEGIN}{handles}
  %climit = arith.constant {limit} : i64
  %whole = arith.cmpi sle, {unit}, %climit : i64
  cf.cond_br %whole, ^start, ^now
^start:
  %n32 = arith.trunci {unit} : i64 to i32{call}
  llvm.store %open, %active_at : i64, !llvm.ptr
  %status = llvm.call @mw_status(%r) : (i32) -> i32
  llvm.return %status : i32
^now:{now}
}}
"""


_IALLREDUCE = f"""
  %open = arith.constant 1 : i64
  %r = llvm.call @MPI_Iallreduce(%src, %dst, %n32, %dt, %op, %comm, %request)
    : ({_SIGNATURES["MPI_Iallreduce"]}) -> i32"""
_IREDUCE_SCATTER = f"""
  %open = arith.constant 1 : i64
  %r = llvm.call @MPI_Ireduce_scatter_block(%src, %dst, %n32, %dt, %op, %comm, %request)
    : ({_SIGNATURES["MPI_Ireduce_scatter_block"]}) -> i32"""
_ISENDRECV = f"""
  %open = arith.constant 2 : i64
  %tag = arith.constant 77 : i32
  %source32 = arith.trunci %source : i64 to i32
  %target32 = arith.trunci %target : i64 to i32
  %received = llvm.call @MPI_Irecv(%dst, %n32, %byte, %source32, %tag, %comm, %request)
    : ({_SIGNATURES["MPI_Irecv"]}) -> i32
  %sent = llvm.call @MPI_Isend(%src, %n32, %byte, %target32, %tag, %comm, %second)
    : ({_SIGNATURES["MPI_Isend"]}) -> i32
  %fine = arith.cmpi eq, %received, %ok : i32
  %r = arith.select %fine, %sent, %received : i32"""


def _imove(collective: Collective) -> str:
    name = {"all_gather": "MPI_Iallgather", "all_to_all": "MPI_Ialltoall"}[collective.op]
    return f"""
  %open = arith.constant 1 : i64
  %r = llvm.call @{name}(%src, %n32, %byte, %dst, %n32, %byte, %comm, %request)
    : ({_SIGNATURES[name]}) -> i32"""


def _wait(collective: Collective) -> str:
    """Wait for what its start has left open."""
    symbol, given = library_symbol(collective.symbol), arguments_of(collective)
    return f"""
llvm.func @{symbol}_wait({_ARGUMENTS}, {given}, {early.ARGUMENTS}) -> i32 {{{_REQUESTS}{_BEGIN}
{word("%ignored_status", "%table", MpiTable.STATUS)}
  %status_at = llvm.inttoptr %ignored_status : i64 to !llvm.ptr
  %c8 = arith.constant 8 : i64
  %open = llvm.load %active_at : !llvm.ptr -> i64
  %rc = scf.for %k = %c0 to %open step %c1 iter_args(%sofar = %ok) -> (i32) : i64 {{
    %behind = arith.muli %k, %c8 : i64
    %at = llvm.getelementptr %request[%behind] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %r = llvm.call @MPI_Wait(%at, %status_at) : ({_SIGNATURES["MPI_Wait"]}) -> i32
    %go = arith.cmpi eq, %sofar, %ok : i32
    %next = arith.select %go, %r, %sofar : i32
    scf.yield %next : i32
  }}{_END}"""


_OPERATION_ARGUMENTS = "%in: !llvm.ptr, %inout: !llvm.ptr, %length: !llvm.ptr, %type: !llvm.ptr"


def _operation(kind: str, dtype: str) -> str:
    """An MPI_User_function: inout[i] = in[i] (kind) inout[i]. Narrow floats round once per call,
    that is per hop.
    """
    return f"""
llvm.func @{reduction_symbol(kind, dtype)}({_OPERATION_ARGUMENTS}) {{
  %n32 = llvm.load %length : !llvm.ptr -> i32
  %n = arith.extsi %n32 : i32 to i64
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %i = %c0 to %n step %c1 : i64 {{
{reduce_pair(kind, dtype)}
  }}
  llvm.return
}}
"""
