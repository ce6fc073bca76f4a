// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// CHECK-DAG:     #[[BACK:.*]] = affine_map<(d0, d1) -> (-d0 + 1, d1)>

// Blocks change places, and each rank reads its new one from the end.
// CHECK-LABEL: func.func @flip
// CHECK-SAME:    (%[[A:.*]]: tensor<2x3xf32>
// CHECK:         %[[B:.*]] = "dist.permute"(%[[A]]) {axes = ["x"], sources = [3, 2, 1, 0]} : (tensor<2x3xf32>) -> tensor<2x3xf32>
// CHECK:         linalg.generic {indexing_maps = [#[[BACK]], {{.*}} ins(%[[B]] : tensor<2x3xf32>)
func.func @flip(%a: tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<8x3xf32> {
  %e = tensor.empty() : tensor<8x3xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (7 - i, j)>, affine_map<(i, j) -> (i, j)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<8x3xf32>) outs(%e : tensor<8x3xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<8x3xf32>
  return %0 : tensor<8x3xf32>
}

// Blocks that are not even do not mirror each other: rows are gathered.
// CHECK-LABEL: func.func @uneven
// CHECK-NOT:     dist.permute
// CHECK:         "dist.all_gather"
func.func @uneven(%a: tensor<7x3xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<7x3xf32> {
  %e = tensor.empty() : tensor<7x3xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (6 - i, j)>, affine_map<(i, j) -> (i, j)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<7x3xf32>) outs(%e : tensor<7x3xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<7x3xf32>
  return %0 : tensor<7x3xf32>
}
