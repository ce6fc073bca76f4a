module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xf32>, %arg1: tensor<3x5xf32>) -> (tensor<3x5xf32> {jax.result_info = "result[0]"}, tensor<3x5xf32> {jax.result_info = "result[1]"}, tensor<3x5xf32> {jax.result_info = "result[2]"}, tensor<3x5xf32> {jax.result_info = "result[3]"}, tensor<3x5xi1> {jax.result_info = "result[4]"}) {
    %0 = stablehlo.exponential %arg0 : tensor<3x5xf32>
    %1 = stablehlo.exponential_minus_one %arg1 : tensor<3x5xf32>
    %2 = stablehlo.add %0, %1 : tensor<3x5xf32>
    %3 = stablehlo.abs %arg0 : tensor<3x5xf32>
    %4 = stablehlo.log_plus_one %3 : tensor<3x5xf32>
    %5 = stablehlo.add %2, %4 : tensor<3x5xf32>
    %6 = stablehlo.abs %arg1 : tensor<3x5xf32>
    %7 = stablehlo.log %6 : tensor<3x5xf32>
    %8 = stablehlo.add %5, %7 : tensor<3x5xf32>
    %9 = stablehlo.cbrt %arg0 : tensor<3x5xf32>
    %10 = stablehlo.add %8, %9 : tensor<3x5xf32>
    %cst = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %11 = call @clip(%arg0, %cst, %cst_0) : (tensor<3x5xf32>, tensor<f32>, tensor<f32>) -> tensor<3x5xf32>
    %12 = stablehlo.sign %arg1 : tensor<3x5xf32>
    %13 = stablehlo.add %11, %12 : tensor<3x5xf32>
    %14 = stablehlo.floor %arg0 : tensor<3x5xf32>
    %15 = stablehlo.add %13, %14 : tensor<3x5xf32>
    %16 = stablehlo.ceil %arg1 : tensor<3x5xf32>
    %17 = stablehlo.add %15, %16 : tensor<3x5xf32>
    %18 = call @round(%arg0) : (tensor<3x5xf32>) -> tensor<3x5xf32>
    %19 = stablehlo.add %17, %18 : tensor<3x5xf32>
    %20 = stablehlo.abs %arg1 : tensor<3x5xf32>
    %21 = stablehlo.rsqrt %20 : tensor<3x5xf32>
    %22 = stablehlo.add %19, %21 : tensor<3x5xf32>
    %23 = call @fmod(%arg0, %arg1) : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    %24 = call @remainder(%arg0, %arg1) : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    %25 = stablehlo.add %23, %24 : tensor<3x5xf32>
    %26 = stablehlo.abs %arg0 : tensor<3x5xf32>
    %27 = stablehlo.power %26, %arg1 : tensor<3x5xf32>
    %28 = stablehlo.add %25, %27 : tensor<3x5xf32>
    %29 = stablehlo.abs %arg0 : tensor<3x5xf32>
    %30 = stablehlo.multiply %29, %29 : tensor<3x5xf32>
    %31 = stablehlo.multiply %30, %29 : tensor<3x5xf32>
    %32 = stablehlo.add %28, %31 : tensor<3x5xf32>
    %33 = stablehlo.round_nearest_afz %arg1 : tensor<3x5xf32>
    %34 = stablehlo.add %32, %33 : tensor<3x5xf32>
    %35 = stablehlo.negate %arg0 : tensor<3x5xf32>
    %36 = stablehlo.exponential %35 : tensor<3x5xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %37 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %38 = stablehlo.add %37, %36 : tensor<3x5xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %39 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %40 = stablehlo.divide %39, %38 : tensor<3x5xf32>
    %41 = stablehlo.compare GT, %arg0, %arg1, FLOAT : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
    %42 = call @_where(%41, %arg0, %arg1) : (tensor<3x5xi1>, tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    %43 = stablehlo.add %40, %42 : tensor<3x5xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %45 = stablehlo.maximum %arg0, %44 : tensor<3x5xf32>
    %46 = stablehlo.add %43, %45 : tensor<3x5xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %47 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %48 = stablehlo.minimum %arg1, %47 : tensor<3x5xf32>
    %49 = stablehlo.subtract %46, %48 : tensor<3x5xf32>
    %50 = stablehlo.is_finite %arg0 : (tensor<3x5xf32>) -> tensor<3x5xi1>
    %51 = stablehlo.compare NE, %arg0, %arg1, FLOAT : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
    %52 = stablehlo.and %50, %51 : tensor<3x5xi1>
    %53 = stablehlo.compare LT, %arg0, %arg1, FLOAT : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
    %54 = stablehlo.not %53 : tensor<3x5xi1>
    %55 = stablehlo.compare GE, %arg0, %arg1, FLOAT : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
    %56 = stablehlo.xor %54, %55 : tensor<3x5xi1>
    %57 = stablehlo.or %52, %56 : tensor<3x5xi1>
    return %10, %22, %34, %49, %57 : tensor<3x5xf32>, tensor<3x5xf32>, tensor<3x5xf32>, tensor<3x5xf32>, tensor<3x5xi1>
  }
  func.func private @clip(%arg0: tensor<3x5xf32>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<3x5xf32> {
    %0 = stablehlo.convert %arg1 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %2 = stablehlo.maximum %1, %arg0 : tensor<3x5xf32>
    %3 = stablehlo.convert %arg2 : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %5 = stablehlo.minimum %4, %2 : tensor<3x5xf32>
    return %5 : tensor<3x5xf32>
  }
  func.func private @round(%arg0: tensor<3x5xf32>) -> tensor<3x5xf32> {
    %0 = stablehlo.round_nearest_even %arg0 : tensor<3x5xf32>
    return %0 : tensor<3x5xf32>
  }
  func.func private @fmod(%arg0: tensor<3x5xf32>, %arg1: tensor<3x5xf32>) -> tensor<3x5xf32> {
    %0 = stablehlo.remainder %arg0, %arg1 : tensor<3x5xf32>
    return %0 : tensor<3x5xf32>
  }
  func.func private @remainder(%arg0: tensor<3x5xf32>, %arg1: tensor<3x5xf32>) -> tensor<3x5xf32> {
    %0 = stablehlo.remainder %arg0, %arg1 : tensor<3x5xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %2 = stablehlo.compare NE, %0, %1, FLOAT : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %4 = stablehlo.compare LT, %0, %3, FLOAT : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<3x5xf32>
    %6 = stablehlo.compare LT, %arg1, %5, FLOAT : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
    %7 = stablehlo.compare NE, %4, %6, UNSIGNED : (tensor<3x5xi1>, tensor<3x5xi1>) -> tensor<3x5xi1>
    %8 = stablehlo.and %7, %2 : tensor<3x5xi1>
    %9 = stablehlo.add %0, %arg1 : tensor<3x5xf32>
    %10 = stablehlo.select %8, %9, %0 : tensor<3x5xi1>, tensor<3x5xf32>
    return %10 : tensor<3x5xf32>
  }
  func.func private @_where(%arg0: tensor<3x5xi1>, %arg1: tensor<3x5xf32>, %arg2: tensor<3x5xf32>) -> tensor<3x5xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<3x5xi1>, tensor<3x5xf32>
    return %0 : tensor<3x5xf32>
  }
}

