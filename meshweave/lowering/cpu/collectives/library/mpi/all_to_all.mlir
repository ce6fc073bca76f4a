// all_to_all between processes: through the shared window of a host, else by MPI_Alltoall.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_all_to_all(
// CHECK: llvm.call @window_all_to_all(
// CHECK: llvm.call @library_all_to_all(

#limit = 2147483647 : i64  // bytes in one call of MPI

llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @window_all_to_all(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @window_all_to_all_start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> i32
llvm.func @window_all_to_all_wait(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> i32
llvm.func @is_outside(i32) -> i1
llvm.func @status_of(i32) -> i32
llvm.func @set_open(!llvm.ptr, i64)
llvm.func @wait_for_requests(!llvm.ptr, !llvm.ptr, i32) -> i32
llvm.func @communicator(!llvm.ptr, i64) -> i64
llvm.func @request(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @byte_type(!llvm.ptr) -> i64
llvm.func @member_after(i64, i64, i64) -> i64
llvm.func @member_before(i64, i64, i64) -> i64
llvm.func @send_and_receive(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
llvm.func @MPI_Alltoall(!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64) -> i32
llvm.func @MPI_Ialltoall(!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64, !llvm.ptr) -> i32

// MPI's own call, or, for very many bytes, an exchange with one member after the other: it gets the block meant for it.
llvm.func @library_all_to_all(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32
  %limit = arith.constant #limit
  %whole = arith.cmpi sle, %nbytes, %limit : i64
  %rc = scf.if %whole -> (i32) {
    %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
    %byte = llvm.call @byte_type(%ctx) : (!llvm.ptr) -> i64
    %n = arith.trunci %nbytes : i64 to i32
    %r = llvm.call @MPI_Alltoall(%src, %n, %byte, %dst, %n, %byte, %comm)
      : (!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64) -> i32
    scf.yield %r : i32
  } else {
    %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
    %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
    %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
    %all = scf.for %distance = %c0 to %size step %c1 iter_args(%sofar = %ok) -> (i32) : i64 {
      %go = llvm.call @is_ok(%sofar) : (i32) -> i1
      %next = scf.if %go -> (i32) {
        %target = llvm.call @member_after(%me, %distance, %size) : (i64, i64, i64) -> i64
        %source = llvm.call @member_before(%me, %distance, %size) : (i64, i64, i64) -> i64
        %from_at = arith.muli %target, %nbytes : i64
        %from = llvm.getelementptr %src[%from_at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
        %to_at = arith.muli %source, %nbytes : i64
        %to = llvm.getelementptr %dst[%to_at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
        %r = llvm.call @send_and_receive(%ctx, %number, %from, %to, %nbytes, %source, %target)
          : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
        scf.yield %r : i32
      } else {
        scf.yield %sofar : i32
      }
      scf.yield %next : i32
    }
    scf.yield %all : i32
  }
  %status = llvm.call @status_of(%rc) : (i32) -> i32
  llvm.return %status : i32
}

// Leave a call of the library open that takes the whole at once; what is too large for one call is done now.
llvm.func @library_all_to_all_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %area: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %limit = arith.constant #limit
  %opened = arith.constant 1 : i64
  %request = llvm.call @request(%area, %c0) : (!llvm.ptr, i64) -> !llvm.ptr
  %whole = arith.cmpi sle, %nbytes, %limit : i64
  %code = scf.if %whole -> (i32) {
    %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
    %n = arith.trunci %nbytes : i64 to i32
    %byte = llvm.call @byte_type(%ctx) : (!llvm.ptr) -> i64
    %rc = llvm.call @MPI_Ialltoall(%src, %n, %byte, %dst, %n, %byte, %comm, %request)
      : (!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64, !llvm.ptr) -> i32
    llvm.call @set_open(%area, %opened) : (!llvm.ptr, i64) -> ()
    %status = llvm.call @status_of(%rc) : (i32) -> i32
    scf.yield %status : i32
  } else {
    %status = llvm.call @library_all_to_all(%ctx, %number, %src, %dst, %nbytes)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
    llvm.call @set_open(%area, %c0) : (!llvm.ptr, i64) -> ()
    scf.yield %status : i32
  }
  llvm.return %code : i32
}

// Through the window, or by the library.
llvm.func @mw_all_to_all(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64) -> i32 {
  %tried = llvm.call @window_all_to_all(%ctx, %number, %src, %dst, %nbytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_all_to_all(%ctx, %number, %src, %dst, %nbytes)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_all_to_all_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %tried = llvm.call @window_all_to_all_start(%ctx, %number, %src, %dst, %nbytes, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_all_to_all_start(%ctx, %number, %src, %dst, %nbytes, %area)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_all_to_all_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %tried = llvm.call @window_all_to_all_wait(%ctx, %number, %src, %dst, %nbytes, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> i32
  %code = llvm.call @wait_for_requests(%ctx, %area, %tried) : (!llvm.ptr, !llvm.ptr, i32) -> i32
  llvm.return %code : i32
}
