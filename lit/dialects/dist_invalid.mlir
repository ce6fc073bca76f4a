// RUN: meshweave-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{a mesh has axis x only once}}
"dist.mesh"() {sym_name = "mesh", axes = "x=2, x=4"} : () -> ()

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'dist.constrain' op layout: layout [z]: no axis "z" in mesh (x=2)}}
  %c = "dist.constrain"(%a) {layout = #dist.layout<"[z]">} : (tensor<8xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'dist.constrain' op layout [x, _] has 2 dims, but the value is tensor<8xf32>}}
  %c = "dist.constrain"(%a) {layout = #dist.layout<"[x, _]">} : (tensor<8xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<4xf32> {
  // expected-error @below {{'dist.redistribute' op must keep the type}}
  %c = "dist.redistribute"(%a) {source = #dist.layout<"[x]">, target = #dist.layout<"[_]">} : (tensor<8xf32>) -> tensor<4xf32>
  return %c : tensor<4xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<8xf32>) -> tensor<20xf32> {
  // expected-error @below {{'dist.all_gather' op 2 members make [16] of [8], not [20]}}
  %c = "dist.all_gather"(%a) {axes = ["x"], dim = 0} : (tensor<8xf32>) -> tensor<20xf32>
  return %c : tensor<20xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'dist.all_reduce' op unknown reduction 'xor': known are sum, max, min, prod, avg}}
  %c = "dist.all_reduce"(%a) {axes = ["x"], kind = "xor"} : (tensor<8xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'dist.permute' op sources [0, 0] are no permutation of 2 members}}
  %c = "dist.permute"(%a) {axes = ["x"], sources = [0, 0]} : (tensor<8xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'dist.to_local' op tensor<8xf32> in layout [x] is [4] on a rank, not tensor<8xf32>}}
  %c = "dist.to_local"(%a) {layout = #dist.layout<"[x]">} : (tensor<8xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'dist.all_reduce' op sub-axis x:(1)3: 1 * 3 does not divide x=4}}
  %c = "dist.all_reduce"(%a) {axes = ["x:(1)3"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'dist.all_reduce' op axes x and x:(1)2 overlap}}
  %c = "dist.all_reduce"(%a) {axes = ["x", "x:(1)2"], kind = "sum"} : (tensor<8xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'dist.all_slice' op 2 members make [4] of [8], not [2]}}
  %c = "dist.all_slice"(%a) {axes = ["x:(2)2"], dim = 0} : (tensor<8xf32>) -> tensor<2xf32>
  return %a : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{'dist.exchange' op needs `shape`, as array<i64: 8, 6>}}
  %c = "dist.exchange"(%a) {axes = ["x"], source = #dist.layout<"[x]">, target = #dist.layout<"[_*x]">} : (tensor<4xf32>) -> tensor<4xf32>
  return %c : tensor<4xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{'dist.exchange' op target [_*x, _] has 2 dims, but the value is tensor<8xf32>}}
  %c = "dist.exchange"(%a) {axes = ["x"], shape = array<i64: 8>, source = #dist.layout<"[x]">, target = #dist.layout<"[_*x, _]">} : (tensor<4xf32>) -> tensor<4xf32>
  return %c : tensor<4xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{'dist.exchange' op source: layout [x{3,4}]: x{3,4} lists 2 extents that sum to 7, dim 0 needs 2 that sum to 8}}
  %c = "dist.exchange"(%a) {axes = ["x"], shape = array<i64: 8>, source = #dist.layout<"[x{3,4}]">, target = #dist.layout<"[_*x]">} : (tensor<4xf32>) -> tensor<4xf32>
  return %c : tensor<4xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=2"} : () -> ()
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{'dist.exchange' op goes from [x] to [_*x] +sum(y): pending reductions must be the same}}
  %c = "dist.exchange"(%a) {axes = ["x"], shape = array<i64: 8>, source = #dist.layout<"[x]">, target = #dist.layout<"[_*x] +sum(y)">} : (tensor<4xf32>) -> tensor<4xf32>
  return %c : tensor<4xf32>
}

// -----

// The buffer of a memory order has the local factors in that order.
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<4x6xf32>) -> tensor<8x3xf32> {
  // expected-error @below {{'dist.exchange' op tensor<8x6xf32> in layout [_, x] order(1, 0) is [3, 8] on a rank, not tensor<8x3xf32>}}
  %c = "dist.exchange"(%a) {axes = ["x"], shape = array<i64: 8, 6>, source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, x] order(1, 0)">} : (tensor<4x6xf32>) -> tensor<8x3xf32>
  return %c : tensor<8x3xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @f(%a: tensor<4xf32>) -> tensor<4xi32> {
  // expected-error @below {{'dist.exchange' op tensor<8xf32> in layout [_*x] is [4] on a rank, not tensor<4xi32>}}
  %c = "dist.exchange"(%a) {axes = ["x"], shape = array<i64: 8>, source = #dist.layout<"[x]">, target = #dist.layout<"[_*x]">} : (tensor<4xf32>) -> tensor<4xi32>
  return %c : tensor<4xi32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @merged_apart(%a: tensor<4xf32>, %b: tensor<3xf32>) {
  // expected-error @below {{'dist.merge' op needs ranked tensors of one shape, and gives as many of their types}}
  %c:2 = "dist.merge"(%a, %b) {axes = ["x"], dim = 0 : i64} : (tensor<4xf32>, tensor<3xf32>) -> (tensor<4xf32>, tensor<3xf32>)
  return
}
