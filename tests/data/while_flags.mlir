module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xf32>, %arg1: tensor<i32>) -> (tensor<3x5xf32> {jax.result_info = "result[0]"}, tensor<3x5xf32> {jax.result_info = "result[1][0]"}, tensor<3x5xf32> {jax.result_info = "result[1][1]"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<true> : tensor<i1>
    %0:4 = stablehlo.while(%iterArg = %arg1, %iterArg_2 = %c, %iterArg_3 = %c_0, %iterArg_4 = %arg0) : tensor<i32>, tensor<i32>, tensor<i1>, tensor<3x5xf32>
    cond {
      %c_5 = stablehlo.constant dense<9> : tensor<i32>
      %3 = stablehlo.compare LT, %iterArg_2, %c_5, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %c_6 = stablehlo.constant dense<false> : tensor<i1>
      %4 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<i1>) -> tensor<i1>
      %5 = stablehlo.compare NE, %3, %4, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %6 = stablehlo.convert %5 : tensor<i1>
      %7 = stablehlo.and %6, %iterArg_3 : tensor<i1>
      stablehlo.return %7 : tensor<i1>
    } do {
      %c_5 = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %iterArg_2, %c_5 : tensor<i32>
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %4 = stablehlo.reduce(%iterArg_4 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<f32>
      %5 = stablehlo.convert %iterArg : (tensor<i32>) -> tensor<f32>
      %6 = stablehlo.compare LT, %4, %5, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_6 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %7 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
      %8 = stablehlo.add %iterArg_4, %7 : tensor<3x5xf32>
      stablehlo.return %iterArg, %3, %6, %8 : tensor<i32>, tensor<i32>, tensor<i1>, tensor<3x5xf32>
    }
    %1 = stablehlo.reverse %arg0, dims = [0] : tensor<3x5xf32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %2:4 = stablehlo.while(%iterArg = %arg1, %iterArg_2 = %c_1, %iterArg_3 = %arg0, %iterArg_4 = %1) : tensor<i32>, tensor<i32>, tensor<3x5xf32>, tensor<3x5xf32>
    cond {
      %3 = stablehlo.convert %iterArg_2 : tensor<i32>
      %4 = stablehlo.compare LT, %3, %iterArg, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %c_5 = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %iterArg_2, %c_5 : tensor<i32>
      stablehlo.return %iterArg, %3, %iterArg_4, %iterArg_3 : tensor<i32>, tensor<i32>, tensor<3x5xf32>, tensor<3x5xf32>
    }
    return %0#3, %2#2, %2#3 : tensor<3x5xf32>, tensor<3x5xf32>, tensor<3x5xf32>
  }
}

