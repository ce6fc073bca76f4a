// Elements of i1: a byte of 0 or 1. Its maximum is the logical or, its minimum the logical and.
//
// RUN: meshweave-opt %s -p convert-arith-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @combine_max_i1
// CHECK: llvm.intr.umax

!elem = i8
!wide = i8  // of the running value of a reduction

llvm.func @widen_i1(%x: !elem) -> !wide attributes {always_inline} {
  llvm.return %x : !wide
}

llvm.func @narrow_i1(%x: !wide) -> !elem attributes {always_inline} {
  llvm.return %x : !elem
}

// The elements that `n` running values are: those themselves.
llvm.func @rounded_i1(%rounded: !llvm.ptr, %acc: !llvm.ptr, %n: i64) -> !llvm.ptr attributes {always_inline} {
  llvm.return %acc : !llvm.ptr
}

llvm.func @combine_max_i1(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.maxui %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_min_i1(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.minui %a, %b : !wide
  llvm.return %c : !wide
}
