// RUN: meshweave-opt %s | filecheck %s
//
// A manual computation stays a region marked dist.manual in the local view; its collectives name the axes that their groups are made of.

module @jit_f {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]>
  func.func public @main(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
    // CHECK: scf.execute_region -> tensor<4x8xf32> no_inline
    // CHECK: %[[X:.*]] = "dist.to_local"(%arg0) {layout = #[[L:[a-z0-9]+]]} : (tensor<4x8xf32>) -> tensor<2x4xf32>
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"dp"}, {"tp"}]>] out_shardings=[<@mesh, [{"dp"}, {"tp"}]>] manual_axes={"dp", "tp"} (%arg1: tensor<2x4xf32>) {
      // CHECK: %[[G:.*]] = "dist.all_gather"(%[[X]]) {axes = ["tp"], dim = 1 : i64} : (tensor<2x4xf32>) -> tensor<2x8xf32>
      %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 1 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}> : (tensor<2x4xf32>) -> tensor<2x8xf32>
      // CHECK: %[[S:.*]] = "dist.reduce_scatter"(%[[G]]) {axes = ["tp"], dim = 1 : i64, kind = "sum"}
      %2 = "stablehlo.reduce_scatter"(%1) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, scatter_dimension = 1 : i64}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %5 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %5 : tensor<f32>
      }) : (tensor<2x8xf32>) -> tensor<2x4xf32>
      // CHECK: %[[P:.*]] = "dist.permute"(%[[S]]) {axes = ["dp"], sources = [1, 0]}
      %3 = "stablehlo.collective_permute"(%2) <{source_target_pairs = dense<[[0, 2], [2, 0], [1, 3], [3, 1]]> : tensor<4x2xi64>}> : (tensor<2x4xf32>) -> tensor<2x4xf32>
      // CHECK: %[[R:.*]] = "dist.all_reduce"(%[[P]]) {axes = ["dp", "tp"], kind = "max"}
      %4 = "stablehlo.all_reduce"(%3) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %5 = stablehlo.maximum %arg2, %arg3 : tensor<f32>
        stablehlo.return %5 : tensor<f32>
      }) : (tensor<2x4xf32>) -> tensor<2x4xf32>
      // CHECK: "dist.to_global"(%[[R]]) {layout = #[[L]]} : (tensor<2x4xf32>) -> tensor<4x8xf32>
      // CHECK: dist.manual
      sdy.return %4 : tensor<2x4xf32>
    } : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}
