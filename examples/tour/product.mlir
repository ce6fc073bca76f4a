// Two matrix products on a mesh of 2 x 3 ranks: rows over x, the inner dim of the second over y.
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @main(%a: tensor<8x4xf32> {dist.layout = #dist.layout<"[x, _]">},
                %v: tensor<4x6xf32> {dist.layout = #dist.layout<"[_, y]">},
                %w: tensor<6x10xf32> {dist.layout = #dist.layout<"[y, _]">})
    -> (tensor<8x10xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x6xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<8x6xf32>) -> tensor<8x6xf32>
  %h = linalg.matmul ins(%a, %v : tensor<8x4xf32>, tensor<4x6xf32>) outs(%i : tensor<8x6xf32>) -> tensor<8x6xf32>
  %f = tensor.empty() : tensor<8x10xf32>
  %j = linalg.fill ins(%zero : f32) outs(%f : tensor<8x10xf32>) -> tensor<8x10xf32>
  %y = linalg.matmul ins(%h, %w : tensor<8x6xf32>, tensor<6x10xf32>) outs(%j : tensor<8x10xf32>) -> tensor<8x10xf32>
  return %y : tensor<8x10xf32>
}
