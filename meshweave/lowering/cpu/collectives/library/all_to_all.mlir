// all_to_all: member k gets block k of every member, in member order.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_all_to_all(
// CHECK: llvm.call @begin
// CHECK: llvm.call @all_to_all_from
// CHECK: llvm.call @end

#PUBLISHED = -1 : i64

llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @source_of(!llvm.ptr, i64, i64) -> !llvm.ptr
llvm.func @begin(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @end(!llvm.ptr, i64) -> i32
llvm.func @start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @begin_wait(!llvm.ptr, i64, !llvm.ptr) -> i32
llvm.func @posted_slot(!llvm.ptr, i64, !llvm.ptr, i64) -> i64
llvm.func @end_wait(!llvm.ptr)

// Copy this member's block of `nbytes` of every source to `dst`. slot: where the members' sources are, see @source_of.
llvm.func @all_to_all_from(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %nbytes: i64,
    %slot: i64) attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %own = arith.muli %me, %nbytes : i64
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  scf.for %i = %c0 to %size step %c1 : i64 {
    %sum = arith.addi %i, %me : i64
    %j = arith.remui %sum, %size : i64
    %at = arith.muli %j, %nbytes : i64
    %peer = llvm.call @source_of(%group, %j, %slot) : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %from = llvm.getelementptr %peer[%own] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %to = llvm.getelementptr %dst[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    "llvm.intr.memcpy"(%to, %from, %nbytes) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
  }
  llvm.return
}

llvm.func @mw_all_to_all(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64) -> i32 {
  %published = arith.constant #PUBLISHED
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %sent = arith.muli %size, %nbytes : i64
  %met = llvm.call @begin(%group, %me, %src, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @all_to_all_from(%group, %me, %dst, %nbytes, %published)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
    %parted = llvm.call @end(%group, %me) : (!llvm.ptr, i64) -> i32
    scf.yield %parted : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_all_to_all_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %code = llvm.call @start(%ctx, %number, %src, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %code : i32
}

llvm.func @mw_all_to_all_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin_wait(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  scf.if %go {
    %slot = llvm.call @posted_slot(%group, %me, %area, %area_bytes) : (!llvm.ptr, i64, !llvm.ptr, i64) -> i64
    llvm.call @all_to_all_from(%group, %me, %dst, %nbytes, %slot)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
    llvm.call @end_wait(%area) : (!llvm.ptr) -> ()
  }
  llvm.return %met : i32
}
