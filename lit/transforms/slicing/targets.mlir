// RUN: meshweave-opt %s -p "hint-apply{target=gpu}" --split-input-file --verify-diagnostics
// RUN: not meshweave-opt %s -p "hint-apply{target=tpu}" --split-input-file 2>&1 | filecheck %s

// CHECK: no target "tpu"; there are cpu, gpu

// A stream is a key that this target obeys, also where it is required.
func.func @a_required_stream(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {stream = {value = 1, strength = "required"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// No target forces an op into the kernel of another.
func.func @an_advisory_fusion(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @below {{fuse = "must" (advisory) is unsupported: no op is forced into the kernel of another}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {fuse = "must"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}
