// A loop that data keeps going may never end. Each round looks whether the rank has been told to leave (StatusRow.LEAVE);
// the code of that, ABORTED, is what the step returns.
//
// RUN: meshweave-opt %s -p to-cpu-local | filecheck %s
// CHECK: ends = false
// CHECK-LABEL: llvm.func @step(
// CHECK: ^bb1(
// CHECK: %[[TOLD:.+]] = llvm.load volatile %{{.*}} : !llvm.ptr -> i64
// CHECK: %[[LEAVES:.+]] = llvm.icmp "ne" %[[TOLD]], %{{.*}} : i64
// CHECK: %[[CODE:.+]] = llvm.mlir.constant(32767 : i32) : i32
// CHECK: llvm.cond_br %[[LEAVES]], ^[[FAILED:bb[0-9]+]](%[[CODE]] : i32), ^bb2
// CHECK: ^[[FAILED]](%[[BACK:.+]]: i32):
// CHECK: llvm.return %[[BACK]] : i32

func.func @main(%n: tensor<i64>) -> tensor<i64> {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %most = tensor.extract %n[] : tensor<i64>
  %r = scf.while (%i = %c0) : (i64) -> i64 {
    %on = arith.cmpi slt, %i, %most : i64
    scf.condition(%on) %i : i64
  } do {
  ^bb0(%j: i64):
    %next = arith.addi %j, %c1 : i64
    scf.yield %next : i64
  }
  %t = tensor.from_elements %r : tensor<i64>
  return %t : tensor<i64>
}
