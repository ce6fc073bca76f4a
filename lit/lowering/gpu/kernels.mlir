// REQUIRES: llvmlite
// RUN: meshweave-opt %s -p "hint-apply,select-kernels{target=gpu disable=transpose enable=gemm_tf32}" | filecheck %s --check-prefix=OPT
// RUN: meshweave report %s --target gpu --json | filecheck %s --check-prefix=REPORT
// RUN: meshweave compile %s --target gpu -o %t.mwb --report-json %t.json
// RUN: filecheck %s --check-prefix=FILE --input-file %t.json

// What an option switches off holds for every op, what a region does for its own. Which of the
// families an op gets is for the lowering: the op says which it may not take.
// OPT:      func.func @main
// OPT:      linalg.generic {{.*}}mw.kernel = "gemm_fma", mw.switches = "-gemm_tf32 -cublaslt -transpose -rows"
// OPT:      linalg.generic {{.*}}mw.kernel = "codegen", mw.switches = "-transpose -rows"
// OPT:      linalg.generic {{.*}}mw.kernel = "reference", mw.switches = "-gemm_tf32 -cublaslt -gemm_wgmma -gemm_mma -gemm_fma -gemm_rows -transpose -rows -columns"
// OPT:      linalg.generic {{.*}}mw.kernel = "gemm_tf32", mw.switches = "-transpose"

// REPORT:      "outcome": "superseded", "reason": "by numerics = \"bit_exact\" at {{[^"]*}} needs sums in order"
// REPORT:      "kernel": "gemm_fma", "why": "gemm_tf32: {{.*}}; cublaslt: switched off by kernels = \"-cublaslt -rows -gemm_tf32\" at
// REPORT:      "kernel": "columns", "why": "rows: switched off by kernels = \"-cublaslt -rows -gemm_tf32\" at
// REPORT:      "kernel": "reference", "why": "gemm_tf32: numerics = \"bit_exact\" at
// REPORT:      "kernel": "cublaslt", "why": "gemm_tf32: off unless asked for: kernels = \"+gemm_tf32\""

// FILE:      "kernel": "gemm_fma"
// FILE:      "kernel": "columns"
// FILE:      "kernel": "reference"
// FILE:      "kernel": "cublaslt"
func.func @main(%a: tensor<64x48xf32>, %b: tensor<48x32xf32>)
    -> (tensor<32xf32>, tensor<64x32xf32>, tensor<64x32xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x32xf32>
  %s = tensor.empty() : tensor<32xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<64x32xf32>) -> tensor<64x32xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%s : tensor<32xf32>) -> tensor<32xf32>
  %0 = "hint.region"() ({
    %p = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x32xf32>) outs(%z : tensor<64x32xf32>) -> tensor<64x32xf32>
    %c = linalg.reduce ins(%p : tensor<64x32xf32>) outs(%zs : tensor<32xf32>) dimensions = [0]
      (%i: f32, %o: f32) {
        %r = arith.addf %i, %o : f32
        linalg.yield %r : f32
      }
    "hint.yield"(%c) : (tensor<32xf32>) -> ()
  }) {hints = {kernels = "-cublaslt -rows -gemm_tf32"}} : () -> tensor<32xf32>
  %1 = "hint.region"() ({
    %p = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x32xf32>) outs(%z : tensor<64x32xf32>) -> tensor<64x32xf32>
    "hint.yield"(%p) : (tensor<64x32xf32>) -> ()
  }) {hints = {kernels = "+gemm_tf32", numerics = "bit_exact"}} : () -> tensor<64x32xf32>
  %2 = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x32xf32>) outs(%z : tensor<64x32xf32>) -> tensor<64x32xf32>
  return %0, %1, %2 : tensor<32xf32>, tensor<64x32xf32>, tensor<64x32xf32>
}
