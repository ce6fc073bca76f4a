// RUN: meshweave-opt %s -p "select-kernels{target=gpu},canonicalize" | filecheck %s
// RUN: meshweave-opt %s -p "select-kernels{target=gpu disable=flash},canonicalize" | filecheck %s --check-prefix=OFF

// On gpus an attention of f16 or bf16 is one op: there is a kernel for it. Its body is what is made of a sum of products.
// CHECK: kernel = "flash", op = "attention at {{.*}}", why = "the fastest there is: 131072 bytes of scores are never made"
// CHECK-LABEL: func.func @attention
// CHECK-NOT: linalg
// CHECK: "mw.attention"(%arg0, %arg1, %arg2)
// CHECK-NEXT: ^bb0(%[[RAW:.*]]: bf16)
// CHECK-NEXT: "mw.yield"(%[[RAW]], %[[RAW]])
// CHECK-NEXT: bounds = array<i64>, maps = [{{.*}}], mw.kernel = "flash", rounded = bf16, sizes = array<i64: 2, 128, 64, 256, 64>
// OFF-LABEL: func.func @attention
// OFF-NOT: mw.attention
func.func @attention(%q: tensor<2x128x64xbf16>, %k: tensor<2x64x256xbf16>, %v: tensor<2x256x64xbf16>) -> tensor<2x128x64xbf16> {
  %c0 = arith.constant 0.0 : bf16
  %se = tensor.empty() : tensor<2x128x256xbf16>
  %oe = tensor.empty() : tensor<2x128x64xbf16>
  %sz = linalg.fill ins(%c0 : bf16) outs(%se : tensor<2x128x256xbf16>) -> tensor<2x128x256xbf16>
  %oz = linalg.fill ins(%c0 : bf16) outs(%oe : tensor<2x128x64xbf16>) -> tensor<2x128x64xbf16>
  %s = linalg.batch_matmul ins(%q, %k : tensor<2x128x64xbf16>, tensor<2x64x256xbf16>) outs(%sz : tensor<2x128x256xbf16>) -> tensor<2x128x256xbf16>
  %p = linalg.softmax dimension(2) ins(%s : tensor<2x128x256xbf16>) outs(%se : tensor<2x128x256xbf16>) -> tensor<2x128x256xbf16>
  %o = linalg.batch_matmul ins(%p, %v : tensor<2x128x256xbf16>, tensor<2x256x64xbf16>) outs(%oz : tensor<2x128x64xbf16>) -> tensor<2x128x64xbf16>
  return %o : tensor<2x128x64xbf16>
}
