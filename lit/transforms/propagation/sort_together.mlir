// RUN: meshweave-opt %s -p sort-together | filecheck %s

#id = affine_map<(d0, d1) -> (d0, d1)>

// What is read at the places of a sort is sorted with it, and the keys read there are what the sort gives.
// CHECK-LABEL: func.func @read
// CHECK-SAME: (%[[K:.*]]: tensor<8x6xi32>, %[[X:.*]]: tensor<8x6xf32>)
// CHECK-NEXT: %[[S:.*]]:3 = "mw.sort"(%[[K]], %[[X]]) {descending, dim = 1 : i64}
// CHECK-NOT: linalg
// CHECK: return %[[S]]#0, %[[S]]#1
func.func @read(%k: tensor<8x6xi32>, %x: tensor<8x6xf32>) -> (tensor<8x6xi32>, tensor<8x6xf32>) {
  %s:2 = "mw.sort"(%k) {dim = 1 : i64, descending} : (tensor<8x6xi32>) -> (tensor<8x6xi32>, tensor<8x6xi32>)
  %zero = arith.constant dense<0> : tensor<8x6xi32>
  %six = arith.constant dense<6> : tensor<8x6xi32>
  %b = tensor.empty() : tensor<8x6xi1>
  %e = tensor.empty() : tensor<8x6xi32>
  %f = tensor.empty() : tensor<8x6xf32>
  %low = linalg.map { arith.cmpi {predicate = 2 : i64} } ins(%s#1, %zero : tensor<8x6xi32>, tensor<8x6xi32>)
    outs(%b : tensor<8x6xi1>)
  %end = linalg.map { arith.addi } ins(%s#1, %six : tensor<8x6xi32>, tensor<8x6xi32>) outs(%e : tensor<8x6xi32>)
  %p = linalg.map { arith.select } ins(%low, %end, %s#1 : tensor<8x6xi1>, tensor<8x6xi32>, tensor<8x6xi32>)
    outs(%e : tensor<8x6xi32>)
  %keys = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%p : tensor<8x6xi32>) outs(%e : tensor<8x6xi32>) {
  ^bb0(%in: i32, %out: i32):
    %row = linalg.index 0 : index
    %at = arith.index_cast %in : i32 to index
    %one = tensor.extract %k[%row, %at] : tensor<8x6xi32>
    linalg.yield %one : i32
  } -> tensor<8x6xi32>
  %read = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%p : tensor<8x6xi32>) outs(%f : tensor<8x6xf32>) {
  ^bb0(%in: i32, %out: f32):
    %c0 = arith.constant 0 : index
    %c5 = arith.constant 5 : index
    %row = linalg.index 0 : index
    %at = arith.index_cast %in : i32 to index
    %least = arith.maxsi %at, %c0 : index
    %held = arith.minsi %least, %c5 : index
    %one = tensor.extract %x[%row, %held] : tensor<8x6xf32>
    linalg.yield %one : f32
  } -> tensor<8x6xf32>
  return %keys, %read : tensor<8x6xi32>, tensor<8x6xf32>
}

// Other rows are read, or other places, or a tensor that is not there yet: these stay as they are.
// CHECK-LABEL: func.func @others
// CHECK: "mw.sort"(%arg0) {dim = 1 : i64}
// CHECK-COUNT-3: tensor.extract %
func.func @others(%k: tensor<6x6xi32>, %x: tensor<6x6xf32>) -> (tensor<6x6xf32>, tensor<6x6xf32>, tensor<6x6xf32>) {
  %s:2 = "mw.sort"(%k) {dim = 1 : i64} : (tensor<6x6xi32>) -> (tensor<6x6xi32>, tensor<6x6xi32>)
  %f = tensor.empty() : tensor<6x6xf32>
  %row = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%s#1 : tensor<6x6xi32>) outs(%f : tensor<6x6xf32>) {
  ^bb0(%in: i32, %out: f32):
    %column = linalg.index 1 : index
    %at = arith.index_cast %in : i32 to index
    %one = tensor.extract %x[%at, %column] : tensor<6x6xf32>
    linalg.yield %one : f32
  } -> tensor<6x6xf32>
  %held = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%s#1 : tensor<6x6xi32>) outs(%f : tensor<6x6xf32>) {
  ^bb0(%in: i32, %out: f32):
    %c4 = arith.constant 4 : index
    %own = linalg.index 0 : index
    %at = arith.index_cast %in : i32 to index
    %least = arith.minsi %at, %c4 : index
    %one = tensor.extract %x[%own, %least] : tensor<6x6xf32>
    linalg.yield %one : f32
  } -> tensor<6x6xf32>
  %later = linalg.abs ins(%x : tensor<6x6xf32>) outs(%f : tensor<6x6xf32>) -> tensor<6x6xf32>
  %read = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%s#1 : tensor<6x6xi32>) outs(%f : tensor<6x6xf32>) {
  ^bb0(%in: i32, %out: f32):
    %own = linalg.index 0 : index
    %at = arith.index_cast %in : i32 to index
    %one = tensor.extract %later[%own, %at] : tensor<6x6xf32>
    linalg.yield %one : f32
  } -> tensor<6x6xf32>
  return %row, %held, %read : tensor<6x6xf32>, tensor<6x6xf32>, tensor<6x6xf32>
}
