// REQUIRES: llvmlite
// RUN: meshweave compile %s --target gpu --emit host | filecheck %s
// RUN: meshweave compile %s --target gpu --emit kernels | filecheck %s --check-prefix=OPS
// RUN: meshweave compile %s --target gpu --emit kernels > %t.mlir
// RUN: meshweave compile %t.mlir --target gpu --emit host | filecheck %s

// Two regions on streams of their own, and what needs both: each waits for the beginning of the
// step (event 2), neither for the other; the last op is on stream 0 again and waits for both.

// OPS-LABEL: func.func {{.*}}@main(
// OPS:      "mw.record"() {event = 0 : i64}
// OPS:      "mw.stream"() {number = 1 : i64}
// OPS-NEXT: "mw.await"() {event = 0 : i64}
// OPS:      gpu.launch_func @kernel_0::
// OPS-NEXT: "mw.record"() {event = 1 : i64}
// OPS:      "mw.stream"() {number = 2 : i64}
// OPS-NEXT: "mw.await"() {event = 0 : i64}
// OPS:      gpu.launch_func @kernel_1::
// OPS-NEXT: "mw.record"() {event = 0 : i64}
// OPS-NEXT: "mw.stream"() {number = 0 : i64}
// OPS-NEXT: "mw.await"() {event = 1 : i64}
// OPS-NEXT: "mw.await"() {event = 0 : i64}
// OPS:      gpu.launch_func @kernel_2::
// OPS-NEXT: return

// CHECK-LABEL: llvm.func @step(
// CHECK:      %[[E0:.*]] = llvm.mlir.constant(2 : i64)
// CHECK-NEXT: llvm.call @mw_record(%ctx, %[[E0]])
// CHECK:      %[[S1:.*]] = llvm.mlir.constant(1 : i64)
// CHECK-NEXT: llvm.call @mw_on(%ctx, %[[S1]])
// CHECK:      llvm.mlir.constant(2 : i64)
// CHECK-NEXT: llvm.call @mw_await(
// CHECK-NOT:  llvm.call @mw_await(
// CHECK:      llvm.call @mw_launch_0(
// CHECK:      llvm.mlir.constant(3 : i64)
// CHECK-NEXT: llvm.call @mw_record(
// CHECK:      %[[S2:.*]] = llvm.mlir.constant(2 : i64)
// CHECK-NEXT: llvm.call @mw_on(%ctx, %[[S2]])
// CHECK:      llvm.mlir.constant(2 : i64)
// CHECK-NEXT: llvm.call @mw_await(
// CHECK-NOT:  llvm.call @mw_await(
// CHECK:      llvm.call @mw_launch_1(
// CHECK:      llvm.mlir.constant(2 : i64)
// CHECK-NEXT: llvm.call @mw_record(
// CHECK:      %[[S0:.*]] = llvm.mlir.constant(0 : i64)
// CHECK-NEXT: llvm.call @mw_on(%ctx, %[[S0]])
// CHECK:      llvm.mlir.constant(3 : i64)
// CHECK-NEXT: llvm.call @mw_await(
// CHECK:      llvm.mlir.constant(2 : i64)
// CHECK-NEXT: llvm.call @mw_await(
// CHECK:      llvm.call @mw_launch_2(
// CHECK:      llvm.call @mw_note(
// CHECK-NOT:  llvm.call @mw_
// CHECK-LABEL: llvm.func @mw_on(
// CHECK-LABEL: llvm.func @mw_record(
// CHECK:       llvm.call @cuEventRecord(
// CHECK-LABEL: llvm.func @mw_await(
// CHECK:       llvm.call @cuStreamWaitEvent(
func.func @main(%a: tensor<64x128xf32>, %b: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %r = "hint.region"() ({
    %0 = arith.addf %a, %b : tensor<64x128xf32>
    "hint.yield"(%0) : (tensor<64x128xf32>) -> ()
  }) {hints = {stream = 1}} : () -> tensor<64x128xf32>
  %s = "hint.region"() ({
    %0 = arith.mulf %a, %b : tensor<64x128xf32>
    "hint.yield"(%0) : (tensor<64x128xf32>) -> ()
  }) {hints = {stream = 2}} : () -> tensor<64x128xf32>
  %t = arith.addf %r, %s : tensor<64x128xf32>
  return %t : tensor<64x128xf32>
}
