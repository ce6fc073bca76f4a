// RUN: meshweave-opt %s -p hint-apply,hint-slice,hint-verify,canonicalize,cse | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// As many slices as members, cut where the gather joins: each rank begins with its own shard and hands on what it holds.
// CHECK-LABEL: func.func @ring
// CHECK-NOT: dist.all_gather
// CHECK: %[[ME:.*]] = "dist.axis_index"() {axes = ["x"]}
// CHECK: scf.for %[[K:.*]] = %c0 to %c3 step %c1 iter_args(%[[C:.*]] = %{{.*}}, %[[B:.*]] = %arg1)
// CHECK-NEXT: %[[NEXT:.*]] = "dist.permute"(%[[B]]) {axes = ["x"], sources = [1, 2, 3, 0]}
// CHECK-NEXT: %[[S:.*]] = arith.addi %[[K]], %[[ME]]
// CHECK-NEXT: arith.remui %[[S]], %c4
// CHECK: %[[P:.*]] = linalg.matmul {{.*}}, %[[B]] : {{.*}} outs(%[[C]] :
// CHECK-NEXT: scf.yield %[[P]], %[[NEXT]]
// CHECK: linalg.matmul
// CHECK-NOT: dist.permute
func.func @ring(%a: tensor<2x12xf32>, %b: tensor<3x6xf32>) -> tensor<2x6xf32> {
  %g = "dist.all_gather"(%b) {axes = ["x"], dim = 0 : i64} : (tensor<3x6xf32>) -> tensor<12x6xf32>
  %r = "hint.region"() ({
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2x6xf32>
    %i = linalg.fill ins(%z : f32) outs(%e : tensor<2x6xf32>) -> tensor<2x6xf32>
    %p = "dist.constrain"(%a) {layout = #dist.layout<"[_, t]">} : (tensor<2x12xf32>) -> tensor<2x12xf32>
    %c = linalg.matmul ins(%p, %g : tensor<2x12xf32>, tensor<12x6xf32>) outs(%i : tensor<2x6xf32>) -> tensor<2x6xf32>
    "hint.yield"(%c) : (tensor<2x6xf32>) -> ()
  }) {hints = {slice = "t=4"}} : () -> tensor<2x6xf32>
  return %r : tensor<2x6xf32>
}

// Slices that are no shards: one gather, in front of them. One that slices cut elsewhere: a gather in each.
// CHECK-LABEL: func.func @no_ring
// CHECK: dist.all_gather
// CHECK: scf.for
// CHECK-NOT: dist.permute
// CHECK: return
// CHECK-LABEL: func.func @gather_of_a_slice
// CHECK: scf.for
// CHECK: "dist.all_gather"({{.*}}) {{.*}} : (tensor<3x2xf32>) -> tensor<12x2xf32>
func.func @no_ring(%a: tensor<2x12xf32>, %b: tensor<3x6xf32>) -> tensor<2x6xf32> {
  %g = "dist.all_gather"(%b) {axes = ["x"], dim = 0 : i64} : (tensor<3x6xf32>) -> tensor<12x6xf32>
  %r = "hint.region"() ({
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2x6xf32>
    %i = linalg.fill ins(%z : f32) outs(%e : tensor<2x6xf32>) -> tensor<2x6xf32>
    %p = "dist.constrain"(%a) {layout = #dist.layout<"[_, t]">} : (tensor<2x12xf32>) -> tensor<2x12xf32>
    %c = linalg.matmul ins(%p, %g : tensor<2x12xf32>, tensor<12x6xf32>) outs(%i : tensor<2x6xf32>) -> tensor<2x6xf32>
    "hint.yield"(%c) : (tensor<2x6xf32>) -> ()
  }) {hints = {slice = "t=6"}} : () -> tensor<2x6xf32>
  return %r : tensor<2x6xf32>
}

func.func @gather_of_a_slice(%b: tensor<3x6xf32>) -> tensor<12x6xf32> {
  %g = "dist.all_gather"(%b) {axes = ["x"], dim = 0 : i64} : (tensor<3x6xf32>) -> tensor<12x6xf32>
  %r = "hint.region"() ({
    %c = math.exp %g : tensor<12x6xf32>
    %p = "dist.constrain"(%c) {layout = #dist.layout<"[_, t]">} : (tensor<12x6xf32>) -> tensor<12x6xf32>
    "hint.yield"(%p) : (tensor<12x6xf32>) -> ()
  }) {hints = {slice = "t=3"}} : () -> tensor<12x6xf32>
  return %r : tensor<12x6xf32>
}
