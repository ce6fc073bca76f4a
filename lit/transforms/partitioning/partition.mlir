// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition --split-input-file | filecheck %s

// CHECK-LABEL: func.func @matmul
// CHECK-SAME: tensor<4x2xf32> {dist.global = tensor<8x6xf32>
// CHECK-SAME: tensor<2x10xf32> {dist.global = tensor<6x10xf32>
// CHECK-SAME: -> (tensor<4x10xf32> {dist.global = tensor<8x10xf32>
// CHECK: %[[C:[a-z0-9_]+]] = linalg.matmul {{.*}}-> tensor<4x10xf32>
// CHECK-NEXT: %[[R:[a-z0-9_]+]] = "dist.all_reduce"(%[[C]]) {axes = ["y"], kind = "sum"} : (tensor<4x10xf32>) -> tensor<4x10xf32>
// CHECK-NEXT: return %[[R]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @matmul(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, y]">}, %b: tensor<6x10xf32> {dist.layout = #dist.layout<"[y, _]">}) -> (tensor<8x10xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8x10xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<8x10xf32>) -> tensor<8x10xf32>
  %c = linalg.matmul ins(%a, %b : tensor<8x6xf32>, tensor<6x10xf32>) outs(%init : tensor<8x10xf32>) -> tensor<8x10xf32>
  return %c : tensor<8x10xf32>
}

// -----

// A loop index counts from where the rank's block begins.
// CHECK-LABEL: func.func @iota
// CHECK: %[[K:[a-z0-9_]+]] = "dist.axis_index"() {axes = ["x"]}
// CHECK: %[[OFFSET:[a-z0-9_]+]] = arith.muli %[[K]], %
// CHECK: linalg.generic
// CHECK: %[[I:[a-z0-9_]+]] = linalg.index 0
// CHECK-NEXT: %[[G:[a-z0-9_]+]] = arith.addi %[[I]], %[[OFFSET]]
// CHECK-NEXT: arith.index_cast %[[G]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @iota() -> (tensor<8xi32> {dist.layout = #dist.layout<"[x]">}) {
  %empty = tensor.empty() : tensor<8xi32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} outs(%empty : tensor<8xi32>) {
  ^bb0(%o: i32):
    %i = linalg.index 0 : index
    %v = arith.index_cast %i : index to i32
    linalg.yield %v : i32
  } -> tensor<8xi32>
  return %r : tensor<8xi32>
}

// -----

// Of a cyclic dim the index is counted by its digits, 4 elements over 2 ranks in turn.
// CHECK-LABEL: func.func @cyclic_iota
// CHECK: %[[OFFSET:[a-z0-9_]+]] = arith.muli %{{.*}}, %c1
// CHECK: %[[I:[a-z0-9_]+]] = linalg.index 0
// CHECK: %[[TWICE:[a-z0-9_]+]] = arith.muli %[[I]], %c2
// CHECK-NEXT: arith.addi %[[TWICE]], %[[OFFSET]]
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @cyclic_iota() -> (tensor<8xi32> {dist.layout = #dist.layout<"[_*x]">}) {
  %empty = tensor.empty() : tensor<8xi32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} outs(%empty : tensor<8xi32>) {
  ^bb0(%o: i32):
    %i = linalg.index 0 : index
    %v = arith.index_cast %i : index to i32
    linalg.yield %v : i32
  } -> tensor<8xi32>
  return %r : tensor<8xi32>
}

// -----

