// RUN: meshweave run %s --dim n=11 --check --json | filecheck %s
// RUN: meshweave compile %s --dim n=2..11@0.0 -o %t.mwb
// RUN: not meshweave compile %s --dim n=12..11 -o %t.mwb 2>&1 | filecheck %s --check-prefix=LEAST
// RUN: meshweave run %t.mwb | filecheck %s --check-prefix=BUNDLE
// RUN: not meshweave run %s 2>&1 | filecheck %s --check-prefix=OPEN
// RUN: not meshweave run %s --dim m=11 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: not meshweave run %s --dim m=11@1.0 2>&1 | filecheck %s --check-prefix=PLACE
// RUN: not meshweave run %s --dim n 2>&1 | filecheck %s --check-prefix=USAGE
// RUN: not meshweave run %t.mwb --dim n=11 2>&1 | filecheck %s --check-prefix=COMPILED
//
// A size that is written ? gets a bound on the command line. One program serves every size up to it.

// CHECK: "max_abs_err": 0.0
// BUNDLE: on 2 ranks
// LEAST: Dim n: min=12, a number from 1 to 11 is right
// OPEN: run_sizes.mlir:23:19: dim 0 of argument 0 is open (n): a bound is right, --dim n=4096
// OTHER: --dim m: no ? is called so: say which, "m=11@0.0"; it has 0.0 (n)
// PLACE: --dim m: argument 1 has no ? at dim 0; it has 0.0 (n)
// USAGE: --dim n: a name and its bound is right
// COMPILED: .mwb is compiled already, with its bounds
module {
  "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
  func.func @main(%a: tensor<?x3xf32> {dist.layout = #dist.layout<"[x, _]">, dist.lengths = ["n", ""]}) -> tensor<?x3xf32> {
    %0 = arith.addf %a, %a : tensor<?x3xf32>
    return %0 : tensor<?x3xf32>
  }
}
