// RUN: meshweave-opt %s -p to-cpu-local | filecheck %s

// Cores share the iterations of a loop that see nothing of each other. An iteration is a function, with its own buffers
// in the scratch memory of the core, or in the arena; its kernels are not cut.

// CHECK:      code = {{.*}}core_bytes = 262144 : i64
// CHECK-NOT:  _piece
// CHECK:      llvm.func @mw_share(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64)
// CHECK:      llvm.func @mw_loop_0(%[[CELLS:.*]]: !llvm.ptr, %[[NUMBER:.*]]: i64, %[[SCRATCH:.*]]: !llvm.ptr)
// CHECK:        llvm.select %{{.*}}, %{{.*}}, %[[SCRATCH]] : i1, !llvm.ptr
// CHECK:        llvm.call @mw_kernel_0(
// CHECK:        llvm.call @mw_kernel_1(
// CHECK:      llvm.func @step
// CHECK:        llvm.mlir.addressof @mw_loop_0
// CHECK:        llvm.mlir.constant(6 : i64)
// CHECK:        llvm.call @mw_share(
func.func @main(%a: tensor<6x256x256xf32>) -> tensor<6x256x256xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c6 = arith.constant 6 : index
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<6x256x256xf32>
  %r = scf.for %i = %c0 to %c6 step %c1 iter_args(%into = %e) -> tensor<6x256x256xf32> {
    %m = tensor.extract_slice %a[%i, 0, 0] [1, 256, 256] [1, 1, 1] : tensor<6x256x256xf32> to tensor<256x256xf32>
    %s = tensor.empty() : tensor<256x256xf32>
    %f = linalg.fill ins(%zero : f32) outs(%s : tensor<256x256xf32>) -> tensor<256x256xf32>
    %p = linalg.matmul ins(%m, %m : tensor<256x256xf32>, tensor<256x256xf32>) outs(%f : tensor<256x256xf32>) -> tensor<256x256xf32>
    %q = linalg.matmul ins(%p, %m : tensor<256x256xf32>, tensor<256x256xf32>) outs(%f : tensor<256x256xf32>) -> tensor<256x256xf32>
    %b = tensor.insert_slice %q into %into[%i, 0, 0] [1, 256, 256] [1, 1, 1] : tensor<256x256xf32> into tensor<6x256x256xf32>
    scf.yield %b : tensor<6x256x256xf32>
  }
  return %r : tensor<6x256x256xf32>
}
