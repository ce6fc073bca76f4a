module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<5x8xf32>, %arg1: tensor<8xf32>, %arg2: tensor<8x6xf32>, %arg3: tensor<6xf32>, %arg4: tensor<4x5xf32>, %arg5: tensor<4xi32>) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<5x8xf32> {jax.result_info = "result[1][0][0]"}, tensor<8xf32> {jax.result_info = "result[1][0][1]"}, tensor<8x6xf32> {jax.result_info = "result[1][1][0]"}, tensor<6xf32> {jax.result_info = "result[1][1][1]"}) {
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x5xf32>, tensor<5x8xf32>) -> tensor<4x8xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x8xf32>) -> tensor<4x8xf32>
    %3 = stablehlo.add %0, %2 : tensor<4x8xf32>
    %4 = stablehlo.multiply %3, %3 : tensor<4x8xf32>
    %5 = stablehlo.multiply %4, %3 : tensor<4x8xf32>
    %6 = stablehlo.multiply %3, %3 : tensor<4x8xf32>
    %cst = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %8 = stablehlo.multiply %7, %6 : tensor<4x8xf32>
    %cst_0 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %10 = stablehlo.multiply %9, %5 : tensor<4x8xf32>
    %11 = stablehlo.add %3, %10 : tensor<4x8xf32>
    %cst_1 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %13 = stablehlo.multiply %12, %11 : tensor<4x8xf32>
    %14 = stablehlo.tanh %13 : tensor<4x8xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %16 = stablehlo.subtract %15, %14 : tensor<4x8xf32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %18 = stablehlo.add %17, %14 : tensor<4x8xf32>
    %cst_4 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %20 = stablehlo.multiply %19, %18 : tensor<4x8xf32>
    %21 = stablehlo.multiply %3, %20 : tensor<4x8xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %22 = stablehlo.reduce(%21 init: %cst_5) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %23 = stablehlo.broadcast_in_dim %22, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %cst_6 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %24 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %25 = stablehlo.divide %23, %24 : tensor<4x1xf32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x8xf32>
    %27 = stablehlo.subtract %21, %26 : tensor<4x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %28:4 = call @_var(%21, %c) : (tensor<4x8xf32>, tensor<i32>) -> (tensor<4x1xf32>, tensor<4x8xf32>, tensor<f32>, tensor<i1>)
    %cst_7 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %30 = stablehlo.add %28#0, %29 : tensor<4x1xf32>
    %31 = stablehlo.rsqrt %30 : tensor<4x1xf32>
    %32 = stablehlo.divide %31, %30 : tensor<4x1xf32>
    %cst_8 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %33 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %34 = stablehlo.multiply %33, %32 : tensor<4x1xf32>
    %35 = stablehlo.broadcast_in_dim %31, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x8xf32>
    %36 = stablehlo.multiply %27, %35 : tensor<4x8xf32>
    %37 = stablehlo.dot_general %36, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %38 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<6xf32>) -> tensor<1x6xf32>
    %39 = stablehlo.broadcast_in_dim %38, dims = [0, 1] : (tensor<1x6xf32>) -> tensor<4x6xf32>
    %40 = stablehlo.add %37, %39 : tensor<4x6xf32>
    %41 = stablehlo.multiply %40, %40 : tensor<4x6xf32>
    %42 = stablehlo.multiply %41, %40 : tensor<4x6xf32>
    %43 = stablehlo.multiply %40, %40 : tensor<4x6xf32>
    %cst_9 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %45 = stablehlo.multiply %44, %43 : tensor<4x6xf32>
    %cst_10 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %46 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %47 = stablehlo.multiply %46, %42 : tensor<4x6xf32>
    %48 = stablehlo.add %40, %47 : tensor<4x6xf32>
    %cst_11 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %49 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %50 = stablehlo.multiply %49, %48 : tensor<4x6xf32>
    %51 = stablehlo.tanh %50 : tensor<4x6xf32>
    %cst_12 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %52 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %53 = stablehlo.subtract %52, %51 : tensor<4x6xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %54 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %55 = stablehlo.add %54, %51 : tensor<4x6xf32>
    %cst_14 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %56 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %57 = stablehlo.multiply %56, %55 : tensor<4x6xf32>
    %58 = stablehlo.multiply %40, %57 : tensor<4x6xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %59 = stablehlo.reduce(%58 init: %cst_15) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %60 = stablehlo.broadcast_in_dim %59, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %cst_16 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %61 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %62 = stablehlo.divide %60, %61 : tensor<4x1xf32>
    %63 = stablehlo.broadcast_in_dim %62, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %64 = stablehlo.subtract %58, %63 : tensor<4x6xf32>
    %c_17 = stablehlo.constant dense<0> : tensor<i32>
    %65:4 = call @_var_0(%58, %c_17) : (tensor<4x6xf32>, tensor<i32>) -> (tensor<4x1xf32>, tensor<4x6xf32>, tensor<f32>, tensor<i1>)
    %cst_18 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %66 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %67 = stablehlo.add %65#0, %66 : tensor<4x1xf32>
    %68 = stablehlo.rsqrt %67 : tensor<4x1xf32>
    %69 = stablehlo.divide %68, %67 : tensor<4x1xf32>
    %cst_19 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %70 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %71 = stablehlo.multiply %70, %69 : tensor<4x1xf32>
    %72 = stablehlo.broadcast_in_dim %68, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %73 = stablehlo.multiply %64, %72 : tensor<4x6xf32>
    %74:3 = call @log_softmax(%73) : (tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>)
    %75 = call @_one_hot(%arg5) : (tensor<4xi32>) -> tensor<4x6xf32>
    %76 = stablehlo.multiply %75, %74#0 : tensor<4x6xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %77 = stablehlo.reduce(%76 init: %cst_20) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %78 = stablehlo.reduce(%77 init: %cst_21) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %cst_22 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %79 = stablehlo.divide %78, %cst_22 : tensor<f32>
    %80 = stablehlo.negate %79 : tensor<f32>
    %cst_23 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %81 = stablehlo.negate %cst_23 : tensor<f32>
    %cst_24 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %82 = stablehlo.divide %81, %cst_24 : tensor<f32>
    %83 = stablehlo.broadcast_in_dim %82, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %84 = stablehlo.broadcast_in_dim %83, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>
    %85 = stablehlo.multiply %75, %84 : tensor<4x6xf32>
    %86 = call @log_softmax_1(%74#1, %74#2, %85) : (tensor<4x6xf32>, tensor<4x1xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %87 = stablehlo.multiply %64, %86 : tensor<4x6xf32>
    %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %88 = stablehlo.reduce(%87 init: %cst_25) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %89 = stablehlo.reshape %88 : (tensor<4xf32>) -> tensor<4x1xf32>
    %90 = stablehlo.broadcast_in_dim %68, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %91 = stablehlo.multiply %86, %90 : tensor<4x6xf32>
    %92 = stablehlo.multiply %89, %71 : tensor<4x1xf32>
    %93 = call @_var_2(%65#1, %65#2, %65#3, %92) : (tensor<4x6xf32>, tensor<f32>, tensor<i1>, tensor<4x1xf32>) -> tensor<4x6xf32>
    %94 = stablehlo.negate %91 : tensor<4x6xf32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %95 = stablehlo.reduce(%94 init: %cst_26) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %96 = stablehlo.reshape %95 : (tensor<4xf32>) -> tensor<4x1xf32>
    %97 = stablehlo.add %93, %91 : tensor<4x6xf32>
    %cst_27 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %98 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %99 = stablehlo.divide %96, %98 : tensor<4x1xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %100 = stablehlo.reduce(%99 init: %cst_28) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %101 = stablehlo.broadcast_in_dim %100, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>
    %102 = stablehlo.add %97, %101 : tensor<4x6xf32>
    %103 = stablehlo.multiply %40, %102 : tensor<4x6xf32>
    %104 = stablehlo.multiply %102, %57 : tensor<4x6xf32>
    %cst_29 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %105 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %106 = stablehlo.multiply %105, %103 : tensor<4x6xf32>
    %107 = stablehlo.multiply %106, %53 : tensor<4x6xf32>
    %108 = stablehlo.multiply %107, %51 : tensor<4x6xf32>
    %109 = stablehlo.add %107, %108 : tensor<4x6xf32>
    %cst_30 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %110 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %111 = stablehlo.multiply %110, %109 : tensor<4x6xf32>
    %112 = stablehlo.add %104, %111 : tensor<4x6xf32>
    %cst_31 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %113 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %114 = stablehlo.multiply %113, %111 : tensor<4x6xf32>
    %115 = stablehlo.multiply %114, %45 : tensor<4x6xf32>
    %116 = stablehlo.add %112, %115 : tensor<4x6xf32>
    %cst_32 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %117 = stablehlo.reduce(%116 init: %cst_32) applies stablehlo.add across dimensions = [0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<6xf32>
    %118 = stablehlo.reshape %117 : (tensor<6xf32>) -> tensor<1x6xf32>
    %cst_33 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %119 = stablehlo.reduce(%118 init: %cst_33) applies stablehlo.add across dimensions = [0] : (tensor<1x6xf32>, tensor<f32>) -> tensor<6xf32>
    %120 = stablehlo.dot_general %116, %36, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6xf32>, tensor<4x8xf32>) -> tensor<6x8xf32>
    %121 = stablehlo.transpose %120, dims = [1, 0] : (tensor<6x8xf32>) -> tensor<8x6xf32>
    %122 = stablehlo.dot_general %116, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x6xf32>, tensor<8x6xf32>) -> tensor<4x8xf32>
    %123 = stablehlo.multiply %27, %122 : tensor<4x8xf32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %124 = stablehlo.reduce(%123 init: %cst_34) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %125 = stablehlo.reshape %124 : (tensor<4xf32>) -> tensor<4x1xf32>
    %126 = stablehlo.broadcast_in_dim %31, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x8xf32>
    %127 = stablehlo.multiply %122, %126 : tensor<4x8xf32>
    %128 = stablehlo.multiply %125, %34 : tensor<4x1xf32>
    %129 = call @_var_4(%28#1, %28#2, %28#3, %128) : (tensor<4x8xf32>, tensor<f32>, tensor<i1>, tensor<4x1xf32>) -> tensor<4x8xf32>
    %130 = stablehlo.negate %127 : tensor<4x8xf32>
    %cst_35 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %131 = stablehlo.reduce(%130 init: %cst_35) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %132 = stablehlo.reshape %131 : (tensor<4xf32>) -> tensor<4x1xf32>
    %133 = stablehlo.add %129, %127 : tensor<4x8xf32>
    %cst_36 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %134 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %135 = stablehlo.divide %132, %134 : tensor<4x1xf32>
    %cst_37 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %136 = stablehlo.reduce(%135 init: %cst_37) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %137 = stablehlo.broadcast_in_dim %136, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %138 = stablehlo.add %133, %137 : tensor<4x8xf32>
    %139 = stablehlo.multiply %3, %138 : tensor<4x8xf32>
    %140 = stablehlo.multiply %138, %20 : tensor<4x8xf32>
    %cst_38 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %141 = stablehlo.broadcast_in_dim %cst_38, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %142 = stablehlo.multiply %141, %139 : tensor<4x8xf32>
    %143 = stablehlo.multiply %142, %16 : tensor<4x8xf32>
    %144 = stablehlo.multiply %143, %14 : tensor<4x8xf32>
    %145 = stablehlo.add %143, %144 : tensor<4x8xf32>
    %cst_39 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %146 = stablehlo.broadcast_in_dim %cst_39, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %147 = stablehlo.multiply %146, %145 : tensor<4x8xf32>
    %148 = stablehlo.add %140, %147 : tensor<4x8xf32>
    %cst_40 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %149 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %150 = stablehlo.multiply %149, %147 : tensor<4x8xf32>
    %151 = stablehlo.multiply %150, %8 : tensor<4x8xf32>
    %152 = stablehlo.add %148, %151 : tensor<4x8xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %153 = stablehlo.reduce(%152 init: %cst_41) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
    %154 = stablehlo.reshape %153 : (tensor<8xf32>) -> tensor<1x8xf32>
    %cst_42 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %155 = stablehlo.reduce(%154 init: %cst_42) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %156 = stablehlo.dot_general %152, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<4x5xf32>) -> tensor<8x5xf32>
    %157 = stablehlo.transpose %156, dims = [1, 0] : (tensor<8x5xf32>) -> tensor<5x8xf32>
    %cst_43 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %158 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<5x8xf32>
    %159 = stablehlo.multiply %158, %157 : tensor<5x8xf32>
    %160 = stablehlo.subtract %arg0, %159 : tensor<5x8xf32>
    %cst_44 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %161 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %162 = stablehlo.multiply %161, %155 : tensor<8xf32>
    %163 = stablehlo.subtract %arg1, %162 : tensor<8xf32>
    %cst_45 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %164 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<8x6xf32>
    %165 = stablehlo.multiply %164, %121 : tensor<8x6xf32>
    %166 = stablehlo.subtract %arg2, %165 : tensor<8x6xf32>
    %cst_46 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %167 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %168 = stablehlo.multiply %167, %119 : tensor<6xf32>
    %169 = stablehlo.subtract %arg3, %168 : tensor<6xf32>
    return %80, %160, %163, %166, %169 : tensor<f32>, tensor<5x8xf32>, tensor<8xf32>, tensor<8x6xf32>, tensor<6xf32>
  }
  func.func private @_var(%arg0: tensor<4x8xf32>, %arg1: tensor<i32>) -> (tensor<4x1xf32>, tensor<4x8xf32>, tensor<f32>, tensor<i1>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %cst_0 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<4x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x8xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x8xf32>
    %6 = chlo.square %5 : tensor<4x8xf32> -> tensor<4x8xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %8 = stablehlo.multiply %7, %5 : tensor<4x8xf32>
    %9 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %cst_2 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %10 = stablehlo.subtract %cst_2, %9 : tensor<f32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%6 init: %cst_3) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %13 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %14 = stablehlo.divide %12, %13 : tensor<4x1xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %15 = stablehlo.compare GT, %10, %cst_4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %cst_5 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %16 = call @_where(%15, %14, %cst_5) : (tensor<i1>, tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
    return %16, %8, %10, %15 : tensor<4x1xf32>, tensor<4x8xf32>, tensor<f32>, tensor<i1>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<4x1xf32>, %arg2: tensor<f32>) -> tensor<4x1xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<i1>, tensor<4x1xf32>
    return %2 : tensor<4x1xf32>
  }
  func.func private @_var_0(%arg0: tensor<4x6xf32>, %arg1: tensor<i32>) -> (tensor<4x1xf32>, tensor<4x6xf32>, tensor<f32>, tensor<i1>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %cst_0 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<4x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x6xf32>
    %6 = chlo.square %5 : tensor<4x6xf32> -> tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %8 = stablehlo.multiply %7, %5 : tensor<4x6xf32>
    %9 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %cst_2 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %10 = stablehlo.subtract %cst_2, %9 : tensor<f32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%6 init: %cst_3) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %13 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %14 = stablehlo.divide %12, %13 : tensor<4x1xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %15 = stablehlo.compare GT, %10, %cst_4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %cst_5 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %16 = call @_where(%15, %14, %cst_5) : (tensor<i1>, tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
    return %16, %8, %10, %15 : tensor<4x1xf32>, tensor<4x6xf32>, tensor<f32>, tensor<i1>
  }
  func.func private @log_softmax(%arg0: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.maximum %1, %0 : tensor<4xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x6xf32>
    %6 = stablehlo.exponential %5 : tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %9 = stablehlo.log %8 : tensor<4x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %11 = stablehlo.subtract %5, %10 : tensor<4x6xf32>
    return %11, %6, %8 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>
  }
  func.func private @_one_hot(%arg0: tensor<4xi32>) -> tensor<4x6xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
    %1 = stablehlo.iota dim = 1 : tensor<1x6xi32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<4x1xi32>) -> tensor<4x6xi32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x6xi32>) -> tensor<4x6xi32>
    %4 = stablehlo.compare EQ, %2, %3, SIGNED : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %5 = stablehlo.convert %4 : (tensor<4x6xi1>) -> tensor<4x6xf32>
    return %5 : tensor<4x6xf32>
  }
  func.func private @log_softmax_1(%arg0: tensor<4x6xf32>, %arg1: tensor<4x1xf32>, %arg2: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.negate %arg2 : tensor<4x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.reshape %1 : (tensor<4xf32>) -> tensor<4x1xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<4x1xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>
    %6 = stablehlo.multiply %5, %arg0 : tensor<4x6xf32>
    %7 = stablehlo.add %arg2, %6 : tensor<4x6xf32>
    return %7 : tensor<4x6xf32>
  }
  func.func private @_var_2(%arg0: tensor<4x6xf32>, %arg1: tensor<f32>, %arg2: tensor<i1>, %arg3: tensor<4x1xf32>) -> tensor<4x6xf32> {
    %0 = call @_where_3(%arg2, %arg3) : (tensor<i1>, tensor<4x1xf32>) -> tensor<4x1xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %2 = stablehlo.divide %0, %1 : tensor<4x1xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>
    %5 = stablehlo.multiply %4, %arg0 : tensor<4x6xf32>
    %6 = stablehlo.negate %5 : tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_0) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %8 = stablehlo.reshape %7 : (tensor<4xf32>) -> tensor<4x1xf32>
    %cst_1 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %10 = stablehlo.divide %8, %9 : tensor<4x1xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%10 init: %cst_2) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>
    %13 = stablehlo.add %5, %12 : tensor<4x6xf32>
    return %13 : tensor<4x6xf32>
  }
  func.func private @_where_3(%arg0: tensor<i1>, %arg1: tensor<4x1xf32>) -> tensor<4x1xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<i1>, tensor<4x1xf32>
    return %1 : tensor<4x1xf32>
  }
  func.func private @_var_4(%arg0: tensor<4x8xf32>, %arg1: tensor<f32>, %arg2: tensor<i1>, %arg3: tensor<4x1xf32>) -> tensor<4x8xf32> {
    %0 = call @_where_3(%arg2, %arg3) : (tensor<i1>, tensor<4x1xf32>) -> tensor<4x1xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %2 = stablehlo.divide %0, %1 : tensor<4x1xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %5 = stablehlo.multiply %4, %arg0 : tensor<4x8xf32>
    %6 = stablehlo.negate %5 : tensor<4x8xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_0) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %8 = stablehlo.reshape %7 : (tensor<4xf32>) -> tensor<4x1xf32>
    %cst_1 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %10 = stablehlo.divide %8, %9 : tensor<4x1xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%10 init: %cst_2) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %13 = stablehlo.add %5, %12 : tensor<4x8xf32>
    return %13 : tensor<4x8xf32>
  }
}

