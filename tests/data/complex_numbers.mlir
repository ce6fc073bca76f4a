module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<5xf32>, %arg1: tensor<5xf32>) -> (tensor<5xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.complex %arg0, %arg1 : tensor<5xcomplex<f32>>
    %1 = stablehlo.abs %0 : (tensor<5xcomplex<f32>>) -> tensor<5xf32>
    %2 = stablehlo.complex %arg0, %arg1 : tensor<5xcomplex<f32>>
    %cst = stablehlo.constant dense<(0.000000e+00,2.000000e+00)> : tensor<complex<f32>>
    %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<complex<f32>>) -> tensor<5xcomplex<f32>>
    %4 = stablehlo.multiply %2, %3 : tensor<5xcomplex<f32>>
    %5 = stablehlo.real %4 : (tensor<5xcomplex<f32>>) -> tensor<5xf32>
    %6 = stablehlo.add %1, %5 : tensor<5xf32>
    return %6 : tensor<5xf32>
  }
}

