// RUN: meshweave-opt %s -p dist-fuse-collectives | filecheck %s
// RUN: meshweave-opt %s -p dist-fuse-collectives{bit-exact=true} | filecheck %s --check-prefix=EXACT
// RUN: meshweave-opt %s -p dist-fuse-collectives{max-bytes=100} | filecheck %s --check-prefix=LIMIT
// RUN: meshweave-opt %s -p dist-fuse-collectives,dist-fuse-collectives | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3, z=4"} : () -> ()

// CHECK-LABEL: func.func @reduce_twice
// CHECK-NEXT: %[[R:.*]] = "dist.all_reduce"(%arg0) {axes = ["x", "y"], kind = "sum"}
// CHECK-NEXT: return %[[R]]
// EXACT-LABEL: func.func @reduce_twice
// EXACT-COUNT-2: dist.all_reduce
func.func @reduce_twice(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %0 = "dist.all_reduce"(%a) {axes = ["y"], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.all_reduce"(%0) {axes = ["x"], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %1 : tensor<8x6xf32>
}

// A maximum is the same in any order.
// CHECK-LABEL: func.func @sub_axes
// CHECK-NEXT: "dist.all_reduce"(%arg0) {axes = ["z"], kind = "max"}
// EXACT-LABEL: func.func @sub_axes
// EXACT-NEXT: "dist.all_reduce"(%arg0) {axes = ["z"], kind = "max"}
func.func @sub_axes(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %0 = "dist.all_reduce"(%a) {axes = ["z:(2)2"], kind = "max"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.all_reduce"(%0) {axes = ["z:(1)2"], kind = "max"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %1 : tensor<8x6xf32>
}

// Another kind; the first is read elsewhere; an average of integers is cut off twice.
// CHECK-LABEL: func.func @not_twice
// CHECK-COUNT-6: dist.all_reduce
// CHECK: return
func.func @not_twice(%a: tensor<8xf32>, %b: tensor<6x5xf32>, %i: tensor<7xi32>) -> (tensor<8xf32>, tensor<6x5xf32>, tensor<6x5xf32>, tensor<7xi32>) {
  %0 = "dist.all_reduce"(%a) {axes = ["x"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "dist.all_reduce"(%0) {axes = ["y"], kind = "max"} : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "dist.all_reduce"(%b) {axes = ["x"], kind = "min"} : (tensor<6x5xf32>) -> tensor<6x5xf32>
  %3 = "dist.all_reduce"(%2) {axes = ["y"], kind = "min"} : (tensor<6x5xf32>) -> tensor<6x5xf32>
  %4 = "dist.all_reduce"(%i) {axes = ["x"], kind = "avg"} : (tensor<7xi32>) -> tensor<7xi32>
  %5 = "dist.all_reduce"(%4) {axes = ["y"], kind = "avg"} : (tensor<7xi32>) -> tensor<7xi32>
  return %1, %2, %3, %5 : tensor<8xf32>, tensor<6x5xf32>, tensor<6x5xf32>, tensor<7xi32>
}

// What is gathered last is major.
// CHECK-LABEL: func.func @gather_twice
// CHECK-NEXT: %[[R:.*]] = "dist.all_gather"(%arg0) {axes = ["y", "x"], dim = 0 : i64}
// CHECK-NEXT: return %[[R]]
func.func @gather_twice(%a: tensor<2x6xf32>) -> tensor<11x6xf32> {
  %0 = "dist.all_gather"(%a) {axes = ["x"], dim = 0 : i64} : (tensor<2x6xf32>) -> tensor<4x6xf32>
  %1 = "dist.all_gather"(%0) {axes = ["y"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<11x6xf32>
  return %1 : tensor<11x6xf32>
}

// The first is cut, so its pieces are not those of both; other dims; work in between, which the large result would
// have to outlive.
// CHECK-LABEL: func.func @not_gather_twice
// CHECK-COUNT-6: dist.all_gather
// CHECK: return
func.func @not_gather_twice(%a: tensor<2x6xf32>) -> (tensor<9x6xf32>, tensor<4x18xf32>, tensor<8x18xf32>, tensor<2x6xf32>) {
  %0 = "dist.all_gather"(%a) {axes = ["x"], dim = 0 : i64} : (tensor<2x6xf32>) -> tensor<3x6xf32>
  %1 = "dist.all_gather"(%0) {axes = ["y"], dim = 0 : i64} : (tensor<3x6xf32>) -> tensor<9x6xf32>
  %2 = "dist.all_gather"(%a) {axes = ["x"], dim = 0 : i64} : (tensor<2x6xf32>) -> tensor<4x6xf32>
  %3 = "dist.all_gather"(%2) {axes = ["y"], dim = 1 : i64} : (tensor<4x6xf32>) -> tensor<4x18xf32>
  %4 = "dist.all_gather"(%a) {axes = ["z"], dim = 0 : i64} : (tensor<2x6xf32>) -> tensor<8x6xf32>
  %5 = math.exp %a : tensor<2x6xf32>
  %6 = "dist.all_gather"(%4) {axes = ["y"], dim = 1 : i64} : (tensor<8x6xf32>) -> tensor<8x18xf32>
  return %1, %3, %6, %5 : tensor<9x6xf32>, tensor<4x18xf32>, tensor<8x18xf32>, tensor<2x6xf32>
}

// CHECK-LABEL: func.func @scatter_twice
// CHECK-NEXT: %[[R:.*]] = "dist.reduce_scatter"(%arg0) {axes = ["y", "x"], dim = 1 : i64, kind = "avg"}
// CHECK-NEXT: return %[[R]]
func.func @scatter_twice(%a: tensor<8x12xf32>) -> tensor<8x2xf32> {
  %0 = "dist.reduce_scatter"(%a) {axes = ["y"], dim = 1 : i64, kind = "avg"} : (tensor<8x12xf32>) -> tensor<8x4xf32>
  %1 = "dist.reduce_scatter"(%0) {axes = ["x"], dim = 1 : i64, kind = "avg"} : (tensor<8x4xf32>) -> tensor<8x2xf32>
  return %1 : tensor<8x2xf32>
}

// Pieces of 5 are cut with a rest: 0 1 2 | 3 4, not 0 1 | 2 3.
// CHECK-LABEL: func.func @not_scatter_twice
// CHECK-COUNT-2: dist.reduce_scatter
func.func @not_scatter_twice(%a: tensor<8x15xf32>) -> tensor<8x3xf32> {
  %0 = "dist.reduce_scatter"(%a) {axes = ["y"], dim = 1 : i64, kind = "sum"} : (tensor<8x15xf32>) -> tensor<8x5xf32>
  %1 = "dist.reduce_scatter"(%0) {axes = ["x"], dim = 1 : i64, kind = "sum"} : (tensor<8x5xf32>) -> tensor<8x3xf32>
  return %1 : tensor<8x3xf32>
}

// CHECK-LABEL: func.func @reduce_and_slice
// CHECK-NEXT: %[[R:.*]] = "dist.reduce_scatter"(%arg0) {axes = ["y", "x"], dim = 0 : i64, kind = "sum"}
// CHECK-NEXT: return %[[R]]
func.func @reduce_and_slice(%a: tensor<8x6xf32>) -> tensor<2x6xf32> {
  %0 = "dist.all_reduce"(%a) {axes = ["x", "y"], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.all_slice"(%0) {axes = ["y", "x"], dim = 0 : i64} : (tensor<8x6xf32>) -> tensor<2x6xf32>
  return %1 : tensor<2x6xf32>
}

// Reduced in another group than it is cut; all of it is read.
// CHECK-LABEL: func.func @not_reduce_and_slice
// CHECK: dist.all_reduce
// CHECK: dist.all_slice
// CHECK: dist.all_reduce
// CHECK: dist.all_slice
func.func @not_reduce_and_slice(%a: tensor<8x6xf32>) -> (tensor<4x6xf32>, tensor<8x3xf32>, tensor<8x6xf32>) {
  %0 = "dist.all_reduce"(%a) {axes = ["y"], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.all_slice"(%0) {axes = ["x"], dim = 0 : i64} : (tensor<8x6xf32>) -> tensor<4x6xf32>
  %2 = "dist.all_reduce"(%a) {axes = ["x"], kind = "max"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %3 = "dist.all_slice"(%2) {axes = ["x"], dim = 1 : i64} : (tensor<8x6xf32>) -> tensor<8x3xf32>
  return %1, %3, %2 : tensor<4x6xf32>, tensor<8x3xf32>, tensor<8x6xf32>
}

// CHECK-LABEL: func.func @scatter_and_gather
// CHECK-NEXT: %[[R:.*]] = "dist.all_reduce"(%arg0) {axes = ["x"], kind = "prod"}
// CHECK-NEXT: return %[[R]]
func.func @scatter_and_gather(%a: tensor<7x6xf32>) -> tensor<7x6xf32> {
  %0 = "dist.reduce_scatter"(%a) {axes = ["x"], dim = 0 : i64, kind = "prod"} : (tensor<7x6xf32>) -> tensor<4x6xf32>
  %1 = "dist.all_gather"(%0) {axes = ["x"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<7x6xf32>
  return %1 : tensor<7x6xf32>
}

// The gather stays for its other reader.
// CHECK-LABEL: func.func @gather_and_slice
// CHECK-NEXT: %[[G:.*]] = "dist.all_gather"
// CHECK-NEXT: %[[A:.*]] = "dist.all_to_all"(%arg0) {axes = ["y"], concat_dim = 1 : i64, split_dim = 0 : i64}
// CHECK-NEXT: return %arg0, %[[G]], %[[A]]
func.func @gather_and_slice(%a: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<8x6xf32>, tensor<2x17xf32>) {
  %0 = "dist.all_gather"(%a) {axes = ["x"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.all_slice"(%0) {axes = ["x"], dim = 0 : i64} : (tensor<8x6xf32>) -> tensor<4x6xf32>
  %2 = "dist.all_gather"(%a) {axes = ["y"], dim = 1 : i64} : (tensor<4x6xf32>) -> tensor<4x17xf32>
  %3 = "dist.all_slice"(%2) {axes = ["y"], dim = 0 : i64} : (tensor<4x17xf32>) -> tensor<2x17xf32>
  return %1, %0, %3 : tensor<4x6xf32>, tensor<8x6xf32>, tensor<2x17xf32>
}

// Cut to 5, the pieces are 3 and 2, which the pieces of 4 are not.
// CHECK-LABEL: func.func @not_gather_and_slice
// CHECK-NEXT: dist.all_gather
// CHECK-NEXT: dist.all_slice
func.func @not_gather_and_slice(%a: tensor<4x6xf32>) -> tensor<3x6xf32> {
  %0 = "dist.all_gather"(%a) {axes = ["x"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<5x6xf32>
  %1 = "dist.all_slice"(%0) {axes = ["x"], dim = 0 : i64} : (tensor<5x6xf32>) -> tensor<3x6xf32>
  return %1 : tensor<3x6xf32>
}

// The order of axes means nothing to an all_reduce; a group of one rank does nothing.
// CHECK-LABEL: func.func @equal
// CHECK-NEXT: %[[R:.*]] = "dist.all_reduce"
// CHECK-NEXT: return %[[R]], %[[R]], %arg0
func.func @equal(%a: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = "dist.all_reduce"(%a) {axes = ["x", "y"], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.all_reduce"(%a) {axes = ["y", "x"], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %2 = "dist.all_reduce"(%a) {axes = [], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0, %1, %2 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
}

// All operands are there when the first begins.
// CHECK-LABEL: func.func @small
// CHECK-DAG: %[[F:.*]] = tensor.collapse_shape %arg0 {{.*}} into tensor<48xf32>
// CHECK-DAG: %[[S:.*]] = tensor.expand_shape %arg2 {{.*}} into tensor<1xf32>
// CHECK: %[[C:.*]] = tensor.concat dim(0) %[[F]], %arg1, %[[S]] : {{.*}} -> tensor<54xf32>
// CHECK-NEXT: %[[R:.*]] = "dist.all_reduce"(%[[C]]) {axes = ["x"], kind = "sum"}
// CHECK-DAG: tensor.extract_slice %[[R]][0] [48] [1]
// CHECK-DAG: tensor.extract_slice %[[R]][48] [5] [1]
// CHECK-DAG: tensor.extract_slice %[[R]][53] [1] [1]
// CHECK-NOT: dist.all_reduce
// CHECK: return
// EXACT-LABEL: func.func @small
// EXACT-COUNT-3: dist.all_reduce
// LIMIT-LABEL: func.func @small
// LIMIT: tensor.concat {{.*}} -> tensor<6xf32>
// LIMIT: return
func.func @small(%a: tensor<8x6xf32>, %b: tensor<5xf32>, %c: tensor<f32>) -> (tensor<8x6xf32>, tensor<5xf32>, tensor<f32>) {
  %0 = "dist.all_reduce"(%a) {axes = ["x"], kind = "sum"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = math.exp %0 : tensor<8x6xf32>
  %2 = "dist.all_reduce"(%b) {axes = ["x"], kind = "sum"} : (tensor<5xf32>) -> tensor<5xf32>
  %3 = "dist.all_reduce"(%c) {axes = ["x"], kind = "sum"} : (tensor<f32>) -> tensor<f32>
  return %1, %2, %3 : tensor<8x6xf32>, tensor<5xf32>, tensor<f32>
}

// A little work in between does not matter: the one for all stands where the last stood.
// CHECK-LABEL: func.func @small_later
// CHECK-NEXT: math.exp
// CHECK-COUNT-1: dist.all_reduce
// CHECK-NOT: dist.all_reduce
// CHECK: return
func.func @small_later(%a: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "dist.all_reduce"(%a) {axes = ["x"], kind = "max"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = math.exp %a : tensor<8xf32>
  %2 = "dist.all_reduce"(%1) {axes = ["x"], kind = "max"} : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %2 : tensor<8xf32>, tensor<8xf32>
}

// One waits for long work; one needs the other; groups, kinds and types differ; large ones are not worth a copy.
// CHECK-LABEL: func.func @not_small
// CHECK-NOT: tensor.concat
// CHECK: return
func.func @not_small(%a: tensor<8xf32>, %m: tensor<128x128xf32>, %i: tensor<8xi32>) -> (tensor<8xf32>, tensor<128x128xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xi32>, tensor<128x128xf32>) {
  %0 = "dist.all_reduce"(%a) {axes = ["x"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = linalg.matmul ins(%m, %m : tensor<128x128xf32>, tensor<128x128xf32>) outs(%m : tensor<128x128xf32>) -> tensor<128x128xf32>
  %2 = "dist.all_reduce"(%1) {axes = ["x"], kind = "sum"} : (tensor<128x128xf32>) -> tensor<128x128xf32>
  %3 = math.exp %0 : tensor<8xf32>
  %4 = "dist.all_reduce"(%3) {axes = ["x"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  %5 = "dist.all_reduce"(%a) {axes = ["y"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  %6 = "dist.all_reduce"(%a) {axes = ["x"], kind = "max"} : (tensor<8xf32>) -> tensor<8xf32>
  %7 = "dist.all_reduce"(%i) {axes = ["x"], kind = "sum"} : (tensor<8xi32>) -> tensor<8xi32>
  %8 = "dist.all_reduce"(%m) {axes = ["x"], kind = "sum"} : (tensor<128x128xf32>) -> tensor<128x128xf32>
  return %0, %2, %4, %5, %6, %7, %8 : tensor<8xf32>, tensor<128x128xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xi32>, tensor<128x128xf32>
}

// CHECK-LABEL: func.func @small_but_long_work
// CHECK-COUNT-2: dist.all_reduce
func.func @small_but_long_work(%a: tensor<8xf32>, %m: tensor<128x128xf32>, %v: tensor<128xf32>) -> (tensor<8xf32>, tensor<128xf32>) {
  %0 = "dist.all_reduce"(%a) {axes = ["x"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = linalg.matmul ins(%m, %m : tensor<128x128xf32>, tensor<128x128xf32>) outs(%m : tensor<128x128xf32>) -> tensor<128x128xf32>
  %2 = linalg.matvec ins(%1, %v : tensor<128x128xf32>, tensor<128xf32>) outs(%v : tensor<128xf32>) -> tensor<128xf32>
  %3 = "dist.all_reduce"(%2) {axes = ["x"], kind = "sum"} : (tensor<128xf32>) -> tensor<128xf32>
  return %0, %3 : tensor<8xf32>, tensor<128xf32>
}

// Each block by itself: nothing moves into a loop or out of it.
// CHECK-LABEL: func.func @loop
// CHECK: "dist.all_reduce"
// CHECK: scf.for
// CHECK-NEXT: "dist.all_reduce"(%{{.*}}) {axes = ["x", "y"], kind = "sum"}
func.func @loop(%a: tensor<8xf32>, %b: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %0 = "dist.all_reduce"(%a) {axes = ["x", "y"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = scf.for %i = %c0 to %c4 step %c1 iter_args(%s = %b) -> (tensor<8xf32>) {
    %2 = "dist.all_reduce"(%s) {axes = ["y"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
    %3 = "dist.all_reduce"(%2) {axes = ["x"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
    scf.yield %3 : tensor<8xf32>
  }
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}

// Windows of one value come in one exchange, where they lie near each other.
// CHECK-LABEL: func.func @windows
// CHECK-NEXT: %[[U:.*]] = "dist.exchange"(%arg0) {axes = ["x"], shape = array<i64: 16>, source = #{{.*}}, target = #[[ALL:.*]]} : (tensor<8xf32>) -> tensor<9xf32>
// CHECK-NEXT: tensor.extract_slice %[[U]][0] [7] [1]
// CHECK-NEXT: tensor.extract_slice %[[U]][2] [7] [1]
func.func @windows(%a: tensor<8xf32>) -> (tensor<7xf32>, tensor<7xf32>) {
  %0 = "dist.exchange"(%a) {axes = ["x"], shape = array<i64: 16>, source = #dist.layout<"[x]">, target = #dist.layout<"[x*_{7,0,7}]">} : (tensor<8xf32>) -> tensor<7xf32>
  %1 = "dist.exchange"(%a) {axes = ["x"], shape = array<i64: 16>, source = #dist.layout<"[x]">, target = #dist.layout<"[x*_{7,2,7}]">} : (tensor<8xf32>) -> tensor<7xf32>
  return %0, %1 : tensor<7xf32>, tensor<7xf32>
}

// In a region that asks for every bit, floats are added in the order that was there; elsewhere not.
// CHECK-LABEL: func.func @numerics
// CHECK: "hint.region"
// CHECK-COUNT-2: dist.all_reduce
// CHECK: {hints = {numerics = "bit_exact"}}
// CHECK-NEXT: "dist.all_reduce"(%{{.*}}) {axes = ["x", "y"], kind = "sum"}
// CHECK-NEXT: return
func.func @numerics(%a: tensor<8xf32>) -> (tensor<8xf32>) {
  %0 = "hint.region"() ({
    %1 = "dist.all_reduce"(%a) {axes = ["x"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
    %2 = "dist.all_reduce"(%1) {axes = ["y"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
    "hint.yield"(%2) : (tensor<8xf32>) -> ()
  }) {hints = {numerics = "bit_exact"}} : () -> tensor<8xf32>
  %3 = "dist.all_reduce"(%0) {axes = ["x"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  %4 = "dist.all_reduce"(%3) {axes = ["y"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}
