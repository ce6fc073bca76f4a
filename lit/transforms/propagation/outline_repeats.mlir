// RUN: meshweave-opt %s -p "outline-repeats{least-ops=4 least-length=2}" --split-input-file | filecheck %s

// Three layers of two ops are three calls; the zeros that all of them start from move in.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:[a-z0-9_]+]]: {{.*}}, %[[A:[a-z0-9_]+]]: {{.*}}, %[[B:[a-z0-9_]+]]: {{.*}}, %[[C:[a-z0-9_]+]]:
// CHECK-NOT: linalg.matmul
// CHECK: %[[Y:[a-z0-9_]+]] = call @repeat_0(%[[X]], %[[A]])
// CHECK: %[[Z:[a-z0-9_]+]] = call @repeat_0(%[[Y]], %[[B]])
// CHECK: %[[R:[a-z0-9_]+]] = call @repeat_0(%[[Z]], %[[C]])
// CHECK: return %[[R]]
// CHECK: func.func private @repeat_0(%[[V:[a-z0-9_]+]]: tensor<4x4xf32>, %[[W:[a-z0-9_]+]]: tensor<4x4xf32>)
// CHECK: %[[INIT:[a-z0-9_]+]] = linalg.fill
// CHECK: linalg.matmul ins(%[[V]], %[[W]] : {{.*}}) outs(%[[INIT]]
// CHECK: linalg.exp
func.func @main(%x: tensor<4x4xf32>, %a: tensor<4x4xf32>, %b: tensor<4x4xf32>, %c: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %0 = linalg.matmul ins(%x, %a : tensor<4x4xf32>, tensor<4x4xf32>) outs(%z : tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = linalg.exp ins(%0 : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = linalg.matmul ins(%1, %b : tensor<4x4xf32>, tensor<4x4xf32>) outs(%z : tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = linalg.exp ins(%2 : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = linalg.matmul ins(%3, %c : tensor<4x4xf32>, tensor<4x4xf32>) outs(%z : tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = linalg.exp ins(%4 : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %5 : tensor<4x4xf32>
}

// -----

// Two of them save too little.
// CHECK-LABEL: func.func @twice
// CHECK-NOT: call
func.func @twice(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %e = tensor.empty() : tensor<4x4xf32>
  %0 = linalg.abs ins(%x : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = linalg.exp ins(%0 : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = linalg.abs ins(%1 : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = linalg.exp ins(%2 : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %3 : tensor<4x4xf32>
}

// -----

// Updates that do not read each other stay as they are, also where what one ends with begins the next repeat.
// CHECK-LABEL: func.func @updates
// CHECK-NOT: call
func.func @updates(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>, %d: tensor<4xf32>, %g: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %e = tensor.empty() : tensor<4xf32>
  %0 = linalg.map { math.exp } ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>)
  %1 = arith.mulf %0, %g : tensor<4xf32>
  %2 = arith.subf %a, %1 : tensor<4xf32>
  %3 = linalg.map { math.exp } ins(%b : tensor<4xf32>) outs(%e : tensor<4xf32>)
  %4 = arith.mulf %3, %g : tensor<4xf32>
  %5 = arith.subf %b, %4 : tensor<4xf32>
  %6 = linalg.map { math.exp } ins(%c : tensor<4xf32>) outs(%e : tensor<4xf32>)
  %7 = arith.mulf %6, %g : tensor<4xf32>
  %8 = arith.subf %c, %7 : tensor<4xf32>
  %9 = linalg.map { math.exp } ins(%d : tensor<4xf32>) outs(%e : tensor<4xf32>)
  %10 = arith.mulf %9, %g : tensor<4xf32>
  %11 = arith.subf %d, %10 : tensor<4xf32>
  return %2, %5, %8, %11 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// A layer makes the number that the next one begins with: layers are cut elsewhere, for no number goes into a call.
// CHECK-LABEL: func.func @number
// CHECK-COUNT-4: call @repeat_0({{.*}}) : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK: func.func private @repeat_0
// CHECK: arith.constant
func.func @number(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %e = tensor.empty() : tensor<4x4xf32>
  %c0 = arith.constant 2.0 : f32
  %f0 = linalg.fill ins(%c0 : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %c1 = arith.constant 2.0 : f32
  %0 = linalg.matmul ins(%x, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f0 : tensor<4x4xf32>) -> tensor<4x4xf32>
  %f1 = linalg.fill ins(%c1 : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %c2 = arith.constant 2.0 : f32
  %1 = linalg.matmul ins(%0, %0 : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f1 : tensor<4x4xf32>) -> tensor<4x4xf32>
  %f2 = linalg.fill ins(%c2 : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %c3 = arith.constant 2.0 : f32
  %2 = linalg.matmul ins(%1, %1 : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f2 : tensor<4x4xf32>) -> tensor<4x4xf32>
  %f3 = linalg.fill ins(%c3 : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %c4 = arith.constant 2.0 : f32
  %3 = linalg.matmul ins(%2, %2 : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f3 : tensor<4x4xf32>) -> tensor<4x4xf32>
  %f4 = linalg.fill ins(%c4 : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %c5 = arith.constant 2.0 : f32
  %4 = linalg.matmul ins(%3, %3 : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f4 : tensor<4x4xf32>) -> tensor<4x4xf32>
  %g = linalg.fill ins(%c5 : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = linalg.add ins(%4, %g : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}
