// RUN: meshweave-opt %s -p "dist-specialize-mesh{sizes=N=4}" | filecheck %s
// RUN: meshweave-opt %s -p "dist-specialize-mesh{mesh=\"x=3, y=5\"}" | filecheck %s --check-prefix=WHOLE
// RUN: meshweave-opt %s -p "dist-specialize-mesh{mesh=\"x=N, y=M\"}" | filecheck %s --check-prefix=SYMBOLS
// RUN: not meshweave-opt %s -p "dist-specialize-mesh{sizes=M=4}" 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: not meshweave-opt %s -p "dist-specialize-mesh{sizes=N=0}" 2>&1 | filecheck %s --check-prefix=ZERO
// RUN: not meshweave-opt %s -p "dist-specialize-mesh{sizes=N=4,N=8}" 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not meshweave-opt %s -p "dist-specialize-mesh{sizes=N=4 mesh=\"x=4, y=2\"}" 2>&1 | filecheck %s --check-prefix=BOTH
// RUN: not meshweave-opt %s -p dist-specialize-mesh 2>&1 | filecheck %s --check-prefix=LEFT

// Numbers may come before the passes on the global program or behind them: here plans have formulas until then.
// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute | filecheck %s --check-prefix=FORMULA
// RUN: meshweave-opt %s -p "dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-specialize-mesh{sizes=N=4}" | filecheck %s --check-prefix=LATE
// So many ranks were not asked about: the layouts are found again.
// RUN: meshweave-opt %s -p "dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-specialize-mesh{sizes=N=128}" > %t.late
// RUN: meshweave-opt %s -p "dist-specialize-mesh{sizes=N=128},dist-propagate,dist-insert-redistribute,dist-legalize-redistribute" | diff - %t.late

// CHECK: "dist.mesh"() {axes = "x=4, y=2"
// WHOLE: "dist.mesh"() {axes = "x=3, y=5"
// SYMBOLS: "dist.mesh"() {axes = "x=N, y=M"
// WRONG: no symbol "M" in mesh (x=N, y=2)
// ZERO: axis x=0: a size is at least 1
// TWICE: N has two numbers, 4 and 8
// BOTH: give sizes or a whole mesh, not both
// LEFT: mesh (x=N, y=2) still has symbolic sizes

// FORMULA: "dist.mesh"() {axes = "x=N, y=2", sym_name = "mesh", symbolic = {passes = ["dist-propagate", "dist-insert-redistribute", "dist-legalize-redistribute"], sizes = ["N=1", "N=2", "N=4", "N=8", "N=16", "N=32", "N=64"]}}
// FORMULA: attributes {dist.given =
// FORMULA: "dist.redistribute"{{.*}}bytes = "8*ceil(6/N)*(N - 1)"{{.*}}op = "all_gather"
// FORMULA: "dist.constrain"{{.*}}dist.given

// LATE: "dist.mesh"() {axes = "x=4, y=2", sym_name = "mesh"}
// LATE-NOT: dist.given
// LATE-NOT: dist.constrain
// LATE: bytes = 48 : i64
"dist.mesh"() {sym_name = "mesh", axes = "x=N, y=2"} : () -> ()
func.func @main(%a: tensor<2x6xf32> {dist.layout = #dist.layout<"[_, x]">}) -> tensor<2x6xf32> {
  %e = tensor.empty() : tensor<2x6xf32>
  %s = linalg.add ins(%a, %a : tensor<2x6xf32>, tensor<2x6xf32>) outs(%e : tensor<2x6xf32>) -> tensor<2x6xf32>
  %c = "dist.constrain"(%s) {layout = #dist.layout<"[_, _]">} : (tensor<2x6xf32>) -> tensor<2x6xf32>
  return %c : tensor<2x6xf32>
}
