// RUN: meshweave-opt %s --split-input-file --verify-diagnostics

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{'hint.region' op unknown hint "ordre": known are slice, order, width, peak_bytes, stream, bundle, fuse, kernels, numerics, overlap}}
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
  // expected-error @below {{'hint.region' op yields (tensor<8xf32>) but its results are (tensor<8xf32>, tensor<4xi32>)}}
  %r:2 = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {order = "dfs"}} : () -> (tensor<8xf32>, tensor<4xi32>)
  return %r#0 : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint slice = "t=": NAME=COUNT, NAME:SIZE, at least 1, or NAME, as in t=8, t:64 or t}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {slice = "t="}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint slice = "t=0": NAME=COUNT}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {slice = "t=0"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint slice = "t=2, t=3": an axis is named once}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {slice = "t=2, t=3"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint order = "fast": one of dfs, bfs, strict, and before=@BUNDLE or after=@BUNDLE}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {order = "fast"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint order = "dfs, bfs": one of}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {order = "dfs, bfs"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint width = "0": a number, at least 1}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {width = 0}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint peak_bytes = "1 lot": a number of}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {peak_bytes = "1 lot"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint stream = "-1": a number, at least 0, at most 15}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {stream = -1}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint bundle = "a b": an identifier}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {bundle = "a b"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint fuse = "yes": one of must, may, never}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {fuse = "yes"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint kernels = "flash": names with + or -, as in -flash +blas}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {kernels = "flash"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint kernels = "+blas -blas": at least one kernel, each once}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {kernels = "+blas -blas"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint numerics = "exact": bit_exact, deterministic or tol(RTOL, ATOL)}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {numerics = "exact"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint overlap = "some": one of none, auto}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {overlap = "some"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint order: strength "must" is none of required, preferred, advisory}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {order = {value = "dfs", strength = "must"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint order: a dictionary holds value and strength}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {order = {value = "dfs"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{hint width: its value is a text or a number}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {width = [2]}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @f(%a: f32, %b: i32) {
  // expected-error @below {{'hint.yield' op has more than 64 runs of operands of one type}}
  "hint.yield"(%a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a, %b, %a) : (f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32, i32, f32) -> ()
}
