// RUN: meshweave-opt %s --split-input-file -p dist-donate,dist-propagate | filecheck %s

// The result that is an update of the argument takes its buffer, though another of its type comes first.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[C:.*]]: tensor<8x4xf32> {dist.donate = "preferred", dist.layout = #[[L:[a-z0-9]+]]}
// CHECK-SAME: -> (tensor<8x4xf32> {dist.layout = #[[L]]}, tensor<8x4xf32> {dist.layout = #[[L]], dist.takes = 0 : i64})
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @main(%c: tensor<8x4xf32> {dist.donate = "preferred", dist.layout = #dist.layout<"[_, x]">},
                %row: tensor<1x4xf32>, %at: index) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %new = tensor.insert_slice %row into %c[%at, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<8x4xf32>
  %e = tensor.empty() : tensor<8x4xf32>
  %twice = linalg.add ins(%new, %new : tensor<8x4xf32>, tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %twice, %new : tensor<8x4xf32>, tensor<8x4xf32>
}

// -----

// Two arguments for one result: the second is refused, and no argument any more.
// CHECK: dist.donations = [{argument = 0 : i64, outcome = "honoured", reason = "result 0 takes its buffer", result = 0 : i64, strength = "preferred"}, {argument = 1 : i64, outcome = "infeasible", reason = "no result of its type is left", result = -1 : i64, strength = "preferred"}]
// CHECK-LABEL: func.func @main
// CHECK-SAME: %arg0: tensor<4xf32> {dist.donate = "preferred"}, %arg1: tensor<4xf32>) -> (tensor<4xf32> {dist.takes = 0 : i64})
func.func @main(%a: tensor<4xf32> {dist.donate = "preferred"}, %b: tensor<4xf32> {dist.donate = "preferred"}) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %0 = linalg.add ins(%a, %b : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// Propagation may still choose the layout of the argument: it is that of the result, which it may become.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%{{.*}}: tensor<8x4xf32> {dist.donate = "preferred", dist.layout = #[[XY:[a-z0-9]+]]})
// CHECK-SAME: -> (tensor<8x4xf32> {dist.layout = #[[XY]], dist.takes = 0 : i64})
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=2"} : () -> ()
func.func @main(%c: tensor<8x4xf32> {dist.donate = "preferred", dist.layout = #dist.layout<"[x, _]">, dist.open = array<i64: 1>, dist.replicated = []})
    -> (tensor<8x4xf32> {dist.layout = #dist.layout<"[x, y]">}) {
  return %c : tensor<8x4xf32>
}

// -----

// It may not become that of this result, nor that of the other, which is open along another dim.
// CHECK: dist.donations = [{argument = 0 : i64, outcome = "infeasible", reason = "it lies in [x, _], result 0 in [_, x]"
// CHECK-LABEL: func.func @main
// CHECK-NOT: dist.takes
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=2"} : () -> ()
func.func @main(%c: tensor<8x4xf32> {dist.donate = "preferred", dist.layout = #dist.layout<"[x, _]">, dist.open = array<i64: 1>, dist.replicated = ["y"]})
    -> (tensor<8x4xf32> {dist.layout = #dist.layout<"[_, x]">}, tensor<8x4xf32> {dist.layout = #dist.layout<"[x, y]">}) {
  return %c, %c : tensor<8x4xf32>, tensor<8x4xf32>
}

// -----

// Both may still be chosen: what one forbids, the other one has to leave too.
// CHECK-LABEL: func.func @main
// CHECK-SAME: {dist.donate = "preferred", dist.layout = #[[L:[a-z0-9]+]], dist.open = array<i64: 2>, dist.replicated = ["y"]})
// CHECK-SAME: -> (tensor<8x4x6xf32> {dist.layout = #[[L]], dist.open = array<i64: 2>, dist.replicated = ["y"], dist.takes = 0 : i64})
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=2"} : () -> ()
func.func @main(%c: tensor<8x4x6xf32> {dist.donate = "preferred", dist.layout = #dist.layout<"[x, _, _]">, dist.open = array<i64: 1, 2>, dist.replicated = ["y"]})
    -> (tensor<8x4x6xf32> {dist.layout = #dist.layout<"[x, _, _]">, dist.open = array<i64: 2>, dist.replicated = []}) {
  return %c : tensor<8x4x6xf32>
}
