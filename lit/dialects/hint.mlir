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

// Results of several types; the sizes of their groups are there for the verifier alone.
// CHECK-LABEL: func.func @several_types
// CHECK: %[[R:.*]]:3 = "hint.region"() ({
// CHECK:   "hint.yield"(%{{.*}}, %{{.*}}, %{{.*}}) : (tensor<8xf32>, index, tensor<8xi1>) -> ()
// CHECK-NEXT: }) {hints = {slice = "t=8"}} : () -> (tensor<8xf32>, index, tensor<8xi1>)
func.func @several_types(%a: tensor<8xf32>, %n: index) -> (tensor<8xf32>, index, tensor<8xi1>) {
  %r:3 = "hint.region"() ({
    %s = arith.addf %a, %a : tensor<8xf32>
    %m = arith.addi %n, %n : index
    %c = arith.cmpf olt, %s, %a : tensor<8xf32>
    "hint.yield"(%s, %m, %c) : (tensor<8xf32>, index, tensor<8xi1>) -> ()
  }) {hints = {slice = "t=8"}} : () -> (tensor<8xf32>, index, tensor<8xi1>)
  return %r#0, %r#1, %r#2 : tensor<8xf32>, index, tensor<8xi1>
}

// CHECK-LABEL: func.func @no_results
// CHECK: "hint.region"() ({
// CHECK-NEXT: "hint.yield"() : () -> ()
// CHECK-NEXT: }) {hints = {}} : () -> ()
func.func @no_results() {
  "hint.region"() ({
    "hint.yield"() : () -> ()
  }) {hints = {}} : () -> ()
  return
}
