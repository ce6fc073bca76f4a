// RUN: meshweave compile %s --emit kernels | filecheck %s --check-prefix=KERNELS
// RUN: meshweave compile %s --emit buffers | filecheck %s --check-prefix=BUFFERS
// RUN: meshweave compile %s --emit llvm | filecheck %s --check-prefix=LLVM
// RUN: meshweave compile %s --emit buffers > %t.mlir
// RUN: meshweave compile %t.mlir --emit llvm | filecheck %s --check-prefix=LLVM
// RUN: not meshweave compile %t.mlir --emit kernels 2>&1 | filecheck %s --check-prefix=BEHIND
// RUN: not meshweave compile %t.mlir --engine mpi --emit llvm 2>&1 | filecheck %s --check-prefix=ENGINE
// RUN: not meshweave compile %t.mlir --mesh x=2 --emit llvm 2>&1 | filecheck %s --check-prefix=MESH
// RUN: not meshweave compile %s --emit ptx 2>&1 | filecheck %s --check-prefix=PTX

// KERNELS: "mw.launch"({{.*}}) -> tensor<8x6xf32>
// BUFFERS: "mw.launch"({{.*}}memref<8x6xf32>) -> ()
// LLVM:    llvm.func @step(
// BEHIND:  the program is at stage buffers already, behind kernels
// ENGINE:  the program was lowered for engine local: it does not run on mpi
// MESH:    the program is one rank's of mesh
// PTX:     --emit ptx: target cpu has kernels, buffers, llvm, asm
func.func @main(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %0 = math.exp %a : tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}
