// Elements of f32 and f64: reduced as they are. As it lies, this file is for f32. The maximum and the minimum are NaN
// when either operand is.
//
// RUN: meshweave-opt %s -p convert-arith-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @combine_max_f32
// CHECK: llvm.intr.maximum

!elem = f32
!wide = f32  // of the running value of a reduction

llvm.func @widen_f32(%x: !elem) -> !wide attributes {always_inline} {
  llvm.return %x : !wide
}

llvm.func @narrow_f32(%x: !wide) -> !elem attributes {always_inline} {
  llvm.return %x : !elem
}

// The elements that `n` running values are: those themselves.
llvm.func @rounded_f32(%rounded: !llvm.ptr, %acc: !llvm.ptr, %n: i64) -> !llvm.ptr attributes {always_inline} {
  llvm.return %acc : !llvm.ptr
}

llvm.func @combine_sum_f32(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.addf %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_prod_f32(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.mulf %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_max_f32(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.maximumf %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_min_f32(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.minimumf %a, %b : !wide
  llvm.return %c : !wide
}
