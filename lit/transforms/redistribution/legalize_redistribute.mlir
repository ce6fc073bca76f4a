// RUN: meshweave-opt %s -p dist-legalize-redistribute --split-input-file | filecheck %s
// RUN: meshweave-opt %s -p dist-legalize-redistribute,dist-legalize-redistribute --split-input-file | filecheck %s
// RUN: not meshweave-opt %s -p dist-legalize-redistribute{steps=some} 2>&1 | filecheck %s --check-prefix=USAGE
// USAGE: dist-legalize-redistribute: option steps: "some" is none of all, block

"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()

// CHECK-LABEL: func.func @gather
// CHECK: plan = [{axes = ["x"], bytes = 96 : i64, dim = 0 : i64, op = "all_gather", source = #{{.*}}, target = #{{.*}}}]
func.func @gather(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// Not a gather and a slice: each rank receives only what it lacks.
// CHECK-LABEL: func.func @move
// CHECK: plan = [{axes = ["x"], bytes = 48 : i64, concat_dim = 0 : i64, op = "all_to_all", source = #{{.*}}, split_dim = 1 : i64
func.func @move(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, x]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// Not an all_reduce and a slice.
// CHECK-LABEL: func.func @scatter
// CHECK: op = "reduce_scatter"
// CHECK-NOT: all_reduce
func.func @scatter(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[_, _] +sum(x)">, target = #dist.layout<"[x, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// CHECK-LABEL: func.func @nothing
// CHECK-NOT: dist.redistribute
// CHECK: return
func.func @nothing(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[x, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// A plan that leads from the source to the target stays, whatever it costs: here the rows come back in two gathers.
// CHECK-LABEL: func.func @kept
// CHECK: plan = [{axes = ["y"], {{.*}}op = "all_gather"{{.*}}}, {axes = ["x"], {{.*}}op = "all_gather"
func.func @kept(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[x*y, _]">, target = #dist.layout<"[_, _]">, plan = [
    {op = "all_gather", axes = ["y"], dim = 0 : i64, bytes = 96 : i64, source = #dist.layout<"[x*y, _]">, target = #dist.layout<"[x, _]">},
    {op = "all_gather", axes = ["x"], dim = 0 : i64, bytes = 96 : i64, target = #dist.layout<"[_, _]">}]} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// One for another source, or another target, is made anew.
// CHECK-LABEL: func.func @changed
// CHECK-COUNT-2: plan = [{axes = ["y"], {{.*}}op = "all_to_all"
func.func @changed(%a: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[y, _]">, target = #dist.layout<"[_, y]">, plan = [
    {op = "all_gather", axes = ["y"], dim = 0 : i64, bytes = 128 : i64, source = #dist.layout<"[y, _]">, target = #dist.layout<"[_, _]">}]} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %b = arith.negf %a : tensor<8x6xf32>
  %s = "dist.redistribute"(%b) {source = #dist.layout<"[y, _]">, target = #dist.layout<"[_, y]">, plan = [
    {op = "all_slice", axes = ["y"], dim = 1 : i64, bytes = 0 : i64, source = #dist.layout<"[_, _]">, target = #dist.layout<"[_, y]">}]} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %r, %s : tensor<8x6xf32>, tensor<8x6xf32>
}

// What is redundant goes first (fold_redistribute.mlir has the rules): one move, from end to end.
// CHECK-LABEL: func.func @chain
// CHECK: dist.redistribute{{.*}}op = "all_to_all"
// CHECK-NOT: dist.redistribute
// CHECK: return
func.func @chain(%a: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.redistribute"(%0) {source = #dist.layout<"[_, _]">, target = #dist.layout<"[_, x]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %2 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, x]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %1, %2 : tensor<8x6xf32>, tensor<8x6xf32>
}
