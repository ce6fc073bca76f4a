// REQUIRES: llvmlite
// RUN: meshweave compile %s --target gpu --emit kernels | filecheck %s --check-prefix=KERNEL
// RUN: meshweave compile %s --target gpu --emit llvm | filecheck %s --check-prefix=LLVM
// RUN: meshweave compile %s --target gpu --chip sm_80 --emit ptx | filecheck %s --check-prefix=PTX80
// RUN: meshweave compile %s --target gpu --chip sm_90a --emit ptx | filecheck %s --check-prefix=PTX90
// RUN: meshweave compile %s --target gpu --emit host | filecheck %s --check-prefix=HOST

// One op from linalg to PTX: a kernel of NVVM ops with what is known of its pointers, its LLVM IR,
// its PTX for two chips, and the host code that launches it.

// KERNEL:      gpu.module @kernel_0
// KERNEL:      gpu.func @[[NAME:elementwise_.*addf]](
// KERNEL-SAME:   !llvm.ptr<1> {llvm.align = 16 : i64
// KERNEL-SAME:   kernel attributes {nvvm.reqntid
// KERNEL:      nvvm.read.ptx.sreg.ctaid.x
// KERNEL:      arith.addf
// KERNEL:      llvm.store
// KERNEL:      gpu.return
// KERNEL:      gpu.launch_func @kernel_0::@[[NAME]] blocks in

// LLVM:      define ptx_kernel void @elementwise_
// LLVM-SAME:   ptr addrspace(1)
// LLVM:      call{{.*}} @llvm.nvvm.read.ptx.sreg.ctaid.x()
// LLVM:      fadd

// PTX80: .target sm_80
// PTX80: .visible .entry elementwise_
// PTX80: ld.global{{.*}}.v4
// PTX80: add.rn.f32
// PTX80: st.global{{.*}}.v4
// PTX90: .target sm_90a
// PTX90: .visible .entry elementwise_

// The function's result is its only output: slots 4 and 5 are the inputs, 6 is the output.
// HOST:      llvm.func @cuLaunchKernel(
// HOST:      llvm.func @step(%ctx: !llvm.ptr) -> i32
// HOST:      llvm.getelementptr %ctx[32]
// HOST:      llvm.getelementptr %ctx[40]
// HOST:      llvm.getelementptr %ctx[48]
// HOST:      %[[CODE:.*]] = llvm.call @mw_launch_0(%ctx,
// HOST:      llvm.cond_br {{.*}}, ^failed(
// HOST:      llvm.func @mw_launch_0(%ctx: !llvm.ptr, %p0: !llvm.ptr, %p1: !llvm.ptr, %p2: !llvm.ptr) -> i32
// The kernel's function is slot 8 of the device's table; the compute stream is slot 0.
// HOST:      %[[F:.*]] = llvm.getelementptr {{.*}}[8] : (!llvm.ptr) -> !llvm.ptr, i64
// HOST:      llvm.getelementptr {{.*}}[0] : (!llvm.ptr) -> !llvm.ptr, i64
// HOST:      llvm.call @cuLaunchKernel(
func.func @main(%a: tensor<64x128xf32>, %b: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %0 = arith.addf %a, %b : tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
