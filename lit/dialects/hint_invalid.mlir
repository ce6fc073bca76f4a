// RUN: meshweave-opt %s --split-input-file --verify-diagnostics

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'hint.region' op unknown hint "ordre": known are slice, order}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {ordre = "dfs"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<4xf32> {
  // expected-error @below {{'hint.region' op yields (tensor<8xf32>) but its results are (tensor<4xf32>)}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {order = "dfs"}} : () -> tensor<4xf32>
  return %r : tensor<4xf32>
}

// -----

func.func @f(%a: tensor<8xf32>, %b: tensor<4xi32>) -> tensor<8xf32> {
  // expected-error @below {{'hint.region' op has results of types tensor<4xi32>, tensor<8xf32>; all must be of one type}}
  %r:2 = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {order = "dfs"}} : () -> (tensor<8xf32>, tensor<4xi32>)
  return %r#0 : tensor<8xf32>
}
