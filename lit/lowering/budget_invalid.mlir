// RUN: meshweave-opt %s -p hint-apply,hint-budget,hint-slice,hint-verify --split-input-file --verify-diagnostics

func.func @main(%a: tensor<64x48xf32>, %b: tensor<48x96xf32>, %c: tensor<96x32xf32>) -> tensor<64x32xf32> {
  // expected-error @below {{peak_bytes = "100" (required) is infeasible: the least possible is 384 bytes, in 64 slices along dim 0 of result 0; allow 384 bytes}}
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<64x96xf32>
    %y = arith.constant dense<0.0> : tensor<64x32xf32>
    %m = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x96xf32>) outs(%z : tensor<64x96xf32>) -> tensor<64x96xf32>
    %n = linalg.matmul ins(%m, %c : tensor<64x96xf32>, tensor<96x32xf32>) outs(%y : tensor<64x32xf32>) -> tensor<64x32xf32>
    "hint.yield"(%n) : (tensor<64x32xf32>) -> ()
  }) {hints = {peak_bytes = 100}} : () -> tensor<64x32xf32>
  return %r : tensor<64x32xf32>
}

// -----

// A preferred budget that nothing keeps: the least possible, and a remark.
func.func @main(%a: tensor<64x48xf32>, %b: tensor<48x96xf32>, %c: tensor<96x32xf32>) -> tensor<64x32xf32> {
  // expected-remark @below {{peak_bytes = "100" (preferred) is infeasible: the least possible is 384 bytes}}
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<64x96xf32>
    %y = arith.constant dense<0.0> : tensor<64x32xf32>
    %m = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x96xf32>) outs(%z : tensor<64x96xf32>) -> tensor<64x96xf32>
    %n = linalg.matmul ins(%m, %c : tensor<64x96xf32>, tensor<96x32xf32>) outs(%y : tensor<64x32xf32>) -> tensor<64x32xf32>
    "hint.yield"(%n) : (tensor<64x32xf32>) -> ()
  }) {hints = {peak_bytes = {value = 100, strength = "preferred"}}} : () -> tensor<64x32xf32>
  return %r : tensor<64x32xf32>
}

// -----

func.func @main(%a: tensor<64x48xf32>, %b: tensor<48x96xf32>, %c: tensor<96x32xf32>) -> tensor<64x32xf32> {
  // expected-error @below {{peak_bytes = "4000" (required) is infeasible: the slices it asks for take 12,288 bytes; leave the number open, as slice = "t"}}
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<64x96xf32>
    %y = arith.constant dense<0.0> : tensor<64x32xf32>
    %m = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x96xf32>) outs(%z : tensor<64x96xf32>) -> tensor<64x96xf32>
    %n = linalg.matmul ins(%m, %c : tensor<64x96xf32>, tensor<96x32xf32>) outs(%y : tensor<64x32xf32>) -> tensor<64x32xf32>
    "hint.yield"(%n) : (tensor<64x32xf32>) -> ()
  }) {hints = {slice = "t=2", peak_bytes = 4000}} : () -> tensor<64x32xf32>
  return %r : tensor<64x32xf32>
}

// -----

func.func @main(%a: tensor<64x48xf32>) -> tensor<64x48xf32> {
  // expected-error @below {{slice: t, u are both open: say how many slices of all but one}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<64x48xf32>
    "hint.yield"(%e) : (tensor<64x48xf32>) -> ()
  }) {hints = {slice = "t, u"}} : () -> tensor<64x48xf32>
  return %r : tensor<64x48xf32>
}

// -----

func.func @main(%a: tensor<64x48xf32>) -> tensor<64x48xf32> {
  // expected-error @below {{slice = "t" (required) is infeasible: no number of slices suits: 'linalg.softmax' at }}
  %r = "hint.region"() ({
    %z = tensor.empty() : tensor<64x48xf32>
    %p = "dist.constrain"(%a) {layout = #dist.layout<"[_, t]">} : (tensor<64x48xf32>) -> tensor<64x48xf32>
    %s = linalg.softmax dimension(1) ins(%p : tensor<64x48xf32>) outs(%z : tensor<64x48xf32>) -> tensor<64x48xf32>
    "hint.yield"(%s) : (tensor<64x48xf32>) -> ()
  }) {hints = {slice = "t", peak_bytes = 16}} : () -> tensor<64x48xf32>
  return %r : tensor<64x48xf32>
}

// -----

// What cannot be cut may still fit in one piece, or not.
func.func @main(%a: tensor<1xf32>) -> tensor<1xf32> {
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<1xf32>
    "hint.yield"(%e) : (tensor<1xf32>) -> ()
  }) {hints = {peak_bytes = 64}} : () -> tensor<1xf32>
  // expected-remark @below {{slice = "t" (preferred) is infeasible: no number of slices suits: no dim of the results can be cut}}
  %s = "hint.region"() ({
    %e = math.exp %r : tensor<1xf32>
    "hint.yield"(%e) : (tensor<1xf32>) -> ()
  }) {hints = {slice = {value = "t", strength = "preferred"}}} : () -> tensor<1xf32>
  return %s : tensor<1xf32>
}
