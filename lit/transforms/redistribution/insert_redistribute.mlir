// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute --split-input-file | filecheck %s

// The partial sum of a product is reduced right behind it.
// CHECK-DAG: #[[SUM:.*]] = #dist.layout<"[x, _] +sum(y)">
// CHECK-DAG: #[[ROWS:.*]] = #dist.layout<"[x, _]">
// CHECK-LABEL: func.func @reduce
// CHECK: %[[C:[a-z0-9_]+]] = linalg.matmul
// CHECK-NEXT: %[[R:[a-z0-9_]+]] = "dist.redistribute"(%[[C]]) {source = #[[SUM]], target = #[[ROWS]]}
// CHECK-NEXT: return {{.*}}%[[R]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @reduce(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, y]">}, %b: tensor<6x10xf32> {dist.layout = #dist.layout<"[y, _]">}) -> (tensor<8x10xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8x10xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<8x10xf32>) -> tensor<8x10xf32>
  %c = linalg.matmul ins(%a, %b : tensor<8x6xf32>, tensor<6x10xf32>) outs(%init : tensor<8x10xf32>) -> tensor<8x10xf32>
  return %c : tensor<8x10xf32>
}

// -----

// Two readers that want the same layout share one move; a constraint has done its work and goes.
// CHECK-LABEL: func.func @shared
// CHECK-COUNT-1: dist.redistribute
// CHECK-NOT: dist.redistribute
// CHECK-NOT: dist.constrain
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @shared(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}) -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[_, x]">}, tensor<8x6xf32> {dist.layout = #dist.layout<"[_, x]">}) {
  %c = "dist.constrain"(%a) {layout = #dist.layout<"[_, x]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %c, %a : tensor<8x6xf32>, tensor<8x6xf32>
}

// -----

// Ops run on blocks: an argument, a constraint and a result in other layouts are moved there and back. What goes
// straight from an argument to a result stays as it is.
// CHECK-DAG: #[[CYCLIC:[a-z0-9]+]] = #dist.layout<"[_*x, _]">
// CHECK-DAG: #[[COLUMNS:[a-z0-9]+]] = #dist.layout<"[x, _] order(1, 0)">
// CHECK-DAG: #[[ROWS:[a-z0-9]+]] = #dist.layout<"[x, _]">
// CHECK-LABEL: func.func @beyond_blocks
// CHECK-SAME: (%[[A:[a-z0-9]+]]: tensor<8x6xf32> {dist.layout = #[[CYCLIC]]}, %[[B:[a-z0-9]+]]: tensor<8x6xf32> {dist.layout = #[[CYCLIC]]})
// CHECK-SAME: -> (tensor<8x6xf32> {dist.layout = #[[COLUMNS]]}, tensor<8x6xf32> {dist.layout = #[[CYCLIC]]})
// CHECK: %[[M:[a-z0-9_]+]] = "dist.redistribute"(%[[A]]) {source = #[[CYCLIC]], target = #[[ROWS]]}
// CHECK: %[[C:[a-z0-9_]+]] = linalg.exp {dist.layouts = {operands = [#[[ROWS]], #[[ROWS]]], results = [#[[ROWS]]]}} ins(%[[M]] :
// CHECK: %[[R:[a-z0-9_]+]] = "dist.redistribute"(%[[C]]) {source = #[[ROWS]], target = #[[COLUMNS]]}
// CHECK: return {{.*}} %[[R]], %[[B]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @beyond_blocks(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[_*x, _]">}, %b: tensor<8x6xf32> {dist.layout = #dist.layout<"[_*x, _]">})
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _] order(1, 0)">}, tensor<8x6xf32> {dist.layout = #dist.layout<"[_*x, _]">}) {
  %e = tensor.empty() : tensor<8x6xf32>
  %c = linalg.exp ins(%a : tensor<8x6xf32>) outs(%e : tensor<8x6xf32>) -> tensor<8x6xf32>
  return %c, %b : tensor<8x6xf32>, tensor<8x6xf32>
}

// -----

// A loop that carries numbers alone: what ops in it read of a tensor is moved all the same, in front of the loop.
// CHECK-LABEL: func.func @read_in_a_loop_of_scalars
// CHECK: %[[WHOLE:[a-z0-9_]+]] = "dist.redistribute"(%{{[a-z0-9]+}})
// CHECK: scf.for
// CHECK: tensor.extract %[[WHOLE]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @read_in_a_loop_of_scalars(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x]">}) -> (tensor<f32> {dist.layout = #dist.layout<"[]">}) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %zero = arith.constant 0.0 : f32
  %sum = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %zero) -> (f32) {
    %e = tensor.extract %a[%i] : tensor<8xf32>
    %t = arith.addf %s, %e : f32
    scf.yield %t : f32
  }
  %r = tensor.from_elements %sum : tensor<f32>
  return %r : tensor<f32>
}
