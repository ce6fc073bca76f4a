// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute | filecheck %s
// RUN: meshweave-opt %s -p dist-pipeline | filecheck %s --check-prefix=LOCAL

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// The numbers of rows and of columns are counted twice: a rank needs those of its rows, and of all columns.
// CHECK-LABEL: func.func @below
// CHECK-NOT:   dist.redistribute
func.func @below(%a: tensor<8x8xi64> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x8xi1> {dist.layout = #dist.layout<"[x, _]">}) {
  %e = tensor.empty() : tensor<8xi64>
  %n = linalg.map outs(%e : tensor<8xi64>) (%o: i64) {
    %i = linalg.index 0 : index
    %c = arith.index_cast %i : index to i64
    linalg.yield %c : i64
  }
  %f = tensor.empty() : tensor<8x8xi64>
  %rows = linalg.broadcast ins(%n : tensor<8xi64>) outs(%f : tensor<8x8xi64>) dimensions = [1]
  %columns = linalg.broadcast ins(%n : tensor<8xi64>) outs(%f : tensor<8x8xi64>) dimensions = [0]
  %sum = arith.addi %a, %rows : tensor<8x8xi64>
  %0 = arith.cmpi slt, %sum, %columns : tensor<8x8xi64>
  return %0 : tensor<8x8xi1>
}

// Numbers that such an op reads have no dims: they stay as they are.
// CHECK-LABEL: func.func @scaled
// CHECK-NOT:   dist.redistribute
// LOCAL-LABEL: func.func @scaled
// LOCAL:       linalg.generic {{.*}} ins(%{{.*}} : tensor<f32>) outs(%{{.*}} : tensor<8xf32>)
// LOCAL:       linalg.generic {{.*}} ins(%{{.*}} : tensor<f32>) outs(%{{.*}} : tensor<4xf32>)
func.func @scaled(%a: tensor<8x8xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x8xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %two = arith.constant dense<2.0> : tensor<f32>
  %e = tensor.empty() : tensor<8xf32>
  %n = linalg.generic {
      indexing_maps = [affine_map<(d0) -> ()>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]
    } ins(%two : tensor<f32>) outs(%e : tensor<8xf32>) {
  ^bb0(%t: f32, %o: f32):
    %i = linalg.index 0 : index
    %k = arith.index_cast %i : index to i32
    %c = arith.sitofp %k : i32 to f32
    %m = arith.mulf %t, %c : f32
    linalg.yield %m : f32
  } -> tensor<8xf32>
  %f = tensor.empty() : tensor<8x8xf32>
  %rows = linalg.broadcast ins(%n : tensor<8xf32>) outs(%f : tensor<8x8xf32>) dimensions = [1]
  %columns = linalg.broadcast ins(%n : tensor<8xf32>) outs(%f : tensor<8x8xf32>) dimensions = [0]
  %sum = arith.addf %a, %rows : tensor<8x8xf32>
  %0 = arith.mulf %sum, %columns : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
