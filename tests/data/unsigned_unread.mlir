module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x5xui32>, %arg1: tensor<4xui8>) -> (tensor<4xui8> {jax.result_info = "result[0]"}, tensor<3x5xui32> {jax.result_info = "result[1]"}) {
    return %arg1, %arg0 : tensor<4xui8>, tensor<3x5xui32>
  }
}

