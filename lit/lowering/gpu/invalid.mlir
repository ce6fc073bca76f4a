// RUN: not meshweave compile %s --target gpu --engine local 2>&1 | filecheck %s --check-prefix=ENGINE
// RUN: not meshweave compile %s --engine nccl --target cpu 2>&1 | filecheck %s --check-prefix=TARGET
// RUN: not meshweave compile %s --target gpu --chip sm_99 2>&1 | filecheck %s --check-prefix=CHIP
// RUN: not meshweave compile %s --chip sm_90 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not meshweave compile %s --emit ptx 2>&1 | filecheck %s --check-prefix=EMIT
// RUN: not meshweave compile %s --target gpu -o /dev/null 2>&1 | filecheck %s --check-prefix=TYPE

// What does not fit together, and what NCCL does not have, in a line each.

// ENGINE: meshweave: error: engine local runs target cpu: target gpu needs engine nccl or emulate
// TARGET: meshweave: error: engine nccl runs target gpu: target cpu needs engine local or mpi
// CHIP: meshweave: error: no chip "sm_99"; did you mean "sm_
// NONE: meshweave: error: chip sm_90: target cpu has no chips, target gpu has
// EMIT: meshweave: error: --emit ptx: target cpu has kernels, buffers, llvm, asm
// TYPE: meshweave: error: {{.*}}invalid.mlir:18:8: dist.all_reduce: NCCL cannot reduce i16 on target gpu
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @main(%a: tensor<4xi16>) -> tensor<4xi16> {
  %r = "dist.all_reduce"(%a) {axes = ["x"], kind = "sum"} : (tensor<4xi16>) -> tensor<4xi16>
  return %r : tensor<4xi16>
}
