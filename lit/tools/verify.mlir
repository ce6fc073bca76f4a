// The statuses of the command: 0 proven, 1 refuted, 3 not all proven.
// RUN: meshweave-opt %s -p dist-pipeline -o %t.local.mlir
// RUN: meshweave verify %s %t.local.mlir | filecheck %s
// RUN: meshweave verify %s %t.local.mlir --json | filecheck %s --check-prefix=JSON
// RUN: sed 's/axes = \["x"\], kind/axes = [], kind/' %t.local.mlir > %t.pending.mlir
// RUN: not meshweave verify %s %t.pending.mlir | filecheck %s --check-prefix=PENDING
// RUN: sh -c 'meshweave verify %S/inputs/switch.mlir %S/inputs/switch.mlir; echo status $?' | filecheck %s --check-prefix=OPEN
// RUN: sh -c 'meshweave verify %s %S/inputs/while.mlir; echo status $?' 2>&1 | filecheck %s --check-prefix=OTHER

// CHECK: 1 of 1 results proven
// JSON: {"proven": ["@main result 0"], "refuted": [], "unproven": [], "values": {{.*}}}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// PENDING: refuted: {{.*}}: @main result 0: expected {{.*}}reduce sum (12,) at [i0, 0, i1]{{.*}}, is reduce sum (6,) at [i0, 6*x, i1]
// OPEN: 0 of 1 results proven
// OPEN-NEXT: unproven: {{.*}}switch.mlir:5:8: @main result 0: {{.*}}scf.index_switch
// OPEN-NEXT: status 3
// OTHER: meshweave: error: verify: @main argument 0 is of i32, in the whole program of f32
// OTHER-NEXT: status 1
func.func public @main(%a: tensor<8x12xf32> {dist.layout = #dist.layout<"[_, x]">}, %b: tensor<12x5xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x5xf32> {dist.layout = #dist.layout<"[_, _]">}) {
  %z = arith.constant dense<0.0> : tensor<8x5xf32>
  %m = linalg.matmul ins(%a, %b : tensor<8x12xf32>, tensor<12x5xf32>) outs(%z : tensor<8x5xf32>) -> tensor<8x5xf32>
  return %m : tensor<8x5xf32>
}
