#loc1 = loc("tests/torch_models.py":20:0)
#map = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d3, d2)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map4 = affine_map<(d0, d1, d2) -> (d2)>
module {
  "dist.mesh"() {axes = "tp=2", sym_name = "mesh"} : () -> () loc(#loc)
  func.func public @main(%arg0: tensor<128x32xf32> {dist.layout = #dist.layout<"[tp, _]">} loc("tests/torch_models.py":20:0), %arg1: tensor<128xf32> {dist.layout = #dist.layout<"[tp]">} loc("tests/torch_models.py":20:0), %arg2: tensor<32x128xf32> {dist.layout = #dist.layout<"[_, tp]">} loc("tests/torch_models.py":20:0), %arg3: tensor<32xf32> loc("tests/torch_models.py":20:0), %arg4: tensor<4x8x32xf32> loc("tests/torch_models.py":20:0)) -> tensor<4x8x32xf32> {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 5.000000e-01 : f32 loc(#loc)
    %cst_2 = arith.constant 1.41421354 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<32x128xf32> loc(#loc1)
    %transposed = linalg.transpose ins(%arg0 : tensor<128x32xf32>) outs(%0 : tensor<32x128xf32>) permutation = [1, 0]  loc(#loc1)
    %1 = tensor.empty() : tensor<4x8x128xf32> loc(#loc1)
    %2 = linalg.fill ins(%cst : f32) outs(%1 : tensor<4x8x128xf32>) -> tensor<4x8x128xf32> loc(#loc1)
    %3 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg4, %transposed : tensor<4x8x32xf32>, tensor<32x128xf32>) outs(%2 : tensor<4x8x128xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %in_4: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %11 = arith.mulf %in, %in_4 : f32 loc(#loc1)
      %12 = arith.addf %out, %11 : f32 loc(#loc1)
      linalg.yield %12 : f32 loc(#loc1)
    } -> tensor<4x8x128xf32> loc(#loc1)
    %4 = linalg.generic {indexing_maps = [#map3, #map4, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%3, %arg1 : tensor<4x8x128xf32>, tensor<128xf32>) outs(%1 : tensor<4x8x128xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %in_4: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %11 = arith.addf %in, %in_4 : f32 loc(#loc1)
      linalg.yield %11 : f32 loc(#loc1)
    } -> tensor<4x8x128xf32> loc(#loc1)
    %5 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4 : tensor<4x8x128xf32>) outs(%1 : tensor<4x8x128xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %11 = arith.divf %in, %cst_2 : f32 loc(#loc1)
      %12 = math.erf %11 : f32 loc(#loc1)
      %13 = arith.addf %12, %cst_0 : f32 loc(#loc1)
      %14 = arith.mulf %13, %cst_1 : f32 loc(#loc1)
      %15 = arith.mulf %in, %14 : f32 loc(#loc1)
      linalg.yield %15 : f32 loc(#loc1)
    } -> tensor<4x8x128xf32> loc(#loc1)
    %6 = tensor.empty() : tensor<128x32xf32> loc(#loc1)
    %transposed_3 = linalg.transpose ins(%arg2 : tensor<32x128xf32>) outs(%6 : tensor<128x32xf32>) permutation = [1, 0]  loc(#loc1)
    %7 = tensor.empty() : tensor<4x8x32xf32> loc(#loc1)
    %8 = linalg.fill ins(%cst : f32) outs(%7 : tensor<4x8x32xf32>) -> tensor<4x8x32xf32> loc(#loc1)
    %9 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%5, %transposed_3 : tensor<4x8x128xf32>, tensor<128x32xf32>) outs(%8 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %in_4: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %11 = arith.mulf %in, %in_4 : f32 loc(#loc1)
      %12 = arith.addf %out, %11 : f32 loc(#loc1)
      linalg.yield %12 : f32 loc(#loc1)
    } -> tensor<4x8x32xf32> loc(#loc1)
    %10 = linalg.generic {indexing_maps = [#map3, #map4, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%9, %arg3 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%7 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %in_4: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %11 = arith.addf %in, %in_4 : f32 loc(#loc1)
      linalg.yield %11 : f32 loc(#loc1)
    } -> tensor<4x8x32xf32> loc(#loc1)
    return %10 : tensor<4x8x32xf32> loc(#loc1)
  } loc(#loc1)
} loc(#loc)
#loc = loc(unknown)
