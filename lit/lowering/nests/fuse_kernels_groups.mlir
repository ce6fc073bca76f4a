// RUN: meshweave-opt %s -p "dist-pipeline,lower-collectives,fuse-kernels" --split-input-file | filecheck %s

// Each of 6 rows belongs to some of 3 matrices. The rows are not repeated: the condition is read inside the product.

// CHECK-LABEL: func.func @main
// CHECK-NEXT:    %[[E:.*]] = tensor.empty() : tensor<6x5xf32>
// CHECK-NEXT:    %[[C:.*]] = "mw.launch"({{.*}}, %[[E]]) {kernel = @{{.*}}, outs = 1 : i64} : (tensor<3x6xi1>, tensor<6x4xf32>, tensor<3x4x5xf32>, tensor<6x5xf32>) -> tensor<6x5xf32>
// CHECK-NEXT:    return %[[C]]
func.func @main(%a: tensor<6x4xf32>, %b: tensor<3x4x5xf32>, %inside: tensor<3x6xi1>) -> tensor<6x5xf32> {
  %none = arith.constant dense<0.0> : tensor<3x6x4xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x6x4xf32>
  %rows = linalg.broadcast ins(%a : tensor<6x4xf32>) outs(%e : tensor<3x6x4xf32>) dimensions = [0]
  %f = tensor.empty() : tensor<3x6x4xi1>
  %kept = linalg.broadcast ins(%inside : tensor<3x6xi1>) outs(%f : tensor<3x6x4xi1>) dimensions = [2]
  %masked = arith.select %kept, %rows, %none : tensor<3x6x4xi1>, tensor<3x6x4xf32>
  %g = tensor.empty() : tensor<6x5xf32>
  %start = linalg.fill ins(%zero : f32) outs(%g : tensor<6x5xf32>) -> tensor<6x5xf32>
  %c = linalg.generic {indexing_maps = [affine_map<(m, n, g, k) -> (g, m, k)>, affine_map<(m, n, g, k) -> (g, k, n)>, affine_map<(m, n, g, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%masked, %b : tensor<3x6x4xf32>, tensor<3x4x5xf32>) outs(%start : tensor<6x5xf32>) {
  ^bb0(%x: f32, %y: f32, %total: f32):
    %xy = arith.mulf %x, %y : f32
    %sum = arith.addf %total, %xy : f32
    linalg.yield %sum : f32
  } -> tensor<6x5xf32>
  return %c : tensor<6x5xf32>
}

// -----

// A condition on elements is a tensor of its own, which the product reads.

// CHECK-LABEL: func.func @main
// CHECK-COUNT-2: "mw.launch"
func.func @main(%a: tensor<6x4xf32>, %b: tensor<3x4x5xf32>, %inside: tensor<3x6x4xi1>) -> tensor<6x5xf32> {
  %none = arith.constant dense<0.0> : tensor<3x6x4xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x6x4xf32>
  %rows = linalg.broadcast ins(%a : tensor<6x4xf32>) outs(%e : tensor<3x6x4xf32>) dimensions = [0]
  %masked = arith.select %inside, %rows, %none : tensor<3x6x4xi1>, tensor<3x6x4xf32>
  %g = tensor.empty() : tensor<6x5xf32>
  %start = linalg.fill ins(%zero : f32) outs(%g : tensor<6x5xf32>) -> tensor<6x5xf32>
  %c = linalg.generic {indexing_maps = [affine_map<(m, n, g, k) -> (g, m, k)>, affine_map<(m, n, g, k) -> (g, k, n)>, affine_map<(m, n, g, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%masked, %b : tensor<3x6x4xf32>, tensor<3x4x5xf32>) outs(%start : tensor<6x5xf32>) {
  ^bb0(%x: f32, %y: f32, %total: f32):
    %xy = arith.mulf %x, %y : f32
    %sum = arith.addf %total, %xy : f32
    linalg.yield %sum : f32
  } -> tensor<6x5xf32>
  return %c : tensor<6x5xf32>
}
