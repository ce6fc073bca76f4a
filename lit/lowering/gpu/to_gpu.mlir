// RUN: meshweave-opt %s -p lower-collectives{engine=nccl},fuse-kernels,plan-memory,to-gpu | filecheck %s
// RUN: meshweave-opt %s -p lower-collectives{engine=nccl},fuse-kernels,plan-memory | meshweave-opt - -p to-gpu | meshweave-opt - | filecheck %s
// RUN: meshweave compile %s --engine nccl --emit host > %t.host
// RUN: meshweave-opt %s -p lower-collectives{engine=nccl},fuse-kernels,plan-memory,to-gpu > %t.mlir
// RUN: meshweave compile %t.mlir --engine nccl --emit host | diff %t.host -
// RUN: not meshweave compile %t.mlir --engine nccl --chip sm_80 -o /dev/null 2>&1 | filecheck %s --check-prefix=CHIP
// RUN: not meshweave-opt %s -p lower-collectives,fuse-kernels,plan-memory,to-gpu 2>&1 | filecheck %s --check-prefix=CPU

// CHIP: meshweave: error: the program has kernels for sm_90, not for sm_80
// CPU: to-gpu makes code for target gpu, not for cpu

// A product of the library with the kernel for where it has no algorithm, a kernel of a family with its launch, and an exchange that names the kernel that copies for
// it. Addresses are elements behind the first of a buffer; that of a slice begins at a place that this rank's number gives.

// CHECK: "mw.program"() {chip = "sm_90", engine = "nccl"
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// CHECK-NOT:  mw.kernel
// CHECK:      gpu.module @kernel_0 attributes {family = "spare"
// CHECK:        gpu.func @spare_f32_f32(
// CHECK:      gpu.module @kernel_1 attributes {family = "elementwise"
// CHECK:        gpu.func @[[ADD:elementwise_.*addf]](%{{.*}}: !llvm.ptr<1> {llvm.align = 16
// CHECK-SAME:     kernel attributes {nvvm.reqntid
// CHECK:          gpu.return
// CHECK:      gpu.module @kernel_2 attributes {family = "copies"
// CHECK:        gpu.func @copies(
// CHECK:      func.func @main(
// CHECK-NOT:    mw.launch
// CHECK:        %[[AT:.*]] = arith.muli
// CHECK:        "mw.product"({{.*}}) {alignment = 16 : i64, dtype = "f32", k = 32 : i64{{.*}}spare = @kernel_0::@spare_f32_f32
// CHECK:        %[[P:.*]] = "mw.address"(%{{.*}}, %[[AT]]) {map = #[[MAP:.*]]} : (memref<{{.*}}>, index) -> !llvm.ptr<1>
// CHECK:        gpu.launch_func @kernel_1::@[[ADD]] blocks in (%{{.*}}) threads in (%{{.*}}) args({{.*}} : !llvm.ptr<1>
// CHECK:        "mw.collective"{{.*}}copies = @kernel_2::@copies{{.*}}exchange = 0 : i64
func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x48xf32>) -> tensor<64x48xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x48xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<64x48xf32>) -> tensor<64x48xf32>
  %p = linalg.matmul ins(%a, %b : tensor<64x32xf32>, tensor<32x48xf32>) outs(%i : tensor<64x48xf32>) -> tensor<64x48xf32>
  %n = "dist.axis_index"() {axes = ["x"]} : () -> index
  %c32 = arith.constant 32 : index
  %at = arith.muli %n, %c32 : index
  %s = tensor.extract_slice %p[%at, 0] [32, 48] [1, 1] : tensor<64x48xf32> to tensor<32x48xf32>
  %t = arith.addf %s, %s : tensor<32x48xf32>
  %x = "dist.exchange"(%t) {axes = ["x"], source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">, shape = array<i64: 64, 48>} : (tensor<32x48xf32>) -> tensor<64x48xf32>
  return %x : tensor<64x48xf32>
}
