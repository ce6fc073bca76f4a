module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x6xf32>) -> (tensor<4x6xf32> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"dp"}, {"tp"}]>] out_shardings=[<@mesh, [{"dp"}, {"tp"}]>] manual_axes={"dp", "tp"} (%arg1: tensor<2x3xf32>) {
      %c = stablehlo.constant dense<1> : tensor<ui32>
      %c_0 = stablehlo.constant dense<2> : tensor<ui32>
      %1 = stablehlo.partition_id : tensor<ui32>
      %2 = stablehlo.divide %1, %c : tensor<ui32>
      %3 = stablehlo.remainder %2, %c_0 : tensor<ui32>
      %4 = stablehlo.convert %3 : (tensor<ui32>) -> tensor<i32>
      %5 = stablehlo.convert %4 : (tensor<i32>) -> tensor<f32>
      %cst = stablehlo.constant dense<1.000000e+01> : tensor<f32>
      %6 = stablehlo.multiply %5, %cst : tensor<f32>
      %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
      %8 = stablehlo.add %arg1, %7 : tensor<2x3xf32>
      %c_1 = stablehlo.constant dense<1> : tensor<ui32>
      %c_2 = stablehlo.constant dense<2> : tensor<ui32>
      %9 = stablehlo.partition_id : tensor<ui32>
      %10 = stablehlo.divide %9, %c_1 : tensor<ui32>
      %11 = stablehlo.remainder %10, %c_2 : tensor<ui32>
      %12 = stablehlo.convert %11 : (tensor<ui32>) -> tensor<i32>
      %c_3 = stablehlo.constant dense<1> : tensor<i32>
      %13 = stablehlo.multiply %12, %c_3 : tensor<i32>
      %c_4 = stablehlo.constant dense<0> : tensor<i32>
      %14 = stablehlo.add %c_4, %13 : tensor<i32>
      %c_5 = stablehlo.constant dense<2> : tensor<ui32>
      %c_6 = stablehlo.constant dense<2> : tensor<ui32>
      %15 = stablehlo.partition_id : tensor<ui32>
      %16 = stablehlo.divide %15, %c_5 : tensor<ui32>
      %17 = stablehlo.remainder %16, %c_6 : tensor<ui32>
      %18 = stablehlo.convert %17 : (tensor<ui32>) -> tensor<i32>
      %c_7 = stablehlo.constant dense<2> : tensor<i32>
      %19 = stablehlo.multiply %18, %c_7 : tensor<i32>
      %20 = stablehlo.add %14, %19 : tensor<i32>
      %21 = stablehlo.convert %20 : (tensor<i32>) -> tensor<f32>
      %22 = stablehlo.broadcast_in_dim %21, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
      %23 = stablehlo.add %8, %22 : tensor<2x3xf32>
      sdy.return %23 : tensor<2x3xf32>
    } : (tensor<4x6xf32>) -> tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
}

