// RUN: meshweave-opt %s -p lower-collectives,fuse-kernels,plan-memory | filecheck %s

// A sum down columns adds rows to rows. It shares no columns with what follows, for then it would walk down each column
// alone; so does a product of one row. What follows a sum along rows stays in its loop.

// CHECK-LABEL: func.func @main
// CHECK:         "mw.launch"(%arg0, %[[S:.*]]) {kernel = @k0, outs = 1 : i64}
// CHECK-NEXT:    "mw.fuse"() ({
// CHECK-NEXT:      "mw.launch"(%arg0, %[[S]], %{{.*}}) {kernel = @k1
// CHECK-NEXT:      "mw.launch"(
// CHECK-NEXT:      "mw.yield"() : () -> ()
// CHECK-NEXT:    }) {rows = 1 : i64} : () -> ()
// CHECK-NEXT:    return
func.func @main(%x: tensor<40x24xf32>) -> (tensor<40xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<24xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<24xf32>) -> tensor<24xf32>
  %s = linalg.reduce ins(%x : tensor<40x24xf32>) outs(%i : tensor<24xf32>) dimensions = [0]
    (%in: f32, %acc: f32) {
      %r = arith.addf %acc, %in : f32
      linalg.yield %r : f32
    }
  %f = tensor.empty() : tensor<40x24xf32>
  %b = linalg.broadcast ins(%s : tensor<24xf32>) outs(%f : tensor<40x24xf32>) dimensions = [0]
  %d = math.exp %x : tensor<40x24xf32>
  %p = arith.mulf %d, %b : tensor<40x24xf32>
  %g = tensor.empty() : tensor<40xf32>
  %h = linalg.fill ins(%zero : f32) outs(%g : tensor<40xf32>) -> tensor<40xf32>
  %t = linalg.reduce ins(%p : tensor<40x24xf32>) outs(%h : tensor<40xf32>) dimensions = [1]
    (%in: f32, %acc: f32) {
      %r = arith.addf %acc, %in : f32
      linalg.yield %r : f32
    }
  %l = math.log %t : tensor<40xf32>
  return %l : tensor<40xf32>
}
