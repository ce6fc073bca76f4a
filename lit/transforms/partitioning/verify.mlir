// RUN: meshweave-opt %s --split-input-file -p dist-pipeline -o %t.local.mlir
// RUN: meshweave-opt %t.local.mlir -p "dist-verify{program=%s}" | filecheck %s
// RUN: sed 's/kind = "sum"/kind = "max"/' %t.local.mlir > %t.wrong.mlir
// RUN: not meshweave-opt %t.wrong.mlir -p "dist-verify{program=%s}" 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: not meshweave-opt %t.local.mlir -p dist-verify 2>&1 | filecheck %s --check-prefix=ALONE

"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()

// A program that is right goes on as it is.
// CHECK-LABEL: func.func public @main
// CHECK: dist.all_reduce
// WRONG: error: refuted: {{.*}}: @main result 0: expected reduce sum {{.*}}, is reduce {{.*}} on the rank x={{.*}} instead of
// ALONE: dist-verify needs the option program, a file with the whole program
func.func public @main(%a: tensor<7x10xf32> {dist.layout = #dist.layout<"[x, y]">}, %b: tensor<10x5xf32> {dist.layout = #dist.layout<"[y, _]">})
    -> (tensor<7x5xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %z = arith.constant dense<0.0> : tensor<7x5xf32>
  %m = linalg.matmul ins(%a, %b : tensor<7x10xf32>, tensor<10x5xf32>) outs(%z : tensor<7x5xf32>) -> tensor<7x5xf32>
  return %m : tensor<7x5xf32>
}
