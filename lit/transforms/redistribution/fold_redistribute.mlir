// RUN: meshweave-opt %s -p dist-fold-redistribute --split-input-file | filecheck %s
// RUN: meshweave-opt %s -p dist-fold-redistribute,dist-fold-redistribute --split-input-file | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3, one=1"} : () -> ()

// CHECK-DAG: #[[X:.*]] = #dist.layout<"[x, _]">
// CHECK-DAG: #[[Y:.*]] = #dist.layout<"[_, y]">
// CHECK-DAG: #[[XY:.*]] = #dist.layout<"[x, y]">
// CHECK-DAG: #[[YX:.*]] = #dist.layout<"[_, x]">
// CHECK-DAG: #[[W:.*]] = #dist.layout<"[_, _]">
// CHECK-DAG: #[[P:.*]] = #dist.layout<"[_, _] +sum(x)">

// CHECK-LABEL: func.func @chain
// CHECK-NEXT: %[[R:.*]] = "dist.redistribute"(%arg0) {source = #[[X]], target = #[[Y]]}
// CHECK-NEXT: return %[[R]]
func.func @chain(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.redistribute"(%0) {source = #dist.layout<"[_, _]">, target = #dist.layout<"[x, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %2 = "dist.redistribute"(%1) {source = #dist.layout<"[x, y]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %2 : tensor<8x6xf32>
}

// There and back is nothing, and so is another spelling; what nobody reads goes.
// CHECK-LABEL: func.func @nothing
// CHECK-NEXT: return %arg0, %arg0
func.func @nothing(%a: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.redistribute"(%0) {source = #dist.layout<"[_, y]">, target = #dist.layout<"[x, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %2 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[x*one, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %3 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %4 = "dist.redistribute"(%3) {source = #dist.layout<"[_, _]">, target = #dist.layout<"[_, x]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %1, %2 : tensor<8x6xf32>, tensor<8x6xf32>
}

// The second is the first; so is the one in the branch, but not one in the branch beside it.
// CHECK-LABEL: func.func @equal
// CHECK-NEXT: %[[R:.*]] = "dist.redistribute"(%arg0) {source = #[[X]], target = #[[Y]]}
// CHECK-NEXT: scf.if
// CHECK-NEXT: "dist.redistribute"(%arg0) {source = #[[X]], target = #[[W]]}
// CHECK-NEXT: arith.addf %[[R]]
// CHECK: else
// CHECK-NEXT: "dist.redistribute"(%arg0) {source = #[[X]], target = #[[W]]}
// CHECK: return %[[R]], %[[R]]
func.func @equal(%a: tensor<8x6xf32>, %c: i1) -> (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %2 = scf.if %c -> (tensor<8x6xf32>) {
    %3 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %4 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %5 = arith.addf %4, %3 : tensor<8x6xf32>
    scf.yield %5 : tensor<8x6xf32>
  } else {
    %6 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    scf.yield %6 : tensor<8x6xf32>
  }
  return %0, %1, %2 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
}

// The middle is read, but from the start the end costs nothing: it is a slice.
// CHECK-LABEL: func.func @cheaper
// CHECK: %[[M:.*]] = "dist.redistribute"(%arg0) {source = #[[X]], target = #[[YX]]}
// CHECK: %[[R:.*]] = "dist.redistribute"(%arg0) {source = #[[X]], target = #[[XY]]}
// CHECK: return %[[M]], %[[R]]
func.func @cheaper(%a: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, x]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.redistribute"(%0) {source = #dist.layout<"[_, x]">, target = #dist.layout<"[x, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0, %1 : tensor<8x6xf32>, tensor<8x6xf32>
}

// The middle is whole: its readers take their slices of it.
// CHECK-LABEL: func.func @not_cheaper
// CHECK: %[[M:.*]] = "dist.redistribute"(%arg0) {source = #[[X]], target = #[[W]]}
// CHECK: "dist.redistribute"(%[[M]]) {source = #[[W]], target = #[[Y]]}
func.func @not_cheaper(%a: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.redistribute"(%0) {source = #dist.layout<"[_, _]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0, %1 : tensor<8x6xf32>, tensor<8x6xf32>
}

// What is reduced once is not reduced again, though a copy of the addends would cost nothing.
// CHECK-LABEL: func.func @reduced_once
// CHECK: %[[M:.*]] = "dist.redistribute"(%arg0) {source = #[[P]], target = #[[W]]}
// CHECK: "dist.redistribute"(%[[M]]) {source = #[[W]], target = #[[P]]}
func.func @reduced_once(%a: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[_, _] +sum(x)">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.redistribute"(%0) {source = #dist.layout<"[_, _]">, target = #dist.layout<"[_, _] +sum(x)">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0, %1 : tensor<8x6xf32>, tensor<8x6xf32>
}

// In a loop a slice of what was gathered before it is better than moving each time.
// CHECK-LABEL: func.func @loop
// CHECK: %[[M:.*]] = "dist.redistribute"(%arg0) {source = #[[X]], target = #[[W]]}
// CHECK: scf.for
// CHECK-NEXT: "dist.redistribute"(%[[M]]) {source = #[[W]], target = #[[Y]]}
func.func @loop(%a: tensor<8x6xf32>, %b: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = scf.for %i = %c0 to %c4 step %c1 iter_args(%s = %b) -> (tensor<8x6xf32>) {
    %2 = "dist.redistribute"(%0) {source = #dist.layout<"[_, _]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %3 = arith.addf %s, %2 : tensor<8x6xf32>
    scf.yield %3 : tensor<8x6xf32>
  }
  return %1 : tensor<8x6xf32>
}

// -----

// Without numbers nothing has a cost: only where the middle has no other reader.
"dist.mesh"() {sym_name = "mesh", axes = "x=N, y=3"} : () -> ()
// CHECK-LABEL: func.func @symbolic
// CHECK-COUNT-3: dist.redistribute
// CHECK: return
func.func @symbolic(%a: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = "dist.redistribute"(%0) {source = #dist.layout<"[_, y]">, target = #dist.layout<"[x, y]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %2 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %3 = "dist.redistribute"(%2) {source = #dist.layout<"[_, _]">, target = #dist.layout<"[_, x]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0, %1, %3 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// A slice that goes into windows alone reads its operand in windows: its last row, on the first rank.
// CHECK: #[[B:.*]] = #dist.layout<"[x]">
// CHECK: #[[R:.*]] = #dist.layout<"[x*_{250,999,250}]">
// CHECK: #[[T:.*]] = #dist.layout<"[x*_{250,0,250}]">
// CHECK-LABEL: func.func @slice_into_windows
// CHECK-NEXT: %[[M:.*]] = "dist.redistribute"(%arg0) {source = #[[B]], target = #[[R]]}
// CHECK-NEXT: %[[S:.*]] = tensor.extract_slice %[[M]][999] [1] [1] {dist.layouts = {operands = [#[[R]]], results = [#[[T]]]}}
// CHECK-NEXT: return %[[S]]
func.func @slice_into_windows(%a: tensor<1000xf32>) -> tensor<1xf32> {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x]">, target = #dist.layout<"[_{0,999,1}]">} : (tensor<1000xf32>) -> tensor<1000xf32>
  %1 = tensor.extract_slice %0[999] [1] [1] {dist.layouts = {operands = [#dist.layout<"[_{0,999,1}]">], results = [#dist.layout<"[_]">]}} : tensor<1000xf32> to tensor<1xf32>
  %2 = "dist.redistribute"(%1) {source = #dist.layout<"[_]">, target = #dist.layout<"[x*_{250,0,250}]">} : (tensor<1xf32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// A pad that goes into windows alone pads windows of its operand.
// CHECK: #[[B:.*]] = #dist.layout<"[x]">
// CHECK: #[[R:.*]] = #dist.layout<"[x*_{10,-1,12}]">
// CHECK: #[[T:.*]] = #dist.layout<"[x*_{10,0,12}]">
// CHECK-LABEL: func.func @pad_into_windows
// CHECK: %[[M:.*]] = "dist.redistribute"(%arg0) {source = #[[B]], target = #[[R]]}
// CHECK: %[[P:.*]] = tensor.pad %[[M]] low[1] high[1]
// CHECK: dist.layouts = {operands = [#[[R]]], results = [#[[T]]]}
// CHECK: return %[[P]]
func.func @pad_into_windows(%a: tensor<40xf32>) -> tensor<42xf32> {
  %z = arith.constant 0.0 : f32
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x]">, target = #dist.layout<"[x*_{11,-1,11}]">} : (tensor<40xf32>) -> tensor<40xf32>
  %1 = tensor.pad %0 low[1] high[1] {
  ^bb0(%i: index):
    tensor.yield %z : f32
  } {dist.layouts = {operands = [#dist.layout<"[x*_{11,-1,11}]">], results = [#dist.layout<"[x]">]}} : tensor<40xf32> to tensor<42xf32>
  %2 = "dist.redistribute"(%1) {source = #dist.layout<"[x]">, target = #dist.layout<"[x*_{10,0,12}]">} : (tensor<42xf32>) -> tensor<42xf32>
  return %2 : tensor<42xf32>
}

// -----

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// Elementwise ops whose result goes into windows alone run on these: the slices that they read bring other rows.
// CHECK: #[[B:.*]] = #dist.layout<"[x]">
// CHECK: #[[DOWN:.*]] = #dist.layout<"[x*_{10,-1,10}]">
// CHECK: #[[UP:.*]] = #dist.layout<"[x*_{10,1,10}]">
// CHECK-LABEL: func.func @maps_into_windows
// CHECK-DAG: %[[U:.*]] = "dist.redistribute"(%arg0) {source = #[[B]], target = #[[UP]]}
// CHECK-DAG: %[[D:.*]] = "dist.redistribute"(%arg0) {source = #[[B]], target = #[[DOWN]]}
// CHECK: linalg.map
// CHECK-SAME: dist.layouts = {operands = [#[[DOWN]], #[[DOWN]], #[[DOWN]]], results = [#[[DOWN]]]}
// CHECK-NOT: dist.redistribute
// CHECK: tensor.insert_slice
func.func @maps_into_windows(%a: tensor<40xf32>) -> tensor<40xf32> {
  %0 = tensor.extract_slice %a[0] [38] [1] {dist.layouts = {operands = [#dist.layout<"[x]">], results = [#dist.layout<"[x]">]}} : tensor<40xf32> to tensor<38xf32>
  %1 = "dist.redistribute"(%a) {source = #dist.layout<"[x]">, target = #dist.layout<"[x*_{10,2,10}]">} : (tensor<40xf32>) -> tensor<40xf32>
  %2 = tensor.extract_slice %1[2] [38] [1] {dist.layouts = {operands = [#dist.layout<"[x*_{10,2,10}]">], results = [#dist.layout<"[x]">]}} : tensor<40xf32> to tensor<38xf32>
  %e = tensor.empty() : tensor<38xf32>
  %m = linalg.map { arith.addf } ins(%0, %2 : tensor<38xf32>, tensor<38xf32>) outs(%e : tensor<38xf32>) {dist.layouts = {operands = [#dist.layout<"[x]">, #dist.layout<"[x]">, #dist.layout<"[x]">], results = [#dist.layout<"[x]">]}}
  %3 = "dist.redistribute"(%m) {source = #dist.layout<"[x]">, target = #dist.layout<"[x*_{10,-1,10}]">} : (tensor<38xf32>) -> tensor<38xf32>
  %4 = tensor.insert_slice %3 into %a[1] [38] [1] {dist.layouts = {operands = [#dist.layout<"[x*_{10,-1,10}]">, #dist.layout<"[x]">], results = [#dist.layout<"[x]">]}} : tensor<38xf32> into tensor<40xf32>
  return %4 : tensor<40xf32>
}
