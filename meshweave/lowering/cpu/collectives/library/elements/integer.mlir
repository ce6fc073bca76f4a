// Elements of i8 to i64, which are signed: reduced as they are. As it lies, this file is for i32.
//
// RUN: meshweave-opt %s -p convert-arith-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @combine_max_i32
// CHECK: llvm.intr.smax

!elem = i32
!wide = i32  // of the running value of a reduction

llvm.func @widen_i32(%x: !elem) -> !wide attributes {always_inline} {
  llvm.return %x : !wide
}

llvm.func @narrow_i32(%x: !wide) -> !elem attributes {always_inline} {
  llvm.return %x : !elem
}

// The elements that `n` running values are: those themselves.
llvm.func @rounded_i32(%rounded: !llvm.ptr, %acc: !llvm.ptr, %n: i64) -> !llvm.ptr attributes {always_inline} {
  llvm.return %acc : !llvm.ptr
}

llvm.func @combine_sum_i32(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.addi %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_prod_i32(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.muli %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_max_i32(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.maxsi %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_min_i32(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.minsi %a, %b : !wide
  llvm.return %c : !wide
}
