// RUN: meshweave-opt %s -p dist-propagate --split-input-file | filecheck %s

// Rows and columns meet in a product; the contracted dim leaves a partial sum, handed on reduced.
// CHECK-DAG: #[[ROWS:[a-z0-9]+]] = #dist.layout<"[x, _]">
// CHECK-DAG: #[[BOTH:[a-z0-9]+]] = #dist.layout<"[x, y]">
// CHECK-DAG: #[[INNER:[a-z0-9]+]] = #dist.layout<"[y, _]">
// CHECK-DAG: #[[SUM:[a-z0-9]+]] = #dist.layout<"[x, _] +sum(y)">
// CHECK-LABEL: func.func @matmul
// CHECK: linalg.fill
// CHECK: linalg.matmul
// CHECK-SAME: operands = [#[[BOTH]], #[[INNER]], #[[SUM]]], results = [#[[SUM]]], values = [#[[ROWS]]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @matmul(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, y]">}, %b: tensor<6x10xf32> {dist.layout = #dist.layout<"[y, _]">}) -> (tensor<8x10xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8x10xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<8x10xf32>) -> tensor<8x10xf32>
  %c = linalg.matmul ins(%a, %b : tensor<8x6xf32>, tensor<6x10xf32>) outs(%init : tensor<8x10xf32>) -> tensor<8x10xf32>
  return %c : tensor<8x10xf32>
}

// -----

// A layout spreads backwards to what nobody annotated, and through a transpose with its dims.
// CHECK-LABEL: func.func @backwards
// CHECK-SAME: %{{.*}}: tensor<8x6xf32> {dist.layout = #[[L:[a-z0-9]+]]}
// CHECK: linalg.transpose
// CHECK-SAME: operands = [#[[L]], #[[T:[a-z0-9]+]]], results = [#[[T]]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @backwards(%a: tensor<8x6xf32>) -> (tensor<6x8xf32> {dist.layout = #dist.layout<"[_, x]">}) {
  %empty = tensor.empty() : tensor<6x8xf32>
  %t = linalg.transpose ins(%a : tensor<8x6xf32>) outs(%empty : tensor<6x8xf32>) permutation = [1, 0]
  return %t : tensor<6x8xf32>
}

// -----

// Splitting a dim keeps its axes on the major part; a softmax needs its own dim whole.
// CHECK-DAG: #[[FLAT:[a-z0-9]+]] = #dist.layout<"[x]">
// CHECK-DAG: #[[SPLIT:[a-z0-9]+]] = #dist.layout<"[x, _]">
// CHECK-LABEL: func.func @split
// CHECK: tensor.expand_shape
// CHECK-SAME: operands = [#[[FLAT]]], results = [#[[SPLIT]]]
// CHECK: linalg.softmax
// CHECK-SAME: operands = [#[[WHOLE:[a-z0-9]+]], #[[WHOLE]]], results = [#[[WHOLE]]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @split(%a: tensor<24xf32> {dist.layout = #dist.layout<"[x]">}) -> tensor<4x6xf32> {
  %s = tensor.expand_shape %a [[0, 1]] output_shape [4, 6] : tensor<24xf32> into tensor<4x6xf32>
  %empty = tensor.empty() : tensor<4x6xf32>
  %m = linalg.softmax dimension(0) ins(%s : tensor<4x6xf32>) outs(%empty : tensor<4x6xf32>) -> tensor<4x6xf32>
  return %m : tensor<4x6xf32>
}

// -----

// A loop's argument has one layout: what enters, what is yielded and what leaves.
// CHECK-LABEL: func.func @loop
// CHECK: scf.for
// CHECK: linalg.add {dist.layouts = {operands = [#[[L:[a-z0-9]+]], #[[L]], #[[L]]], results = [#[[L]]]}}
// CHECK: scf.yield {dist.layouts = {operands = [#[[L]]], results = []}}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @loop(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x]">}, %n: index) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%s = %a) -> (tensor<8xf32>) {
    %empty = tensor.empty() : tensor<8xf32>
    %t = linalg.add ins(%s, %a : tensor<8xf32>, tensor<8xf32>) outs(%empty : tensor<8xf32>) -> tensor<8xf32>
    scf.yield %t : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}

// -----

