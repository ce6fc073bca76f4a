// reduce_scatter along any dim, without packing: member k gets part k of every row of the reduction of all. rows: their
// number; count, row: elements of a part, and of a row, whose end may cut parts short. As it lies, this file is for the
// sum of f32.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_reduce_scatter_box_sum_f32(
// CHECK: llvm.call @begin
// CHECK: llvm.call @reduce_rows_sum_f32
// CHECK: llvm.call @end

!elem = f32
!wide = f32
#elem_bytes = 4 : i64
#BLOCK = 1024 : i64  // elements reduced at a time
#PUBLISHED = -1 : i64

llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @begin(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @end(!llvm.ptr, i64) -> i32
llvm.func @start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @begin_wait(!llvm.ptr, i64, !llvm.ptr) -> i32
llvm.func @posted_slot(!llvm.ptr, i64, !llvm.ptr, i64) -> i64
llvm.func @end_wait(!llvm.ptr)
llvm.func @valid_part(i64, i64, i64) -> i64
llvm.func @reduce_sum_f32(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64) -> !llvm.ptr

// Reduce this member's part of every row to `dst`, as far as rows have one. slot: where the members' sources are, see
// @source_of.
llvm.func @reduce_rows_sum_f32(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %rows: i64, %count: i64, %row: i64,
    %slot: i64) attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %block = arith.constant #BLOCK
  %width = arith.constant #elem_bytes
  %acc = llvm.alloca %block x !wide {alignment = 64 : i64} : (i64) -> !llvm.ptr
  %rounded = llvm.alloca %block x !elem {alignment = 64 : i64} : (i64) -> !llvm.ptr
  %start = arith.muli %me, %count : i64
  %own = llvm.call @valid_part(%me, %count, %row) : (i64, i64, i64) -> i64
  scf.for %r = %c0 to %rows step %c1 : i64 {
    %row_source = arith.muli %r, %row : i64
    %row_target = arith.muli %r, %count : i64
    %first_source = arith.addi %row_source, %start : i64
    scf.for %at = %c0 to %own step %block : i64 {
      %left = arith.subi %own, %at : i64
      %n = arith.minui %left, %block : i64
      %nbytes = arith.muli %n, %width : i64
      %first = arith.addi %first_source, %at : i64
      %result = llvm.call @reduce_sum_f32(%group, %slot, %acc, %rounded, %first, %n)
        : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64) -> !llvm.ptr
      %target = arith.addi %row_target, %at : i64
      %to = llvm.getelementptr %dst[%target] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
      "llvm.intr.memcpy"(%to, %result, %nbytes) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
    }
  }
  llvm.return
}

llvm.func @mw_reduce_scatter_box_sum_f32(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %rows: i64,
    %count: i64, %row: i64) -> i32 {
  %published = arith.constant #PUBLISHED
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %width = arith.constant #elem_bytes
  %elements = arith.muli %rows, %row : i64
  %sent = arith.muli %elements, %width : i64
  %met = llvm.call @begin(%group, %me, %src, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @reduce_rows_sum_f32(%group, %me, %dst, %rows, %count, %row, %published)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64) -> ()
    %parted = llvm.call @end(%group, %me) : (!llvm.ptr, i64) -> i32
    scf.yield %parted : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_reduce_scatter_box_sum_f32_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr,
    %rows: i64, %count: i64, %row: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %code = llvm.call @start(%ctx, %number, %src, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %code : i32
}

llvm.func @mw_reduce_scatter_box_sum_f32_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr,
    %rows: i64, %count: i64, %row: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin_wait(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  scf.if %go {
    %slot = llvm.call @posted_slot(%group, %me, %area, %area_bytes) : (!llvm.ptr, i64, !llvm.ptr, i64) -> i64
    llvm.call @reduce_rows_sum_f32(%group, %me, %dst, %rows, %count, %row, %slot)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64) -> ()
    llvm.call @end_wait(%area) : (!llvm.ptr) -> ()
  }
  llvm.return %met : i32
}
