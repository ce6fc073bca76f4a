// RUN: meshweave-opt %s -p hint-apply,hint-budget,hint-recompute | filecheck %s
// RUN: meshweave-opt %s -p dist-pipeline | filecheck %s --check-prefix=KEPT

// Three products with a tanh each, and the way back, which reads them: up to 4 x 64 x 32 x 4 = 32,768 bytes are alive.
// The first tanh is computed again from the arguments, once the second one has been read for the last time.
// CHECK-LABEL: module
// CHECK-SAME: honoured
// CHECK-SAME: one piece in which 2 ops run again
// CHECK-SAME: 24,576 bytes of 25,000
// CHECK-LABEL: func.func @main
// CHECK: linalg.matmul {hint.op = 0 : i64} ins(%[[X:.*]], %[[W:.*]] :
// CHECK-NEXT: math.tanh
// CHECK-NEXT: linalg.matmul
// CHECK-NEXT: %[[B:.*]] = math.tanh
// CHECK: arith.mulf %{{.*}}, %[[B]] {hint.op = 8
// CHECK-NEXT: linalg.matmul
// CHECK-NEXT: %[[P:.*]] = linalg.matmul {hint.again = 0 : i64, hint.op = 0 : i64} ins(%[[X]], %[[W]] :
// CHECK-NEXT: %[[A:.*]] = math.tanh %[[P]] {hint.again = 1 : i64, hint.op = 1 : i64}
// CHECK-NEXT: arith.mulf %{{.*}}, %[[A]]
// CHECK: hint.chosen = ""

// No later pass takes the copies for what they are copies of.
// KEPT-LABEL: func.func @main
// KEPT-COUNT-6: linalg.matmul
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x32xf32>, %u: tensor<32x32xf32>, %v: tensor<32x32xf32>) -> tensor<f32> {
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<64x32xf32>
    %p = linalg.matmul ins(%x, %w : tensor<64x32xf32>, tensor<32x32xf32>) outs(%z : tensor<64x32xf32>) -> tensor<64x32xf32>
    %a = math.tanh %p : tensor<64x32xf32>
    %q = linalg.matmul ins(%a, %u : tensor<64x32xf32>, tensor<32x32xf32>) outs(%z : tensor<64x32xf32>) -> tensor<64x32xf32>
    %b = math.tanh %q : tensor<64x32xf32>
    %s = linalg.matmul ins(%b, %v : tensor<64x32xf32>, tensor<32x32xf32>) outs(%z : tensor<64x32xf32>) -> tensor<64x32xf32>
    %c = math.tanh %s : tensor<64x32xf32>
    %c2 = arith.mulf %c, %c : tensor<64x32xf32>
    %g1 = linalg.matmul ins(%c2, %v : tensor<64x32xf32>, tensor<32x32xf32>) outs(%z : tensor<64x32xf32>) -> tensor<64x32xf32>
    %g2 = arith.mulf %g1, %b : tensor<64x32xf32>
    %g3 = linalg.matmul ins(%g2, %u : tensor<64x32xf32>, tensor<32x32xf32>) outs(%z : tensor<64x32xf32>) -> tensor<64x32xf32>
    %g4 = arith.mulf %g3, %a : tensor<64x32xf32>
    %f = arith.constant dense<0.0> : tensor<f32>
    %sum = linalg.reduce { arith.addf } ins(%g4 : tensor<64x32xf32>) outs(%f : tensor<f32>) dimensions = [0, 1]
    "hint.yield"(%sum) : (tensor<f32>) -> ()
  }) {hints = {peak_bytes = 25000}} : () -> tensor<f32>
  return %r : tensor<f32>
}
