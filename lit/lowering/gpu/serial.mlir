// RUN: meshweave-opt %s -p lower-collectives{engine=nccl},fuse-kernels,plan-memory,to-gpu | filecheck %s

// Loops over single elements, one of them at a place that the device finds, are one kernel: a thread has a column and one of the 5 rows,
// and goes on only where the row is its own.

// CHECK-LABEL: gpu.func @serial_7x3_f32(
// CHECK:         %[[MINE:.*]] = arith.remui %[[THREAD:.*]], %c3_i64
// CHECK:         %[[ROW:.*]] = arith.divui %[[THREAD]], %c3_i64
// CHECK:         scf.for %[[K:.*]] = %c0_i64 to %c7_i64
// CHECK:           %[[AT:.*]] = arith.extsi
// CHECK:           arith.remui %[[AT]], %c5_i64
// CHECK:           %[[IS:.*]] = arith.cmpi eq, %{{.*}}, %[[ROW]]
// CHECK:           scf.if %[[IS]]
// CHECK-NOT:         scf.for
// CHECK:             arith.addf
// CHECK:             llvm.store
// CHECK:       func.func @main(
// CHECK-NOT:     scf.for
// CHECK:         gpu.launch_func @kernel_{{[0-9]+}}::@serial_7x3_f32 blocks in (%c1, {{.*}}) threads in (%c128
// CHECK-NOT:     memref.load
"dist.mesh"() {sym_name = "mesh", axes = "x=1"} : () -> ()

func.func @main(%x: tensor<5x3xf32>, %at: tensor<7xi32>, %u: tensor<7x3xf32>) -> tensor<5x3xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  %r = scf.for %k = %c0 to %c7 step %c1 iter_args(%a = %x) -> tensor<5x3xf32> {
    %i = tensor.extract %at[%k] : tensor<7xi32>
    %row = arith.index_cast %i : i32 to index
    %s = scf.for %j = %c0 to %c3 step %c1 iter_args(%b = %a) -> tensor<5x3xf32> {
      %e = tensor.extract %u[%k, %j] : tensor<7x3xf32>
      %o = tensor.extract %b[%row, %j] : tensor<5x3xf32>
      %n = arith.addf %o, %e : f32
      %t = tensor.insert %n into %b[%row, %j] : tensor<5x3xf32>
      scf.yield %t : tensor<5x3xf32>
    }
    scf.yield %s : tensor<5x3xf32>
  }
  return %r : tensor<5x3xf32>
}
