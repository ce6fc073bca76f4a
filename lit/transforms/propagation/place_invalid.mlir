// RUN: meshweave-opt %s --split-input-file --verify-diagnostics -p dist-place

// expected-error @below {{dist-place: mesh (x=N) has symbolic sizes: numbers are needed}}
"dist.mesh"() {sym_name = "mesh", axes = "x=N"} : () -> ()
func.func @symbolic(%a: tensor<8xf32>) -> tensor<8xf32> {
  return %a : tensor<8xf32>
}

// -----

// expected-error @below {{mesh auto=4, x=2: auto is no axis, but lets all axes be chosen: it stands alone}}
"dist.mesh"() {sym_name = "mesh", axes = "auto=4, x=2"} : () -> ()
func.func @not_alone(%a: tensor<8xf32>) -> tensor<8xf32> {
  return %a : tensor<8xf32>
}
