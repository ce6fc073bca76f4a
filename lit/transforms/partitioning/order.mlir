// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// Each rank finds its own first ones; all gather these, and where they lie, and find the first of them.
// CHECK-LABEL: func.func @few
// CHECK:         %[[OWN:.*]] = "mw.order"(%{{.*}}) {dim = 1 : i64} : (tensor<5x8xf32>) -> tensor<5x3xi32>
// CHECK:         "dist.all_gather"(%{{.*}}) {axes = ["x"], dim = 1 : i64} : (tensor<5x3xf32>) -> tensor<5x12xf32>
// CHECK:         arith.muli %{{.*}}, %c8
// CHECK:         "dist.all_gather"(%{{.*}}) {axes = ["x"], dim = 1 : i64} : (tensor<5x3xi32>) -> tensor<5x12xi32>
// CHECK:         "mw.order"(%{{.*}}) {dim = 1 : i64} : (tensor<5x12xf32>) -> tensor<5x3xi32>
func.func @few(%t: tensor<5x32xf32> {dist.layout = #dist.layout<"[_, x]">}) -> tensor<5x3xi32> {
  %0 = "mw.order"(%t) {dim = 1 : i64} : (tensor<5x32xf32>) -> tensor<5x3xi32>
  return %0 : tensor<5x3xi32>
}

// Of uneven parts, and where many are wanted, all is gathered.
// CHECK-LABEL: func.func @uneven
// CHECK:         "mw.order"(%{{.*}}) {dim = 1 : i64} : (tensor<5x33xf32>) -> tensor<5x3xi32>
func.func @uneven(%t: tensor<5x33xf32> {dist.layout = #dist.layout<"[_, x]">}) -> tensor<5x3xi32> {
  %0 = "mw.order"(%t) {dim = 1 : i64} : (tensor<5x33xf32>) -> tensor<5x3xi32>
  return %0 : tensor<5x3xi32>
}

// CHECK-LABEL: func.func @many
// CHECK:         "mw.order"(%{{.*}}) {dim = 1 : i64} : (tensor<5x32xf32>) -> tensor<5x9xi32>
func.func @many(%t: tensor<5x32xf32> {dist.layout = #dist.layout<"[_, x]">}) -> tensor<5x9xi32> {
  %0 = "mw.order"(%t) {dim = 1 : i64} : (tensor<5x32xf32>) -> tensor<5x9xi32>
  return %0 : tensor<5x9xi32>
}

// All in order: each rank puts its own in order, with what moves along, and they merge that. Of the places that are not
// read nothing is moved.
// CHECK-LABEL: func.func @sorted
// CHECK:         %[[OWN:.*]] = "mw.order"(%arg0) {dim = 1 : i64} : (tensor<5x8xf32>) -> tensor<5x8xi32>
// CHECK-COUNT-2: linalg.generic {{.*}} ins(%[[OWN]]
// CHECK:         "dist.merge"(%{{.*}}, %{{.*}}) {axes = ["x"], dim = 1 : i64} : (tensor<5x8xf32>, tensor<5x8xf64>)
func.func @sorted(%t: tensor<5x32xf32> {dist.layout = #dist.layout<"[_, x]">}, %v: tensor<5x32xf64>) -> (tensor<5x32xf32>, tensor<5x32xf64>) {
  %0:3 = "mw.sort"(%t, %v) {dim = 1 : i64} : (tensor<5x32xf32>, tensor<5x32xf64>) -> (tensor<5x32xf32>, tensor<5x32xf64>, tensor<5x32xi32>)
  return %0#0, %0#1 : tensor<5x32xf32>, tensor<5x32xf64>
}
