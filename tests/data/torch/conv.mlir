#loc1 = loc("tests/torch_models.py":76:0)
#map = affine_map<(d0) -> (d0)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d1, 0, 0)>
module {
  "dist.mesh"() {axes = "dp=2", sym_name = "mesh"} : () -> () loc(#loc)
  func.func public @main(%arg0: tensor<8x3x3x3xf32> loc("tests/torch_models.py":76:0), %arg1: tensor<8xf32> loc("tests/torch_models.py":76:0), %arg2: tensor<8xf32> loc("tests/torch_models.py":76:0), %arg3: tensor<8xf32> loc("tests/torch_models.py":76:0), %arg4: tensor<8xf32> loc("tests/torch_models.py":76:0), %arg5: tensor<8xf32> loc("tests/torch_models.py":76:0), %arg6: tensor<i64> loc("tests/torch_models.py":76:0), %arg7: tensor<4x3x8x8xf32> {dist.layout = #dist.layout<"[dp, _, _, _]">} loc("tests/torch_models.py":76:0)) -> tensor<4x8x4x4xf32> {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 0xFF800000 : f32 loc(#loc1)
    %cst_2 = arith.constant 1.000000e-05 : f64 loc(#loc1)
    %padded = tensor.pad %arg7 low[0, 0, 1, 1] high[0, 0, 1, 1] {
    ^bb0(%arg8: index loc("tests/torch_models.py":76:0), %arg9: index loc("tests/torch_models.py":76:0), %arg10: index loc("tests/torch_models.py":76:0), %arg11: index loc("tests/torch_models.py":76:0)):
      tensor.yield %cst : f32 loc(#loc1)
    } : tensor<4x3x8x8xf32> to tensor<4x3x10x10xf32> loc(#loc1)
    %0 = tensor.empty() : tensor<4x8x8x8xf32> loc(#loc1)
    %broadcasted = linalg.broadcast ins(%arg1 : tensor<8xf32>) outs(%0 : tensor<4x8x8x8xf32>) dimensions = [0, 2, 3]  loc(#loc1)
    %1 = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%padded, %arg0 : tensor<4x3x10x10xf32>, tensor<8x3x3x3xf32>) outs(%broadcasted : tensor<4x8x8x8xf32>) -> tensor<4x8x8x8xf32> loc(#loc1)
    %2 = tensor.empty() : tensor<8xf32> loc(#loc1)
    %3 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg5 : tensor<8xf32>) outs(%2 : tensor<8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":76:0), %out: f32 loc("tests/torch_models.py":76:0)):
      %15 = arith.truncf %cst_2 : f64 to f32 loc(#loc1)
      %16 = arith.addf %in, %15 : f32 loc(#loc1)
      linalg.yield %16 : f32 loc(#loc1)
    } -> tensor<8xf32> loc(#loc1)
    %4 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%3 : tensor<8xf32>) outs(%2 : tensor<8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":76:0), %out: f32 loc("tests/torch_models.py":76:0)):
      %15 = math.sqrt %in : f32 loc(#loc1)
      linalg.yield %15 : f32 loc(#loc1)
    } -> tensor<8xf32> loc(#loc1)
    %5 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%4 : tensor<8xf32>) outs(%2 : tensor<8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":76:0), %out: f32 loc("tests/torch_models.py":76:0)):
      %15 = arith.divf %cst_0, %in : f32 loc(#loc1)
      linalg.yield %15 : f32 loc(#loc1)
    } -> tensor<8xf32> loc(#loc1)
    %expanded = tensor.expand_shape %arg4 [[0, 1, 2]] output_shape [8, 1, 1] : tensor<8xf32> into tensor<8x1x1xf32> loc(#loc1)
    %expanded_3 = tensor.expand_shape %5 [[0, 1, 2]] output_shape [8, 1, 1] : tensor<8xf32> into tensor<8x1x1xf32> loc(#loc1)
    %6 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%1, %expanded : tensor<4x8x8x8xf32>, tensor<8x1x1xf32>) outs(%0 : tensor<4x8x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":76:0), %in_6: f32 loc("tests/torch_models.py":76:0), %out: f32 loc("tests/torch_models.py":76:0)):
      %15 = arith.subf %in, %in_6 : f32 loc(#loc1)
      linalg.yield %15 : f32 loc(#loc1)
    } -> tensor<4x8x8x8xf32> loc(#loc1)
    %7 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%6, %expanded_3 : tensor<4x8x8x8xf32>, tensor<8x1x1xf32>) outs(%0 : tensor<4x8x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":76:0), %in_6: f32 loc("tests/torch_models.py":76:0), %out: f32 loc("tests/torch_models.py":76:0)):
      %15 = arith.mulf %in, %in_6 : f32 loc(#loc1)
      linalg.yield %15 : f32 loc(#loc1)
    } -> tensor<4x8x8x8xf32> loc(#loc1)
    %expanded_4 = tensor.expand_shape %arg2 [[0, 1, 2]] output_shape [8, 1, 1] : tensor<8xf32> into tensor<8x1x1xf32> loc(#loc1)
    %8 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%7, %expanded_4 : tensor<4x8x8x8xf32>, tensor<8x1x1xf32>) outs(%0 : tensor<4x8x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":76:0), %in_6: f32 loc("tests/torch_models.py":76:0), %out: f32 loc("tests/torch_models.py":76:0)):
      %15 = arith.mulf %in, %in_6 : f32 loc(#loc1)
      linalg.yield %15 : f32 loc(#loc1)
    } -> tensor<4x8x8x8xf32> loc(#loc1)
    %expanded_5 = tensor.expand_shape %arg3 [[0, 1, 2]] output_shape [8, 1, 1] : tensor<8xf32> into tensor<8x1x1xf32> loc(#loc1)
    %9 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%8, %expanded_5 : tensor<4x8x8x8xf32>, tensor<8x1x1xf32>) outs(%0 : tensor<4x8x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":76:0), %in_6: f32 loc("tests/torch_models.py":76:0), %out: f32 loc("tests/torch_models.py":76:0)):
      %15 = arith.addf %in, %in_6 : f32 loc(#loc1)
      linalg.yield %15 : f32 loc(#loc1)
    } -> tensor<4x8x8x8xf32> loc(#loc1)
    %10 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%9 : tensor<4x8x8x8xf32>) outs(%0 : tensor<4x8x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":76:0), %out: f32 loc("tests/torch_models.py":76:0)):
      %15 = arith.cmpf ugt, %in, %cst : f32 loc(#loc1)
      %16 = arith.select %15, %in, %cst : f32 loc(#loc1)
      linalg.yield %16 : f32 loc(#loc1)
    } -> tensor<4x8x8x8xf32> loc(#loc1)
    %11 = tensor.empty() : tensor<4x8x4x4xf32> loc(#loc1)
    %12 = linalg.fill ins(%cst_1 : f32) outs(%11 : tensor<4x8x4x4xf32>) -> tensor<4x8x4x4xf32> loc(#loc1)
    %13 = tensor.empty() : tensor<2x2xf32> loc(#loc1)
    %14 = linalg.pooling_nchw_max {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>} ins(%10, %13 : tensor<4x8x8x8xf32>, tensor<2x2xf32>) outs(%12 : tensor<4x8x4x4xf32>) -> tensor<4x8x4x4xf32> loc(#loc1)
    return %14 : tensor<4x8x4x4xf32> loc(#loc1)
  } loc(#loc1)
} loc(#loc)
#loc = loc(unknown)
