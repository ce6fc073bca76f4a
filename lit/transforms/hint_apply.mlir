// RUN: meshweave-opt %s -p hint-apply --split-input-file | filecheck %s

// Regions and ops get numbers; constants and fills are no ops that hints are about.
// CHECK: hint.ledger = {hints = [{key = "order", region = 0 : i64, strength = "preferred", value = "dfs", where = "{{.*}}hint_apply.mlir:{{[0-9]+}}:8"}, {key = "slice", region = 0 : i64, strength = "required", value = "t=4"
// CHECK-SAME: ops = [{name = "arith.addf", region = 0 : i64, where = "{{.*}}:{{[0-9]+}}:10"}], outcomes = []
// CHECK-LABEL: func.func @numbers
// CHECK: arith.addf {{.*}} {hint.op = 0 : i64}
// CHECK: }) {hint.id = 0 : i64, hints = {order = "dfs", slice = "t=4"}}
func.func @numbers(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "hint.region"() ({
    %c = arith.constant dense<1.0> : tensor<8x6xf32>
    %s = arith.addf %a, %c : tensor<8x6xf32>
    "hint.yield"(%s) : (tensor<8x6xf32>) -> ()
  }) {hints = {slice = "t=4", order = "dfs"}} : () -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// -----

// A time axis behind all mesh axes: space sees the mesh axes alone, where it cuts evenly.
// CHECK-LABEL: func.func @places
// CHECK: %[[C:.*]] = "dist.constrain"(%{{.*}}) {layout = #layout} : (tensor<8x6xf32>)
// CHECK-NEXT: %[[P:.*]] = "hint.place"(%[[C]]) {{{.*}}layout = #layout1} : (tensor<8x6xf32>)
// CHECK-NEXT: "hint.yield"(%[[P]])
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @places(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "hint.region"() ({
    %s = arith.addf %a, %a : tensor<8x6xf32>
    %p = "dist.constrain"(%s) {layout = #dist.layout<"[x*t, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    "hint.yield"(%p) : (tensor<8x6xf32>) -> ()
  }) {hints = {slice = "t=2"}} : () -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// -----

// In front of a mesh axis it is a local factor.
// CHECK: #layout = #dist.layout<"[2*x*_, _]">
// CHECK: #layout1 = #dist.layout<"[t, _]">
// CHECK-LABEL: func.func @local_factor
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @local_factor(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "hint.region"() ({
    %s = arith.addf %a, %a : tensor<8x6xf32>
    %p = "dist.constrain"(%s) {layout = #dist.layout<"[t*x, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    "hint.yield"(%p) : (tensor<8x6xf32>) -> ()
  }) {hints = {slice = "t=2"}} : () -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// -----

// An inner hint supersedes an outer one; a required outer one supersedes an inner one.
// CHECK: hint.ledger
// CHECK-SAME: outcomes = [{hint = {{[0-9]}} : i64, is = "superseded", op = 1 : i64, reason = "by width = \222\22 at {{.*}}"}, {hint = {{[0-9]}} : i64, is = "superseded", op = 1 : i64, reason = "by order = \22bfs\22 at
// CHECK-LABEL: func.func @precedence
func.func @precedence(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "hint.region"() ({
    %s = arith.addf %a, %a : tensor<8x6xf32>
    %i = "hint.region"() ({
      %m = arith.mulf %s, %s : tensor<8x6xf32>
      "hint.yield"(%m) : (tensor<8x6xf32>) -> ()
    }) {hints = {order = "dfs", width = 2}} : () -> tensor<8x6xf32>
    "hint.yield"(%i) : (tensor<8x6xf32>) -> ()
  }) {hints = {slice = "t=4", width = 4, order = {value = "bfs", strength = "required"}}} : () -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}
