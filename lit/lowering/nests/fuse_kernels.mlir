// RUN: meshweave-opt %s -p lower-collectives,fuse-kernels | filecheck %s
// RUN: meshweave-opt %s -p lower-collectives | meshweave-opt - -p fuse-kernels | meshweave-opt - -p canonicalize,cse | filecheck %s

// An elementwise op and a transpose are computed in the kernel of their reader; a product stays one for the library.

// CHECK-DAG: #[[ID:.*]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG: #[[T:.*]] = affine_map<(d0, d1) -> (d1, d0)>

// CHECK:      "mw.kernel"() ({
// CHECK:        mw.load{{.*}}operand = 0
// CHECK:        mw.load{{.*}}operand = 1
// CHECK:        "mw.accumulator"(%{{.*}}) {result = 0 : i64} : (f32) -> f32
// CHECK:        arith.mulf
// CHECK:        arith.addf
// CHECK:      }) {contraction, {{.*}}reductions = array<i64: 2>, sizes = array<i64: 8, 6, 4>, sym_name = "k0"}

// CHECK:      "mw.kernel"() ({
// CHECK:        %[[X:.*]] = "mw.load"() {map = #[[ID]], operand = 0 : i64} : () -> f32
// CHECK:        %[[E:.*]] = math.exp %[[X]] : f32
// CHECK:        %[[Y:.*]] = "mw.load"() {map = #[[T]], operand = 1 : i64} : () -> f32
// CHECK:        %[[S:.*]] = arith.addf %[[E]], %[[Y]]
// CHECK:        "mw.yield"(%[[S]]) : (f32) -> ()
// CHECK:      }) {inputs = [tensor<8x6xf32>, tensor<6x8xf32>], outputs = [#[[ID]]], reductions = array<i64>, sizes = array<i64: 8, 6>, sym_name = "k1"}

// CHECK-LABEL: func.func @main
// CHECK:         %[[P:.*]] = "mw.launch"(%arg0, %arg1, %{{.*}}) {kernel = @k0, outs = 1 : i64}
// CHECK:         "mw.launch"(%[[P]], %arg2, %{{.*}}) {kernel = @k1, outs = 1 : i64} : (tensor<8x6xf32>, tensor<6x8xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
// CHECK-NEXT:    return
func.func @main(%a: tensor<8x4xf32>, %b: tensor<4x6xf32>, %c: tensor<6x8xf32>) -> tensor<8x6xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x6xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<8x6xf32>) -> tensor<8x6xf32>
  %p = linalg.matmul ins(%a, %b : tensor<8x4xf32>, tensor<4x6xf32>) outs(%i : tensor<8x6xf32>) -> tensor<8x6xf32>
  %x = math.exp %p : tensor<8x6xf32>
  %f = tensor.empty() : tensor<8x6xf32>
  %t = linalg.transpose ins(%c : tensor<6x8xf32>) outs(%f : tensor<8x6xf32>) permutation = [1, 0]
  %s = arith.addf %x, %t : tensor<8x6xf32>
  return %s : tensor<8x6xf32>
}
