// RUN: meshweave-opt %s | filecheck %s
//
// What a region marked dist.manual reads of constants is made in it, also where the same is read outside.

module @jit_f {
  sdy.mesh @mesh = <["x"=2]>
  // CHECK-LABEL: func.func public @main
  func.func public @main(%arg0: tensor<4x3xf32>) -> tensor<4x3xf32> {
    // CHECK: scf.execute_region
    // CHECK-DAG: %[[TABLE:.*]] = arith.constant dense<[1.000000e+00, 2.000000e+00, 3.000000e+00]> : tensor<3xf32>
    // CHECK-DAG: "dist.to_local"
    // CHECK: linalg.broadcast ins(%[[TABLE]] : tensor<3xf32>)
    // CHECK: "dist.to_global"
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg1: tensor<2x3xf32>) {
      %c = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
      %1 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
      %2 = stablehlo.multiply %arg1, %1 : tensor<2x3xf32>
      sdy.return %2 : tensor<2x3xf32>
    } : (tensor<4x3xf32>) -> tensor<4x3xf32>
    // CHECK: dist.manual
    // CHECK: linalg.broadcast
    %c = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>
    %2 = stablehlo.add %0, %1 : tensor<4x3xf32>
    return %2 : tensor<4x3xf32>
  }
}
