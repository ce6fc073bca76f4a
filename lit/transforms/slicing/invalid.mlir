// RUN: meshweave-opt %s -p hint-apply,hint-slice,dist-overlap,hint-verify --split-input-file --verify-diagnostics

func.func @two_required(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hint.region"() ({
    // expected-error @below {{order = "bfs" at }}
    %i = "hint.region"() ({
      %e = math.exp %a : tensor<8xf32>
      "hint.yield"(%e) : (tensor<8xf32>) -> ()
    }) {hints = {order = {value = "bfs", strength = "required"}}} : () -> tensor<8xf32>
    "hint.yield"(%i) : (tensor<8xf32>) -> ()
  }) {hints = {order = {value = "dfs", strength = "required"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @required_and_unsupported(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{stream = "1" (required) is unsupported: target cpu has no stream; drop stream}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {stream = {value = 1, strength = "required"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @required_for_all(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{fuse = "must" (required) is unsupported: no op is forced into the kernel of another}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {fuse = {value = "must", strength = "required"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @preferred_and_advisory_are_told(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @+2 {{stream = "1" (advisory) is unsupported: target cpu has no stream}}
  // expected-remark @+1 {{fuse = "must" (advisory) is unsupported: no op is forced into the kernel of another}}
  %r = "hint.region"() ({
    // expected-remark @+1 {{overlap = "auto" (preferred) is infeasible: no collective in the region; drop overlap}}
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {overlap = "auto", stream = 1, fuse = "must"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @no_collective(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hint.region"() ({
    // expected-error @+1 {{overlap = "auto" (required) is infeasible: no collective in the region; drop overlap}}
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {overlap = {value = "auto", strength = "required"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @nothing_to_order(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @+2 {{order = "dfs" (preferred) is infeasible: the region has no slices; say how many: slice = "t=8"}}
  // expected-remark @+1 {{width = "2" (preferred) is infeasible: the region has no slices}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {order = "dfs", width = 2}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @softmax_along_its_own_dim(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  // expected-error @below {{slice = "t=3" (required) is infeasible: 'linalg.softmax' at }}
  %r = "hint.region"() ({
    %p = "dist.constrain"(%a) {layout = #dist.layout<"[_, t]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %0 = tensor.empty() : tensor<8x6xf32>
    %s = linalg.softmax dimension(1) ins(%p : tensor<8x6xf32>) outs(%0 : tensor<8x6xf32>) -> tensor<8x6xf32>
    "hint.yield"(%s) : (tensor<8x6xf32>) -> ()
  }) {hints = {slice = "t=3"}} : () -> tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}

// -----

func.func @a_preferred_slice_that_cannot_be(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @+1 {{slice = "t=3" (preferred) is infeasible: no dim of the results that t can cut: result 0 as [t]: 'linalg.softmax' at }}
  %r = "hint.region"() ({
    %0 = tensor.empty() : tensor<8xf32>
    %s = linalg.softmax dimension(0) ins(%a : tensor<8xf32>) outs(%0 : tensor<8xf32>) -> tensor<8xf32>
    "hint.yield"(%s) : (tensor<8xf32>) -> ()
  }) {hints = {slice = {value = "t=3", strength = "preferred"}}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @one_name_two_axes(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hint.region"() ({
    // expected-error @below {{has the time axis t=2 already: give the inner one another name}}
    %i = "hint.region"() ({
      %e = math.exp %a : tensor<8xf32>
      "hint.yield"(%e) : (tensor<8xf32>) -> ()
    }) {hints = {slice = "t=4"}} : () -> tensor<8xf32>
    "hint.yield"(%i) : (tensor<8xf32>) -> ()
  }) {hints = {slice = "t=2"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @an_axis_of_the_mesh(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{slice = "x=2": x is an axis of the mesh (x=2) already}}
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {slice = "x=2"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @before_what_it_reads(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hint.region"() ({
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {bundle = "first"}} : () -> tensor<8xf32>
  // expected-remark @+1 {{order = "before=@first" (preferred) is infeasible: before=@first: it reads what is made there or later}}
  %q = "hint.region"() ({
    %e = math.sin %r : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {order = "before=@first"}} : () -> tensor<8xf32>
  return %q : tensor<8xf32>
}

// -----

func.func @calls_of_python_in_another_order(%a: tensor<8xf32>) -> (tensor<i32>, tensor<i32>) {
  %r = "hint.region"() ({
    %h = "mw.host"() {number = 7 : i64, function = "draw", effects, first} : () -> tensor<i32>
    "hint.yield"(%h) : (tensor<i32>) -> ()
  }) {hints = {bundle = "drawn"}} : () -> tensor<i32>
  // expected-remark @+1 {{before=@drawn: both call Python, in the order of the program}}
  %s = "hint.region"() ({
    %h = "mw.host"() {number = 8 : i64, function = "draw", effects, first} : () -> tensor<i32>
    "hint.yield"(%h) : (tensor<i32>) -> ()
  }) {hints = {order = "before=@drawn"}} : () -> tensor<i32>
  return %r, %s : tensor<i32>, tensor<i32>
}

// -----

func.func @calls_of_python_in_slices(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{draw of Python at }}
  %r = "hint.region"() ({
    %h = "mw.host"(%a) {number = 7 : i64, function = "draw", effects, first} : (tensor<8xf32>) -> tensor<i32>
    %e = math.exp %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {slice = "t=2"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

func.func @no_such_bundle(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @+1 {{after=@nobody: no other region has that bundle}}
  %q = "hint.region"() ({
    %e = math.sin %a : tensor<8xf32>
    "hint.yield"(%e) : (tensor<8xf32>) -> ()
  }) {hints = {order = "after=@nobody"}} : () -> tensor<8xf32>
  return %q : tensor<8xf32>
}

// -----

// expected-error @below {{hint.hints: a dictionary of hints, of a function of one block, is right}}
func.func @whole(%a: tensor<8x6xf32>) -> tensor<8x6xf32> attributes {hint.hints = "peak_bytes"} {
  return %a : tensor<8x6xf32>
}
