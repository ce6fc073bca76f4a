// Each pass on the global program, on a mesh whose size along x is a symbol.
// RUN: meshweave-opt %s -p dist-propagate | filecheck %s --check-prefix=PROPAGATE
// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute | filecheck %s --check-prefix=INSERT
// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute | filecheck %s --check-prefix=LEGALIZE
// RUN: meshweave-opt %s -p "dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-specialize-mesh{sizes=N=2},dist-partition,canonicalize,cse" > %t.late2
// RUN: meshweave-opt %s -p "dist-specialize-mesh{sizes=N=2},dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition,canonicalize,cse" > %t.early2
// RUN: filecheck %s --check-prefix=LOCAL2 < %t.late2
// RUN: meshweave-opt %s -p "dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-specialize-mesh{sizes=N=4},dist-partition,canonicalize,cse" > %t.late4
// RUN: meshweave-opt %s -p "dist-specialize-mesh{sizes=N=4},dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition,canonicalize,cse" > %t.early4
// RUN: filecheck %s --check-prefix=LOCAL4 < %t.late4
// RUN: diff %t.early2 %t.late2
// RUN: diff %t.early4 %t.late4

// Two ranks add up products of their columns; from four on it takes fewer bytes to bring each its rows, and all of b.
// PROPAGATE: symbolic = {passes = ["dist-propagate"], sizes = ["N=2"]}
// PROPAGATE: func.func @main({{.*}}attributes {dist.given = {arg_attrs = [
// PROPAGATE: linalg.matmul {dist.layouts =

// INSERT: passes = ["dist-propagate", "dist-insert-redistribute"]
// INSERT: "dist.redistribute"{{.*}}{source = #{{[a-z0-9]+}}, target = #{{[a-z0-9]+}}}

// LEGALIZE: passes = ["dist-propagate", "dist-insert-redistribute", "dist-legalize-redistribute"]
// LEGALIZE: "dist.redistribute"{{.*}}bytes = "32*ceil(12/N)*(N - 1)"{{.*}}op = "reduce_scatter"

// The layouts of two ranks, kept; those of four, chosen anew.
// LOCAL2: "dist.reduce_scatter"
// LOCAL2-SAME: (tensor<12x8xf32>) -> tensor<6x8xf32>
// LOCAL4-DAG: "dist.all_to_all"{{.*}}(tensor<12x2xf32>) -> tensor<3x8xf32>
// LOCAL4-DAG: "dist.all_gather"{{.*}}(tensor<2x8xf32>) -> tensor<8x8xf32>
"dist.mesh"() {sym_name = "mesh", axes = "x=N"} : () -> ()
func.func @main(%a: tensor<12x8xf32> {dist.layout = #dist.layout<"[_, x]">}, %b: tensor<8x8xf32> {dist.layout = #dist.layout<"[x, _]">}) -> (tensor<12x8xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<12x8xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<12x8xf32>) -> tensor<12x8xf32>
  %c = linalg.matmul ins(%a, %b : tensor<12x8xf32>, tensor<8x8xf32>) outs(%init : tensor<12x8xf32>) -> tensor<12x8xf32>
  return %c : tensor<12x8xf32>
}
