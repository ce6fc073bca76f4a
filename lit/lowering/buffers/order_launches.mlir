// RUN: meshweave-opt %s -p "dist-pipeline,lower-collectives,fuse-kernels,order-launches" --split-input-file | filecheck %s

// Each update comes behind its gradient, with what it needs, and before the next gradient is made. The first one waits
// for the product that reads its old parameter.
// CHECK-LABEL: func.func @main
// CHECK:       %[[G:.*]] = "mw.launch"(%arg2, %{{[0-9]+}})
// CHECK:       %[[Y:.*]] = "mw.launch"(%arg2, %arg0,
// CHECK:       %[[NEW:.*]] = "mw.launch"(%arg0, %[[G]],
// CHECK:       %[[H:.*]] = "mw.launch"(%[[Y]], %arg2,
// CHECK:       "mw.launch"(%arg1, %[[H]],
// CHECK-NEXT:  return %[[NEW]]
func.func @main(%v: tensor<256x256xf32> {dist.donate = "required"}, %w: tensor<256x256xf32> {dist.donate = "required"},
                %x: tensor<256x256xf32>) -> (tensor<256x256xf32>, tensor<256x256xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<256x256xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<256x256xf32>) -> tensor<256x256xf32>
  %g = linalg.matmul ins(%x, %x : tensor<256x256xf32>, tensor<256x256xf32>) outs(%z : tensor<256x256xf32>) -> tensor<256x256xf32>
  %y = linalg.matmul ins(%x, %v : tensor<256x256xf32>, tensor<256x256xf32>) outs(%z : tensor<256x256xf32>) -> tensor<256x256xf32>
  %h = linalg.matmul ins(%y, %x : tensor<256x256xf32>, tensor<256x256xf32>) outs(%z : tensor<256x256xf32>) -> tensor<256x256xf32>
  %new = arith.subf %v, %g : tensor<256x256xf32>
  %newer = arith.subf %w, %h : tensor<256x256xf32>
  return %new, %newer : tensor<256x256xf32>, tensor<256x256xf32>
}

// -----

// Under a hint that says in which order ops run they keep it.
// CHECK-LABEL: func.func @main
// CHECK:       %[[G:.*]] = "mw.launch"(%arg1, %{{.*}}) {kernel = @k0
// CHECK:       %[[H:.*]] = "mw.launch"(%[[G]], %arg1,
// CHECK:       "mw.launch"(%[[H]], %[[G]],
// CHECK:       "mw.launch"(%arg0, %[[G]],
// CHECK:       return
func.func @main(%v: tensor<256x256xf32>, %x: tensor<256x256xf32>) -> (tensor<256x256xf32>, tensor<256x256xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<256x256xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<256x256xf32>) -> tensor<256x256xf32>
  %r:2 = "hint.region"() ({
    %g = linalg.matmul ins(%x, %x : tensor<256x256xf32>, tensor<256x256xf32>) outs(%z : tensor<256x256xf32>) -> tensor<256x256xf32>
    %h = linalg.matmul ins(%g, %x : tensor<256x256xf32>, tensor<256x256xf32>) outs(%z : tensor<256x256xf32>) -> tensor<256x256xf32>
    %i = linalg.matmul ins(%h, %g : tensor<256x256xf32>, tensor<256x256xf32>) outs(%z : tensor<256x256xf32>) -> tensor<256x256xf32>
    %new = arith.subf %v, %g : tensor<256x256xf32>
    "hint.yield"(%new, %i) : (tensor<256x256xf32>, tensor<256x256xf32>) -> ()
  }) {hints = {order = "strict"}} : () -> (tensor<256x256xf32>, tensor<256x256xf32>)
  return %r#0, %r#1 : tensor<256x256xf32>, tensor<256x256xf32>
}
