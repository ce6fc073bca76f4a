// RUN: meshweave-opt %s -p hint-strip | filecheck %s

// CHECK-NOT: hint.
// CHECK: func.func @strip(%[[A:.*]]: tensor<8x6xf32>)
// CHECK-NEXT: %[[E:.*]] = math.exp %[[A]]
// CHECK-NEXT: %[[C:.*]] = "dist.constrain"(%[[E]]) {layout = #layout}
// CHECK-NEXT: return %[[C]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @strip(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "hint.region"() ({
    %p = "dist.constrain"(%a) {layout = #dist.layout<"[_, t]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %e = math.exp %p : tensor<8x6xf32>
    %c = "dist.constrain"(%e) {layout = #dist.layout<"[x, t]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    "hint.yield"(%c) : (tensor<8x6xf32>) -> ()
  }) {hints = {slice = "t=3"}} : () -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}
