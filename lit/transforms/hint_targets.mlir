// RUN: meshweave-opt %s -p "hint-apply{target=gpu}" --split-input-file --verify-diagnostics
// RUN: not meshweave-opt %s -p "hint-apply{target=tpu}" --split-input-file 2>&1 | filecheck %s

// CHECK: no target "tpu"; there are cpu, gpu

// A key that the target does not obey: an error where it is required, else a remark.
func.func @a_required_stream(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{stream = "1" (required) is unsupported: target gpu has no stream; drop stream}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {stream = {value = 1, strength = "required"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @an_advisory_stream(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @below {{stream = "1" (advisory) is unsupported: target gpu has no stream; drop stream}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {stream = 1}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}
