module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xf32>) -> (tensor<3x5xf32> {jax.result_info = "result[0]"}, tensor<3x5xf32> {jax.result_info = "result[1]"}, tensor<3x5xf32> {jax.result_info = "result[2]"}, tensor<3x5xf32> {jax.result_info = "result[3]"}) {
    %0 = stablehlo.tanh %arg0 : tensor<3x5xf32>
    %cst = stablehlo.constant dense<0.899999976> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<3x5xf32>
    %3 = chlo.asin %2 : tensor<3x5xf32> -> tensor<3x5xf32>
    %4 = chlo.acos %2 : tensor<3x5xf32> -> tensor<3x5xf32>
    %5 = stablehlo.add %3, %4 : tensor<3x5xf32>
    %6 = chlo.atan %2 : tensor<3x5xf32> -> tensor<3x5xf32>
    %7 = stablehlo.add %5, %6 : tensor<3x5xf32>
    %8 = chlo.sinh %arg0 : tensor<3x5xf32> -> tensor<3x5xf32>
    %9 = chlo.cosh %arg0 : tensor<3x5xf32> -> tensor<3x5xf32>
    %10 = stablehlo.add %8, %9 : tensor<3x5xf32>
    %11 = chlo.asinh %arg0 : tensor<3x5xf32> -> tensor<3x5xf32>
    %12 = stablehlo.add %10, %11 : tensor<3x5xf32>
    %13 = chlo.atanh %2 : tensor<3x5xf32> -> tensor<3x5xf32>
    %14 = stablehlo.add %12, %13 : tensor<3x5xf32>
    %15 = stablehlo.tan %2 : tensor<3x5xf32>
    %16 = stablehlo.atan2 %arg0, %2 : tensor<3x5xf32>
    %17 = stablehlo.add %15, %16 : tensor<3x5xf32>
    %18 = stablehlo.abs %arg0 : tensor<3x5xf32>
    %cst_0 = stablehlo.constant dense<1.500000e+00> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %20 = stablehlo.add %19, %18 : tensor<3x5xf32>
    %21 = call @arccosh(%20) : (tensor<3x5xf32>) -> tensor<3x5xf32>
    %22 = stablehlo.add %17, %21 : tensor<3x5xf32>
    %23 = chlo.next_after %arg0, %2 : tensor<3x5xf32>, tensor<3x5xf32> -> tensor<3x5xf32>
    return %7, %14, %22, %23 : tensor<3x5xf32>, tensor<3x5xf32>, tensor<3x5xf32>, tensor<3x5xf32>
  }
  func.func private @arccosh(%arg0: tensor<3x5xf32>) -> tensor<3x5xf32> {
    %0 = chlo.acosh %arg0 : tensor<3x5xf32> -> tensor<3x5xf32>
    return %0 : tensor<3x5xf32>
  }
}

