module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xf32>, %arg1: tensor<3x5xf32>) -> (tensor<3x5xf32> {jax.result_info = "result"}) {
    %0 = call @gate(%arg0, %arg1) : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    %1 = call @gate(%0, %arg1) : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    %2 = call @gate(%arg1, %arg0) : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %4 = stablehlo.multiply %3, %2 : tensor<3x5xf32>
    %5 = stablehlo.negate %2 : tensor<3x5xf32>
    %cst_0 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %7 = stablehlo.multiply %5, %6 : tensor<3x5xf32>
    %8 = chlo.erfc %7 : tensor<3x5xf32> -> tensor<3x5xf32>
    %9 = stablehlo.multiply %4, %8 : tensor<3x5xf32>
    %10 = stablehlo.add %1, %9 : tensor<3x5xf32>
    %11 = call @silu(%arg0) : (tensor<3x5xf32>) -> tensor<3x5xf32>
    %12 = stablehlo.add %10, %11 : tensor<3x5xf32>
    return %12 : tensor<3x5xf32>
  }
  func.func private @gate(%arg0: tensor<3x5xf32>, %arg1: tensor<3x5xf32>) -> tensor<3x5xf32> {
    %0 = call @relu(%arg0) : (tensor<3x5xf32>) -> tensor<3x5xf32>
    %1 = stablehlo.multiply %0, %arg1 : tensor<3x5xf32>
    return %1 : tensor<3x5xf32>
  }
  func.func private @relu(%arg0: tensor<3x5xf32>) -> tensor<3x5xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<3x5xf32>
    return %1 : tensor<3x5xf32>
  }
  func.func private @silu(%arg0: tensor<3x5xf32>) -> tensor<3x5xf32> {
    %0 = stablehlo.negate %arg0 : tensor<3x5xf32>
    %1 = stablehlo.exponential %0 : tensor<3x5xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %3 = stablehlo.add %2, %1 : tensor<3x5xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %5 = stablehlo.divide %4, %3 : tensor<3x5xf32>
    %6 = stablehlo.multiply %arg0, %5 : tensor<3x5xf32>
    return %6 : tensor<3x5xf32>
  }
}

