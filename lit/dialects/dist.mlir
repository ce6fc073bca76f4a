// RUN: meshweave-opt %s | filecheck %s
// RUN: meshweave-opt %s | meshweave-opt | filecheck %s

// CHECK: #[[L:.*]] = #dist.layout<"[x, _]">
// CHECK: "dist.mesh"() {axes = "x=2, y=4", sym_name = "mesh"}
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=4"} : () -> ()

// CHECK-LABEL: func.func @global_view
// CHECK: "dist.constrain"(%{{.*}}) {layout = #[[L]]}
// CHECK: "dist.redistribute"(%{{.*}}) {source = #[[L]], target = #
func.func @global_view(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %c = "dist.constrain"(%a) {layout = #dist.layout<"[x, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %r = "dist.redistribute"(%c) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// CHECK-LABEL: func.func @local_view
func.func @local_view(%a: tensor<4x6xf32>) -> index {
  // CHECK-COUNT-8: "dist.
  %s = "dist.all_slice"(%a) {axes = ["y"], dim = 1} : (tensor<4x6xf32>) -> tensor<4x2xf32>
  %g = "dist.all_gather"(%a) {axes = ["x"], dim = 0} : (tensor<4x6xf32>) -> tensor<8x6xf32>
  %r = "dist.all_reduce"(%a) {axes = ["x", "y"], kind = "sum"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %c = "dist.reduce_scatter"(%a) {axes = ["y"], dim = 0, kind = "max"} : (tensor<4x6xf32>) -> tensor<1x6xf32>
  %t = "dist.all_to_all"(%a) {axes = ["x"], split_dim = 0, concat_dim = 1} : (tensor<4x6xf32>) -> tensor<2x12xf32>
  %p = "dist.permute"(%a) {axes = ["y"], sources = [1, 2, 3, 0]} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %cut = "dist.all_gather"(%a) {axes = ["x"], dim = 0} : (tensor<4x6xf32>) -> tensor<7x6xf32>
  %i = "dist.axis_index"() {axes = ["x", "y"]} : () -> index
  return %i : index
}
