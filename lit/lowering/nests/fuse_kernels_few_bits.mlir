// RUN: meshweave-opt %s -p lower-collectives,fuse-kernels | filecheck %s

// A product of few rows makes floats of weights of 8 bits itself, as it reads them: there is no copy of them.

// CHECK:      "mw.kernel"() ({
// CHECK:        %[[X:.*]] = "mw.load"() {{.*}}operand = 0{{.*}} -> f32
// CHECK:        %[[Q:.*]] = "mw.load"() {{.*}}operand = 1{{.*}} -> i8
// CHECK:        %[[W:.*]] = arith.sitofp %[[Q]] : i8 to f32
// CHECK:        arith.mulf %[[X]], %[[W]]
// CHECK-NOT:  "mw.kernel"

// CHECK-LABEL: func.func @main
// CHECK:         "mw.launch"(%arg0, %arg1, %{{.*}}) {kernel = @k0, outs = 1 : i64}
// CHECK-NEXT:    return
func.func @main(%x: tensor<4x64xf32>, %q: tensor<64x48xi8>) -> tensor<4x48xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x48xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<4x48xf32>) -> tensor<4x48xf32>
  %w = arith.sitofp %q : tensor<64x48xi8> to tensor<64x48xf32>
  %y = linalg.matmul ins(%x, %w : tensor<4x64xf32>, tensor<64x48xf32>) outs(%i : tensor<4x48xf32>) -> tensor<4x48xf32>
  return %y : tensor<4x48xf32>
}
