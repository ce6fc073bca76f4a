// all_reduce between processes: through the shared window of a host, else by MPI_Allreduce. As it lies, this file is
// for the sum of f32.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_all_reduce_sum_f32(
// CHECK: llvm.call @window_all_reduce_sum_f32(
// CHECK: llvm.call @library_all_reduce_sum_f32(

#elem_bytes = 4 : i64
#datatype = 4 : i64        // word of the engine's table: the datatype of f32
#reduction = 13 : i64      // word of the engine's table: the operation for the sum of f32
#MpiTable_IN_PLACE = 1 : i64
#limit = 2147483647 : i64  // elements in one call of MPI
#piece = 1073741824 : i64  // elements in each, where there are more

llvm.func @is_ok(i32) -> i1
llvm.func @window_all_reduce_sum_f32(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @window_all_reduce_sum_f32_start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> i32
llvm.func @window_all_reduce_sum_f32_wait(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> i32
llvm.func @is_outside(i32) -> i1
llvm.func @status_of(i32) -> i32
llvm.func @set_open(!llvm.ptr, i64)
llvm.func @wait_for_requests(!llvm.ptr, !llvm.ptr, i32) -> i32
llvm.func @communicator(!llvm.ptr, i64) -> i64
llvm.func @request(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @handle(!llvm.ptr, i64) -> i64
llvm.func @MPI_Allreduce(!llvm.ptr, !llvm.ptr, i32, i64, i64, i64) -> i32
llvm.func @MPI_Iallreduce(!llvm.ptr, !llvm.ptr, i32, i64, i64, i64, !llvm.ptr) -> i32

llvm.func @library_all_reduce_sum_f32(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr,
    %count: i64) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32
  %width = arith.constant #elem_bytes
  %limit = arith.constant #limit
  %piece = arith.constant #piece
  %datatype = arith.constant #datatype
  %reduction = arith.constant #reduction
  %in_place_word = arith.constant #MpiTable_IN_PLACE
  %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %type = llvm.call @handle(%ctx, %datatype) : (!llvm.ptr, i64) -> i64
  %operation = llvm.call @handle(%ctx, %reduction) : (!llvm.ptr, i64) -> i64
  %in_place = llvm.call @handle(%ctx, %in_place_word) : (!llvm.ptr, i64) -> i64
  %in_place_at = llvm.inttoptr %in_place : i64 to !llvm.ptr
  %same = llvm.icmp "eq" %src, %dst : !llvm.ptr
  %whole = arith.cmpi sle, %count, %limit : i64
  %step_raw = arith.select %whole, %count, %piece : i64
  %step = arith.maxsi %step_raw, %c1 : i64
  %rc = scf.for %at = %c0 to %count step %step iter_args(%sofar = %ok) -> (i32) : i64 {
    %go = llvm.call @is_ok(%sofar) : (i32) -> i1
    %next = scf.if %go -> (i32) {
      %left = arith.subi %count, %at : i64
      %n = arith.minsi %left, %step : i64
      %n32 = arith.trunci %n : i64 to i32
      %offset = arith.muli %at, %width : i64
      %source = llvm.getelementptr %src[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %from = arith.select %same, %in_place_at, %source : !llvm.ptr
      %to = llvm.getelementptr %dst[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %r = llvm.call @MPI_Allreduce(%from, %to, %n32, %type, %operation, %comm)
        : (!llvm.ptr, !llvm.ptr, i32, i64, i64, i64) -> i32
      scf.yield %r : i32
    } else {
      scf.yield %sofar : i32
    }
    scf.yield %next : i32
  }
  %status = llvm.call @status_of(%rc) : (i32) -> i32
  llvm.return %status : i32
}

// Leave a call of the library open that takes the whole at once; what is too large for one call is done now.
llvm.func @library_all_reduce_sum_f32_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr,
    %count: i64,
    %area: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %limit = arith.constant #limit
  %opened = arith.constant 1 : i64
  %request = llvm.call @request(%area, %c0) : (!llvm.ptr, i64) -> !llvm.ptr
  %whole = arith.cmpi sle, %count, %limit : i64
  %code = scf.if %whole -> (i32) {
    %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
    %n = arith.trunci %count : i64 to i32
    %datatype = arith.constant #datatype
    %reduction = arith.constant #reduction
    %type = llvm.call @handle(%ctx, %datatype) : (!llvm.ptr, i64) -> i64
    %operation = llvm.call @handle(%ctx, %reduction) : (!llvm.ptr, i64) -> i64
    %rc = llvm.call @MPI_Iallreduce(%src, %dst, %n, %type, %operation, %comm, %request)
      : (!llvm.ptr, !llvm.ptr, i32, i64, i64, i64, !llvm.ptr) -> i32
    llvm.call @set_open(%area, %opened) : (!llvm.ptr, i64) -> ()
    %status = llvm.call @status_of(%rc) : (i32) -> i32
    scf.yield %status : i32
  } else {
    %status = llvm.call @library_all_reduce_sum_f32(%ctx, %number, %src, %dst, %count)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
    llvm.call @set_open(%area, %c0) : (!llvm.ptr, i64) -> ()
    scf.yield %status : i32
  }
  llvm.return %code : i32
}

// Through the window, or by the library.
llvm.func @mw_all_reduce_sum_f32(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %count: i64) -> i32 {
  %tried = llvm.call @window_all_reduce_sum_f32(%ctx, %number, %src, %dst, %count)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_all_reduce_sum_f32(%ctx, %number, %src, %dst, %count)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_all_reduce_sum_f32_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %count: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %tried = llvm.call @window_all_reduce_sum_f32_start(%ctx, %number, %src, %dst, %count, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_all_reduce_sum_f32_start(%ctx, %number, %src, %dst, %count, %area)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_all_reduce_sum_f32_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %count: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %tried = llvm.call @window_all_reduce_sum_f32_wait(%ctx, %number, %src, %dst, %count, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> i32
  %code = llvm.call @wait_for_requests(%ctx, %area, %tried) : (!llvm.ptr, !llvm.ptr, i32) -> i32
  llvm.return %code : i32
}
