// all_to_all along any dims, without packing: every member's elements go where they belong.
//
// outer, outer_source, outer_target, inner_source, inner_target: the number of outer places and the steps of both
// levels in source and target; split, split_end: bytes of a piece along the dim that is split, and where that dim ends;
// joined, joined_end: the same of the dim that is joined; split_first: whether the split dim comes before the joined
// one.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_all_to_all_box(
// CHECK: llvm.call @begin
// CHECK: llvm.call @all_to_all_box_from
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

// Copy what is this member's of every source to `dst`. slot: where the members' sources are, see @source_of.
llvm.func @all_to_all_box_from(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %outer: i64, %outer_source: i64,
    %outer_target: i64,
    %inner_source: i64, %inner_target: i64, %split: i64, %split_end: i64, %joined: i64, %joined_end: i64,
    %split_first: i64, %slot: i64) attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %is_split_first = arith.cmpi ne, %split_first, %c0 : i64
  %piece = arith.muli %me, %split : i64
  %own = llvm.call @valid_part(%me, %split, %split_end) : (i64, i64, i64) -> i64
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  scf.for %i = %c0 to %size step %c1 : i64 {
    %sum = arith.addi %i, %me : i64
    %j = arith.remui %sum, %size : i64
    %at = arith.muli %j, %joined : i64
    %peer = llvm.call @source_of(%group, %j, %slot) : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %from = llvm.getelementptr %peer[%piece] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %to = llvm.getelementptr %dst[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %theirs = llvm.call @valid_part(%j, %joined, %joined_end) : (i64, i64, i64) -> i64
    %run = arith.select %is_split_first, %theirs, %own : i64
    %span = arith.select %is_split_first, %own, %theirs : i64
    %step = arith.select %is_split_first, %inner_source, %inner_target : i64
    %inner = arith.divui %span, %step : i64
    llvm.call @copy_block(%to, %from, %outer, %outer_source, %outer_target, %inner, %inner_source, %inner_target, %run)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64) -> ()
  }
  llvm.return
}

llvm.func @mw_all_to_all_box(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %outer: i64,
    %outer_source: i64, %outer_target: i64,
    %inner_source: i64, %inner_target: i64, %split: i64, %split_end: i64, %joined: i64, %joined_end: i64,
    %split_first: i64) -> i32 {
  %published = arith.constant #PUBLISHED
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %sent = arith.muli %outer, %outer_source : i64
  %met = llvm.call @begin(%group, %me, %src, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @all_to_all_box_from(%group, %me, %dst, %outer, %outer_source, %outer_target, %inner_source,
      %inner_target, %split, %split_end, %joined, %joined_end, %split_first, %published)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) -> ()
    %parted = llvm.call @end(%group, %me) : (!llvm.ptr, i64) -> i32
    scf.yield %parted : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_all_to_all_box_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %outer: i64,
    %outer_source: i64, %outer_target: i64,
    %inner_source: i64, %inner_target: i64, %split: i64, %split_end: i64, %joined: i64, %joined_end: i64,
    %split_first: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %code = llvm.call @start(%ctx, %number, %src, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %code : i32
}

llvm.func @mw_all_to_all_box_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %outer: i64,
    %outer_source: i64, %outer_target: i64,
    %inner_source: i64, %inner_target: i64, %split: i64, %split_end: i64, %joined: i64, %joined_end: i64,
    %split_first: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin_wait(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  scf.if %go {
    %slot = llvm.call @posted_slot(%group, %me, %area, %area_bytes) : (!llvm.ptr, i64, !llvm.ptr, i64) -> i64
    llvm.call @all_to_all_box_from(%group, %me, %dst, %outer, %outer_source, %outer_target, %inner_source,
      %inner_target, %split, %split_end, %joined, %joined_end, %split_first, %slot)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) -> ()
    llvm.call @end_wait(%area) : (!llvm.ptr) -> ()
  }
  llvm.return %met : i32
}
