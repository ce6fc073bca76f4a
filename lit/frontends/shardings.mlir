// RUN: meshweave-opt %s | filecheck %s
//
// Shardy's mesh and shardings become dist.mesh, layouts on the signature, and dist.constrain; chlo is lowered.

module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]>
  // CHECK-NOT: mhlo
  // CHECK: "dist.mesh"() {axes = "dp=2, tp=2", sym_name = "mesh"}
  // CHECK: func.func public @main(%[[X:.*]]: tensor<8x6xf32> {dist.layout = [[L:#.*]]}, %{{.*}}: tensor<6x10xf32>) ->
  func.func public @main(%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, %arg1: tensor<6x10xf32>) -> (tensor<8xf32> {jax.result_info = "result"}) {
    // CHECK: linalg.matmul
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x10xf32>) -> tensor<8x10xf32>
    // CHECK: %[[A:.*]] = "dist.constrain"(%{{.*}}) {layout = #{{.*}}} : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {"tp"}]> : tensor<8x10xf32>
    // CHECK: linalg.map { arith.mulf } ins(%[[A]], %[[A]] :
    %2 = chlo.square %1 : tensor<8x10xf32> -> tensor<8x10xf32>
    // CHECK: "dist.constrain"({{.*}}) {layout = #{{.*}}, open = array<i64: 0>}
    %3 = sdy.sharding_constraint %2 <@mesh, [{?}, {}]> : tensor<8x10xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    // CHECK: linalg.reduce
    %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    return %4 : tensor<8xf32>
  }
}