// Beyond blocks: what was said is kept as the interface, and ops run on it where they do not need the order.
// CHECK-DAG: #[[SAID:[a-z0-9]+]] = #dist.layout<"[_*x*2, _]">
// CHECK-LABEL: func.func @block_cyclic
// CHECK-SAME: {dist.interface = #[[SAID]], dist.layout = #[[SAID]], dist.open = array<i64: 0, 1>}
// CHECK-SAME: -> (tensor<8x6xf32> {dist.layout = #[[SAID]]})
// CHECK: math.exp {{.*}}{dist.layouts = {operands = [#[[SAID]]], results = [#[[SAID]]]}}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @block_cyclic(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[_*x*2, _]">}) -> tensor<8x6xf32> {
  %e = math.exp %a : tensor<8x6xf32>
  return %e : tensor<8x6xf32>
}

// -----

// A reshape takes the dim apart: inside blocks over the same axes are what it begins with.
// CHECK-DAG: #[[SAID:[a-z0-9]+]] = #dist.layout<"[_*x*2, _]">
// CHECK-DAG: #[[ROWS:[a-z0-9]+]] = #dist.layout<"[x, _]">
// CHECK-LABEL: func.func @block_cyclic
// CHECK-SAME: {dist.interface = #[[SAID]], dist.layout = #[[ROWS]], dist.open = array<i64: 0, 1>}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @block_cyclic(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[_*x*2, _]">}) -> tensor<48xf32> {
  %c = tensor.collapse_shape %a [[0, 1]] : tensor<8x6xf32> into tensor<48xf32>
  return %c : tensor<48xf32>
}

// -----

// A loop that runs along two dims of an operand, a diagonal, is whole; the other loops are not.
// CHECK-DAG: #[[MATRICES:[a-z0-9]+]] = #dist.layout<"[x, _, _]">
// CHECK-DAG: #[[ROWS:[a-z0-9]+]] = #dist.layout<"[x, _]">
// CHECK-LABEL: func.func @diagonal
// CHECK: linalg.generic
// CHECK-SAME: dist.layouts = {operands = [#[[MATRICES]], #[[ROWS]]], results = [#[[ROWS]]]}
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @diagonal(%a: tensor<8x6x6xf32> {dist.layout = #dist.layout<"[x, y, _]">})
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %e = tensor.empty() : tensor<8x6xf32>
  %d = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j, j)>, affine_map<(i, j) -> (i, j)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<8x6x6xf32>) outs(%e : tensor<8x6xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<8x6xf32>
  return %d : tensor<8x6xf32>
}

// -----

// So is a loop that an operand is read along from its end: no window runs back.
// CHECK-DAG: #[[COLUMNS:[a-z0-9]+]] = #dist.layout<"[_, y]">
// CHECK-LABEL: func.func @reverse
// CHECK: linalg.generic
// CHECK-SAME: dist.layouts = {operands = [#[[COLUMNS]], #[[COLUMNS]]], results = [#[[COLUMNS]]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=2"} : () -> ()
func.func @reverse(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[_, _]">})
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[x, y]">}) {
  %e = tensor.empty() : tensor<8x6xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (7 - i, j)>, affine_map<(i, j) -> (i, j)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<8x6xf32>) outs(%e : tensor<8x6xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// -----

// A vector is moved before it becomes a matrix, whose columns would be moved.
// CHECK-DAG: #[[ROWS:[a-z0-9]+]] = #dist.layout<"[x, _]">
// CHECK-DAG: #[[ALL:[a-z0-9]+]] = #dist.layout<"[_]">
// CHECK-LABEL: func.func @outer
// CHECK: linalg.broadcast
// CHECK: linalg.broadcast
// CHECK-SAME: dist.layouts = {operands = [#[[ALL]], #[[ROWS]]], results = [#[[ROWS]]]
// CHECK: linalg.sub
// CHECK-SAME: dist.layouts = {operands = [#[[ROWS]], #[[ROWS]], #[[ROWS]]], results = [#[[ROWS]]]
"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()
func.func @outer(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x]">}, %b: tensor<8xf32> {dist.layout = #dist.layout<"[x]">})
    -> tensor<8x8xf32> {
  %e = tensor.empty() : tensor<8x8xf32>
  %rows = linalg.broadcast ins(%a : tensor<8xf32>) outs(%e : tensor<8x8xf32>) dimensions = [1]
  %columns = linalg.broadcast ins(%b : tensor<8xf32>) outs(%e : tensor<8x8xf32>) dimensions = [0]
  %r = linalg.sub ins(%rows, %columns : tensor<8x8xf32>, tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) -> tensor<8x8xf32>
  return %r : tensor<8x8xf32>
}
