// RUN: meshweave-opt %s -p "remake-scores" --split-input-file | filecheck %s
// RUN: meshweave-opt %s -p "remake-scores,select-kernels{cache-bytes=131072}" --split-input-file | filecheck %s --check-prefix=STRIPS
// RUN: meshweave-opt %s -p "remake-scores{disable=flash}" --split-input-file | filecheck %s --check-prefix=OFF

// What the backward reads of the softmax is made anew in front of it: the forward keeps nothing.
// CHECK-LABEL: func.func @step
// CHECK-COUNT-1: linalg.batch_matmul ins(%arg0, %arg1
// CHECK: %[[O:.*]] = linalg.batch_matmul ins(%[[P:.*]], %arg2
// CHECK: %[[DO:.*]] = arith.mulf %[[O]]
// CHECK-NOT: ins(%[[P]]
// CHECK: linalg.batch_matmul ins(%arg0, %arg1
// CHECK: math.exp
// CHECK: arith.divf
// CHECK: linalg.generic {{.*}} ins(%[[R:.*]], %[[DO]] :
// CHECK: %[[DP:.*]] = linalg.generic {{.*}} ins(%[[DO]], %arg2
// CHECK: arith.mulf %[[R]], %[[DP]]
// CHECK: return
// OFF-LABEL: func.func @step
// OFF-COUNT-1: linalg.batch_matmul ins(%arg0, %arg1
// OFF-NOT: linalg.batch_matmul ins(%arg0, %arg1

