// all_reduce: every member gets the reduction of all. As it lies, this file is for the sum of f32.
//
// Each member reduces its own part of the elements over all members, in member order, and writes it to everybody, so
// all ranks hold the same bits. One that is started early is reduced by every member for itself, with the same bits.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_all_reduce_sum_f32(
// CHECK: llvm.call @begin_writing
// CHECK: llvm.call @all_reduce_part_sum_f32
// CHECK: llvm.call @end_writing

!elem = f32
!wide = f32
#elem_bytes = 4 : i64
#BLOCK = 1024 : i64  // elements reduced at a time
#GRAIN = 64 : i64    // elements: parts begin at multiples, so that members share no cache line
#PUBLISHED = -1 : i64

llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @target_published(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @begin_writing(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @end_writing(!llvm.ptr, i64, !llvm.ptr, i64) -> i32
llvm.func @start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @begin_wait(!llvm.ptr, i64, !llvm.ptr) -> i32
llvm.func @posted_slot(!llvm.ptr, i64, !llvm.ptr, i64) -> i64
llvm.func @end_wait(!llvm.ptr)
llvm.func @reduce_sum_f32(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64) -> !llvm.ptr

// Reduce this member's part, and write it to the targets of all.
llvm.func @all_reduce_part_sum_f32(%group: !llvm.ptr, %me: i64, %count: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %published = arith.constant #PUBLISHED
  %block = arith.constant #BLOCK
  %grain = arith.constant #GRAIN
  %width = arith.constant #elem_bytes
  %acc = llvm.alloca %block x !wide {alignment = 64 : i64} : (i64) -> !llvm.ptr
  %rounded = llvm.alloca %block x !elem {alignment = 64 : i64} : (i64) -> !llvm.ptr
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %grains_all = arith.ceildivui %count, %grain : i64
  %grains = arith.ceildivui %grains_all, %size : i64
  %part = arith.muli %grains, %grain : i64
  %start_raw = arith.muli %me, %part : i64
  %start = arith.minui %start_raw, %count : i64
  %end_raw = arith.addi %start, %part : i64
  %end = arith.minui %end_raw, %count : i64
  scf.for %at = %start to %end step %block : i64 {
    %left = arith.subi %end, %at : i64
    %n = arith.minui %left, %block : i64
    %nbytes = arith.muli %n, %width : i64
    %result = llvm.call @reduce_sum_f32(%group, %published, %acc, %rounded, %at, %n)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64) -> !llvm.ptr
    scf.for %j = %c0 to %size step %c1 : i64 {
      %peer = llvm.call @target_published(%group, %j) : (!llvm.ptr, i64) -> !llvm.ptr
      %to = llvm.getelementptr %peer[%at] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
      "llvm.intr.memcpy"(%to, %result, %nbytes) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
    }
  }
  llvm.return
}

llvm.func @mw_all_reduce_sum_f32(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %count: i64) -> i32 {
  %width = arith.constant #elem_bytes
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %sent = arith.muli %count, %width : i64
  %met = llvm.call @begin_writing(%group, %me, %src, %dst, %sent)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @all_reduce_part_sum_f32(%group, %me, %count) : (!llvm.ptr, i64, i64) -> ()
    %parted = llvm.call @end_writing(%group, %me, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, i64) -> i32
    scf.yield %parted : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_all_reduce_sum_f32_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %count: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %code = llvm.call @start(%ctx, %number, %src, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %code : i32
}

// Reduce all elements that the members have posted.
llvm.func @all_reduce_alone_sum_f32(%group: !llvm.ptr, %dst: !llvm.ptr, %count: i64, %slot: i64) {
  %c0 = arith.constant 0 : i64
  %block = arith.constant #BLOCK
  %width = arith.constant #elem_bytes
  %acc = llvm.alloca %block x !wide {alignment = 64 : i64} : (i64) -> !llvm.ptr
  %rounded = llvm.alloca %block x !elem {alignment = 64 : i64} : (i64) -> !llvm.ptr
  scf.for %at = %c0 to %count step %block : i64 {
    %left = arith.subi %count, %at : i64
    %n = arith.minui %left, %block : i64
    %nbytes = arith.muli %n, %width : i64
    %result = llvm.call @reduce_sum_f32(%group, %slot, %acc, %rounded, %at, %n)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64) -> !llvm.ptr
    %to = llvm.getelementptr %dst[%at] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    "llvm.intr.memcpy"(%to, %result, %nbytes) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
  }
  llvm.return
}

llvm.func @mw_all_reduce_sum_f32_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %count: i64,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin_wait(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  scf.if %go {
    %slot = llvm.call @posted_slot(%group, %me, %area, %area_bytes) : (!llvm.ptr, i64, !llvm.ptr, i64) -> i64
    llvm.call @all_reduce_alone_sum_f32(%group, %dst, %count, %slot) : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
    llvm.call @end_wait(%area) : (!llvm.ptr) -> ()
  }
  llvm.return %met : i32
}
