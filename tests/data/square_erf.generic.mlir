"builtin.module"() <{sym_name = "jit__lambda"}> ({
  "func.func"() <{arg_attrs = [{}], function_type = (tensor<3x5xf32>) -> tensor<3x5xf32>, res_attrs = [{jax.result_info = "result"}], sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<3x5xf32>):
    %0 = "chlo.square"(%arg0) : (tensor<3x5xf32>) -> tensor<3x5xf32>
    %1 = "chlo.erf"(%arg0) : (tensor<3x5xf32>) -> tensor<3x5xf32>
    %2 = "stablehlo.add"(%0, %1) : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    %3 = "chlo.erfc"(%arg0) : (tensor<3x5xf32>) -> tensor<3x5xf32>
    %4 = "stablehlo.add"(%2, %3) : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    "func.return"(%4) : (tensor<3x5xf32>) -> ()
  }) : () -> ()
}) {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} : () -> ()

