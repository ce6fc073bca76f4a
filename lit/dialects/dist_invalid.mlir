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
