module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x4xf32>) -> (tensor<2x4x2xf32> {jax.result_info = "result[0]"}, tensor<4x4xf32> {jax.result_info = "result[1]"}, tensor<4x2xf32> {jax.result_info = "result[2]"}, tensor<f32> {jax.result_info = "result[3]"}) {
    %0:4 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"dp"}, {"tp"}]>] out_shardings=[<@mesh, [{}, {"dp"}, {}]>, <@mesh, [{"tp"}, {"dp"}]>, <@mesh, [{"dp"}, {}]>, <@mesh, []>] manual_axes={"dp", "tp"} (%arg1: tensor<2x2xf32>) {
      %1 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<2x2xf32>) -> tensor<1x2x2xf32>
      %2 = "stablehlo.all_gather"(%1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<1x2x2xf32>) -> tensor<2x2x2xf32>
      %3 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<2x2xf32>) -> tensor<1x2x2xf32>
      %4 = "stablehlo.all_to_all"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, split_count = 2 : i64, split_dimension = 2 : i64}> : (tensor<1x2x2xf32>) -> tensor<2x2x1xf32>
      %5 = stablehlo.reshape %4 : (tensor<2x2x1xf32>) -> tensor<2x2xf32>
      %6 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %11 = stablehlo.minimum %arg2, %arg3 : tensor<f32>
        stablehlo.return %11 : tensor<f32>
      }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %7 = stablehlo.slice %arg1 [0:1, 0:1] : (tensor<2x2xf32>) -> tensor<1x1xf32>
      %8 = stablehlo.reshape %7 : (tensor<1x1xf32>) -> tensor<f32>
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %9 = stablehlo.multiply %cst, %8 : tensor<f32>
      %10 = "stablehlo.all_reduce"(%9) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2, 1, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %11 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %11 : tensor<f32>
      }) : (tensor<f32>) -> tensor<f32>
      sdy.return %2, %5, %6, %10 : tensor<2x2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<f32>
    } : (tensor<4x4xf32>) -> (tensor<2x4x2xf32>, tensor<4x4xf32>, tensor<4x2xf32>, tensor<f32>)
    return %0#0, %0#1, %0#2, %0#3 : tensor<2x4x2xf32>, tensor<4x4xf32>, tensor<4x2xf32>, tensor<f32>
  }
}

