// RUN: meshweave-opt %s -p lower-collectives,fuse-kernels -o %t.tensors.mlir
// RUN: meshweave-opt %t.tensors.mlir -p plan-memory -o %t.buffers.mlir
// RUN: meshweave-opt %t.buffers.mlir -p "verify-buffers{program=%t.tensors.mlir}" | filecheck %s
// RUN: sed 's/offset = 64/offset = 0/' %t.buffers.mlir > %t.moved.mlir
// RUN: not meshweave-opt %t.moved.mlir -p "verify-buffers{program=%t.tensors.mlir}" 2>&1 | filecheck %s --check-prefix=MOVED
// RUN: sed 's/offset = 64/offset = 72/' %t.buffers.mlir > %t.crooked.mlir
// RUN: not meshweave-opt %t.crooked.mlir -p "verify-buffers{program=%t.tensors.mlir}" 2>&1 | filecheck %s --check-prefix=CROOKED
// RUN: not meshweave-opt %t.buffers.mlir -p verify-buffers 2>&1 | filecheck %s --check-prefix=ALONE

// What is right goes on as it is. Of what is wrong it says which buffer should hold what, and what it holds.
// CHECK-LABEL: func.func @main
// CHECK: offset = 64
// MOVED: error: refuted: {{.*}}: buffer {{[01]}} at bytes 0 to 64: operand 0: expected mw.launch @k0 at {{.*}}, is mw.launch @k0 at
// CROOKED: error: refuted: {{.*}}: buffer 1 at bytes 72 to 136: ends at byte 136 of an arena of 128
// ALONE: verify-buffers needs the option program, a file with the program on tensors
func.func @main(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %e = arith.constant dense<0.0> : tensor<4x4xf32>
  %p = linalg.matmul ins(%x, %w : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %q = linalg.matmul ins(%w, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = linalg.matmul ins(%p, %q : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}
