// RUN: meshweave-opt %s -p dist-overlap,canonicalize,cse | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// The gather of trip k + 1 stands before what trip k computes; the first comes before the loop, the last trip behind it.
// CHECK-LABEL: func.func @ahead
// CHECK: %[[FIRST:.*]] = "dist.all_gather"
// CHECK: %[[L:.*]]:2 = scf.for %[[K:.*]] = %c0 to %c2 step %c1 iter_args(%[[SUM:.*]] = %{{.*}}, %[[G:.*]] = %[[FIRST]])
// CHECK-NEXT: %[[NEXT:.*]] = arith.addi %[[K]], %c1
// CHECK: extract_slice %arg0[0, %{{.*}}]
// CHECK-NEXT: %[[COMING:.*]] = "dist.all_gather"
// CHECK-NEXT: %[[DONE:.*]] = arith.addf %[[SUM]], %[[G]]
// CHECK-NEXT: scf.yield %[[DONE]], %[[COMING]]
// CHECK: %[[R:.*]] = arith.addf %[[L]]#0, %[[L]]#1
// CHECK-NEXT: return %[[R]]
func.func @ahead(%a: tensor<4x6xf32>, %z: tensor<8x2xf32>) -> tensor<8x2xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %r = scf.for %k = %c0 to %c3 step %c1 iter_args(%s = %z) -> (tensor<8x2xf32>) {
    %o = arith.muli %k, %c2 : index
    %p = tensor.extract_slice %a[0, %o] [4, 2] [1, 1] : tensor<4x6xf32> to tensor<4x2xf32>
    %g = "dist.all_gather"(%p) {axes = ["x"], dim = 0 : i64} : (tensor<4x2xf32>) -> tensor<8x2xf32>
    %n = arith.addf %s, %g : tensor<8x2xf32>
    scf.yield %n : tensor<8x2xf32>
  }
  return %r : tensor<8x2xf32>
}

// What the loop carries cannot be sent before it is there.
// CHECK-LABEL: func.func @carried
// CHECK: scf.for {{.*}} -> (tensor<4xf32>) {
// CHECK-NEXT: "dist.all_reduce"
// CHECK-NOT: dist.all_reduce
func.func @carried(%a: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %r = scf.for %k = %c0 to %c3 step %c1 iter_args(%s = %a) -> (tensor<4xf32>) {
    %n = "dist.all_reduce"(%s) {axes = ["x"], kind = "sum"} : (tensor<4xf32>) -> tensor<4xf32>
    scf.yield %n : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}
