// permute between processes: through the shared window of a host, else by MPI_Sendrecv.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_permute(
// CHECK: llvm.call @window_permute(
// CHECK: llvm.call @library_permute(

#limit = 2147483647 : i64  // bytes in one call of MPI
#tag = 77 : i32

llvm.func @is_ok(i32) -> i1
llvm.func @window_permute(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
llvm.func @window_permute_start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, !llvm.ptr, i64) -> i32
llvm.func @window_permute_wait(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, !llvm.ptr, i64) -> i32
llvm.func @is_outside(i32) -> i1
llvm.func @status_of(i32) -> i32
llvm.func @set_open(!llvm.ptr, i64)
llvm.func @wait_for_requests(!llvm.ptr, !llvm.ptr, i32) -> i32
llvm.func @communicator(!llvm.ptr, i64) -> i64
llvm.func @request(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @byte_type(!llvm.ptr) -> i64
llvm.func @send_and_receive(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
llvm.func @MPI_Isend(!llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr) -> i32
llvm.func @MPI_Irecv(!llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr) -> i32

llvm.func @library_permute(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %source: i64, %target: i64) -> i32 {
  %rc = llvm.call @send_and_receive(%ctx, %number, %src, %dst, %nbytes, %source, %target)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
  %status = llvm.call @status_of(%rc) : (i32) -> i32
  llvm.return %status : i32
}

// Leave a call of the library open that takes the whole at once; what is too large for one call is done now.
llvm.func @library_permute_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %source: i64, %target: i64,
    %area: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %limit = arith.constant #limit
  %opened = arith.constant 2 : i64
  %request = llvm.call @request(%area, %c0) : (!llvm.ptr, i64) -> !llvm.ptr
  %whole = arith.cmpi sle, %nbytes, %limit : i64
  %code = scf.if %whole -> (i32) {
    %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
    %n = arith.trunci %nbytes : i64 to i32
    %byte = llvm.call @byte_type(%ctx) : (!llvm.ptr) -> i64
    %c1 = arith.constant 1 : i64
    %tag = arith.constant #tag
    %second = llvm.call @request(%area, %c1) : (!llvm.ptr, i64) -> !llvm.ptr
    %source32 = arith.trunci %source : i64 to i32
    %target32 = arith.trunci %target : i64 to i32
    %received = llvm.call @MPI_Irecv(%dst, %n, %byte, %source32, %tag, %comm, %request)
      : (!llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr) -> i32
    %sent = llvm.call @MPI_Isend(%src, %n, %byte, %target32, %tag, %comm, %second)
      : (!llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr) -> i32
    %fine = llvm.call @is_ok(%received) : (i32) -> i1
    %rc = arith.select %fine, %sent, %received : i32
    llvm.call @set_open(%area, %opened) : (!llvm.ptr, i64) -> ()
    %status = llvm.call @status_of(%rc) : (i32) -> i32
    scf.yield %status : i32
  } else {
    %status = llvm.call @library_permute(%ctx, %number, %src, %dst, %nbytes, %source, %target)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
    llvm.call @set_open(%area, %c0) : (!llvm.ptr, i64) -> ()
    scf.yield %status : i32
  }
  llvm.return %code : i32
}

// Through the window, or by the library.
llvm.func @mw_permute(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64, %source: i64,
    %target: i64) -> i32 {
  %tried = llvm.call @window_permute(%ctx, %number, %src, %dst, %nbytes, %source, %target)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_permute(%ctx, %number, %src, %dst, %nbytes, %source, %target)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_permute_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %source: i64, %target: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %tried = llvm.call @window_permute_start(%ctx, %number, %src, %dst, %nbytes, %source, %target, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, !llvm.ptr, i64) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_permute_start(%ctx, %number, %src, %dst, %nbytes, %source, %target, %area)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, !llvm.ptr) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_permute_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %source: i64, %target: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %tried = llvm.call @window_permute_wait(%ctx, %number, %src, %dst, %nbytes, %source, %target, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, !llvm.ptr, i64) -> i32
  %code = llvm.call @wait_for_requests(%ctx, %area, %tried) : (!llvm.ptr, !llvm.ptr, i32) -> i32
  llvm.return %code : i32
}
