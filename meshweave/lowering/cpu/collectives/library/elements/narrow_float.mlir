// Elements of f16 and bf16: reduced in f32, and rounded once. As it lies, this file is for bf16. The maximum and the
// minimum are NaN when either operand is.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @widen_bf16
// CHECK: llvm.fpext
// CHECK-LABEL: llvm.func @narrow_bf16
// CHECK: llvm.fptrunc
// CHECK-LABEL: llvm.func @round_block_bf16
// CHECK: llvm.call @narrow_bf16

!elem = bf16
!wide = f32  // of the running value of a reduction

llvm.func @widen_bf16(%x: !elem) -> !wide attributes {always_inline} {
  %value = arith.extf %x : !elem to !wide
  llvm.return %value : !wide
}

llvm.func @narrow_bf16(%x: !wide) -> !elem attributes {always_inline} {
  %value = arith.truncf %x : !wide to !elem
  llvm.return %value : !elem
}

// Round `n` running values to elements.
llvm.func @round_block_bf16(%rounded: !llvm.ptr {llvm.noalias}, %acc: !llvm.ptr {llvm.noalias}, %n: i64)
    attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %i = %c0 to %n step %c1 : i64 {
    %from = llvm.getelementptr %acc[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !wide
    %to = llvm.getelementptr %rounded[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    %x = llvm.load %from : !llvm.ptr -> !wide
    %value = llvm.call @narrow_bf16(%x) : (!wide) -> !elem
    llvm.store %value, %to : !elem, !llvm.ptr
  }
  llvm.return
}

// The elements that `n` running values are, in `rounded`.
llvm.func @rounded_bf16(%rounded: !llvm.ptr, %acc: !llvm.ptr, %n: i64) -> !llvm.ptr attributes {always_inline} {
  llvm.call @round_block_bf16(%rounded, %acc, %n) : (!llvm.ptr, !llvm.ptr, i64) -> ()
  llvm.return %rounded : !llvm.ptr
}

llvm.func @combine_sum_bf16(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.addf %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_prod_bf16(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.mulf %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_max_bf16(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.maximumf %a, %b : !wide
  llvm.return %c : !wide
}

llvm.func @combine_min_bf16(%a: !wide, %b: !wide) -> !wide attributes {always_inline} {
  %c = arith.minimumf %a, %b : !wide
  llvm.return %c : !wide
}