// Then neither of them is made as a whole.
// STRIPS: op = "attention at {{[^"]*}}"
// STRIPS: op = "backward of an attention at {{[^"]*}}"
// STRIPS-LABEL: func.func @step
// STRIPS-NOT: 160x160xf32
#row = affine_map<(b, i, j) -> (b, i)>
#matrix = affine_map<(b, i, j) -> (b, i, j)>
func.func @step(%q: tensor<2x160x16xf32>, %k: tensor<2x16x160xf32>, %v: tensor<2x160x8xf32>, %w: tensor<2x160x8xf32>)
    -> (tensor<2x160x16xf32>, tensor<2x160x16xf32>, tensor<2x160x8xf32>) {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : tensor<2x160x160xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x160x160xf32>) -> tensor<2x160x160xf32>
  %er = tensor.empty() : tensor<2x160xf32>
  %zr = linalg.fill ins(%zero : f32) outs(%er : tensor<2x160xf32>) -> tensor<2x160xf32>
  %lr = linalg.fill ins(%low : f32) outs(%er : tensor<2x160xf32>) -> tensor<2x160xf32>
  %eo = tensor.empty() : tensor<2x160x8xf32>
  %zo = linalg.fill ins(%zero : f32) outs(%eo : tensor<2x160x8xf32>) -> tensor<2x160x8xf32>
  %eq = tensor.empty() : tensor<2x160x16xf32>
  %zq = linalg.fill ins(%zero : f32) outs(%eq : tensor<2x160x16xf32>) -> tensor<2x160x16xf32>
  %s = linalg.batch_matmul ins(%q, %k : tensor<2x160x16xf32>, tensor<2x16x160xf32>) outs(%z : tensor<2x160x160xf32>) -> tensor<2x160x160xf32>
  %m = linalg.generic {indexing_maps = [#matrix, #row], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%s : tensor<2x160x160xf32>) outs(%lr : tensor<2x160xf32>) {
    ^bb0(%x: f32, %y: f32):
      %r = arith.maximumf %y, %x : f32
      linalg.yield %r : f32
  } -> tensor<2x160xf32>
  %a = linalg.generic {indexing_maps = [#matrix, #row, #matrix], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%s, %m : tensor<2x160x160xf32>, tensor<2x160xf32>) outs(%e : tensor<2x160x160xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %d = arith.subf %x, %y : f32
      %r = math.exp %d : f32
      linalg.yield %r : f32
  } -> tensor<2x160x160xf32>
  %l = linalg.generic {indexing_maps = [#matrix, #row], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a : tensor<2x160x160xf32>) outs(%zr : tensor<2x160xf32>) {
    ^bb0(%x: f32, %y: f32):
      %r = arith.addf %y, %x : f32
      linalg.yield %r : f32
  } -> tensor<2x160xf32>
  %p = linalg.generic {indexing_maps = [#matrix, #row, #matrix], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%a, %l : tensor<2x160x160xf32>, tensor<2x160xf32>) outs(%e : tensor<2x160x160xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %r = arith.divf %x, %y : f32
      linalg.yield %r : f32
  } -> tensor<2x160x160xf32>
  %out = linalg.batch_matmul ins(%p, %v : tensor<2x160x160xf32>, tensor<2x160x8xf32>) outs(%zo : tensor<2x160x8xf32>) -> tensor<2x160x8xf32>
  %do = arith.mulf %out, %w : tensor<2x160x8xf32>
  %dv = linalg.generic {indexing_maps = [affine_map<(b, j, c, i) -> (b, i, j)>, affine_map<(b, j, c, i) -> (b, i, c)>,
      affine_map<(b, j, c, i) -> (b, j, c)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%p, %do : tensor<2x160x160xf32>, tensor<2x160x8xf32>) outs(%zo : tensor<2x160x8xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %t = arith.mulf %x, %y : f32
      %r = arith.addf %o, %t : f32
      linalg.yield %r : f32
  } -> tensor<2x160x8xf32>
  %dp = linalg.generic {indexing_maps = [affine_map<(b, i, j, c) -> (b, i, c)>, affine_map<(b, i, j, c) -> (b, j, c)>,
      affine_map<(b, i, j, c) -> (b, i, j)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%do, %v : tensor<2x160x8xf32>, tensor<2x160x8xf32>) outs(%z : tensor<2x160x160xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %t = arith.mulf %x, %y : f32
      %r = arith.addf %o, %t : f32
      linalg.yield %r : f32
  } -> tensor<2x160x160xf32>
  %t = arith.mulf %p, %dp : tensor<2x160x160xf32>
  %d = linalg.generic {indexing_maps = [#matrix, #row], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%t : tensor<2x160x160xf32>) outs(%zr : tensor<2x160xf32>) {
    ^bb0(%x: f32, %y: f32):
      %r = arith.addf %y, %x : f32
      linalg.yield %r : f32
  } -> tensor<2x160xf32>
  %ds = linalg.generic {indexing_maps = [#matrix, #matrix, #row, #matrix], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%p, %dp, %d : tensor<2x160x160xf32>, tensor<2x160x160xf32>, tensor<2x160xf32>) outs(%e : tensor<2x160x160xf32>) {
    ^bb0(%x: f32, %y: f32, %u: f32, %o: f32):
      %c = arith.subf %y, %u : f32
      %r = arith.mulf %x, %c : f32
      linalg.yield %r : f32
  } -> tensor<2x160x160xf32>
  %dq = linalg.generic {indexing_maps = [affine_map<(b, i, c, j) -> (b, i, j)>, affine_map<(b, i, c, j) -> (b, c, j)>,
      affine_map<(b, i, c, j) -> (b, i, c)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%ds, %k : tensor<2x160x160xf32>, tensor<2x16x160xf32>) outs(%zq : tensor<2x160x16xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %g = arith.mulf %x, %y : f32
      %r = arith.addf %o, %g : f32
      linalg.yield %r : f32
  } -> tensor<2x160x16xf32>
  %dk = linalg.generic {indexing_maps = [affine_map<(b, j, c, i) -> (b, i, j)>, affine_map<(b, j, c, i) -> (b, i, c)>,
      affine_map<(b, j, c, i) -> (b, j, c)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%ds, %q : tensor<2x160x160xf32>, tensor<2x160x16xf32>) outs(%zq : tensor<2x160x16xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %g = arith.mulf %x, %y : f32
      %r = arith.addf %o, %g : f32
      linalg.yield %r : f32
  } -> tensor<2x160x16xf32>
  return %dq, %dk, %dv : tensor<2x160x16xf32>, tensor<2x160x16xf32>, tensor<2x160x8xf32>
}
