"""Hold the function by which a traced step says what it begins, and when (`abi.TraceBuffer`).

It looks at one word of the rank's status row, and returns where nobody traces.
"""

from meshweave.abi import StatusRow, TraceBuffer

MARK = TraceBuffer.MARK
MARK_TYPES = "(!llvm.ptr, i64)"
MARK_TEXT = f"""
llvm.func @{MARK}(%status: !llvm.ptr, %what: i64) {{
  %at = llvm.getelementptr %status[{8 * StatusRow.TRACE}] : (!llvm.ptr) -> !llvm.ptr, i8
  %buffer = llvm.load %at : !llvm.ptr -> !llvm.ptr
  %none = llvm.mlir.zero : !llvm.ptr
  %off = llvm.icmp "eq" %buffer, %none : !llvm.ptr
  llvm.cond_br %off, ^done, ^on
^on:
  %time = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %count = llvm.load %buffer : !llvm.ptr -> i64
  %more = llvm.add %count, %one : i64
  llvm.store %more, %buffer : i64, !llvm.ptr
  %room_at = llvm.getelementptr %buffer[{8 * TraceBuffer.ROOM}] : (!llvm.ptr) -> !llvm.ptr, i8
  %room = llvm.load %room_at : !llvm.ptr -> i64
  %full = llvm.icmp "sge" %count, %room : i64
  llvm.cond_br %full, ^done, ^write
^write:
  %first = llvm.getelementptr %buffer[{8 * TraceBuffer.HEAD}] : (!llvm.ptr) -> !llvm.ptr, i8
  %two = llvm.add %count, %count : i64
  %place = llvm.getelementptr %first[%two] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.store %time, %place : i64, !llvm.ptr
  %behind = llvm.getelementptr %place[8] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %what, %behind : i64, !llvm.ptr
  llvm.br ^done
^done:
  llvm.return
}}
"""
