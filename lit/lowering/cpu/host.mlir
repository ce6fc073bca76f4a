// RUN: meshweave-opt %s -p dist-pipeline | filecheck %s
// RUN: meshweave-opt %s -p "dist-pipeline,to-cpu-local" | filecheck %s --check-prefix=CODE
// RUN: not meshweave-opt %s -p "dist-pipeline,to-gpu-nccl" 2>&1 | filecheck %s --check-prefix=GPU
// A function of Python sees whole tensors: the rank's part is gathered before it. The code hands it the addresses.

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
// CHECK: %[[WHOLE:.*]] = "dist.all_gather"(%arg0)
// CHECK-SAME: -> tensor<5xf32>
// CHECK: "mw.host"(%[[WHOLE]]) {function = "sine", number = 7 : i64} : (tensor<5xf32>) -> tensor<5xf32>
// CODE: llvm.call @mw_host_call(%{{.*}}, %{{.*}}, %{{.*}}) : (i64, i64, !llvm.ptr) -> ()
// GPU: host.mlir:{{[0-9]+}}:8: error: sine: target gpu calls no functions of Python
func.func @main(%a: tensor<5xf32> {dist.layout = #dist.layout<"[x]">}) -> (tensor<5xf32> {dist.layout = #dist.layout<"[x]">}) {
  %0 = "mw.host"(%a) {number = 7 : i64, function = "sine"} : (tensor<5xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}
