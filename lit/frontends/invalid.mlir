// RUN: not meshweave-opt %s 2>&1 | filecheck %s
//
// Everything that is not supported, in one line.

// CHECK: invalid.mlir:{{[0-9]+:[0-9]+}}: error: not supported: stablehlo.custom_call @other (2, first at {{.*}}); stablehlo.custom_call @third (1, first at {{.*}})
module {
  func.func public @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = stablehlo.custom_call @other(%a) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.custom_call @other(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.custom_call @third(%1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %2 : tensor<4x4xf32>
  }
}
