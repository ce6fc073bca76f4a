// RUN: meshweave compile %s --target gpu --emit host | filecheck %s
// RUN: meshweave compile %s --target gpu --emit kernels | filecheck %s --check-prefix=KERNEL

// An exchange: kernels copy by tables in device memory what stays, what goes into messages and what
// comes out of them; the messages are one group of NCCL's. A relayout is the first of these alone.

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// A thread moves at once as many bytes as all addresses are multiples of.
// KERNEL: gpu.func @copies(
// KERNEL-SAME: kernel attributes
// KERNEL:   nvvm.read.ptx.sreg.ctaid.y
// KERNEL:   llvm.store {{.*}} {alignment = 16 : i64} : vector<4xi32>, !llvm.ptr<1>
// KERNEL:   llvm.load {{.*}} {alignment = 4 : i64} : !llvm.ptr<1> -> i32
// KERNEL:   llvm.store {{.*}} {alignment = 4 : i64} : i32, !llvm.ptr<1>

// CHECK-LABEL: llvm.func @step(
// CHECK:      llvm.call @mw_exchange(%ctx,
// CHECK:      llvm.call @mw_relayout(%ctx,

// CHECK-LABEL: llvm.func @mw_copies(
// CHECK:      llvm.call @cuLaunchKernel(

// CHECK-LABEL: llvm.func @mw_exchange(
// CHECK:      llvm.call @mw_copies({{.*}}%src,
// CHECK:      llvm.call @mw_copies(%ctx, %dst, %src,
// CHECK:      llvm.call @mw_begin(%ctx)
// CHECK:      llvm.call @ncclGroupStart()
// CHECK:      llvm.call @ncclSend(
// CHECK:      llvm.call @ncclRecv(
// CHECK:      llvm.call @ncclGroupEnd()
// CHECK:      llvm.call @mw_posted(
// CHECK:      llvm.call @mw_wait(
// CHECK:      llvm.call @mw_copies(%ctx, %dst,
// On the way out of an error the group is closed.
// CHECK:      ^ungroup(
// CHECK-NEXT: llvm.call @ncclGroupEnd()

// CHECK-LABEL: llvm.func @mw_relayout(
// CHECK-NOT:  nccl
// CHECK:      llvm.call @mw_copies(%ctx, %dst, %src,
func.func @main(%a: tensor<4x3xf32>, %b: tensor<4x6xf32>) -> (tensor<8x3xf32>, tensor<6x4xf32>) {
  %0 = "dist.exchange"(%a) {axes = ["x"], source = #dist.layout<"[_*x, _]">, target = #dist.layout<"[_, _]">, shape = array<i64: 8, 3>} : (tensor<4x3xf32>) -> tensor<8x3xf32>
  %1 = "dist.exchange"(%b) {axes = [], source = #dist.layout<"[_, _]">, target = #dist.layout<"[_, _] order(1, 0)">, shape = array<i64: 4, 6>} : (tensor<4x6xf32>) -> tensor<6x4xf32>
  return %0, %1 : tensor<8x3xf32>, tensor<6x4xf32>
}
