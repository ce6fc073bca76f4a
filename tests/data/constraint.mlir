module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, %arg1: tensor<6x10xf32>) -> (tensor<8xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x6xf32>, tensor<6x10xf32>) -> tensor<8x10xf32>
    %1 = stablehlo.tanh %0 : tensor<8x10xf32>
    %2 = sdy.sharding_constraint %1 <@mesh, [{"dp"}, {"tp"}]> : tensor<8x10xf32>
    %3 = chlo.square %2 : tensor<8x10xf32> -> tensor<8x10xf32>
    %4 = sdy.sharding_constraint %3 <@mesh, [{?}, {}]> : tensor<8x10xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.reduce(%4 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    return %5 : tensor<8xf32>
  }
}

