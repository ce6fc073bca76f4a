// RUN: meshweave-opt %s -p hint-apply,hint-budget --split-input-file | filecheck %s
// RUN: meshweave-opt %s -p "hint-apply,hint-budget{cache-bytes=6144}" --split-input-file | filecheck %s --check-prefix=CACHE

// A whole intermediate is 64 x 96 x 4 = 24,576 bytes (and the ledger says what was chosen).
// CHECK-LABEL: module
// CHECK-SAME: honoured
// CHECK-SAME: 7 slices along dim 0 of result 0: 3,840 bytes of 4,000
// CHECK-LABEL: func.func @main
// CHECK: "hint.region"
// CHECK: "hint.place"(%{{.*}}) {layout = #layout} : (tensor<64x32xf32>)
// CHECK: hint.chosen = "t=7"
// CACHE-LABEL: func.func @main
// CACHE: hint.chosen = "t=7"
func.func @main(%a: tensor<64x48xf32>, %b: tensor<48x96xf32>, %c: tensor<96x32xf32>) -> tensor<64x32xf32> {
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<64x96xf32>
    %y = arith.constant dense<0.0> : tensor<64x32xf32>
    %m = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x96xf32>) outs(%z : tensor<64x96xf32>) -> tensor<64x96xf32>
    %n = linalg.matmul ins(%m, %c : tensor<64x96xf32>, tensor<96x32xf32>) outs(%y : tensor<64x32xf32>) -> tensor<64x32xf32>
    "hint.yield"(%n) : (tensor<64x32xf32>) -> ()
  }) {hints = {peak_bytes = 4000}} : () -> tensor<64x32xf32>
  return %r : tensor<64x32xf32>
}

// -----

// No budget, and no count: the fewest slices that fit the cache.
// CHECK-LABEL: func.func @main
// CHECK: hint.chosen = "t=1"
// CACHE-LABEL: func.func @main
// CACHE: hint.chosen = "t=4"
func.func @main(%a: tensor<64x48xf32>, %b: tensor<48x96xf32>, %c: tensor<96x32xf32>) -> tensor<64x32xf32> {
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<64x96xf32>
    %y = arith.constant dense<0.0> : tensor<64x32xf32>
    %m = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x96xf32>) outs(%z : tensor<64x96xf32>) -> tensor<64x96xf32>
    %n = linalg.matmul ins(%m, %c : tensor<64x96xf32>, tensor<96x32xf32>) outs(%y : tensor<64x32xf32>) -> tensor<64x32xf32>
    "hint.yield"(%n) : (tensor<64x32xf32>) -> ()
  }) {hints = {order = "dfs"}} : () -> tensor<64x32xf32>
  return %r : tensor<64x32xf32>
}
