module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xui8>, %arg1: tensor<3x5xui8>) -> (tensor<3x5xui8> {jax.result_info = "result[0]"}, tensor<3x5xf32> {jax.result_info = "result[1]"}, tensor<3x5xi1> {jax.result_info = "result[2]"}, tensor<3x5xui8> {jax.result_info = "result[3]"}, tensor<3x5xui8> {jax.result_info = "result[4]"}, tensor<3x5xi32> {jax.result_info = "result[5]"}) {
    %0 = call @floor_divide(%arg0, %arg1) : (tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xui8>
    %1 = call @remainder(%arg0, %arg1) : (tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xui8>
    %2 = stablehlo.add %0, %1 : tensor<3x5xui8>
    %3 = stablehlo.convert %arg0 : (tensor<3x5xui8>) -> tensor<3x5xf32>
    %4 = stablehlo.convert %arg1 : (tensor<3x5xui8>) -> tensor<3x5xf32>
    %5 = stablehlo.add %3, %4 : tensor<3x5xf32>
    %6 = stablehlo.compare LT, %arg0, %arg1, UNSIGNED : (tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xi1>
    %7 = stablehlo.maximum %arg0, %arg1 : tensor<3x5xui8>
    %c = stablehlo.constant dense<3> : tensor<ui8>
    %8 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui8>) -> tensor<3x5xui8>
    %9 = stablehlo.shift_right_logical %arg0, %8 : tensor<3x5xui8>
    %10 = stablehlo.add %7, %9 : tensor<3x5xui8>
    %11 = stablehlo.convert %arg0 : (tensor<3x5xui8>) -> tensor<3x5xf32>
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %13 = stablehlo.multiply %11, %12 : tensor<3x5xf32>
    %14 = stablehlo.convert %13 : (tensor<3x5xf32>) -> tensor<3x5xui8>
    %15 = stablehlo.convert %arg0 : (tensor<3x5xui8>) -> tensor<3x5xi32>
    %c_0 = stablehlo.constant dense<300> : tensor<i32>
    %16 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %17 = stablehlo.subtract %15, %16 : tensor<3x5xi32>
    return %2, %5, %6, %10, %14, %17 : tensor<3x5xui8>, tensor<3x5xf32>, tensor<3x5xi1>, tensor<3x5xui8>, tensor<3x5xui8>, tensor<3x5xi32>
  }
  func.func private @floor_divide(%arg0: tensor<3x5xui8>, %arg1: tensor<3x5xui8>) -> tensor<3x5xui8> {
    %0 = stablehlo.divide %arg0, %arg1 : tensor<3x5xui8>
    return %0 : tensor<3x5xui8>
  }
  func.func private @remainder(%arg0: tensor<3x5xui8>, %arg1: tensor<3x5xui8>) -> tensor<3x5xui8> {
    %c = stablehlo.constant dense<0> : tensor<ui8>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui8>) -> tensor<3x5xui8>
    %1 = stablehlo.compare EQ, %arg1, %0, UNSIGNED : (tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xi1>
    %c_0 = stablehlo.constant dense<1> : tensor<ui8>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui8>) -> tensor<3x5xui8>
    %3 = call @_where(%1, %2, %arg1) : (tensor<3x5xi1>, tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xui8>
    %4 = stablehlo.remainder %arg0, %3 : tensor<3x5xui8>
    %c_1 = stablehlo.constant dense<0> : tensor<ui8>
    %5 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui8>) -> tensor<3x5xui8>
    %6 = stablehlo.compare NE, %4, %5, UNSIGNED : (tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xi1>
    %c_2 = stablehlo.constant dense<0> : tensor<ui8>
    %7 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui8>) -> tensor<3x5xui8>
    %8 = stablehlo.compare LT, %4, %7, UNSIGNED : (tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xi1>
    %c_3 = stablehlo.constant dense<0> : tensor<ui8>
    %9 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui8>) -> tensor<3x5xui8>
    %10 = stablehlo.compare LT, %3, %9, UNSIGNED : (tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xi1>
    %11 = stablehlo.compare NE, %8, %10, UNSIGNED : (tensor<3x5xi1>, tensor<3x5xi1>) -> tensor<3x5xi1>
    %12 = stablehlo.and %11, %6 : tensor<3x5xi1>
    %13 = stablehlo.add %4, %3 : tensor<3x5xui8>
    %14 = stablehlo.select %12, %13, %4 : tensor<3x5xi1>, tensor<3x5xui8>
    return %14 : tensor<3x5xui8>
  }
  func.func private @_where(%arg0: tensor<3x5xi1>, %arg1: tensor<3x5xui8>, %arg2: tensor<3x5xui8>) -> tensor<3x5xui8> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<3x5xi1>, tensor<3x5xui8>
    return %0 : tensor<3x5xui8>
  }
}

