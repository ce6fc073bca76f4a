#loc1 = loc("tests/torch_models.py":87:0)
#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map1 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d4, d3)>
#map2 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
#map5 = affine_map<(d0, d1, d2, d3) -> ()>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map7 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, 0)>
module {
  "dist.mesh"() {axes = "", sym_name = "mesh"} : () -> () loc(#loc)
  func.func public @main(%arg0: tensor<4x2x8x8xf32> loc("tests/torch_models.py":87:0), %arg1: tensor<8x8xi1> loc("tests/torch_models.py":87:0)) -> tensor<4x2x8x8xf32> {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 0xFF800000 : f32 loc(#loc1)
    %cst_1 = arith.constant dense<1.000000e+00> : tensor<f32> loc(#loc1)
    %cst_2 = arith.constant dense<0.000000e+00> : tensor<f32> loc(#loc1)
    %cst_3 = arith.constant dense<0xFF800000> : tensor<f32> loc(#loc1)
    %cst_4 = arith.constant 0xFFF0000000000000 : f64 loc(#loc1)
    %cst_5 = arith.constant 0.35355339059327379 : f64 loc(#loc1)
    %0 = tensor.empty() : tensor<4x2x8x8xf32> loc(#loc1)
    %transposed = linalg.transpose ins(%arg0 : tensor<4x2x8x8xf32>) outs(%0 : tensor<4x2x8x8xf32>) permutation = [0, 1, 3, 2]  loc(#loc1)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<4x2x8x8xf32>) -> tensor<4x2x8x8xf32> loc(#loc1)
    %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %transposed : tensor<4x2x8x8xf32>, tensor<4x2x8x8xf32>) outs(%1 : tensor<4x2x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %in_7: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.mulf %in, %in_7 : f32 loc(#loc1)
      %21 = arith.addf %out, %20 : f32 loc(#loc1)
      linalg.yield %21 : f32 loc(#loc1)
    } -> tensor<4x2x8x8xf32> loc(#loc1)
    %3 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%2 : tensor<4x2x8x8xf32>) outs(%0 : tensor<4x2x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.truncf %cst_5 : f64 to f32 loc(#loc1)
      %21 = arith.mulf %in, %20 : f32 loc(#loc1)
      linalg.yield %21 : f32 loc(#loc1)
    } -> tensor<4x2x8x8xf32> loc(#loc1)
    %4 = linalg.generic {indexing_maps = [#map4, #map3, #map5, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg1, %3, %cst_3 : tensor<8x8xi1>, tensor<4x2x8x8xf32>, tensor<f32>) outs(%0 : tensor<4x2x8x8xf32>) {
    ^bb0(%in: i1 loc("tests/torch_models.py":87:0), %in_7: f32 loc("tests/torch_models.py":87:0), %in_8: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.select %in, %in_7, %in_8 : f32 loc(#loc1)
      linalg.yield %20 : f32 loc(#loc1)
    } -> tensor<4x2x8x8xf32> loc(#loc1)
    %5 = tensor.empty() : tensor<4x2x8xf32> loc(#loc1)
    %6 = linalg.fill ins(%cst_0 : f32) outs(%5 : tensor<4x2x8xf32>) -> tensor<4x2x8xf32> loc(#loc1)
    %7 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%4 : tensor<4x2x8x8xf32>) outs(%6 : tensor<4x2x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.maximumf %in, %out : f32 loc(#loc1)
      linalg.yield %20 : f32 loc(#loc1)
    } -> tensor<4x2x8xf32> loc(#loc1)
    %expanded = tensor.expand_shape %7 [[0], [1], [2, 3]] output_shape [4, 2, 8, 1] : tensor<4x2x8xf32> into tensor<4x2x8x1xf32> loc(#loc1)
    %8 = tensor.empty() : tensor<4x2x8x1xi1> loc(#loc1)
    %9 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded : tensor<4x2x8x1xf32>) outs(%8 : tensor<4x2x8x1xi1>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %out: i1 loc("tests/torch_models.py":87:0)):
      %20 = arith.extf %in : f32 to f64 loc(#loc1)
      %21 = arith.cmpf oeq, %20, %cst_4 : f64 loc(#loc1)
      linalg.yield %21 : i1 loc(#loc1)
    } -> tensor<4x2x8x1xi1> loc(#loc1)
    %10 = tensor.empty() : tensor<4x2x8x1xf32> loc(#loc1)
    %11 = linalg.generic {indexing_maps = [#map3, #map5, #map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%9, %cst_2, %expanded : tensor<4x2x8x1xi1>, tensor<f32>, tensor<4x2x8x1xf32>) outs(%10 : tensor<4x2x8x1xf32>) {
    ^bb0(%in: i1 loc("tests/torch_models.py":87:0), %in_7: f32 loc("tests/torch_models.py":87:0), %in_8: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.select %in, %in_7, %in_8 : f32 loc(#loc1)
      linalg.yield %20 : f32 loc(#loc1)
    } -> tensor<4x2x8x1xf32> loc(#loc1)
    %12 = linalg.generic {indexing_maps = [#map3, #map7, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%4, %11 : tensor<4x2x8x8xf32>, tensor<4x2x8x1xf32>) outs(%0 : tensor<4x2x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %in_7: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.subf %in, %in_7 : f32 loc(#loc1)
      linalg.yield %20 : f32 loc(#loc1)
    } -> tensor<4x2x8x8xf32> loc(#loc1)
    %13 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%12 : tensor<4x2x8x8xf32>) outs(%0 : tensor<4x2x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = math.exp %in : f32 loc(#loc1)
      linalg.yield %20 : f32 loc(#loc1)
    } -> tensor<4x2x8x8xf32> loc(#loc1)
    %14 = linalg.fill ins(%cst : f32) outs(%5 : tensor<4x2x8xf32>) -> tensor<4x2x8xf32> loc(#loc1)
    %15 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%13 : tensor<4x2x8x8xf32>) outs(%14 : tensor<4x2x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.addf %in, %out : f32 loc(#loc1)
      linalg.yield %20 : f32 loc(#loc1)
    } -> tensor<4x2x8xf32> loc(#loc1)
    %expanded_6 = tensor.expand_shape %15 [[0], [1], [2, 3]] output_shape [4, 2, 8, 1] : tensor<4x2x8xf32> into tensor<4x2x8x1xf32> loc(#loc1)
    %16 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_6 : tensor<4x2x8x1xf32>) outs(%8 : tensor<4x2x8x1xi1>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %out: i1 loc("tests/torch_models.py":87:0)):
      %20 = arith.cmpf oeq, %in, %cst : f32 loc(#loc1)
      linalg.yield %20 : i1 loc(#loc1)
    } -> tensor<4x2x8x1xi1> loc(#loc1)
    %17 = linalg.generic {indexing_maps = [#map3, #map5, #map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%16, %cst_1, %expanded_6 : tensor<4x2x8x1xi1>, tensor<f32>, tensor<4x2x8x1xf32>) outs(%10 : tensor<4x2x8x1xf32>) {
    ^bb0(%in: i1 loc("tests/torch_models.py":87:0), %in_7: f32 loc("tests/torch_models.py":87:0), %in_8: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.select %in, %in_7, %in_8 : f32 loc(#loc1)
      linalg.yield %20 : f32 loc(#loc1)
    } -> tensor<4x2x8x1xf32> loc(#loc1)
    %18 = linalg.generic {indexing_maps = [#map3, #map7, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%13, %17 : tensor<4x2x8x8xf32>, tensor<4x2x8x1xf32>) outs(%0 : tensor<4x2x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %in_7: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.divf %in, %in_7 : f32 loc(#loc1)
      linalg.yield %20 : f32 loc(#loc1)
    } -> tensor<4x2x8x8xf32> loc(#loc1)
    %19 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%18, %arg0 : tensor<4x2x8x8xf32>, tensor<4x2x8x8xf32>) outs(%1 : tensor<4x2x8x8xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":87:0), %in_7: f32 loc("tests/torch_models.py":87:0), %out: f32 loc("tests/torch_models.py":87:0)):
      %20 = arith.mulf %in, %in_7 : f32 loc(#loc1)
      %21 = arith.addf %out, %20 : f32 loc(#loc1)
      linalg.yield %21 : f32 loc(#loc1)
    } -> tensor<4x2x8x8xf32> loc(#loc1)
    return %19 : tensor<4x2x8x8xf32> loc(#loc1)
  } loc(#loc1)
} loc(#loc)
#loc = loc(unknown)
