// RUN: meshweave-opt %s -p "dist-pipeline,lower-collectives,fuse-kernels" | filecheck %s
// RUN: meshweave-opt %s -p "dist-pipeline,lower-collectives,fuse-kernels,plan-memory" | filecheck %s --check-prefix=PLACED

// A count goes up before its old value is read for the last time. Its new value is made behind that, where the old one lies.

// CHECK-LABEL: func.func @main
// CHECK:         "mw.launch"(%arg1, %arg0,
// CHECK-NEXT:    %[[NEW:.*]] = "mw.launch"(%arg0, %{{.*}}) {kernel = @[[UP:.*]], outs = 1 : i64} : (tensor<i64>, tensor<i64>) -> tensor<i64>
// CHECK-NEXT:    return %[[NEW]]

// PLACED-LABEL: func.func @main
// PLACED-NOT:     memref.copy
// PLACED:         "mw.launch"(%arg0, %arg0)
// PLACED-NEXT:    return
func.func @main(%count: tensor<i64> {dist.donate = "required"}, %x: tensor<8xi64>) -> (tensor<i64>, tensor<8xi64>) {
  %one = arith.constant dense<1> : tensor<i64>
  %new = arith.addi %count, %one : tensor<i64>
  %e = tensor.empty() : tensor<8xi64>
  %old = linalg.broadcast ins(%count : tensor<i64>) outs(%e : tensor<8xi64>) dimensions = [0]
  %y = arith.addi %x, %old : tensor<8xi64>
  return %new, %y : tensor<i64>, tensor<8xi64>
}
