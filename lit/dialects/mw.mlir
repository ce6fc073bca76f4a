// RUN: meshweave-opt %s | filecheck %s
// RUN: meshweave-opt %s | meshweave-opt - | filecheck %s

// Every op of the dialect reads and prints.

// CHECK: "mw.program"() {engine = "local", exchanges = [], groups = {{\[\["x"\]\]}}
"mw.program"() {engine = "local", mesh = "x=2", groups = [["x"]], inputs = [], outputs = [], exchanges = []} : () -> ()

// CHECK: "mw.kernel"() ({
"mw.kernel"() ({
  %i = "mw.index"() {map = affine_map<(i, j) -> (i * 8 + j)>} : () -> index
  %g = "mw.gather"(%i) {operand = 0 : i64} : (index) -> f32
  // CHECK: "mw.load"() {map = #{{.*}}, operand = 1 : i64} : () -> f32
  %l = "mw.load"() {operand = 1 : i64, map = affine_map<(i, j)[s0, s1, s2] -> (i, j + s2)>} : () -> f32
  %s = "mw.scalar"() {operand = 3 : i64} : () -> f32
  // CHECK: "mw.accumulator"(%{{.*}}) {result = 0 : i64} : (f32) -> f32
  %a = "mw.accumulator"(%s) {result = 0 : i64} : (f32) -> f32
  %p = arith.mulf %g, %l : f32
  %r = arith.addf %a, %p : f32
  "mw.yield"(%r) : (f32) -> ()
}) {
  sym_name = "k", sizes = array<i64: 4, 8>, reductions = array<i64: 1>, outputs = [affine_map<(i, j) -> (i)>],
  inputs = [tensor<32xf32>, tensor<4x9xf32>, index, f32]
} : () -> ()

// CHECK-LABEL: func.func @tensors
func.func @tensors(%a: tensor<32xf32>, %b: tensor<4x9xf32>, %s: f32, %e: tensor<4xf32>) -> tensor<4xf32> {
  %m = "mw.member"() {group = 0 : i64} : () -> index
  // CHECK: "mw.launch"(%arg0, %arg1, %{{.*}}, %arg2, %arg3) {kernel = @k, outs = 1 : i64}
  %0 = "mw.launch"(%a, %b, %m, %s, %e) {kernel = @k, outs = 1 : i64}
    : (tensor<32xf32>, tensor<4x9xf32>, index, f32, tensor<4xf32>) -> tensor<4xf32>
  %1 = "mw.start"(%0, %e) {symbol = "mw_all_gather", group = 0 : i64, arguments = [16], what = "all_gather", title = "t",
    axes = ["x"], bytes = 16 : i64, ticket = 0 : i64, sent = 16 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "mw.wait"(%0, %1) {ticket = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// CHECK-LABEL: func.func @factors
func.func @factors(%a: tensor<3x4x4xf32>, %b: tensor<3x4x2xf32>) -> tensor<3x4x2xf32> {
  // CHECK: "mw.lapack"(%arg0) {lower, routine = "potrf"} : (tensor<3x4x4xf32>) -> (tensor<3x4x4xf32>, tensor<3xi32>)
  %0:2 = "mw.lapack"(%a) {routine = "potrf", lower} : (tensor<3x4x4xf32>) -> (tensor<3x4x4xf32>, tensor<3xi32>)
  %1 = "mw.lapack"(%0#0, %b) {routine = "trsm_left", lower} : (tensor<3x4x4xf32>, tensor<3x4x2xf32>) -> tensor<3x4x2xf32>
  return %1 : tensor<3x4x2xf32>
}

// CHECK-LABEL: func.func @transforms
func.func @transforms(%a: tensor<3x8x2xf32>, %re: tensor<3x8xf32>, %im: tensor<3x8xf32>) -> tensor<3x8xf32> {
  // CHECK: "mw.fft"(%arg0) {dim = 1 : i64, kind = "fft", length = 8 : i64} : (tensor<3x8x2xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>)
  %0:2 = "mw.fft"(%a) {kind = "fft", dim = 1 : i64, length = 8 : i64} : (tensor<3x8x2xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>)
  %1:2 = "mw.fft"(%re) {kind = "rfft", dim = 0 : i64, length = 3 : i64} : (tensor<3x8xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>)
  %2 = "mw.fft"(%1#0, %1#1) {kind = "irfft", dim = 0 : i64, length = 3 : i64} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<3x8xf32>
  return %2 : tensor<3x8xf32>
}

// CHECK-LABEL: func.func @of_python
func.func @of_python(%a: tensor<3xf32>) -> tensor<2xi32> {
  // CHECK: "mw.host"(%arg0) {function = "f", number = 7 : i64} : (tensor<3xf32>) -> tensor<2xi32>
  %0 = "mw.host"(%a) {number = 7 : i64, function = "f"} : (tensor<3xf32>) -> tensor<2xi32>
  return %0 : tensor<2xi32>
}

// CHECK-LABEL: func.func @buffers
func.func @buffers(%a: memref<4xf32>, %out: memref<4xf32>) {
  // CHECK: "mw.place"() {buffer = 0 : i64, lifetime = array<i64: 1, 3>, offset = 64 : i64} : () -> memref<2x2xf32>
  %p = "mw.place"() {offset = 64 : i64, buffer = 0 : i64, lifetime = array<i64: 1, 3>} : () -> memref<2x2xf32>
  %s = "mw.share"(%out) : (memref<4xf32>) -> memref<2x2xf32>
  // CHECK: "mw.fuse"() ({
  "mw.fuse"() ({
    memref.copy %p, %s : memref<2x2xf32> to memref<2x2xf32>
    "mw.yield"() : () -> ()
  }) {rows = 1 : i64} : () -> ()
  // CHECK: "mw.call"(%arg0, %arg1, %{{.*}}) {callee = @buffers, outs = 1 : i64}
  "mw.call"(%a, %out, %p) {callee = @buffers, outs = 1 : i64} : (memref<4xf32>, memref<4xf32>, memref<2x2xf32>) -> ()
  return
}
