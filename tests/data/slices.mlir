module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<6x5xf32>, %arg1: tensor<i32>) -> (tensor<2x5xf32> {jax.result_info = "result[0]"}, tensor<2x3xf32> {jax.result_info = "result[1]"}, tensor<6x5xf32> {jax.result_info = "result[2]"}, tensor<10x6xf32> {jax.result_info = "result[3]"}, tensor<7x5xf32> {jax.result_info = "result[4]"}, tensor<6x5xf32> {jax.result_info = "result[5]"}, tensor<5x4x3xf32> {jax.result_info = "result[6]"}, tensor<5xf32> {jax.result_info = "result[7]"}) {
    %0 = stablehlo.slice %arg0 [1:5:2, 0:5] : (tensor<6x5xf32>) -> tensor<2x5xf32>
    %1 = stablehlo.reverse %0, dims = [1] : tensor<2x5xf32>
    %c = stablehlo.constant dense<4> : tensor<i32>
    %2 = stablehlo.subtract %arg1, %c : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %3 = stablehlo.compare LT, %arg1, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_1 = stablehlo.constant dense<6> : tensor<i32>
    %4 = stablehlo.add %arg1, %c_1 : tensor<i32>
    %5 = stablehlo.select %3, %4, %arg1 : tensor<i1>, tensor<i32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.compare LT, %2, %c_2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_3 = stablehlo.constant dense<5> : tensor<i32>
    %7 = stablehlo.add %2, %c_3 : tensor<i32>
    %8 = stablehlo.select %6, %7, %2 : tensor<i1>, tensor<i32>
    %9 = stablehlo.dynamic_slice %arg0, %5, %8, sizes = [2, 3] : (tensor<6x5xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    %10 = stablehlo.slice %arg0 [0:2, 0:3] : (tensor<6x5xf32>) -> tensor<2x3xf32>
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %12 = stablehlo.multiply %10, %11 : tensor<2x3xf32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %13 = stablehlo.compare LT, %arg1, %c_4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_5 = stablehlo.constant dense<6> : tensor<i32>
    %14 = stablehlo.add %arg1, %c_5 : tensor<i32>
    %15 = stablehlo.select %13, %14, %arg1 : tensor<i1>, tensor<i32>
    %c_6 = stablehlo.constant dense<1> : tensor<i32>
    %16 = stablehlo.dynamic_update_slice %arg0, %12, %15, %c_6 : (tensor<6x5xf32>, tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<6x5xf32>
    %cst_7 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %17 = stablehlo.pad %arg0, %cst_7, low = [1, -1], high = [-2, 2], interior = [1, 0] : (tensor<6x5xf32>, tensor<f32>) -> tensor<10x6xf32>
    %18 = stablehlo.slice %arg0 [0:1, 0:5] : (tensor<6x5xf32>) -> tensor<1x5xf32>
    %19 = stablehlo.concatenate %arg0, %18, dim = 0 : (tensor<6x5xf32>, tensor<1x5xf32>) -> tensor<7x5xf32>
    %20 = call @_roll_static(%arg0) : (tensor<6x5xf32>) -> tensor<6x5xf32>
    %21 = call @_flip(%arg0) : (tensor<6x5xf32>) -> tensor<6x5xf32>
    %22 = stablehlo.add %20, %21 : tensor<6x5xf32>
    %23 = stablehlo.reshape %arg0 : (tensor<6x5xf32>) -> tensor<1x6x1x5xf32>
    %24 = stablehlo.broadcast_in_dim %23, dims = [0, 1, 2, 3] : (tensor<1x6x1x5xf32>) -> tensor<1x6x2x5xf32>
    %25 = stablehlo.reshape %24 : (tensor<1x6x2x5xf32>) -> tensor<6x10xf32>
    %26 = stablehlo.reshape %25 : (tensor<6x10xf32>) -> tensor<4x3x5xf32>
    %27 = stablehlo.transpose %26, dims = [2, 0, 1] : (tensor<4x3x5xf32>) -> tensor<5x4x3xf32>
    %c_8 = stablehlo.constant dense<0> : tensor<i32>
    %28 = stablehlo.compare LT, %arg1, %c_8, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_9 = stablehlo.constant dense<6> : tensor<i32>
    %29 = stablehlo.add %arg1, %c_9 : tensor<i32>
    %30 = stablehlo.select %28, %29, %arg1 : tensor<i1>, tensor<i32>
    %c_10 = stablehlo.constant dense<0> : tensor<i32>
    %c_11 = stablehlo.constant dense<0> : tensor<i32>
    %31 = stablehlo.compare LT, %c_10, %c_11, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_12 = stablehlo.constant dense<0> : tensor<i32>
    %c_13 = stablehlo.constant dense<5> : tensor<i32>
    %32 = stablehlo.add %c_12, %c_13 : tensor<i32>
    %c_14 = stablehlo.constant dense<0> : tensor<i32>
    %33 = stablehlo.select %31, %32, %c_14 : tensor<i1>, tensor<i32>
    %34 = stablehlo.dynamic_slice %arg0, %30, %33, sizes = [1, 5] : (tensor<6x5xf32>, tensor<i32>, tensor<i32>) -> tensor<1x5xf32>
    %35 = stablehlo.reshape %34 : (tensor<1x5xf32>) -> tensor<5xf32>
    return %1, %9, %16, %17, %19, %22, %27, %35 : tensor<2x5xf32>, tensor<2x3xf32>, tensor<6x5xf32>, tensor<10x6xf32>, tensor<7x5xf32>, tensor<6x5xf32>, tensor<5x4x3xf32>, tensor<5xf32>
  }
  func.func private @_roll_static(%arg0: tensor<6x5xf32>) -> tensor<6x5xf32> {
    %0 = stablehlo.slice %arg0 [0:6, 3:5] : (tensor<6x5xf32>) -> tensor<6x2xf32>
    %1 = stablehlo.slice %arg0 [0:6, 0:3] : (tensor<6x5xf32>) -> tensor<6x3xf32>
    %2 = stablehlo.concatenate %0, %1, dim = 1 : (tensor<6x2xf32>, tensor<6x3xf32>) -> tensor<6x5xf32>
    return %2 : tensor<6x5xf32>
  }
  func.func private @_flip(%arg0: tensor<6x5xf32>) -> tensor<6x5xf32> {
    %0 = stablehlo.reverse %arg0, dims = [0] : tensor<6x5xf32>
    return %0 : tensor<6x5xf32>
  }
}

