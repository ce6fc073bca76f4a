module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xf32>) -> (tensor<3x5xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.tanh %arg0 : tensor<3x5xf32>
    %1 = chlo.erf_inv %0 : tensor<3x5xf32> -> tensor<3x5xf32>
    return %1 : tensor<3x5xf32>
  }
}

