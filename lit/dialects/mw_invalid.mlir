// RUN: meshweave-opt %s --split-input-file --verify-diagnostics

func.func @no_kernel(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{'mw.launch' op no mw.kernel @k in this module}}
  %0 = "mw.launch"(%a, %a) {kernel = @k, outs = 1 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @no_attributes(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{'mw.launch' op needs `kernel = @name` and `outs`, the number of tensors it writes}}
  %0 = "mw.launch"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// expected-error @below {{'mw.kernel' op yields 0 values for 1 outputs}}
"mw.kernel"() ({
  "mw.yield"() : () -> ()
}) {sym_name = "k", sizes = array<i64: 4>, reductions = array<i64>, inputs = [], outputs = [affine_map<(i) -> (i)>]} : () -> ()

// -----

// expected-error @below {{'mw.kernel' op needs maps over 1 loops, not affine_map<(d0, d1) -> (d0)>}}
"mw.kernel"() ({
  %0 = arith.constant 1.0 : f32
  "mw.yield"(%0) : (f32) -> ()
}) {sym_name = "k", sizes = array<i64: 4>, reductions = array<i64>, inputs = [], outputs = [affine_map<(i, j) -> (i)>]} : () -> ()

// -----

// expected-error @below {{'mw.kernel' op reduces over loop [1], it has 1 loops}}
"mw.kernel"() ({
  "mw.yield"() : () -> ()
}) {sym_name = "k", sizes = array<i64: 4>, reductions = array<i64: 1>, inputs = [], outputs = []} : () -> ()

// -----

"mw.kernel"() ({
  "mw.yield"() : () -> ()
}) {sym_name = "k", sizes = array<i64: 4>, reductions = array<i64>, inputs = [], outputs = []} : () -> ()
func.func @outputs(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{'mw.launch' op writes 1 of 1 operands, @k has 0 outputs}}
  %0 = "mw.launch"(%a) {kernel = @k, outs = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @other_type(%a: tensor<4xf32>, %b: tensor<8xf32>) -> tensor<4xf32> {
  // expected-error @below {{'mw.wait' op gives (tensor<4xf32>) but writes (tensor<8xf32>)}}
  %0 = "mw.wait"(%a, %b) {ticket = 0 : i64} : (tensor<4xf32>, tensor<8xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @place() {
  // expected-error @below {{'mw.place' op needs `offset`, a number of bytes that is not negative}}
  %0 = "mw.place"() {offset = -64 : i64, buffer = 0 : i64, lifetime = array<i64: 1, 3>} : () -> memref<4xf32>
  return
}

// -----

func.func @lifetime() {
  // expected-error @below {{'mw.place' op needs `lifetime = array<i64: first, last>`}}
  %1 = "mw.place"() {offset = 0 : i64, buffer = 0 : i64, lifetime = array<i64: 3, 1>} : () -> memref<4xf32>
  return
}

// -----

func.func @share(%a: memref<4xf32>) {
  // expected-error @below {{'mw.share' op must keep the number of bytes}}
  %0 = "mw.share"(%a) : (memref<4xf32>) -> memref<8xf32>
  return
}

// -----

func.func @fuse(%a: memref<4xf32>) {
  // expected-error @below {{'mw.fuse' op holds launches and copies, not ['arith.constant']}}
  "mw.fuse"() ({
    %0 = arith.constant 0 : index
    "mw.yield"() : () -> ()
  }) {rows = 1 : i64} : () -> ()
  return
}

// -----

func.func @call(%a: memref<4xf32>) {
  // expected-error @below {{'mw.call' op no function @other}}
  "mw.call"(%a, %a) {callee = @other, outs = 1 : i64} : (memref<4xf32>, memref<4xf32>) -> ()
  return
}

// -----

func.func @address(%a: memref<4xf32>, %i: index) {
  // expected-error @below {{'mw.address' op needs a map of 1 symbols to one number, not () -> (0)}}
  %0 = "mw.address"(%a, %i) {map = affine_map<() -> (0)>} : (memref<4xf32>, index) -> !llvm.ptr<1>
  return
}

// -----

func.func @no_such_dim(%a: tensor<4xf32>, %s: tensor<f32>) -> tensor<4xf32> {
  // expected-error @below {{'mw.scan' op dim must be one of the 1 dims}}
  %0 = "mw.scan"(%a, %s) ({
  ^bb0(%x: f32, %y: f32):
    "mw.yield"(%x) : (f32) -> ()
  }) {dim = 1 : i64} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @another_start(%a: tensor<4x2xf32>, %s: tensor<4xf32>) -> tensor<4x2xf32> {
  // expected-error @below {{'mw.scan' op needs inputs and results of one shape [4, 2], and starts of shape [2]}}
  %0 = "mw.scan"(%a, %s) ({
  ^bb0(%x: f32, %y: f32):
    "mw.yield"(%x) : (f32) -> ()
  }) {dim = 0 : i64} : (tensor<4x2xf32>, tensor<4xf32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}

// -----

func.func @short_body(%a: tensor<4xf32>, %s: tensor<f32>) -> tensor<4xf32> {
  // expected-error @below {{'mw.scan' op needs a body of 2 scalars that yields 1}}
  %0 = "mw.scan"(%a, %s) ({
  ^bb0(%x: f32):
    "mw.yield"(%x) : (f32) -> ()
  }) {dim = 0 : i64} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @too_many(%a: tensor<4x2xf32>) -> tensor<5x2xi32> {
  // expected-error @below {{'mw.order' op gives i32 places, at most 4 of them along dim 0 of [4, 2]}}
  %0 = "mw.order"(%a) {dim = 0 : i64} : (tensor<4x2xf32>) -> tensor<5x2xi32>
  return %0 : tensor<5x2xi32>
}

// -----

func.func @no_places(%a: tensor<4x2xf32>) -> tensor<4x2xi64> {
  // expected-error @below {{'mw.sort' op gives i32 places last}}
  %0:2 = "mw.sort"(%a) {dim = 0 : i64} : (tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
  return %0#1 : tensor<4x2xi64>
}

// -----

func.func @no_such_dim(%a: tensor<4x2xf32>) -> tensor<4x2xi32> {
  // expected-error @below {{'mw.sort' op dim must be one of the 2 dims}}
  %0:2 = "mw.sort"(%a) {dim = 2 : i64} : (tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
  return %0#1 : tensor<4x2xi32>
}

// -----

func.func @no_kind(%a: tensor<4x2xf32>) -> tensor<4x2xf32> {
  // expected-error @below {{'mw.fft' op needs a `kind`, one of fft, ifft, rfft, irfft}}
  %0 = "mw.fft"(%a) {kind = "dct", dim = 0 : i64, length = 4 : i64} : (tensor<4x2xf32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}

// -----

func.func @short(%a: tensor<3x2xf32>) -> tensor<5xf32> {
  // expected-error @below {{'mw.fft' op irfft of 4 along dim 0 needs a tensor of shape [4], not [5]}}
  %0 = "mw.fft"(%a) {kind = "irfft", dim = 0 : i64, length = 4 : i64} : (tensor<3x2xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @short_floats(%a: tensor<4xf16>) -> tensor<3x2xf16> {
  // expected-error @below {{'mw.fft' op computes f32 or f64, here tensor<4xf16>}}
  %0 = "mw.fft"(%a) {kind = "rfft", dim = 0 : i64, length = 4 : i64} : (tensor<4xf16>) -> tensor<3x2xf16>
  return %0 : tensor<3x2xf16>
}

// -----

func.func @no_routine(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // expected-error @below {{'mw.lapack' op needs a `routine`, one of potrf, getrf}}
  %0 = "mw.lapack"(%a) {routine = "cholesky"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// -----

func.func @no_info(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // expected-error @below {{'mw.lapack' op potrf takes 1 operands and gives 2 results}}
  %0 = "mw.lapack"(%a) {routine = "potrf"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// -----

func.func @not_square(%a: tensor<2x4x5xf32>) -> (tensor<2x4x5xf32>, tensor<2xi32>) {
  // expected-error @below {{'mw.lapack' op potrf needs the shapes [2, 5, 5], [2, 5, 5], [2]}}
  %0:2 = "mw.lapack"(%a) {routine = "potrf"} : (tensor<2x4x5xf32>) -> (tensor<2x4x5xf32>, tensor<2xi32>)
  return %0#0, %0#1 : tensor<2x4x5xf32>, tensor<2xi32>
}

// -----

func.func @bf16(%a: tensor<4x4xbf16>) -> (tensor<4x4xbf16>, tensor<i32>) {
  // expected-error @below {{'mw.lapack' op potrf computes f32 or f64, here (bf16, bf16, i32)}}
  %0:2 = "mw.lapack"(%a) {routine = "potrf"} : (tensor<4x4xbf16>) -> (tensor<4x4xbf16>, tensor<i32>)
  return %0#0, %0#1 : tensor<4x4xbf16>, tensor<i32>
}

// -----

func.func @another_map(%i: tensor<4xi32>, %t: tensor<5xf32>) -> tensor<5xf32> {
  // expected-error @below {{'mw.scatter' op updates tensors of one shape, and needs a map for each that it reads, then one for them}}
  %0 = "mw.scatter"(%i, %t) ({
  ^bb0(%a: index, %at: i32, %old: f32):
    "mw.yield"(%old) : (f32) -> ()
  }) {maps = [affine_map<(i, p) -> (p)>]} : (tensor<4xi32>, tensor<5xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @two_sizes(%i: tensor<4xi32>, %j: tensor<3xi32>, %t: tensor<5xf32>) -> tensor<5xf32> {
  // expected-error @below {{'mw.scatter' op has a loop of 4 and of 3 rounds}}
  %0 = "mw.scatter"(%i, %j, %t) ({
  ^bb0(%a: index, %x: i32, %y: i32, %old: f32):
    %yes = arith.constant true
    "mw.yield"(%yes, %a, %old) : (i1, index, f32) -> ()
  }) {maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i, p) -> (p)>]}
    : (tensor<4xi32>, tensor<3xi32>, tensor<5xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @no_place(%i: tensor<4xi32>, %t: tensor<5xf32>) -> tensor<5xf32> {
  // expected-error @below {{'mw.scatter' op needs a body of 3 scalars that yields whether, 1 places and 1 elements}}
  %0 = "mw.scatter"(%i, %t) ({
  ^bb0(%a: index, %at: i32, %old: f32):
    "mw.yield"(%old) : (f32) -> ()
  }) {maps = [affine_map<(i) -> (i)>, affine_map<(i, p) -> (p)>]} : (tensor<4xi32>, tensor<5xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @by_what_is_there(%i: tensor<4xi32>, %t: tensor<5xf32>) -> tensor<5xf32> {
  // expected-error @below {{'mw.scatter' op must not choose a place by what is there by now}}
  %0 = "mw.scatter"(%i, %t) ({
  ^bb0(%a: index, %at: i32, %old: f32):
    %zero = arith.constant 0.0 : f32
    %yes = arith.cmpf ogt, %old, %zero : f32
    "mw.yield"(%yes, %a, %old) : (i1, index, f32) -> ()
  }) {maps = [affine_map<(i) -> (i)>, affine_map<(i, p) -> (p)>]} : (tensor<4xi32>, tensor<5xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @too_little_memory(%a: memref<4x4xf32>, %p: memref<4xi32>, %i: memref<i32>, %m: memref<16xi8>) {
  // expected-error @below {{'mw.lapack' op getrf needs 64 bytes of i8 behind its results}}
  "mw.lapack"(%a, %a, %p, %i, %m) {routine = "getrf", outs = 3 : i64} : (memref<4x4xf32>, memref<4x4xf32>, memref<4xi32>, memref<i32>, memref<16xi8>) -> ()
  return
}

// -----

func.func @gaps(%a: memref<4x4xf32, strided<[8, 1]>>, %b: memref<4x4xf32>, %i: memref<i32>) {
  // expected-error @below {{'mw.lapack' op potrf needs buffers without gaps}}
  "mw.lapack"(%a, %b, %i) {routine = "potrf", outs = 2 : i64} : (memref<4x4xf32, strided<[8, 1]>>, memref<4x4xf32>, memref<i32>) -> ()
  return
}

// -----

func.func @attention_of_other_tensors(%q: tensor<8x4xbf16>, %v: tensor<6x4xbf16>) -> tensor<8x4xbf16> {
  // expected-error @below {{'mw.attention' op has a map affine_map<(d0, d1, d2, d3) -> (d2, d3)> whose loops do not run over all of tensor<6x4xbf16>}}
  %0 = "mw.attention"(%q, %v, %v) ({
  ^bb0(%s: bf16):
    "mw.yield"(%s, %s) : (bf16, bf16) -> ()
  }) {bounds = array<i64>, rounded = bf16, sizes = array<i64: 8, 4, 5, 4>, maps = [
    affine_map<(d0, d1, d2, d3) -> (d0, d3)>, affine_map<(d0, d1, d2, d3) -> (d2, d3)>,
    affine_map<(d0, d1, d2, d3) -> (d2, d1)>, affine_map<(d0, d1, d2, d3) -> (d0, d1)>
  ]} : (tensor<8x4xbf16>, tensor<6x4xbf16>, tensor<6x4xbf16>) -> tensor<8x4xbf16>
  return %0 : tensor<8x4xbf16>
}

// -----

func.func @reduced_scores_of_no_such_kind(%q: tensor<8x4xbf16>) -> tensor<8xf32> {
  // expected-error @below {{'mw.reduced_scores' op needs a kind of addf, maximumf, maxnumf}}
  %0 = "mw.reduced_scores"(%q, %q) ({
  ^bb0(%s: f32):
    "mw.yield"(%s, %s) : (f32, f32) -> ()
  }) {bounds = array<i64>, batch = 0 : i64, products = 1 : i64, kind = "mulf", sizes = array<i64: 8, 1, 8, 4>, maps = [
    affine_map<(d0, d1, d2, d3) -> (d0, d3)>, affine_map<(d0, d1, d2, d3) -> (d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0)>
  ]} : (tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @reduced_scores_without_their_rows(%q: tensor<8x4xbf16>) -> tensor<1xf32> {
  // expected-error @below {{'mw.reduced_scores' op needs a result with a dim for each parallel loop}}
  %0 = "mw.reduced_scores"(%q, %q) ({
  ^bb0(%s: f32):
    "mw.yield"(%s, %s) : (f32, f32) -> ()
  }) {bounds = array<i64>, batch = 0 : i64, products = 1 : i64, kind = "addf", sizes = array<i64: 8, 1, 8, 4>, maps = [
    affine_map<(d0, d1, d2, d3) -> (d0, d3)>, affine_map<(d0, d1, d2, d3) -> (d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d1)>
  ]} : (tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<1xf32>
  return %0 : tensor<1xf32>
}

// -----

func.func @attention_that_yields_one_score(%q: tensor<8x4xbf16>) -> tensor<8x4xbf16> {
  // expected-error @below {{'mw.attention' op needs a body of 1 scalars that yields two scores}}
  %0 = "mw.attention"(%q, %q, %q) ({
  ^bb0(%s: bf16):
    "mw.yield"(%s) : (bf16) -> ()
  }) {bounds = array<i64>, rounded = bf16, sizes = array<i64: 8, 4, 8, 4>, maps = [
    affine_map<(d0, d1, d2, d3) -> (d0, d3)>, affine_map<(d0, d1, d2, d3) -> (d2, d3)>,
    affine_map<(d0, d1, d2, d3) -> (d2, d1)>, affine_map<(d0, d1, d2, d3) -> (d0, d1)>
  ]} : (tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<8x4xbf16>
  return %0 : tensor<8x4xbf16>
}

// -----

func.func @of_nothing(%a: tensor<0xf32>) -> tensor<2xi32> {
  // expected-error @below {{'mw.host' op takes and gives tensors of static shapes, with elements}}
  %0 = "mw.host"(%a) {number = 7 : i64, function = "f"} : (tensor<0xf32>) -> tensor<2xi32>
  return %0 : tensor<2xi32>
}
