// RUN: meshweave-opt %s -p hint-apply{loose=true} --split-input-file | filecheck %s --check-prefix=APPLY
// RUN: meshweave-opt %s -p hint-apply{loose=true},hint-budget --split-input-file | filecheck %s

// A budget around @main alone makes no region before there is one to cut, and then one in one piece. The ops are in it.
// APPLY-LABEL: func.func @main
// APPLY-NOT: hint.region
// APPLY: arith.addf {{.*}} {hint.op = 0 : i64}
// CHECK: outcomes = [{hint = 0 : i64, is = "honoured", op = 0 : i64, reason = "one piece"}]
// CHECK-LABEL: func.func @main
// CHECK: hint.region
// CHECK: }) {hint.chosen = "", hint.id = 0 : i64, hints = {}}
func.func @main(%a: tensor<8x6xf32>) -> tensor<8x6xf32> attributes {hint.hints = {peak_bytes = "8MiB"}} {
  %s = arith.addf %a, %a : tensor<8x6xf32>
  return %s : tensor<8x6xf32>
}

// -----

// What says more is a region.
// APPLY-LABEL: func.func @main
// APPLY: hint.region
// CHECK-LABEL: func.func @main
func.func @main(%a: tensor<8x6xf32>) -> tensor<8x6xf32> attributes {hint.hints = {peak_bytes = "8MiB", order = "dfs"}} {
  %s = arith.addf %a, %a : tensor<8x6xf32>
  return %s : tensor<8x6xf32>
}
