#loc1 = loc("tests/torch_models.py":57:0)
#loc2 = loc("tests/torch_models.py":36:0)
#loc3 = loc("tests/torch_models.py":44:0)
#loc4 = loc("tests/torch_models.py":45:0)
#loc5 = loc("tests/torch_models.py":58:0)
#loc6 = loc("tests/torch_models.py":20:0)
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#map2 = affine_map<(d0, d1, d2) -> (d2)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map4 = affine_map<(d0, d1, d2, d3) -> (d3, d2)>
#map5 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map7 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d4, d3)>
#map8 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map9 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map10 = affine_map<(d0, d1) -> (d0, d1)>
#map11 = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
#map12 = affine_map<(d0, d1, d2, d3) -> ()>
#map13 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, 0)>
module {
  "dist.mesh"() {axes = "dp=2, tp=2", sym_name = "mesh"} : () -> () loc(#loc)
  func.func public @main(%arg0: tensor<32xf32> loc("tests/torch_models.py":57:0), %arg1: tensor<32xf32> loc("tests/torch_models.py":57:0), %arg2: tensor<32xf32> loc("tests/torch_models.py":57:0), %arg3: tensor<32xf32> loc("tests/torch_models.py":57:0), %arg4: tensor<32x32xf32> {dist.layout = #dist.layout<"[tp, _]">} loc("tests/torch_models.py":57:0), %arg5: tensor<32xf32> {dist.layout = #dist.layout<"[tp]">} loc("tests/torch_models.py":57:0), %arg6: tensor<32x32xf32> {dist.layout = #dist.layout<"[tp, _]">} loc("tests/torch_models.py":57:0), %arg7: tensor<32xf32> {dist.layout = #dist.layout<"[tp]">} loc("tests/torch_models.py":57:0), %arg8: tensor<32x32xf32> {dist.layout = #dist.layout<"[tp, _]">} loc("tests/torch_models.py":57:0), %arg9: tensor<32xf32> {dist.layout = #dist.layout<"[tp]">} loc("tests/torch_models.py":57:0), %arg10: tensor<32x32xf32> {dist.layout = #dist.layout<"[_, tp]">} loc("tests/torch_models.py":57:0), %arg11: tensor<32xf32> loc("tests/torch_models.py":57:0), %arg12: tensor<128x32xf32> {dist.layout = #dist.layout<"[tp, _]">} loc("tests/torch_models.py":57:0), %arg13: tensor<128xf32> {dist.layout = #dist.layout<"[tp]">} loc("tests/torch_models.py":57:0), %arg14: tensor<32x128xf32> {dist.layout = #dist.layout<"[_, tp]">} loc("tests/torch_models.py":57:0), %arg15: tensor<32xf32> loc("tests/torch_models.py":57:0), %arg16: tensor<4x8x32xf32> {dist.layout = #dist.layout<"[dp, _, _]">} loc("tests/torch_models.py":57:0)) -> tensor<4x8x32xf32> {
    %cst = arith.constant 0.35355339059327379 : f64 loc(#loc)
    %cst_0 = arith.constant dense<0xFF800000> : tensor<f32> loc(#loc)
    %cst_1 = arith.constant 0xFF800000 : f32 loc(#loc)
    %cst_2 = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_3 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_4 = arith.constant 5.000000e-01 : f32 loc(#loc)
    %cst_5 = arith.constant 1.000000e-05 : f64 loc(#loc1)
    %cst_6 = arith.constant 3.200000e+01 : f32 loc(#loc)
    %cst_7 = arith.constant 1.41421354 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<4x8x1xf32> loc(#loc1)
    %1 = linalg.fill ins(%cst_2 : f32) outs(%0 : tensor<4x8x1xf32>) -> tensor<4x8x1xf32> loc(#loc1)
    %2 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg16 : tensor<4x8x32xf32>) outs(%1 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.addf %in, %out : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x1xf32> loc(#loc1)
    %3 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%2 : tensor<4x8x1xf32>) outs(%0 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.divf %in, %cst_6 : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x1xf32> loc(#loc1)
    %4 = tensor.empty() : tensor<4x8x32xf32> loc(#loc1)
    %5 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg16, %3 : tensor<4x8x32xf32>, tensor<4x8x1xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %in_19: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.subf %in, %in_19 : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x32xf32> loc(#loc1)
    %6 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%5, %5 : tensor<4x8x32xf32>, tensor<4x8x32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %in_19: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x32xf32> loc(#loc1)
    %7 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%6 : tensor<4x8x32xf32>) outs(%1 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.addf %in, %out : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x1xf32> loc(#loc1)
    %8 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%7 : tensor<4x8x1xf32>) outs(%0 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.divf %in, %cst_6 : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x1xf32> loc(#loc1)
    %9 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%8 : tensor<4x8x1xf32>) outs(%0 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.truncf %cst_5 : f64 to f32 loc(#loc1)
      %51 = arith.addf %in, %50 : f32 loc(#loc1)
      linalg.yield %51 : f32 loc(#loc1)
    } -> tensor<4x8x1xf32> loc(#loc1)
    %10 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%9 : tensor<4x8x1xf32>) outs(%0 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = math.rsqrt %in : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x1xf32> loc(#loc1)
    %11 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%5, %10 : tensor<4x8x32xf32>, tensor<4x8x1xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %in_19: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x32xf32> loc(#loc1)
    %12 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%11, %arg0 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %in_19: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x32xf32> loc(#loc1)
    %13 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%12, %arg1 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %in_19: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x32xf32> loc(#loc1)
    %14 = tensor.empty() : tensor<32x32xf32> loc(#loc2)
    %transposed = linalg.transpose ins(%arg4 : tensor<32x32xf32>) outs(%14 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc2)
    %15 = linalg.fill ins(%cst_2 : f32) outs(%14 : tensor<32x32xf32>) -> tensor<32x32xf32> loc(#loc2)
    %16 = linalg.fill ins(%cst_2 : f32) outs(%4 : tensor<4x8x32xf32>) -> tensor<4x8x32xf32> loc(#loc2)
    %17 = linalg.generic {indexing_maps = [#map3, #map4, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%13, %transposed : tensor<4x8x32xf32>, tensor<32x32xf32>) outs(%16 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":36:0), %in_19: f32 loc("tests/torch_models.py":36:0), %out: f32 loc("tests/torch_models.py":36:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc2)
      %51 = arith.addf %out, %50 : f32 loc(#loc2)
      linalg.yield %51 : f32 loc(#loc2)
    } -> tensor<4x8x32xf32> loc(#loc2)
    %18 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%17, %arg5 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":36:0), %in_19: f32 loc("tests/torch_models.py":36:0), %out: f32 loc("tests/torch_models.py":36:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc2)
      linalg.yield %50 : f32 loc(#loc2)
    } -> tensor<4x8x32xf32> loc(#loc2)
    %expanded = tensor.expand_shape %18 [[0], [1], [2, 3]] output_shape [4, 8, 4, 8] : tensor<4x8x32xf32> into tensor<4x8x4x8xf32> loc(#loc2)
    %19 = tensor.empty() : tensor<4x4x8x8xf32> loc(#loc2)
    %transposed_8 = linalg.transpose ins(%expanded : tensor<4x8x4x8xf32>) outs(%19 : tensor<4x4x8x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc2)
    %transposed_9 = linalg.transpose ins(%arg6 : tensor<32x32xf32>) outs(%14 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc2)
    %20 = linalg.generic {indexing_maps = [#map3, #map4, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%13, %transposed_9 : tensor<4x8x32xf32>, tensor<32x32xf32>) outs(%16 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":36:0), %in_19: f32 loc("tests/torch_models.py":36:0), %out: f32 loc("tests/torch_models.py":36:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc2)
      %51 = arith.addf %out, %50 : f32 loc(#loc2)
      linalg.yield %51 : f32 loc(#loc2)
    } -> tensor<4x8x32xf32> loc(#loc2)
    %21 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%20, %arg7 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":36:0), %in_19: f32 loc("tests/torch_models.py":36:0), %out: f32 loc("tests/torch_models.py":36:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc2)
      linalg.yield %50 : f32 loc(#loc2)
    } -> tensor<4x8x32xf32> loc(#loc2)
    %expanded_10 = tensor.expand_shape %21 [[0], [1], [2, 3]] output_shape [4, 8, 4, 8] : tensor<4x8x32xf32> into tensor<4x8x4x8xf32> loc(#loc2)
    %transposed_11 = linalg.transpose ins(%arg8 : tensor<32x32xf32>) outs(%14 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc2)
    %22 = linalg.generic {indexing_maps = [#map3, #map4, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%13, %transposed_11 : tensor<4x8x32xf32>, tensor<32x32xf32>) outs(%16 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":36:0), %in_19: f32 loc("tests/torch_models.py":36:0), %out: f32 loc("tests/torch_models.py":36:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc2)
      %51 = arith.addf %out, %50 : f32 loc(#loc2)
      linalg.yield %51 : f32 loc(#loc2)
    } -> tensor<4x8x32xf32> loc(#loc2)
    %23 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%22, %arg9 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":36:0), %in_19: f32 loc("tests/torch_models.py":36:0), %out: f32 loc("tests/torch_models.py":36:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc2)
      linalg.yield %50 : f32 loc(#loc2)
    } -> tensor<4x8x32xf32> loc(#loc2)
    %expanded_12 = tensor.expand_shape %23 [[0], [1], [2, 3]] output_shape [4, 8, 4, 8] : tensor<4x8x32xf32> into tensor<4x8x4x8xf32> loc(#loc2)
    %transposed_13 = linalg.transpose ins(%expanded_12 : tensor<4x8x4x8xf32>) outs(%19 : tensor<4x4x8x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc2)
    %24 = "hint.region"() ({
      %transposed_19 = linalg.transpose ins(%expanded_10 : tensor<4x8x4x8xf32>) outs(%19 : tensor<4x4x8x8xf32>) permutation = [0, 2, 3, 1]  loc(#loc3)
      %50 = linalg.fill ins(%cst_2 : f32) outs(%19 : tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32> loc(#loc3)
      %51 = linalg.generic {indexing_maps = [#map6, #map7, #map8], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%transposed_8, %transposed_19 : tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) outs(%50 : tensor<4x4x8x8xf32>) {
      ^bb0(%in: f32 loc("tests/torch_models.py":44:0), %in_22: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = arith.mulf %in, %in_22 : f32 loc(#loc3)
        %66 = arith.addf %out, %65 : f32 loc(#loc3)
        linalg.yield %66 : f32 loc(#loc3)
      } -> tensor<4x4x8x8xf32> loc(#loc3)
      %52 = linalg.generic {indexing_maps = [#map9, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%51 : tensor<4x4x8x8xf32>) outs(%19 : tensor<4x4x8x8xf32>) {
      ^bb0(%in: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = arith.truncf %cst : f64 to f32 loc(#loc3)
        %66 = arith.mulf %in, %65 : f32 loc(#loc3)
        linalg.yield %66 : f32 loc(#loc3)
      } -> tensor<4x4x8x8xf32> loc(#loc3)
      %53 = tensor.empty() : tensor<8x8xi1> loc(#loc3)
      %54 = linalg.generic {indexing_maps = [#map10], iterator_types = ["parallel", "parallel"]} outs(%53 : tensor<8x8xi1>) {
      ^bb0(%out: i1 loc("tests/torch_models.py":44:0)):
        %65 = linalg.index 0 : index loc(#loc3)
        %66 = arith.index_cast %65 : index to i64 loc(#loc3)
        %67 = linalg.index 1 : index loc(#loc3)
        %68 = arith.index_cast %67 : index to i64 loc(#loc3)
        %69 = arith.cmpi sle, %68, %66 : i64 loc(#loc3)
        linalg.yield %69 : i1 loc(#loc3)
      } -> tensor<8x8xi1> loc(#loc3)
      %55 = linalg.generic {indexing_maps = [#map11, #map9, #map12, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%54, %52, %cst_0 : tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) outs(%19 : tensor<4x4x8x8xf32>) {
      ^bb0(%in: i1 loc("tests/torch_models.py":44:0), %in_22: f32 loc("tests/torch_models.py":44:0), %in_23: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = arith.select %in, %in_22, %in_23 : f32 loc(#loc3)
        linalg.yield %65 : f32 loc(#loc3)
      } -> tensor<4x4x8x8xf32> loc(#loc3)
      %56 = tensor.empty() : tensor<4x4x8xf32> loc(#loc3)
      %57 = linalg.fill ins(%cst_1 : f32) outs(%56 : tensor<4x4x8xf32>) -> tensor<4x4x8xf32> loc(#loc3)
      %58 = linalg.generic {indexing_maps = [#map9, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%55 : tensor<4x4x8x8xf32>) outs(%57 : tensor<4x4x8xf32>) {
      ^bb0(%in: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = arith.maximumf %in, %out : f32 loc(#loc3)
        linalg.yield %65 : f32 loc(#loc3)
      } -> tensor<4x4x8xf32> loc(#loc3)
      %expanded_20 = tensor.expand_shape %58 [[0], [1], [2, 3]] output_shape [4, 4, 8, 1] : tensor<4x4x8xf32> into tensor<4x4x8x1xf32> loc(#loc3)
      %59 = linalg.generic {indexing_maps = [#map9, #map13, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%55, %expanded_20 : tensor<4x4x8x8xf32>, tensor<4x4x8x1xf32>) outs(%19 : tensor<4x4x8x8xf32>) {
      ^bb0(%in: f32 loc("tests/torch_models.py":44:0), %in_22: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = arith.subf %in, %in_22 : f32 loc(#loc3)
        linalg.yield %65 : f32 loc(#loc3)
      } -> tensor<4x4x8x8xf32> loc(#loc3)
      %60 = linalg.generic {indexing_maps = [#map9, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%59 : tensor<4x4x8x8xf32>) outs(%19 : tensor<4x4x8x8xf32>) {
      ^bb0(%in: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = math.exp %in : f32 loc(#loc3)
        linalg.yield %65 : f32 loc(#loc3)
      } -> tensor<4x4x8x8xf32> loc(#loc3)
      %61 = linalg.fill ins(%cst_2 : f32) outs(%56 : tensor<4x4x8xf32>) -> tensor<4x4x8xf32> loc(#loc3)
      %62 = linalg.generic {indexing_maps = [#map9, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%60 : tensor<4x4x8x8xf32>) outs(%61 : tensor<4x4x8xf32>) {
      ^bb0(%in: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = arith.addf %in, %out : f32 loc(#loc3)
        linalg.yield %65 : f32 loc(#loc3)
      } -> tensor<4x4x8xf32> loc(#loc3)
      %expanded_21 = tensor.expand_shape %62 [[0], [1], [2, 3]] output_shape [4, 4, 8, 1] : tensor<4x4x8xf32> into tensor<4x4x8x1xf32> loc(#loc3)
      %63 = linalg.generic {indexing_maps = [#map9, #map13, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%60, %expanded_21 : tensor<4x4x8x8xf32>, tensor<4x4x8x1xf32>) outs(%19 : tensor<4x4x8x8xf32>) {
      ^bb0(%in: f32 loc("tests/torch_models.py":44:0), %in_22: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = arith.divf %in, %in_22 : f32 loc(#loc3)
        linalg.yield %65 : f32 loc(#loc3)
      } -> tensor<4x4x8x8xf32> loc(#loc3)
      %64 = linalg.generic {indexing_maps = [#map6, #map7, #map8], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%63, %transposed_13 : tensor<4x4x8x8xf32>, tensor<4x4x8x8xf32>) outs(%50 : tensor<4x4x8x8xf32>) {
      ^bb0(%in: f32 loc("tests/torch_models.py":44:0), %in_22: f32 loc("tests/torch_models.py":44:0), %out: f32 loc("tests/torch_models.py":44:0)):
        %65 = arith.mulf %in, %in_22 : f32 loc(#loc3)
        %66 = arith.addf %out, %65 : f32 loc(#loc3)
        linalg.yield %66 : f32 loc(#loc3)
      } -> tensor<4x4x8x8xf32> loc(#loc3)
      "hint.yield"(%64) : (tensor<4x4x8x8xf32>) -> () loc(#loc3)
    }) {hints = {order = "dfs", slice = "t=2"}} : () -> tensor<4x4x8x8xf32> loc(#loc3)
    %25 = tensor.empty() : tensor<4x8x4x8xf32> loc(#loc4)
    %transposed_14 = linalg.transpose ins(%24 : tensor<4x4x8x8xf32>) outs(%25 : tensor<4x8x4x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc4)
    %transposed_15 = linalg.transpose ins(%arg10 : tensor<32x32xf32>) outs(%14 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc4)
    %collapsed = tensor.collapse_shape %transposed_14 [[0, 1], [2, 3]] : tensor<4x8x4x8xf32> into tensor<32x32xf32> loc(#loc4)
    %26 = linalg.matmul ins(%collapsed, %transposed_15 : tensor<32x32xf32>, tensor<32x32xf32>) outs(%15 : tensor<32x32xf32>) -> tensor<32x32xf32> loc(#loc4)
    %expanded_16 = tensor.expand_shape %26 [[0, 1], [2]] output_shape [4, 8, 32] : tensor<32x32xf32> into tensor<4x8x32xf32> loc(#loc4)
    %27 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded_16, %arg11 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":45:0), %in_19: f32 loc("tests/torch_models.py":45:0), %out: f32 loc("tests/torch_models.py":45:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc4)
      linalg.yield %50 : f32 loc(#loc4)
    } -> tensor<4x8x32xf32> loc(#loc4)
    %28 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg16, %27 : tensor<4x8x32xf32>, tensor<4x8x32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %in_19: f32 loc("tests/torch_models.py":45:0), %out: f32 loc("tests/torch_models.py":57:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc1)
      linalg.yield %50 : f32 loc(#loc1)
    } -> tensor<4x8x32xf32> loc(#loc1)
    %29 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%28 : tensor<4x8x32xf32>) outs(%1 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.addf %in, %out : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x1xf32> loc(#loc5)
    %30 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%29 : tensor<4x8x1xf32>) outs(%0 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.divf %in, %cst_6 : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x1xf32> loc(#loc5)
    %31 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%28, %30 : tensor<4x8x32xf32>, tensor<4x8x1xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %in_19: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.subf %in, %in_19 : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x32xf32> loc(#loc5)
    %32 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%31, %31 : tensor<4x8x32xf32>, tensor<4x8x32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %in_19: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x32xf32> loc(#loc5)
    %33 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%32 : tensor<4x8x32xf32>) outs(%1 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.addf %in, %out : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x1xf32> loc(#loc5)
    %34 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%33 : tensor<4x8x1xf32>) outs(%0 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.divf %in, %cst_6 : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x1xf32> loc(#loc5)
    %35 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%34 : tensor<4x8x1xf32>) outs(%0 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.truncf %cst_5 : f64 to f32 loc(#loc5)
      %51 = arith.addf %in, %50 : f32 loc(#loc5)
      linalg.yield %51 : f32 loc(#loc5)
    } -> tensor<4x8x1xf32> loc(#loc5)
    %36 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%35 : tensor<4x8x1xf32>) outs(%0 : tensor<4x8x1xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = math.rsqrt %in : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x1xf32> loc(#loc5)
    %37 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%31, %36 : tensor<4x8x32xf32>, tensor<4x8x1xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %in_19: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x32xf32> loc(#loc5)
    %38 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%37, %arg2 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %in_19: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x32xf32> loc(#loc5)
    %39 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%38, %arg3 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":58:0), %in_19: f32 loc("tests/torch_models.py":58:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x32xf32> loc(#loc5)
    %40 = tensor.empty() : tensor<32x128xf32> loc(#loc6)
    %transposed_17 = linalg.transpose ins(%arg12 : tensor<128x32xf32>) outs(%40 : tensor<32x128xf32>) permutation = [1, 0]  loc(#loc6)
    %41 = tensor.empty() : tensor<4x8x128xf32> loc(#loc6)
    %42 = linalg.fill ins(%cst_2 : f32) outs(%41 : tensor<4x8x128xf32>) -> tensor<4x8x128xf32> loc(#loc6)
    %43 = linalg.generic {indexing_maps = [#map3, #map4, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%39, %transposed_17 : tensor<4x8x32xf32>, tensor<32x128xf32>) outs(%42 : tensor<4x8x128xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %in_19: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc6)
      %51 = arith.addf %out, %50 : f32 loc(#loc6)
      linalg.yield %51 : f32 loc(#loc6)
    } -> tensor<4x8x128xf32> loc(#loc6)
    %44 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%43, %arg13 : tensor<4x8x128xf32>, tensor<128xf32>) outs(%41 : tensor<4x8x128xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %in_19: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc6)
      linalg.yield %50 : f32 loc(#loc6)
    } -> tensor<4x8x128xf32> loc(#loc6)
    %45 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%44 : tensor<4x8x128xf32>) outs(%41 : tensor<4x8x128xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %50 = arith.divf %in, %cst_7 : f32 loc(#loc6)
      %51 = math.erf %50 : f32 loc(#loc6)
      %52 = arith.addf %51, %cst_3 : f32 loc(#loc6)
      %53 = arith.mulf %52, %cst_4 : f32 loc(#loc6)
      %54 = arith.mulf %in, %53 : f32 loc(#loc6)
      linalg.yield %54 : f32 loc(#loc6)
    } -> tensor<4x8x128xf32> loc(#loc6)
    %46 = tensor.empty() : tensor<128x32xf32> loc(#loc6)
    %transposed_18 = linalg.transpose ins(%arg14 : tensor<32x128xf32>) outs(%46 : tensor<128x32xf32>) permutation = [1, 0]  loc(#loc6)
    %47 = linalg.generic {indexing_maps = [#map3, #map4, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%45, %transposed_18 : tensor<4x8x128xf32>, tensor<128x32xf32>) outs(%16 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %in_19: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %50 = arith.mulf %in, %in_19 : f32 loc(#loc6)
      %51 = arith.addf %out, %50 : f32 loc(#loc6)
      linalg.yield %51 : f32 loc(#loc6)
    } -> tensor<4x8x32xf32> loc(#loc6)
    %48 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%47, %arg15 : tensor<4x8x32xf32>, tensor<32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":20:0), %in_19: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":20:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc6)
      linalg.yield %50 : f32 loc(#loc6)
    } -> tensor<4x8x32xf32> loc(#loc6)
    %49 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%28, %48 : tensor<4x8x32xf32>, tensor<4x8x32xf32>) outs(%4 : tensor<4x8x32xf32>) {
    ^bb0(%in: f32 loc("tests/torch_models.py":57:0), %in_19: f32 loc("tests/torch_models.py":20:0), %out: f32 loc("tests/torch_models.py":58:0)):
      %50 = arith.addf %in, %in_19 : f32 loc(#loc5)
      linalg.yield %50 : f32 loc(#loc5)
    } -> tensor<4x8x32xf32> loc(#loc5)
    return %49 : tensor<4x8x32xf32> loc(#loc5)
  } loc(#loc1)
} loc(#loc)
#loc = loc(unknown)
