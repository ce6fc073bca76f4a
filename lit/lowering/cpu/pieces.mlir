// RUN: meshweave-opt %s -p to-cpu-local | filecheck %s

// A large kernel is cut into pieces that the cores of a rank share: the kernel over a part of one loop, one over the
// rest where there is some, a function that does a piece, and one that has them done, which takes the rank's cores.

// CHECK:      llvm.func @mw_kernel_0(%{{.*}}: !llvm.ptr {llvm.noalias
// CHECK:      llvm.func @mw_kernel_1(%{{.*}}: !llvm.ptr {llvm.noalias
// CHECK:      llvm.func @mw_kernel_2(%arg0: !llvm.ptr, %arg1: !llvm.ptr, %arg2: !llvm.ptr)
// CHECK:        %[[PIECE:.*]] = llvm.mlir.addressof @mw_kernel_2_piece
// CHECK:        llvm.call @mw_share(%arg2, %[[PIECE]], %{{.*}}, %{{.*}})
// CHECK:      llvm.func @mw_kernel_2_piece(%arg0: !llvm.ptr, %arg1: i64, %arg2: !llvm.ptr)
// CHECK-DAG:    llvm.call @mw_kernel_0(
// CHECK-DAG:    llvm.call @mw_kernel_1(
// CHECK:      llvm.func @step(%arg0: !llvm.ptr)
// CHECK:        %[[AT:.*]] = llvm.getelementptr %arg0[48]
// CHECK:        %[[CORES:.*]] = llvm.load %[[AT]]
// CHECK:        llvm.call @mw_kernel_2(%{{.*}}, %{{.*}}, %[[CORES]])
func.func @main(%a: tensor<300001xf32>) -> tensor<300001xf32> {
  %b = arith.addf %a, %a : tensor<300001xf32>
  return %b : tensor<300001xf32>
}
