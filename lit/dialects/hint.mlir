// RUN: meshweave-opt %s -p canonicalize,cse | filecheck %s

// CHECK-LABEL: func.func @region
// CHECK: %[[R:.*]] = "hint.region"() ({
// CHECK:   %[[S:.*]] = arith.addf
// CHECK:   "hint.yield"(%[[S]]) : (tensor<8xf32>) -> ()
// CHECK: }) {hints = {order = "dfs", slice = "t=8"}} : () -> tensor<8xf32>
func.func @region(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hint.region"() ({
    %s = arith.addf %a, %a : tensor<8xf32>
    "hint.yield"(%s) : (tensor<8xf32>) -> ()
  }) {hints = {slice = "t=8", order = "dfs"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}
