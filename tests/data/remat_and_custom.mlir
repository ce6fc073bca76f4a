module @jit__lambda attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, %arg1: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<4x6xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %1:3 = stablehlo.optimization_barrier %arg0, %arg1, %0 : tensor<4x6xf32>, tensor<6x8xf32>, tensor<4x8xf32>
    %2 = stablehlo.dot_general %1#0, %1#1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
    %3 = sdy.sharding_constraint %2 <@mesh, [{"dp"}, {"tp"}]> : tensor<4x8xf32>
    %4 = stablehlo.cosine %3 : tensor<4x8xf32>
    %5 = stablehlo.multiply %1#2, %4 : tensor<4x8xf32>
    %6 = sdy.sharding_constraint %5 <@mesh, [{"dp"}, {"tp"}]> : tensor<4x8xf32>
    %7 = stablehlo.dot_general %6, %1#1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
    return %7 : tensor<4x6xf32>
  }
}

