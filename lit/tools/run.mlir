// RUN: meshweave run %s --check | filecheck %s
// RUN: meshweave run %s --mesh x=4,y=1 --random 7 --check --json | filecheck %s --check-prefix=JSON
// RUN: meshweave run - --mesh x=1,y=3 --check < %s | filecheck %s --check-prefix=STDIN
// RUN: meshweave compile %s --mesh x=1,y=2 -o %t.mwb | filecheck %s --check-prefix=COMPILE
// RUN: meshweave run %t.mwb | filecheck %s --check-prefix=BUNDLE
//
// A program runs on its own mesh, on another, from standard input, and from the bundle that it was compiled to.

// CHECK:      run.mlir on 4 ranks
// CHECK:      mesh{{.*}}x=2, y=2
// CHECK-NEXT: engine{{.*}}local
// CHECK-NEXT: time to compile
// CHECK-NEXT: time to run
// CHECK-NEXT: peak memory of a rank
// CHECK-NEXT: all_gather over x{{.*}}1 x, 48 bytes
// CHECK-NEXT: --check: error of result 0{{.*}}0.00e+00

// JSON: {"results": [], "max_abs_err": 0.0, "seconds": {"compile": {{.*}}, "run": {{.*}}}, "peak_bytes": {{[0-9]+}}, "collectives": [{"op": "all_gather", "axes": ["x"], "bytes": 72}]}

// STDIN: <stdin> on 3 ranks
// STDIN: collectives{{.*}}none

// COMPILE: .mwb: x=1, y=2, engine local, {{[0-9,]+}} bytes

// BUNDLE: on 2 ranks
module {
  "dist.mesh"() {sym_name = "mesh", axes = "x=2, y=2"} : () -> ()
  func.func @main(%a: tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">})
      -> (tensor<8x3xf32> {dist.layout = #dist.layout<"[_, _]">}) {
    %0 = arith.addf %a, %a : tensor<8x3xf32>
    return %0 : tensor<8x3xf32>
  }
}
