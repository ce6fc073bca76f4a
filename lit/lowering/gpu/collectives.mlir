// RUN: meshweave compile %s --target gpu --emit host | filecheck %s

// Each collective as the NCCL call that does it: the right count, data type, reduction, communicator
// (slot 4 + 2 * group of the step's table) and stream (slot 1 of the device's), between two events.

"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()

// The step gives the group's number and the count: x is group 0, y is group 1.
// CHECK-LABEL: llvm.func @step(
// CHECK:      %[[G0:.*]] = llvm.mlir.constant(0 : i64)
// CHECK:      %[[C0:.*]] = llvm.mlir.constant(48 : i64)
// CHECK:      llvm.call @mw_all_reduce_sum_f32(%ctx, %[[G0]], {{.*}}, %[[C0]])
// CHECK:      llvm.call @mw_note(
// CHECK:      %[[G1:.*]] = llvm.mlir.constant(1 : i64)
// CHECK:      %[[C1:.*]] = llvm.mlir.constant(48 : i64)
// CHECK:      llvm.call @mw_all_reduce_max_bf16(%ctx, %[[G1]], {{.*}}, %[[C1]])
// CHECK:      %[[BYTES:.*]] = llvm.mlir.constant(96 : i64)
// CHECK:      llvm.call @mw_all_gather(%ctx, {{.*}}, %[[BYTES]])
// CHECK:      %[[PART:.*]] = llvm.mlir.constant(24 : i64)
// CHECK:      llvm.call @mw_reduce_scatter_prod_i32(%ctx, {{.*}}, %[[PART]])
// CHECK:      %[[BLOCK:.*]] = llvm.mlir.constant(96 : i64)
// CHECK:      llvm.call @mw_all_to_all(%ctx, {{.*}}, %[[BLOCK]])
// CHECK:      llvm.call @mw_permute(%ctx,

// A trace has an event before each and one behind it, on the compute stream: where nobody traces, a word is looked at.
// CHECK-LABEL: llvm.func @mw_note(%ctx: !llvm.ptr, %what: i64, %stream: i64)
// CHECK:      %[[TRACE:.*]] = llvm.ptrtoint
// CHECK:      %[[ON:.*]] = llvm.icmp "ne" %[[TRACE]],
// CHECK-NEXT: llvm.cond_br %[[ON]],
// CHECK:      llvm.call @cuEventRecord(
// CHECK-NOT:  llvm.call

// The sizes of the groups, for what sends to each member.
// CHECK: @mw_sizes(dense<[2, 3]> : tensor<2xi64>)

// What is computed so far comes first: record on stream 0, wait on stream 1.
// CHECK-LABEL: llvm.func @mw_begin(
// CHECK:      llvm.getelementptr {{.*}}[0] : (!llvm.ptr) -> !llvm.ptr, i64
// CHECK-NEXT: %[[COMPUTE:.*]] = llvm.load
// CHECK-NEXT: llvm.call @cuEventRecord(%[[READY:.*]], %[[COMPUTE]])
// CHECK:      llvm.getelementptr {{.*}}[1] : (!llvm.ptr) -> !llvm.ptr, i64
// CHECK-NEXT: %[[COMM:.*]] = llvm.load
// CHECK:      llvm.call @cuStreamWaitEvent(%[[COMM]], %[[READY]],
// CHECK-LABEL: llvm.func @mw_posted(%ctx: !llvm.ptr, %event: i64)
// CHECK:      llvm.call @cuEventRecord(
// CHECK-LABEL: llvm.func @mw_wait(%ctx: !llvm.ptr, %event: i64)
// CHECK:      llvm.call @cuStreamWaitEvent(

// CHECK-LABEL: llvm.func @mw_all_gather(
// CHECK:      llvm.call @mw_begin(%ctx)
// CHECK:      %[[SLOT:.*]] = llvm.add
// CHECK-NEXT: %[[AT:.*]] = llvm.getelementptr %ctx[%[[SLOT]]]
// CHECK-NEXT: %[[COMM:.*]] = llvm.load %[[AT]]
// CHECK:      llvm.getelementptr {{.*}}[1] : (!llvm.ptr) -> !llvm.ptr, i64
// CHECK-NEXT: %[[STREAM:.*]] = llvm.load
// CHECK-NEXT: %[[BYTE:.*]] = llvm.mlir.constant(1 : i32)
// CHECK-NEXT: llvm.call @ncclAllGather(%src, %dst, %nbytes, %[[BYTE]], %[[COMM]], %[[STREAM]])
// CHECK:      llvm.call @mw_posted(%ctx, %[[EVENT:.*]]) :
// CHECK:      llvm.call @mw_wait(%ctx, %[[EVENT]]) :

