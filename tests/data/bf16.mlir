module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xbf16>, %arg1: tensor<5x7xbf16>) -> (tensor<3x7xbf16> {jax.result_info = "result[0]"}, tensor<5xbf16> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x5xbf16>, tensor<5x7xbf16>) -> tensor<3x7xbf16>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<bf16>) -> tensor<3x7xbf16>
    %2 = stablehlo.maximum %0, %1 : tensor<3x7xbf16>
    %3 = stablehlo.convert %arg0 : (tensor<3x5xbf16>) -> tensor<3x5xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [0] : (tensor<3x5xf32>, tensor<f32>) -> tensor<5xf32>
    %5 = stablehlo.convert %4 : (tensor<5xf32>) -> tensor<5xbf16>
    return %2, %5 : tensor<3x7xbf16>, tensor<5xbf16>
  }
}

