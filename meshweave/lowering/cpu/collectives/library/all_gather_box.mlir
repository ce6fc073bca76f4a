// all_gather along any dim, without packing: every member's rows go where they belong. rows: their number; row, whole:
// bytes of a member's row and of a row of the result, whose end may cut members short.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_all_gather_box(
// CHECK: llvm.call @begin
// CHECK: llvm.call @all_gather_box_from
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
llvm.func @valid_part(i64, i64, i64) -> i64
llvm.func @copy_block(!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64)

// Copy the members' rows to `dst`. slot: where the members' sources are, see @source_of.
llvm.func @all_gather_box_from(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %rows: i64, %row: i64, %whole: i64,
    %slot: i64) attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  scf.for %i = %c0 to %size step %c1 : i64 {
    %sum = arith.addi %i, %me : i64
    %j = arith.remui %sum, %size : i64
    %at = arith.muli %j, %row : i64
    %from = llvm.call @source_of(%group, %j, %slot) : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %to = llvm.getelementptr %dst[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %run = llvm.call @valid_part(%j, %row, %whole) : (i64, i64, i64) -> i64
    llvm.call @copy_block(%to, %from, %c1, %c0, %c0, %rows, %row, %whole, %run)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64) -> ()
  }
  llvm.return
}

llvm.func @mw_all_gather_box(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %rows: i64, %row: i64,
    %whole: i64) -> i32 {
  %published = arith.constant #PUBLISHED
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %sent = arith.muli %rows, %row : i64
  %met = llvm.call @begin(%group, %me, %src, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @all_gather_box_from(%group, %me, %dst, %rows, %row, %whole, %published)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64) -> ()
    %parted = llvm.call @end(%group, %me) : (!llvm.ptr, i64) -> i32
    scf.yield %parted : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_all_gather_box_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %rows: i64,
    %row: i64, %whole: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %code = llvm.call @start(%ctx, %number, %src, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %code : i32
}

llvm.func @mw_all_gather_box_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %rows: i64,
    %row: i64, %whole: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin_wait(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  scf.if %go {
    %slot = llvm.call @posted_slot(%group, %me, %area, %area_bytes) : (!llvm.ptr, i64, !llvm.ptr, i64) -> i64
    llvm.call @all_gather_box_from(%group, %me, %dst, %rows, %row, %whole, %slot)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64) -> ()
    llvm.call @end_wait(%area) : (!llvm.ptr) -> ()
  }
  llvm.return %met : i32
}
