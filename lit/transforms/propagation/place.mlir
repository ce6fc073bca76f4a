// RUN: meshweave-opt %s --split-input-file -p dist-place | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "dp=3, tp=2"} : () -> ()

// Nothing is said: rows over both axes move nothing.
// CHECK: #[[ROWS:.*]] = #dist.layout<"[dp*tp, _]">
// CHECK: dist.placement = {gap = 0.0
// CHECK-LABEL: func.func @free
// CHECK-SAME: %{{.*}}: tensor<6000x512xf32> {dist.layout = #[[ROWS]]}
// CHECK: linalg.exp {dist.layouts = {operands = [#[[ROWS]], #[[ROWS]]], results = [#[[ROWS]]]}}
func.func @free(%a: tensor<6000x512xf32>) -> tensor<6000x512xf32> {
  %e = tensor.empty() : tensor<6000x512xf32>
  %0 = linalg.exp ins(%a : tensor<6000x512xf32>) outs(%e : tensor<6000x512xf32>) -> tensor<6000x512xf32>
  return %0 : tensor<6000x512xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// What is said stays; the rows of the factors lie where they are multiplied, and sums of each rank are added before they are summed up.
// CHECK-DAG: #[[COLUMNS:.*]] = #dist.layout<"[_, x]">
// CHECK-DAG: #[[ROWS:.*]] = #dist.layout<"[x, _]">
// CHECK-DAG: #[[SUM:.*]] = #dist.layout<"[_, _] +sum(x)">
// CHECK-DAG: #[[WHOLE:.*]] = #dist.layout<"[_, _]">
// CHECK-LABEL: func.func @twice
// CHECK-SAME: %{{.*}}: tensor<512x2048xf32> {dist.layout = #[[COLUMNS]]}
// CHECK-SAME: -> (tensor<512x512xf32> {dist.layout = #[[WHOLE]]})
// CHECK: linalg.matmul {dist.layouts = {operands = [#[[COLUMNS]], #[[ROWS]], #[[SUM]]], results = [#[[SUM]]]}}
// CHECK: linalg.add {dist.layouts = {operands = [#[[SUM]], #[[SUM]], #[[WHOLE]]], results = [#[[SUM]]], values = [#[[WHOLE]]]}}
func.func @twice(%a: tensor<512x2048xf32> {dist.layout = #dist.layout<"[_, x]">}, %b: tensor<2048x512xf32>, %c: tensor<2048x512xf32>)
    -> (tensor<512x512xf32> {dist.layout = #dist.layout<"[_, _]">}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<512x512xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<512x512xf32>) -> tensor<512x512xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<512x2048xf32>, tensor<2048x512xf32>) outs(%z : tensor<512x512xf32>) -> tensor<512x512xf32>
  %1 = linalg.matmul ins(%a, %c : tensor<512x2048xf32>, tensor<2048x512xf32>) outs(%z : tensor<512x512xf32>) -> tensor<512x512xf32>
  %2 = linalg.add ins(%0, %1 : tensor<512x512xf32>, tensor<512x512xf32>) outs(%e : tensor<512x512xf32>) -> tensor<512x512xf32>
  return %2 : tensor<512x512xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "auto=6"} : () -> ()

// The axes are chosen too: of equal plans the one with fewer.
// CHECK: #[[ROWS:.*]] = #dist.layout<"[dp, _]">
// CHECK: "dist.mesh"() {axes = "dp=6"
// CHECK-LABEL: func.func @ranks
// CHECK-SAME: %{{.*}}: tensor<6000x512xf32> {dist.layout = #[[ROWS]]}
func.func @ranks(%a: tensor<6000x512xf32>) -> tensor<6000x512xf32> {
  %e = tensor.empty() : tensor<6000x512xf32>
  %0 = linalg.exp ins(%a : tensor<6000x512xf32>) outs(%e : tensor<6000x512xf32>) -> tensor<6000x512xf32>
  return %0 : tensor<6000x512xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// The program says how many bytes a rank has, 9,000,000: not enough for all of the weight, 8,388,608 bytes, beside the rest. Half of it
// lies on each rank.
// CHECK: #[[HALF:.*]] = #dist.layout<"[_, x]">
// CHECK: dist.placement = {{{.*}}limit = 9.000000e+06
// CHECK-LABEL: func.func @main
// CHECK-SAME: %{{.*}}: tensor<512x1024xf32>
// CHECK-SAME: %{{.*}}: tensor<1024x2048xf32> {dist.layout = #[[HALF]]}
func.func @main(%a: tensor<512x1024xf32>, %w: tensor<1024x2048xf32>) -> tensor<512x2048xf32> attributes {hint.hints = {peak_bytes = "9000000"}} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<512x2048xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<512x2048xf32>) -> tensor<512x2048xf32>
  %0 = linalg.matmul ins(%a, %w : tensor<512x1024xf32>, tensor<1024x2048xf32>) outs(%z : tensor<512x2048xf32>) -> tensor<512x2048xf32>
  return %0 : tensor<512x2048xf32>
}
