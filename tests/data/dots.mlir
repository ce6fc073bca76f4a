module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x4x5xf32>, %arg1: tensor<5x4x6xf32>, %arg2: tensor<7xf32>) -> (tensor<4x3x6xf32> {jax.result_info = "result[0]"}, tensor<f32> {jax.result_info = "result[1]"}, tensor<3x4x4xf32> {jax.result_info = "result[2]"}, tensor<f32> {jax.result_info = "result[3]"}, tensor<7x7xf32> {jax.result_info = "result[4]"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [1] x [1], contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x4x5xf32>, tensor<5x4x6xf32>) -> tensor<4x3x6xf32>
    %1 = stablehlo.dot_general %arg2, %arg2, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<7xf32>, tensor<7xf32>) -> tensor<f32>
    %2 = stablehlo.slice %arg0 [0:1, 0:4, 0:5] : (tensor<3x4x5xf32>) -> tensor<1x4x5xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x4x5xf32>) -> tensor<4x5xf32>
    %4 = stablehlo.dot_general %arg0, %3, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<3x4x5xf32>, tensor<4x5xf32>) -> tensor<3x4x4xf32>
    %5 = stablehlo.reshape %arg0 : (tensor<3x4x5xf32>) -> tensor<60xf32>
    %6 = stablehlo.reshape %arg0 : (tensor<3x4x5xf32>) -> tensor<60xf32>
    %7 = stablehlo.dot_general %5, %6, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<60xf32>, tensor<60xf32>) -> tensor<f32>
    %8 = stablehlo.broadcast_in_dim %arg2, dims = [0] : (tensor<7xf32>) -> tensor<7x1xf32>
    %9 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<7xf32>) -> tensor<1x7xf32>
    %10 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<7x1xf32>) -> tensor<7x7xf32>
    %11 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<1x7xf32>) -> tensor<7x7xf32>
    %12 = stablehlo.multiply %10, %11 : tensor<7x7xf32>
    return %0, %1, %4, %7, %12 : tensor<4x3x6xf32>, tensor<f32>, tensor<3x4x4xf32>, tensor<f32>, tensor<7x7xf32>
  }
}

