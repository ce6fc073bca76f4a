// RUN: meshweave-opt %s -p dist-legalize-redistribute --split-input-file | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()

// CHECK-LABEL: func.func @gather
// CHECK: plan = [{axes = ["x"], bytes = 96 : i64, dim = 0 : i64, op = "all_gather", target = #{{.*}}}]
func.func @gather(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// Not a gather and a slice: each rank receives only what it lacks.
// CHECK-LABEL: func.func @move
// CHECK: plan = [{axes = ["x"], bytes = 48 : i64, concat_dim = 0 : i64, op = "all_to_all", split_dim = 1 : i64
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
