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

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
// expected-error @below {{dist-place: peak_bytes = 100 is infeasible: the least possible is 256 bytes of a rank, for arguments, results and values between}}
func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> attributes {hint.hints = {peak_bytes = "100"}} {
  %e = tensor.empty() : tensor<64xf32>
  %0 = linalg.exp ins(%a : tensor<64xf32>) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}
