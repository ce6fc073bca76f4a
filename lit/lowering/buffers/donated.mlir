// RUN: meshweave-opt %s -p "dist-pipeline,lower-collectives,fuse-kernels,plan-memory" | filecheck %s

// A donated argument is written in place: a row of it here, all of it there, and its output is not touched.
// CHECK: outputs = [{{.*}}name = "result0", takes = 0 : i64}, {{.*}}name = "result1"}, {{.*}}name = "result2", takes = 3 : i64}]
// CHECK-LABEL: func.func @main
// CHECK-SAME: mw.arena_bytes = 0 : i64, mw.outputs = 3 : i64, mw.taken = array<i64: 0, -1, 3>
// CHECK: %[[ROW:.*]] = memref.subview %arg0[%{{.*}}, 0] [1, 4] [1, 1]
// CHECK-NEXT: memref.copy %arg1, %[[ROW]]
// CHECK-NOT: mw.place
// CHECK: "mw.launch"(%arg0, %arg5)
// CHECK: "mw.launch"(%arg0, %arg3, %arg3)
// CHECK-NEXT: return
func.func @main(%c: tensor<8x4xf32> {dist.donate = "preferred"}, %row: tensor<1x4xf32>, %where: tensor<i64>,
                %m: tensor<8x4xf32> {dist.donate = "required"}) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %i = tensor.extract %where[] : tensor<i64>
  %at = arith.index_cast %i : i64 to index
  %new = tensor.insert_slice %row into %c[%at, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<8x4xf32>
  %e = tensor.empty() : tensor<8x4xf32>
  %twice = linalg.add ins(%new, %new : tensor<8x4xf32>, tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  %s = linalg.add ins(%new, %m : tensor<8x4xf32>, tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %new, %twice, %s : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
