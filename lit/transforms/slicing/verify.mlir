// RUN: meshweave-opt %s -p "hint-apply,canonicalize,cse,hint-slice,hint-verify" --hint-report=%t.txt | filecheck %s
// RUN: filecheck %s --check-prefix=TEXT --input-file=%t.txt
// RUN: meshweave-opt %s -p "hint-apply,canonicalize,cse,hint-slice,hint-verify" --hint-report=%t.json -o %t.mlir
// RUN: filecheck %s --check-prefix=JSON --input-file=%t.json

// Numbers go, the ledger stays.
// CHECK: hint.ledger
// CHECK-LABEL: func.func @closes
// CHECK-NOT: hint.op

// TEXT: verify.mlir:{{[0-9]+}}:8: order = "dfs" on math.exp at {{.*}}: honoured (4 slices, 1 in flight)
// TEXT-NEXT: slice = "t=4" on math.exp at {{.*}}: honoured (4 slices along t)
// TEXT-NEXT: order = "dfs" on math.sin at {{.*}}: dead (the op was erased)
// TEXT-NEXT: slice = "t=4" on math.sin at {{.*}}: dead (the op was erased)
// TEXT-NEXT: 4 pairs of hint and op: 2 honoured, 2 dead

// JSON: "ledger": [
// JSON: "hint": "order=dfs",
// JSON-NEXT: "op": "math.exp",
// JSON-NEXT: "location": "{{.*}}verify.mlir:
// JSON-NEXT: "outcome": "honoured",
// JSON-NEXT: "reason": "4 slices, 1 in flight",
func.func @closes(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8x6xf32>
    %unused = math.sin %a : tensor<8x6xf32>
    "hint.yield"(%e) : (tensor<8x6xf32>) -> ()
  }) {hints = {slice = "t=4", order = "dfs"}} : () -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}
