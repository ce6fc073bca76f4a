// RUN: meshweave-opt %s -p "hint-apply,hint-slice,canonicalize,cse" --split-input-file | filecheck %s

// Depth-first: one loop of all ops, the result updated in place.
// CHECK-LABEL: func.func @depth_first
// CHECK: scf.for %[[T:.*]] = %c0 to %c4 step %c1 iter_args(%[[R:.*]] = %{{.*}}) -> (tensor<8x6xf32>)
// CHECK: %[[S:.*]] = tensor.extract_slice %arg0[%{{.*}}, 0] [2, 6]
// CHECK: %[[E:.*]] = math.exp %[[S]] {{.*}}: tensor<2x6xf32>
// CHECK: %[[A:.*]] = arith.addf %[[E]], %[[S]] {{.*}}: tensor<2x6xf32>
// CHECK: tensor.insert_slice %[[A]] into %[[R]]
func.func @depth_first(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8x6xf32>
    %s = arith.addf %e, %a : tensor<8x6xf32>
    "hint.yield"(%s) : (tensor<8x6xf32>) -> ()
  }) {hints = {slice = "t=4", order = "dfs"}} : () -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// -----

// Breadth-first: a loop per stage, all slices of what is between in one tensor.
// CHECK-LABEL: func.func @breadth_first
// CHECK: scf.for {{.*}} to %c4 step %c1 {{.*}} -> (tensor<4x2x12xf32>)
// CHECK: linalg.matmul
// CHECK: scf.for {{.*}} to %c4 step %c1 {{.*}} -> (tensor<8x12xf32>)
// CHECK: math.exp
func.func @breadth_first(%a: tensor<8x6xf32>, %b: tensor<6x12xf32>) -> tensor<8x12xf32> {
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<8x12xf32>
    %m = linalg.matmul ins(%a, %b : tensor<8x6xf32>, tensor<6x12xf32>) outs(%z : tensor<8x12xf32>) -> tensor<8x12xf32>
    %e = math.exp %m : tensor<8x12xf32>
    "hint.yield"(%e) : (tensor<8x12xf32>) -> ()
  }) {hints = {slice = "t=4", order = "bfs"}} : () -> tensor<8x12xf32>
  return %r : tensor<8x12xf32>
}

// -----

// Width 2 of 5: two groups of two, then one of one.
// CHECK-LABEL: func.func @width
// CHECK: scf.for {{.*}} = %c0 to %c2 step %c1
// CHECK: scf.for {{.*}} -> (tensor<2x2x12xf32>)
// CHECK: linalg.matmul
// CHECK: scf.for
// CHECK: math.exp
// CHECK: linalg.matmul {{.*}} outs(%{{.*}} : tensor<2x12xf32>)
// CHECK: math.exp
func.func @width(%a: tensor<10x6xf32>, %b: tensor<6x12xf32>) -> tensor<10x12xf32> {
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<10x12xf32>
    %m = linalg.matmul ins(%a, %b : tensor<10x6xf32>, tensor<6x12xf32>) outs(%z : tensor<10x12xf32>) -> tensor<10x12xf32>
    %e = math.exp %m : tensor<10x12xf32>
    "hint.yield"(%e) : (tensor<10x12xf32>) -> ()
  }) {hints = {slice = "t=5", width = 2}} : () -> tensor<10x12xf32>
  return %r : tensor<10x12xf32>
}

// -----

// A sum over slices goes round the loop; what reads it comes behind.
// CHECK-LABEL: func.func @accumulator
// CHECK: %[[Z:.*]] = linalg.fill
// CHECK: %[[L:.*]] = scf.for {{.*}} iter_args(%[[ACC:.*]] = %[[Z]])
// CHECK: linalg.matmul {{.*}} outs(%[[ACC]] : tensor<8x12xf32>)
// CHECK: math.exp %[[L]]
func.func @accumulator(%a: tensor<8x6xf32>, %b: tensor<6x12xf32>) -> tensor<8x12xf32> {
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<8x12xf32>
    %p = "dist.constrain"(%a) {layout = #dist.layout<"[_, t]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %m = linalg.matmul ins(%p, %b : tensor<8x6xf32>, tensor<6x12xf32>) outs(%z : tensor<8x12xf32>) -> tensor<8x12xf32>
    %e = math.exp %m : tensor<8x12xf32>
    "hint.yield"(%e) : (tensor<8x12xf32>) -> ()
  }) {hints = {slice = "t=3"}} : () -> tensor<8x12xf32>
  return %r : tensor<8x12xf32>
}

// -----

// 10 rows in 4 slices of 3: the last one begins earlier, and nothing is padded.
// CHECK-LABEL: func.func @ragged
// CHECK-NOT: tensor.pad
// CHECK: scf.for {{.*}} to %c4 {{.*}} -> (tensor<10x6xf32>)
// CHECK: %[[AT:.*]] = arith.minui %{{.*}}, %c7
// CHECK: tensor.extract_slice %arg0[%[[AT]], 0] [3, 6]
// CHECK: tensor.insert_slice %{{.*}} into %{{.*}}[%[[AT]], 0] [3, 6]
func.func @ragged(%a: tensor<10x6xf32>) -> tensor<10x6xf32> {
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<10x6xf32>
    "hint.yield"(%e) : (tensor<10x6xf32>) -> ()
  }) {hints = {slice = "t=4"}} : () -> tensor<10x6xf32>
  return %r : tensor<10x6xf32>
}

// -----

// Before and after bundles: the second region moves in front of the first.
// CHECK-LABEL: func.func @bundles
// CHECK: math.sin
// CHECK: math.exp
func.func @bundles(%a: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {bundle = "late"}} : () -> tensor<8xf32>
  %q = "hint.region"() ({
    %e = math.sin %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {order = "before=@late"}} : () -> tensor<8xf32>
  return %r, %q : tensor<8xf32>, tensor<8xf32>
}