// bf16 is 9, a maximum 2.
// CHECK-LABEL: llvm.func @mw_all_reduce_max_bf16(
// CHECK:      %[[TYPE:.*]] = llvm.mlir.constant(9 : i32)
// CHECK-NEXT: %[[KIND:.*]] = llvm.mlir.constant(2 : i32)
// CHECK-NEXT: llvm.call @ncclAllReduce(%src, %dst, %count, %[[TYPE]], %[[KIND]],

// f32 is 7, a sum 0; a code of NCCL's is marked by 0x2000.
// CHECK-LABEL: llvm.func @mw_all_reduce_sum_f32(
// CHECK:      %[[TYPE:.*]] = llvm.mlir.constant(7 : i32)
// CHECK-NEXT: %[[KIND:.*]] = llvm.mlir.constant(0 : i32)
// CHECK-NEXT: %[[RC:.*]] = llvm.call @ncclAllReduce(%src, %dst, %count, %[[TYPE]], %[[KIND]],
// CHECK:      llvm.and %[[RC]],
// CHECK-NEXT: llvm.mlir.constant(8192 : i32)

// A block for each member, all at once.
// CHECK-LABEL: llvm.func @mw_all_to_all(
// CHECK:      llvm.call @ncclGroupStart()
// CHECK:      llvm.call @ncclSend({{.*}}, %nbytes,
// CHECK:      llvm.call @ncclRecv({{.*}}, %nbytes,
// CHECK:      llvm.call @ncclGroupEnd()

// CHECK-LABEL: llvm.func @mw_permute({{.*}}, %nbytes: i64, %source: i64, %target: i64)
// CHECK:      llvm.call @ncclGroupStart()
// CHECK:      %[[TO:.*]] = llvm.trunc %target
// CHECK:      llvm.call @ncclSend(%src, %nbytes, {{.*}}, %[[TO]],
// CHECK:      %[[FROM:.*]] = llvm.trunc %source
// CHECK:      llvm.call @ncclRecv(%dst, %nbytes, {{.*}}, %[[FROM]],
// CHECK:      llvm.call @ncclGroupEnd()

// i32 is 2, a product 1.
// CHECK-LABEL: llvm.func @mw_reduce_scatter_prod_i32(
// CHECK:      %[[TYPE:.*]] = llvm.mlir.constant(2 : i32)
// CHECK-NEXT: %[[KIND:.*]] = llvm.mlir.constant(1 : i32)
// CHECK-NEXT: llvm.call @ncclReduceScatter(%src, %dst, %count, %[[TYPE]], %[[KIND]],
func.func @main(%a: tensor<8x6xf32>, %b: tensor<8x6xbf16>, %c: tensor<4x6xf32>, %i: tensor<8x6xi32>)
    -> (tensor<8x6xf32>, tensor<8x6xbf16>, tensor<8x6xf32>, tensor<4x6xi32>, tensor<4x12xf32>, tensor<4x6xf32>) {
  %0 = "dist.all_reduce"(%a) {axes = ["x"], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.all_reduce"(%b) {axes = ["y"], kind = "max"} : (tensor<8x6xbf16>) -> tensor<8x6xbf16>
  %2 = "dist.all_gather"(%c) {axes = ["x"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<8x6xf32>
  %3 = "dist.reduce_scatter"(%i) {axes = ["x"], dim = 0 : i64, kind = "prod"} : (tensor<8x6xi32>) -> tensor<4x6xi32>
  %4 = "dist.all_to_all"(%a) {axes = ["x"], split_dim = 0 : i64, concat_dim = 1 : i64} : (tensor<8x6xf32>) -> tensor<4x12xf32>
  %5 = "dist.permute"(%c) {axes = ["x"], sources = [1, 0]} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %0, %1, %2, %3, %4, %5 : tensor<8x6xf32>, tensor<8x6xbf16>, tensor<8x6xf32>, tensor<4x6xi32>, tensor<4x12xf32>, tensor<4x6xf32>
}
