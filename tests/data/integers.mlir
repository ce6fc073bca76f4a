module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xi32>, %arg1: tensor<3x5xi32>) -> (tensor<3x5xi32> {jax.result_info = "result[0]"}, tensor<3x5xi32> {jax.result_info = "result[1]"}, tensor<3x5xi32> {jax.result_info = "result[2]"}, tensor<3x5xi32> {jax.result_info = "result[3]"}) {
    %0 = call @floor_divide(%arg0, %arg1) : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi32>
    %1 = call @remainder(%arg0, %arg1) : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi32>
    %2 = stablehlo.add %0, %1 : tensor<3x5xi32>
    %3 = stablehlo.remainder %arg0, %arg1 : tensor<3x5xi32>
    %4 = stablehlo.add %2, %3 : tensor<3x5xi32>
    %5 = stablehlo.divide %arg0, %arg1 : tensor<3x5xi32>
    %6 = stablehlo.add %4, %5 : tensor<3x5xi32>
    %7 = stablehlo.abs %arg0 : tensor<3x5xi32>
    %8 = stablehlo.add %6, %7 : tensor<3x5xi32>
    %9 = stablehlo.sign %arg0 : tensor<3x5xi32>
    %10 = stablehlo.add %8, %9 : tensor<3x5xi32>
    %11 = stablehlo.popcnt %arg0 : tensor<3x5xi32>
    %12 = stablehlo.count_leading_zeros %arg1 : tensor<3x5xi32>
    %13 = stablehlo.add %11, %12 : tensor<3x5xi32>
    %c = stablehlo.constant dense<2> : tensor<i32>
    %14 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %15 = stablehlo.shift_left %arg0, %14 : tensor<3x5xi32>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %16 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %17 = stablehlo.shift_right_arithmetic %arg0, %16 : tensor<3x5xi32>
    %c_1 = stablehlo.constant dense<3> : tensor<i32>
    %18 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %19 = stablehlo.shift_right_logical %arg0, %18 : tensor<3x5xi32>
    %20 = stablehlo.and %17, %19 : tensor<3x5xi32>
    %21 = stablehlo.xor %15, %20 : tensor<3x5xi32>
    %22 = stablehlo.not %arg1 : tensor<3x5xi32>
    %23 = stablehlo.or %21, %22 : tensor<3x5xi32>
    %24 = stablehlo.multiply %arg1, %arg1 : tensor<3x5xi32>
    %25 = stablehlo.multiply %24, %arg1 : tensor<3x5xi32>
    %26 = stablehlo.maximum %arg0, %arg1 : tensor<3x5xi32>
    %27 = stablehlo.add %25, %26 : tensor<3x5xi32>
    %28 = stablehlo.minimum %arg0, %arg1 : tensor<3x5xi32>
    %29 = stablehlo.subtract %27, %28 : tensor<3x5xi32>
    %c_2 = stablehlo.constant dense<-3> : tensor<i32>
    %c_3 = stablehlo.constant dense<3> : tensor<i32>
    %30 = call @clip(%arg0, %c_2, %c_3) : (tensor<3x5xi32>, tensor<i32>, tensor<i32>) -> tensor<3x5xi32>
    %31 = stablehlo.add %29, %30 : tensor<3x5xi32>
    return %10, %13, %23, %31 : tensor<3x5xi32>, tensor<3x5xi32>, tensor<3x5xi32>, tensor<3x5xi32>
  }
  func.func private @floor_divide(%arg0: tensor<3x5xi32>, %arg1: tensor<3x5xi32>) -> tensor<3x5xi32> {
    %0 = stablehlo.divide %arg0, %arg1 : tensor<3x5xi32>
    %1 = stablehlo.sign %arg0 : tensor<3x5xi32>
    %2 = stablehlo.sign %arg1 : tensor<3x5xi32>
    %3 = stablehlo.compare NE, %1, %2, SIGNED : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi1>
    %4 = stablehlo.remainder %arg0, %arg1 : tensor<3x5xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %6 = stablehlo.compare NE, %4, %5, SIGNED : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi1>
    %7 = stablehlo.and %3, %6 : tensor<3x5xi1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %8 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %9 = stablehlo.subtract %0, %8 : tensor<3x5xi32>
    %10 = call @_where(%7, %9, %0) : (tensor<3x5xi1>, tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi32>
    return %10 : tensor<3x5xi32>
  }
  func.func private @_where(%arg0: tensor<3x5xi1>, %arg1: tensor<3x5xi32>, %arg2: tensor<3x5xi32>) -> tensor<3x5xi32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<3x5xi1>, tensor<3x5xi32>
    return %0 : tensor<3x5xi32>
  }
  func.func private @remainder(%arg0: tensor<3x5xi32>, %arg1: tensor<3x5xi32>) -> tensor<3x5xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %1 = stablehlo.compare EQ, %arg1, %0, SIGNED : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %3 = call @_where(%1, %2, %arg1) : (tensor<3x5xi1>, tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi32>
    %4 = stablehlo.remainder %arg0, %3 : tensor<3x5xi32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %6 = stablehlo.compare NE, %4, %5, SIGNED : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi1>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %8 = stablehlo.compare LT, %4, %7, SIGNED : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi1>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %9 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %10 = stablehlo.compare LT, %3, %9, SIGNED : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi1>
    %11 = stablehlo.compare NE, %8, %10, UNSIGNED : (tensor<3x5xi1>, tensor<3x5xi1>) -> tensor<3x5xi1>
    %12 = stablehlo.and %11, %6 : tensor<3x5xi1>
    %13 = stablehlo.add %4, %3 : tensor<3x5xi32>
    %14 = stablehlo.select %12, %13, %4 : tensor<3x5xi1>, tensor<3x5xi32>
    return %14 : tensor<3x5xi32>
  }
  func.func private @clip(%arg0: tensor<3x5xi32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<3x5xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %2 = stablehlo.maximum %1, %arg0 : tensor<3x5xi32>
    %3 = stablehlo.convert %arg2 : tensor<i32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<i32>) -> tensor<3x5xi32>
    %5 = stablehlo.minimum %4, %2 : tensor<3x5xi32>
    return %5 : tensor<3x5xi32>
  }
}

