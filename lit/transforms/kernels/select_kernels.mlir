// RUN: meshweave-opt %s -p "hint-apply,hint-slice,select-kernels{cache-bytes=131072 bf16=off}" --split-input-file | filecheck %s
// RUN: meshweave-opt %s -p "hint-apply,hint-slice,select-kernels{cache-bytes=131072 bf16=tiles}" --split-input-file | filecheck %s --check-prefix=TILES
// RUN: meshweave-opt %s -p "hint-strip,select-kernels{only=reference}" --split-input-file | filecheck %s --check-prefix=EXACT

// The library for floats, our loops for the rest; why nothing faster is said on the module.
// CHECK: mw.kernels = [{kernel = "codegen", op = "linalg.matmul at {{.*}}", why = "blas: elements are i32, f32 or f64 is needed"}]
// CHECK-LABEL: func.func @kinds
// CHECK: linalg.fill {mw.kernel = "codegen"}
// CHECK: linalg.matmul {mw.kernel = "blas"} ins(%arg0
// CHECK: linalg.matmul {mw.kernel = "codegen"} ins(%arg2
// CHECK: linalg.exp {mw.kernel = "codegen"}
// EXACT-LABEL: func.func @kinds
// EXACT-NOT: "blas"
// EXACT-COUNT-5: mw.kernel = "reference"
func.func @kinds(%a: tensor<8x16xf32>, %b: tensor<16x8xf32>, %i: tensor<8x16xi32>, %j: tensor<16x8xi32>)
    -> (tensor<8x8xf32>, tensor<8x8xi32>) {
  %c0 = arith.constant 0.0 : f32
  %k0 = arith.constant 0 : i32
  %e = tensor.empty() : tensor<8x8xf32>
  %f = tensor.empty() : tensor<8x8xi32>
  %z = linalg.fill ins(%c0 : f32) outs(%e : tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = linalg.fill ins(%k0 : i32) outs(%f : tensor<8x8xi32>) -> tensor<8x8xi32>
  %p = linalg.matmul ins(%a, %b : tensor<8x16xf32>, tensor<16x8xf32>) outs(%z : tensor<8x8xf32>) -> tensor<8x8xf32>
  %q = linalg.matmul ins(%i, %j : tensor<8x16xi32>, tensor<16x8xi32>) outs(%y : tensor<8x8xi32>) -> tensor<8x8xi32>
  %x = linalg.exp ins(%p : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) -> tensor<8x8xf32>
  return %x, %q : tensor<8x8xf32>, tensor<8x8xi32>
}

// -----

// A convolution is a product of panels, where its window has more than one place.
// CHECK-LABEL: func.func @convolutions
// CHECK: linalg.conv_2d_nhwc_hwcf {{.*}}mw.kernel = "panels"
// CHECK: linalg.conv_2d_nhwc_hwcf {{.*}}mw.kernel = "blas"
// EXACT-LABEL: func.func @convolutions
// EXACT-COUNT-2: mw.kernel = "reference"
func.func @convolutions(%a: tensor<2x6x7x4xf32>, %b: tensor<3x2x4x8xf32>, %c: tensor<2x4x6x8xf32>,
    %d: tensor<1x1x4x8xf32>, %e: tensor<2x6x7x8xf32>) -> (tensor<2x4x6x8xf32>, tensor<2x6x7x8xf32>) {
  %p = linalg.conv_2d_nhwc_hwcf ins(%a, %b : tensor<2x6x7x4xf32>, tensor<3x2x4x8xf32>) outs(%c : tensor<2x4x6x8xf32>) -> tensor<2x4x6x8xf32>
  %q = linalg.conv_2d_nhwc_hwcf ins(%a, %d : tensor<2x6x7x4xf32>, tensor<1x1x4x8xf32>) outs(%e : tensor<2x6x7x8xf32>) -> tensor<2x6x7x8xf32>
  return %p, %q : tensor<2x4x6x8xf32>, tensor<2x6x7x8xf32>
}

// -----

// So is a product of 16-bit floats that is added up in f32, for which the library has none; where the processor has
// instructions for bf16, those do it, and panels what they do not fit.
// CHECK: mw.kernels = [{kernel = "panels", op = "linalg.matmul at {{.*}}", why = "blas: elements are bf16, f32 or f64 is needed; gemm_bf16: this processor has no instructions for bf16"}
// CHECK-LABEL: func.func @short_floats
// TILES-LABEL: func.func @short_floats
// TILES: linalg.matmul {mw.kernel = "gemm_bf16", mw.switches = "+panels"} ins(%arg0
// TILES: linalg.matmul {mw.kernel = "codegen"} ins(%arg0
// CHECK: linalg.matmul {mw.kernel = "panels"} ins(%arg0
// CHECK: linalg.matmul {mw.kernel = "codegen"} ins(%arg0
// EXACT-LABEL: func.func @short_floats
// EXACT-COUNT-2: mw.kernel = "reference"
func.func @short_floats(%a: tensor<8x16xbf16>, %b: tensor<16x8xbf16>, %c: tensor<8x8xf32>, %d: tensor<8x8xbf16>)
    -> (tensor<8x8xf32>, tensor<8x8xbf16>) {
  %p = linalg.matmul ins(%a, %b : tensor<8x16xbf16>, tensor<16x8xbf16>) outs(%c : tensor<8x8xf32>) -> tensor<8x8xf32>
  %q = linalg.matmul ins(%a, %b : tensor<8x16xbf16>, tensor<16x8xbf16>) outs(%d : tensor<8x8xbf16>) -> tensor<8x8xbf16>
  return %p, %q : tensor<8x8xf32>, tensor<8x8xbf16>
}

// -----

// A region's disable holds for its ops only.
// CHECK: why = "blas: switched off by kernels = \22-blas\22 at
// CHECK-LABEL: func.func @in_a_region
// CHECK: linalg.matmul {hint.op = {{.*}}mw.kernel = "codegen"}
// CHECK: linalg.matmul {mw.kernel = "blas"}
func.func @in_a_region(%a: tensor<8x8xf32>, %z: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %r = "hint.region"() ({
    %p = linalg.matmul ins(%a, %a : tensor<8x8xf32>, tensor<8x8xf32>) outs(%z : tensor<8x8xf32>) -> tensor<8x8xf32>
    "hint.yield"(%p) : (tensor<8x8xf32>) -> ()
  }) {hints = {kernels = "-blas"}} : () -> tensor<8x8xf32>
  %q = linalg.matmul ins(%r, %a : tensor<8x8xf32>, tensor<8x8xf32>) outs(%z : tensor<8x8xf32>) -> tensor<8x8xf32>
  return %q : tensor<8x8xf32>
}

// -----

// Bit-exact: every op as written, arithmetic on tensors too.
// CHECK-LABEL: func.func @exact
// CHECK: linalg.generic {{.*}}mw.kernel = "reference"
// CHECK-NEXT: ^bb0
// CHECK-NEXT: math.exp
func.func @exact(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %r = "hint.region"() ({
    %p = math.exp %a : tensor<8x8xf32>
    "hint.yield"(%p) : (tensor<8x8xf32>) -> ()
  }) {hints = {numerics = "bit_exact"}} : () -> tensor<8x8xf32>
  return %r : tensor<8x8xf32>
}

// -----

// Attention: loops over heads and tiles of 64 queries, with the maximum, the sum and the product carried past tiles of
// 256 keys: as many as half the cache holds. No tensor has all scores.
// CHECK: op = "attention at
// CHECK-LABEL: func.func @attention
// CHECK-NOT: tensor<2x512x512xf32>
// CHECK: scf.for {{.*}} -> (tensor<2x512x64xf32>)
// CHECK: scf.for {{.*}} -> (tensor<2x512x64xf32>)
// CHECK: scf.for {{.*}} -> (tensor<64xf32>, tensor<64xf32>, tensor<64x64xf32>)
// CHECK: tensor.extract_slice {{.*}} tensor<2x64x512xf32> to tensor<64x256xf32>
// CHECK: math.exp
// CHECK: tensor.extract_slice {{.*}} tensor<2x512x64xf32> to tensor<256x64xf32>
// CHECK: scf.yield
// CHECK-NOT: tensor<2x512x512xf32>
// EXACT-LABEL: func.func @attention
// EXACT-NOT: scf.for
func.func @attention(%q: tensor<2x512x64xf32>, %k: tensor<2x64x512xf32>, %v: tensor<2x512x64xf32>) -> tensor<2x512x64xf32> {
  %c0 = arith.constant 0.0 : f32
  %se = tensor.empty() : tensor<2x512x512xf32>
  %oe = tensor.empty() : tensor<2x512x64xf32>
  %sz = linalg.fill ins(%c0 : f32) outs(%se : tensor<2x512x512xf32>) -> tensor<2x512x512xf32>
  %oz = linalg.fill ins(%c0 : f32) outs(%oe : tensor<2x512x64xf32>) -> tensor<2x512x64xf32>
  %s = linalg.batch_matmul ins(%q, %k : tensor<2x512x64xf32>, tensor<2x64x512xf32>) outs(%sz : tensor<2x512x512xf32>) -> tensor<2x512x512xf32>
  %p = linalg.softmax dimension(2) ins(%s : tensor<2x512x512xf32>) outs(%se : tensor<2x512x512xf32>) -> tensor<2x512x512xf32>
  %o = linalg.batch_matmul ins(%p, %v : tensor<2x512x512xf32>, tensor<2x512x64xf32>) outs(%oz : tensor<2x512x64xf32>) -> tensor<2x512x64xf32>
  return %o : tensor<2x512x64xf32>
}
