module @jit__lambda attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, %arg1: tensor<6x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<4x6xf32> {jax.result_info = "result"}) {
    %0 = call @layer(%arg0, %arg1) : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %1 = call @layer_0(%0, %arg1) : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
  func.func private @layer(%arg0: tensor<4x6xf32>, %arg1: tensor<6x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %1 = stablehlo.multiply %0, %0 : tensor<4x6xf32>
    %2 = stablehlo.multiply %1, %0 : tensor<4x6xf32>
    %cst = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %4 = stablehlo.multiply %3, %2 : tensor<4x6xf32>
    %5 = stablehlo.add %0, %4 : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %7 = stablehlo.multiply %6, %5 : tensor<4x6xf32>
    %8 = stablehlo.tanh %7 : tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %10 = stablehlo.add %9, %8 : tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %12 = stablehlo.multiply %11, %10 : tensor<4x6xf32>
    %13 = stablehlo.multiply %0, %12 : tensor<4x6xf32>
    %14 = sdy.sharding_constraint %13 <@mesh, [{"dp"}, {}]> : tensor<4x6xf32>
    return %14 : tensor<4x6xf32>
  }
  func.func private @layer_0(%arg0: tensor<4x6xf32>, %arg1: tensor<6x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %1 = stablehlo.multiply %0, %0 : tensor<4x6xf32>
    %2 = stablehlo.multiply %1, %0 : tensor<4x6xf32>
    %cst = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %4 = stablehlo.multiply %3, %2 : tensor<4x6xf32>
    %5 = stablehlo.add %0, %4 : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %7 = stablehlo.multiply %6, %5 : tensor<4x6xf32>
    %8 = stablehlo.tanh %7 : tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %10 = stablehlo.add %9, %8 : tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %12 = stablehlo.multiply %11, %10 : tensor<4x6xf32>
    %13 = stablehlo.multiply %0, %12 : tensor<4x6xf32>
    %14 = sdy.sharding_constraint %13 <@mesh, [{"dp"}, {}]> : tensor<4x6xf32>
    return %14 : tensor<4x6xf32>
  }
}

