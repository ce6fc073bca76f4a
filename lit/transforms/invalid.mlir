// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition --split-input-file --verify-diagnostics

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
// expected-error @below {{no axis "z" in mesh (x=2)}}
func.func @unknown_axis(%a: tensor<8xf32> {dist.layout = #dist.layout<"[z]">}) -> tensor<8xf32> {
  return %a : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
// expected-error @below {{layout [x, _] has 2 dims, the tensor}}
func.func @wrong_ndim(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<8xf32> {
  return %a : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
// expected-error @below {{the shape of tensor<?xf32> is not static}}
func.func @dynamic(%a: tensor<?xf32>) -> tensor<?xf32> {
  return %a : tensor<?xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func private @elsewhere(tensor<8xf32>) -> tensor<8xf32>
func.func @no_body(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{call of @elsewhere, which has no body in this module}}
  %r = call @elsewhere(%a) : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// expected-error @below {{mesh (x=N) still has symbolic sizes: run dist-specialize-mesh first}}
"dist.mesh"() {sym_name = "mesh", axes = "x=N"} : () -> ()
func.func @symbolic(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x]">}) -> (tensor<8xf32> {dist.layout = #dist.layout<"[_]">}) {
  return %a : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=N"} : () -> ()
// expected-error @below {{layout [x{3,5}]: x{3,5} lists 2 extents, but x has N ranks: give it a number first}}
func.func @listed(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x{3,5}]">}) -> tensor<8xf32> {
  return %a : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
// expected-error @below {{dist.layout: layout [x{3,4}, _]: x{3,4} lists 2 extents that sum to 7, dim 0 needs 2 that sum to 8}}
func.func @extents(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x{3,4}, _]">}) -> tensor<8x6xf32> {
  return %a : tensor<8x6xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()
// expected-error @below {{dist.layout: layout [x:(1)3, _], dim 0: sub-axis x:(1)3: 1 * 3 does not divide x=4}}
func.func @parts(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x:(1)3, _]">}) -> tensor<8x6xf32> {
  return %a : tensor<8x6xf32>
}
