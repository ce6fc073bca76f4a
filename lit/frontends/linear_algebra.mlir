// RUN: meshweave-opt %s | filecheck %s
//
// Factorisations and triangular systems are loops over elements; a batch is one loop more.

// CHECK-LABEL: func.func public @main
// CHECK-COUNT-2: scf.for
// CHECK: math.sqrt
// CHECK-NOT: math.sqrt
// CHECK: scf.for
// CHECK: arith.divf
// CHECK-NOT: stablehlo
module {
  func.func public @main(%a: tensor<2x4x4xf32>, %b: tensor<2x4x3xf32>) -> (tensor<2x4x4xf32>, tensor<2x4x3xf32>) {
    %0 = stablehlo.cholesky %a, lower = true : tensor<2x4x4xf32>
    %1 = "stablehlo.triangular_solve"(%0, %b) {left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose TRANSPOSE>} : (tensor<2x4x4xf32>, tensor<2x4x3xf32>) -> tensor<2x4x3xf32>
    return %0, %1 : tensor<2x4x4xf32>, tensor<2x4x3xf32>
  }
}
