// reduce_scatter: member k gets block k, of `count` elements, of the reduction of all. As it lies, this file is for the
// sum of f32.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_reduce_scatter_sum_f32(
// CHECK: llvm.call @begin
// CHECK: llvm.call @reduce_scatter_from_sum_f32
// CHECK: llvm.call @end

#elem_bytes = 4 : i64
#PUBLISHED = -1 : i64

llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @begin(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @end(!llvm.ptr, i64) -> i32
llvm.func @start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @begin_wait(!llvm.ptr, i64, !llvm.ptr) -> i32
llvm.func @posted_slot(!llvm.ptr, i64, !llvm.ptr, i64) -> i64
llvm.func @end_wait(!llvm.ptr)
llvm.func @reduce_rows_sum_f32(!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64)

// Reduce this member's block to `dst`. slot: where the members' sources are, see @source_of.
llvm.func @reduce_scatter_from_sum_f32(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %count: i64, %slot: i64)
    attributes {always_inline} {
  %c1 = arith.constant 1 : i64
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %row = arith.muli %count, %size : i64
  llvm.call @reduce_rows_sum_f32(%group, %me, %dst, %c1, %count, %row, %slot)
    : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64) -> ()
  llvm.return
}

llvm.func @mw_reduce_scatter_sum_f32(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr,
    %count: i64) -> i32 {
  %published = arith.constant #PUBLISHED
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %width = arith.constant #elem_bytes
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %block = arith.muli %count, %width : i64
  %sent = arith.muli %block, %size : i64
  %met = llvm.call @begin(%group, %me, %src, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @reduce_scatter_from_sum_f32(%group, %me, %dst, %count, %published)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
    %parted = llvm.call @end(%group, %me) : (!llvm.ptr, i64) -> i32
    scf.yield %parted : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_reduce_scatter_sum_f32_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %count: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %code = llvm.call @start(%ctx, %number, %src, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %code : i32
}

llvm.func @mw_reduce_scatter_sum_f32_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %count: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin_wait(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  scf.if %go {
    %slot = llvm.call @posted_slot(%group, %me, %area, %area_bytes) : (!llvm.ptr, i64, !llvm.ptr, i64) -> i64
    llvm.call @reduce_scatter_from_sum_f32(%group, %me, %dst, %count, %slot)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
    llvm.call @end_wait(%area) : (!llvm.ptr) -> ()
  }
  llvm.return %met : i32
}
