// A reduction that MPI has not, or not with our treatment of NaN: an MPI_User_function, inout[i] = in[i] (kind)
// inout[i]. Narrow floats are rounded once per call, that is per hop. As it lies, this file is for the sum of f32.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_op_sum_f32
// CHECK: llvm.call @combine_sum_f32

!elem = f32
!wide = f32

llvm.func @widen_f32(!elem) -> !wide
llvm.func @narrow_f32(!wide) -> !elem
llvm.func @combine_sum_f32(!wide, !wide) -> !wide

llvm.func @mw_op_sum_f32(%in: !llvm.ptr, %inout: !llvm.ptr, %length: !llvm.ptr, %type: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %n32 = llvm.load %length : !llvm.ptr -> i32
  %n = arith.extsi %n32 : i32 to i64
  scf.for %i = %c0 to %n step %c1 : i64 {
    %p = llvm.getelementptr %in[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    %q = llvm.getelementptr %inout[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !elem
    %x = llvm.load %p : !llvm.ptr -> !elem
    %y = llvm.load %q : !llvm.ptr -> !elem
    %wide_x = llvm.call @widen_f32(%x) : (!elem) -> !wide
    %wide_y = llvm.call @widen_f32(%y) : (!elem) -> !wide
    %value = llvm.call @combine_sum_f32(%wide_x, %wide_y) : (!wide, !wide) -> !wide
    %new = llvm.call @narrow_f32(%value) : (!wide) -> !elem
    llvm.store %new, %q : !elem, !llvm.ptr
  }
  llvm.return
}
