// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// Each rank starts from the totals of the ranks before it; only these are gathered.
// CHECK-LABEL: func.func @cut
// CHECK-SAME:    (%[[A:.*]]: tensor<2x3xf32>
// CHECK:         %[[SUM:.*]] = linalg.generic {{.*}}iterator_types = ["reduction", "parallel"]{{.*}} outs(%{{.*}} : tensor<1x3xf32>)
// CHECK:         %[[ALL:.*]] = "dist.all_gather"(%[[SUM]]) {axes = ["x"], dim = 0 : i64} : (tensor<1x3xf32>) -> tensor<4x3xf32>
// CHECK:         %[[START:.*]] = linalg.generic {{.*}} ins(%[[ALL]] : tensor<4x3xf32>)
// CHECK:         arith.cmpi ult
// CHECK:         "mw.scan"(%[[A]], %[[START]])
func.func @cut(%a: tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<8x3xf32> {
  %s = arith.constant dense<0.0> : tensor<3xf32>
  %0 = "mw.scan"(%a, %s) ({
  ^bb0(%x: f32, %y: f32):
    %z = arith.addf %x, %y : f32
    "mw.yield"(%z) : (f32) -> ()
  }) {dim = 0 : i64} : (tensor<8x3xf32>, tensor<3xf32>) -> tensor<8x3xf32>
  return %0 : tensor<8x3xf32>
}

// Other dims are cut freely, and nothing moves.
// CHECK-LABEL: func.func @across
// CHECK-NOT:     dist.all_gather
// CHECK:         "mw.scan"(
// CHECK:         {dim = 1 : i64, reverse} : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2x3xf32>
func.func @across(%a: tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<8x3xf32> {
  %s = arith.constant dense<0.0> : tensor<8xf32>
  %0 = "mw.scan"(%a, %s) ({
  ^bb0(%x: f32, %y: f32):
    %z = arith.addf %x, %y : f32
    "mw.yield"(%z) : (f32) -> ()
  }) {dim = 1 : i64, reverse} : (tensor<8x3xf32>, tensor<8xf32>) -> tensor<8x3xf32>
  return %0 : tensor<8x3xf32>
}