// An irregular one begins and ends where tables say; the sum meets zeros beyond the end.
// CHECK-LABEL: func.func @irregular
// CHECK: %[[BEGINS:[a-z0-9_]+]] = arith.constant dense<[0, 5]> : tensor<2xindex>
// CHECK: tensor.extract %[[BEGINS]]
// CHECK: %[[ENDS:[a-z0-9_]+]] = arith.constant dense<[5, 7]> : tensor<2xindex>
// CHECK: %[[END:[a-z0-9_]+]] = tensor.extract %[[ENDS]]
// CHECK: arith.cmpi ult, %{{.*}}, %[[END]]
// CHECK: linalg.reduce
// CHECK: dist.all_reduce
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @irregular(%a: tensor<7xf32> {dist.layout = #dist.layout<"[x{5,2}]">}) -> tensor<f32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<f32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<f32>) -> tensor<f32>
  %s = linalg.reduce { arith.addf } ins(%a : tensor<7xf32>) outs(%init : tensor<f32>) dimensions = [0]
  return %s : tensor<f32>
}

// -----

// 7 over 2: blocks of 4, the last one padded; the sum meets zeros there.
// CHECK-LABEL: func.func @ragged
// CHECK-SAME: tensor<4xf32> {dist.global = tensor<7xf32>
// CHECK: %[[END:[a-z0-9_]+]] = arith.constant 7 : index
// CHECK: %[[ZERO:[a-z0-9_]+]] = arith.constant 0.0
// CHECK: arith.cmpi ult, %{{.*}}, %[[END]]
// CHECK: linalg.reduce
// CHECK: dist.all_reduce
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @ragged(%a: tensor<7xf32> {dist.layout = #dist.layout<"[x]">}) -> tensor<f32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<f32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<f32>) -> tensor<f32>
  %s = linalg.reduce { arith.addf } ins(%a : tensor<7xf32>) outs(%init : tensor<f32>) dimensions = [0]
  return %s : tensor<f32>
}

// -----

// A region that is local already is spliced in.
// CHECK-LABEL: func.func @manual
// CHECK-NOT: dist.to_local
// CHECK: "dist.all_reduce"(%{{.*}}) {axes = ["x"], kind = "max"} : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT: return
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @manual(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x]">}) -> tensor<4xf32> {
  %r = scf.execute_region -> tensor<4xf32> no_inline {
    %l = "dist.to_local"(%a) {layout = #dist.layout<"[x]">} : (tensor<8xf32>) -> tensor<4xf32>
    %m = "dist.all_reduce"(%l) {axes = ["x"], kind = "max"} : (tensor<4xf32>) -> tensor<4xf32>
    %g = "dist.to_global"(%m) {layout = #dist.layout<"[_]">} : (tensor<4xf32>) -> tensor<4xf32>
    scf.yield %g : tensor<4xf32>
  } {dist.manual}
  return %r : tensor<4xf32>
}

// -----

// From blocks to cyclic: a table of pieces that the two layouts are.
// CHECK-DAG: #[[ROWS:[a-z0-9]+]] = #dist.layout<"[x, _]">
// CHECK-DAG: #[[CYCLIC:[a-z0-9]+]] = #dist.layout<"[_*x, _]">
// CHECK-LABEL: func.func @exchange
// CHECK: "dist.exchange"(%arg0) {axes = ["x"], shape = array<i64: 8, 6>, source = #[[ROWS]], target = #[[CYCLIC]]} : (tensor<4x6xf32>) -> tensor<4x6xf32>
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @exchange(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}) -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[_*x, _]">}) {
  return %a : tensor<8x6xf32>
}

// -----

// Another memory order: nothing comes from other ranks.
// CHECK-LABEL: func.func @relayout
// CHECK: "dist.exchange"(%arg0) {axes = [], shape = array<i64: 8, 6>, source = #{{.*}}, target = #{{.*}}} : (tensor<4x6xf32>) -> tensor<6x4xf32>
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @relayout(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}) -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _] order(1, 0)">}) {
  return %a : tensor<8x6xf32>
}

// -----

// Pieces as addends: 7 over 2 in a tensor of zeros, cut at the end.
// CHECK-LABEL: func.func @embed
// CHECK: %[[ZERO:[a-z0-9_]+]] = arith.constant 0.0
// CHECK: %[[K:[a-z0-9_]+]] = "dist.axis_index"() {axes = ["x"]}
// CHECK: %[[P:[a-z0-9_]+]] = linalg.generic {{.*}} ins(%arg0 : tensor<4xf32>) outs(%{{.*}} : tensor<2x4xf32>)
// CHECK: ^bb0(%[[E:[a-z0-9_]+]]: f32
// CHECK: %[[I:[a-z0-9_]+]] = linalg.index 0
// CHECK-NEXT: %[[OWN:[a-z0-9_]+]] = arith.cmpi eq, %[[I]], %[[K]]
// CHECK-NEXT: arith.select %[[OWN]], %[[E]], %[[ZERO]]
// CHECK: %[[C:[a-z0-9_]+]] = tensor.collapse_shape %[[P]] {{\[}}[0, 1]] : tensor<2x4xf32> into tensor<8xf32>
// CHECK-NEXT: tensor.extract_slice %[[C]][0] [7] [1] : tensor<8xf32> to tensor<7xf32>
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @embed(%a: tensor<7xf32> {dist.layout = #dist.layout<"[x]">}) -> (tensor<7xf32> {dist.layout = #dist.layout<"[_] +sum(x)">}) {
  return %a : tensor<7xf32>
}

// -----

// A group over a part of an axis.
// CHECK-LABEL: func.func @sub_axis
// CHECK: "dist.all_gather"(%arg0) {axes = ["x:(2)2"], dim = 0 : i64} : (tensor<2xf32>) -> tensor<4xf32>
"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()
func.func @sub_axis(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x]">}) -> (tensor<8xf32> {dist.layout = #dist.layout<"[x:(1)2]">}) {
  return %a : tensor<8xf32>
}

// -----

// In a loop that carries numbers alone, ops read this rank's part too.
// CHECK-LABEL: func.func @read_in_a_loop_of_scalars
// CHECK: %[[WHOLE:[a-z0-9_]+]] = "dist.all_gather"(%{{[a-z0-9]+}}) {{.*}}: (tensor<4xf32>) -> tensor<8xf32>
// CHECK: scf.for
// CHECK-NEXT: tensor.extract %[[WHOLE]][%{{[a-z0-9]+}}] : tensor<8xf32>
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

// -----

// A loop notes what it carries: the whole tensor and its layout, nothing of a number.
// CHECK-LABEL: func.func @carried
// CHECK: scf.for {{.*}} -> (tensor<4x6xf32>, f32)
// CHECK: } {dist.carried = [{dist.global = tensor<8x6xf32>, dist.layout = #{{.*}}}, {}]}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @carried(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}, %s: f32)
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %r:2 = scf.for %i = %c0 to %c8 step %c1 iter_args(%b = %a, %t = %s) -> (tensor<8x6xf32>, f32) {
    %n = arith.negf %b : tensor<8x6xf32>
    %u = arith.addf %t, %t : f32
    scf.yield %n, %u : tensor<8x6xf32>, f32
  }
  return %r#0 : tensor<8x6xf32>
}
