// RUN: meshweave-opt %s -p to-cpu-local | filecheck %s
// RUN: meshweave-opt %s -p to-cpu-mpi | filecheck %s --check-prefix=MPI
// RUN: meshweave-opt %s -p lower-collectives,fuse-kernels,plan-memory | meshweave-opt - -p to-llvm | meshweave-opt - | filecheck %s

// A product is a call of the library's GEMM, what follows is a loop nest; the step reads its table and calls both and the
// collective, whose code has to be 0 for it to go on.

// MPI: engine = "mpi"
// CHECK: "mw.program"() {code = {arena_bytes = {{[0-9]+}} : i64, calls = ["mw_all_reduce_sum_f32"]
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// CHECK:      llvm.func @mw_kernel_0(%arg0: !llvm.ptr
// CHECK:        llvm.call @{{.*}}gemm
// CHECK:      llvm.func @mw_kernel_1(%arg0: !llvm.ptr
// CHECK:        llvm.fadd
// CHECK:      llvm.func @mw_all_reduce_sum_f32(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
// CHECK:      llvm.func @step(%arg0: !llvm.ptr) -> i32 attributes {no_inline, optimize_none} {
// CHECK:        llvm.call @mw_kernel_0(
// CHECK:        %[[CODE:.*]] = llvm.call @mw_all_reduce_sum_f32(
// CHECK:        %[[BAD:.*]] = llvm.icmp "ne" %[[CODE]]
// CHECK:        llvm.cond_br %[[BAD]]
// CHECK:        llvm.call @mw_kernel_1(
// CHECK:        llvm.return
func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x48xf32>) -> tensor<64x48xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x48xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<64x48xf32>) -> tensor<64x48xf32>
  %p = linalg.matmul ins(%a, %b : tensor<64x32xf32>, tensor<32x48xf32>) outs(%i : tensor<64x48xf32>) -> tensor<64x48xf32>
  %s = "dist.all_reduce"(%p) {axes = ["x"], kind = "sum"} : (tensor<64x48xf32>) -> tensor<64x48xf32>
  %t = arith.addf %s, %s : tensor<64x48xf32>
  return %t : tensor<64x48xf32>
}
