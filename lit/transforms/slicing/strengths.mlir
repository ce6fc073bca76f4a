// RUN: meshweave-opt %s -p hint-apply,hint-slice,hint-verify --split-input-file --verify-diagnostics

// What cannot be: an error where it is required, else a remark.

func.func @required(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{order = "bfs" (required) is infeasible: the region has no slices; say how many: slice = "t=8"}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {order = {value = "bfs", strength = "required"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @preferred(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @below {{order = "bfs" (preferred) is infeasible: the region has no slices}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {order = {value = "bfs", strength = "preferred"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @advisory(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @below {{order = "bfs" (advisory) is infeasible: the region has no slices}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {order = {value = "bfs", strength = "advisory"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @advisory_slices(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @below {{slice = "t=3" (advisory) is infeasible: no dim of the results that t can cut}}
  %r = "hint.region"() ({
    %0 = tensor.empty() : tensor<8xf32>
    %s = linalg.softmax dimension(0) ins(%a : tensor<8xf32>) outs(%0 : tensor<8xf32>) -> tensor<8xf32>
    "hint.yield"(%s) : (tensor<8xf32>) -> ()
  }) {hints = {slice = {value = "t=3", strength = "advisory"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// Two that are required and differ: both are named with their places.
func.func @conflict(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hint.region"() ({
    // expected-error @below {{width = "2" at {{.*}}strengths.mlir:54:10 and width = "4" at {{.*}}strengths.mlir:52:8 are both required: make one of them preferred, or give both one value}}
    %i = "hint.region"() ({
      %e = math.exp %a : tensor<8xf32>
      "hint.yield"(%e) : (tensor<8xf32>) -> ()
    }) {hints = {width = {value = 2, strength = "required"}}} : () -> tensor<8xf32>
    "hint.yield"(%i) : (tensor<8xf32>) -> ()
  }) {hints = {width = {value = 4, strength = "required"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// Two that are required and agree are no conflict, and what the outer region says is for the slices of the inner one.
func.func @agreement(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hint.region"() ({
    %i = "hint.region"() ({
      %e = math.exp %a : tensor<8xf32>
      "hint.yield"(%e) : (tensor<8xf32>) -> ()
    }) {hints = {slice = "t=4", width = {value = 2, strength = "required"}, order = "bfs"}} : () -> tensor<8xf32>
    "hint.yield"(%i) : (tensor<8xf32>) -> ()
  }) {hints = {width = {value = 2, strength = "required"}, order = "dfs"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}
