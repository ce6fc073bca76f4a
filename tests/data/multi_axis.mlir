module @jit__lambda attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp", "tp"}, {}]>}, %arg1: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp", "dp"}]>}) -> (tensor<8x12xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {"dp"}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x6xf32>, tensor<6x12xf32>) -> tensor<8x12xf32>
    return %0 : tensor<8x12xf32>
  }
}

