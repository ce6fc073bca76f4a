#loc1 = loc("tests/torch_models.py":67:0)
#map = affine_map<(d0, d1, d2) -> (d0, d1)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d3, d2)>
#map4 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
module {
  "dist.mesh"() {axes = "dp=2", sym_name = "mesh"} : () -> () loc(#loc)
  func.func public @main(%arg0: tensor<11x32xf32> loc("tests/torch_models.py":67:0), %arg1: tensor<4x6xi64> {dist.layout = #dist.layout<"[dp, _]">} loc("tests/torch_models.py":67:0)) -> tensor<4x6x11xf32> {
    %c10 = arith.constant 10 : index loc(#loc)
    %c0 = arith.constant 0 : index loc(#loc)
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc1)
    %0 = tensor.empty() : tensor<4x6x32xf32> loc(#loc1)
    %1 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg1 : tensor<4x6xi64>) outs(%0 : tensor<4x6x32xf32>) {
    ^bb0(%in: i64 loc("tests/torch_models.py":67:0), %out: f32 loc("tests/torch_models.py":67:0)):
      %6 = arith.index_cast %in : i64 to index loc(#loc1)
      %7 = linalg.index 2 : index loc(#loc1)
      %8 = arith.maxsi %6, %c0 : index loc(#loc1)
      %9 = arith.minsi %8, %c10 : index loc(#loc1)
      %extracted = tensor.extract %arg0[%9, %7] : tensor<11x32xf32> loc(#loc1)
      linalg.yield %extracted : f32 loc(#loc1)
    } -> tensor<4x6x32xf32> loc(#loc1)
    %2 = tensor.empty() : tensor<32x11xf32> loc(#loc1)
    %transposed = linalg.transpose ins(%arg0 : tensor<11x32xf32>) outs(%2 : tensor<32x11xf32>) permutation = [1, 0]  loc(#loc1)
    %3 = tensor.empty() : tensor<4x6x11xf32> loc(#loc1)
    %4 = linalg.fill ins(%cst : f32) outs(%3 : tensor<4x6x11xf32>) -> tensor<4x6x11xf32> loc(#loc1)
    %5 = linalg.generic {indexing_maps = [#map2, #map3, #map4], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%1, %transposed : tensor<4x6x32xf32>, tensor<32x11xf32>) outs(%4 : tensor<4x6x11xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":67:0), %in_0: f32 loc("tests/torch_models.py":67:0), %out: f32 loc("tests/torch_models.py":67:0)):
      %6 = arith.mulf %in, %in_0 : f32 loc(#loc1)
      %7 = arith.addf %out, %6 : f32 loc(#loc1)
      linalg.yield %7 : f32 loc(#loc1)
    } -> tensor<4x6x11xf32> loc(#loc1)
    return %5 : tensor<4x6x11xf32> loc(#loc1)
  } loc(#loc1)
} loc(#loc)
#loc = loc(unknown)
