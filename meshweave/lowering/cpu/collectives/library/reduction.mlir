// Reduce elements of all members, #BLOCK at a time: the running value stays in the first-level cache. Members are taken
// in their order, so that every rank gets the same bits. As it lies, this file is for the sum of f32.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @add_block_sum_f32
// CHECK: llvm.call @combine_sum_f32
// CHECK-LABEL: llvm.func @reduce_sum_f32
// CHECK: llvm.call @begin_block_f32
// CHECK: llvm.call @begin_pair_sum_f32
// CHECK: llvm.call @add_block_sum_f32

!elem = f32
!wide = f32

llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @source_of(!llvm.ptr, i64, i64) -> !llvm.ptr
llvm.func @widen_f32(!elem) -> !wide
llvm.func @rounded_f32(!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
llvm.func @combine_sum_f32(!wide, !wide) -> !wide

// Begin running values with the elements of the only member.
llvm.func @begin_block_f32(%acc: !llvm.ptr {llvm.noalias}, %src: !llvm.ptr {llvm.noalias}, %n: i64)
    attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %i = %c0 to %n step %c1 : i64 {
    %from = llvm.getelementptr %src[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    %to = llvm.getelementptr %acc[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !wide
    %x = llvm.load %from : !llvm.ptr -> !elem
    %value = llvm.call @widen_f32(%x) : (!elem) -> !wide
    llvm.store %value, %to : !wide, !llvm.ptr
  }
  llvm.return
}

// Begin running values with the elements of the first two members, in one pass over both.
llvm.func @begin_pair_sum_f32(%acc: !llvm.ptr {llvm.noalias}, %first: !llvm.ptr {llvm.noalias},
    %second: !llvm.ptr {llvm.noalias}, %n: i64) attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %i = %c0 to %n step %c1 : i64 {
    %from_first = llvm.getelementptr %first[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    %from_second = llvm.getelementptr %second[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    %to = llvm.getelementptr %acc[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !wide
    %x = llvm.load %from_first : !llvm.ptr -> !elem
    %y = llvm.load %from_second : !llvm.ptr -> !elem
    %a = llvm.call @widen_f32(%x) : (!elem) -> !wide
    %b = llvm.call @widen_f32(%y) : (!elem) -> !wide
    %value = llvm.call @combine_sum_f32(%a, %b) : (!wide, !wide) -> !wide
    llvm.store %value, %to : !wide, !llvm.ptr
  }
  llvm.return
}

// Reduce the elements of one more member into running values.
llvm.func @add_block_sum_f32(%acc: !llvm.ptr {llvm.noalias}, %src: !llvm.ptr {llvm.noalias}, %n: i64)
    attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %i = %c0 to %n step %c1 : i64 {
    %from = llvm.getelementptr %src[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    %to = llvm.getelementptr %acc[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !wide
    %x = llvm.load %from : !llvm.ptr -> !elem
    %value = llvm.call @widen_f32(%x) : (!elem) -> !wide
    %old = llvm.load %to : !llvm.ptr -> !wide
    %new = llvm.call @combine_sum_f32(%old, %value) : (!wide, !wide) -> !wide
    llvm.store %new, %to : !wide, !llvm.ptr
  }
  llvm.return
}

// Reduce `n` elements, from number `first` of every member's source on. acc, rounded: buffers for as many running
// values and elements. Returns where the result is: in one of both.
llvm.func @reduce_sum_f32(%group: !llvm.ptr, %slot: i64, %acc: !llvm.ptr, %rounded: !llvm.ptr, %first: i64,
    %n: i64) -> !llvm.ptr attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %begin = llvm.call @source_of(%group, %c0, %slot) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %begin_at = llvm.getelementptr %begin[%first] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
  %alone = arith.cmpi ule, %size, %c1 : i64
  scf.if %alone {
    llvm.call @begin_block_f32(%acc, %begin_at, %n) : (!llvm.ptr, !llvm.ptr, i64) -> ()
  } else {
    %second = llvm.call @source_of(%group, %c1, %slot) : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %second_at = llvm.getelementptr %second[%first] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    llvm.call @begin_pair_sum_f32(%acc, %begin_at, %second_at, %n) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
  }
  scf.for %j = %c2 to %size step %c1 : i64 {
    %peer = llvm.call @source_of(%group, %j, %slot) : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %peer_at = llvm.getelementptr %peer[%first] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    llvm.call @add_block_sum_f32(%acc, %peer_at, %n) : (!llvm.ptr, !llvm.ptr, i64) -> ()
  }
  %result = llvm.call @rounded_f32(%rounded, %acc, %n) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  llvm.return %result : !llvm.ptr
}
