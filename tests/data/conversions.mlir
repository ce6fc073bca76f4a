module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<15xf32>) -> (tensor<15xi32> {jax.result_info = "result[0]"}, tensor<15xi8> {jax.result_info = "result[1]"}, tensor<15xui8> {jax.result_info = "result[2]"}, tensor<15xui16> {jax.result_info = "result[3]"}, tensor<15xui32> {jax.result_info = "result[4]"}) {
    %0 = stablehlo.convert %arg0 : (tensor<15xf32>) -> tensor<15xi32>
    %1 = stablehlo.convert %arg0 : (tensor<15xf32>) -> tensor<15xi8>
    %2 = stablehlo.convert %arg0 : (tensor<15xf32>) -> tensor<15xui8>
    %3 = stablehlo.convert %arg0 : (tensor<15xf32>) -> tensor<15xui16>
    %4 = stablehlo.convert %arg0 : (tensor<15xf32>) -> tensor<15xui32>
    return %0, %1, %2, %3, %4 : tensor<15xi32>, tensor<15xi8>, tensor<15xui8>, tensor<15xui16>, tensor<15xui32>
  }
}

