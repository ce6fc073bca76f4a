// RUN: meshweave-opt %s -p hint-apply --split-input-file | filecheck %s

// Regions and ops get numbers; constants and fills are no ops that hints are about.
// CHECK: hint.ledger = {hints = [{key = "order", region = 0 : i64, strength = "preferred", value = "dfs", where = "{{.*}}apply.mlir:{{[0-9]+}}:8"}, {key = "slice", region = 0 : i64, strength = "required", value = "t=4"
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

// A time axis behind all mesh axes cuts what each rank has: space sees the mesh axes alone.
// CHECK-LABEL: func.func @places
// CHECK: %[[C:.*]] = "dist.constrain"(%{{.*}}) {layout = #layout} : (tensor<8x6xf32>)
// CHECK-NEXT: %[[P:.*]] = "hint.place"(%[[C]]) {hint.within, layout = #layout1} : (tensor<8x6xf32>)
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

// In front of a mesh axis it is a local factor: the region has the rows of a rank one behind the other, and the order
// changes at its border.
// CHECK: #layout = #dist.layout<"[2*x*_, _]">
// CHECK: #layout1 = #dist.layout<"[x, _]">
// CHECK: #layout2 = #dist.layout<"[t, _]">
// CHECK-LABEL: func.func @local_factor
// CHECK: %[[IN:.*]] = scf.execute_region -> tensor<8x6xf32> no_inline {
// CHECK-NEXT: %[[L:.*]] = "dist.to_local"(%arg0) {layout = #layout} : (tensor<8x6xf32>) -> tensor<4x6xf32>
// CHECK-NEXT: "dist.to_global"(%[[L]]) {layout = #layout1}
// CHECK: } {dist.manual}
// CHECK: %[[R:.*]] = "hint.region"() ({
// CHECK-NEXT: arith.addf %[[IN]], %[[IN]]
// CHECK-NEXT: %[[C:.*]] = "dist.constrain"(%{{.*}}) {layout = #layout1}
// CHECK-NEXT: "hint.place"(%[[C]]) {hint.within, layout = #layout2}
// CHECK: "dist.to_local"(%[[R]]) {layout = #layout1}
// CHECK: "dist.to_global"(%{{.*}}) {layout = #layout}
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

// It does not divide: the dim is as long inside as its padding is, and a loop index counts back to the dim outside.
// CHECK-LABEL: func.func @padded
// CHECK: "dist.to_global"({{.*}}) {{.*}} : (tensor<4xi64>) -> tensor<8xi64>
// CHECK: %[[I:.*]] = linalg.index 0 : index
// CHECK-COUNT-3: arith.remui
// CHECK: arith.index_cast
// CHECK: "dist.to_global"({{.*}}) {{.*}} : (tensor<4xi64>) -> tensor<7xi64>
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @padded(%a: tensor<7xi64>) -> tensor<7xi64> {
  %r = "hint.region"() ({
    %p = "dist.constrain"(%a) {layout = #dist.layout<"[t*x]">} : (tensor<7xi64>) -> tensor<7xi64>
    %e = tensor.empty() : tensor<7xi64>
    %s = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
        ins(%p : tensor<7xi64>) outs(%e : tensor<7xi64>) {
    ^bb0(%x: i64, %o: i64):
      %i = linalg.index 0 : index
      %j = arith.index_cast %i : index to i64
      %y = arith.addi %x, %j : i64
      linalg.yield %y : i64
    } -> tensor<7xi64>
    "hint.yield"(%s) : (tensor<7xi64>) -> ()
  }) {hints = {slice = "t=2"}} : () -> tensor<7xi64>
  return %r : tensor<7xi64>
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

// -----

// A function under hints is a region under them.
// CHECK-LABEL: func.func @whole
// CHECK-NOT: hint.hints
// CHECK: %[[R:.*]] = "hint.region"() ({
// CHECK: %[[S:.*]] = arith.addf {{.*}} {hint.op = 0 : i64}
// CHECK: "hint.yield"(%[[S]])
// CHECK: }) {hint.id = 0 : i64, hints = {peak_bytes = "8MiB"}}
// CHECK: return %[[R]]
func.func @whole(%a: tensor<8x6xf32>) -> tensor<8x6xf32> attributes {hint.hints = {peak_bytes = "8MiB"}} {
  %s = arith.addf %a, %a : tensor<8x6xf32>
  return %s : tensor<8x6xf32>
}
