// RUN: meshweave-opt %s -p to-cpu-local | filecheck %s

// The innermost loop of short rows, and that of the tiles of a transposed operand, is not written out by LLVM, which would
// take elements of several rows for vectors.

// CHECK:      #[[HINT:.*]] = #llvm.loop_unroll<disable = true>
// CHECK:      #[[LOOP:.*]] = #llvm.loop_annotation<unroll = #[[HINT]]>
// CHECK:      llvm.func @mw_kernel_0(
// CHECK-COUNT-1: {loop_annotation = #[[LOOP]]}
// CHECK-NOT:  loop_annotation
// CHECK:      llvm.func @mw_kernel_1(
// CHECK-COUNT-1: {loop_annotation = #[[LOOP]]}
// CHECK-NOT:  loop_annotation
func.func @main(%a: tensor<100x17xf32>, %b: tensor<17xf32>, %c: tensor<64x96xf32>, %d: tensor<96x64xf32>)
    -> (tensor<100x17xi1>, tensor<96x64xf32>) {
  %e = tensor.empty() : tensor<100x17xf32>
  %rows = linalg.broadcast ins(%b : tensor<17xf32>) outs(%e : tensor<100x17xf32>) dimensions = [0]
  %more = arith.cmpf ogt, %a, %rows : tensor<100x17xf32>
  %f = tensor.empty() : tensor<96x64xf32>
  %t = linalg.transpose ins(%c : tensor<64x96xf32>) outs(%f : tensor<96x64xf32>) permutation = [1, 0]
  %sum = arith.addf %t, %d : tensor<96x64xf32>
  return %more, %sum : tensor<100x17xi1>, tensor<96x64xf32>
}
