// RUN: meshweave-opt %s -p lower-collectives | filecheck %s
// RUN: meshweave-opt %s -p lower-collectives | meshweave-opt - -p canonicalize | filecheck %s
// RUN: meshweave-opt %s -p lower-collectives{engine=mpi} | filecheck %s --check-prefix=MPI

// One module, since a program has one mesh: a function for each case.

// The program's interface; the groups are numbered in the order in which they are met.
// CHECK: "mw.program"() {engine = "local", exchanges = [], groups = {{\[\["y"\], \["x"\]\]}}, inputs = [{dtype = "f32", global_shape = array<i64: 8, 4>, layout = "[x, _]", local_shape = array<i64: 4, 4>, name = "arg0"}], mesh = "x=2, y=3"
// MPI: "mw.program"() {engine = "mpi", exchanges = [{axes = ["x"], shape = array<i64: 4, 8>, source = "[_, x]", staging = 64 : i64, target = "[_, _]", width = 4 : i64}], groups
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()

// A collective writes the tensor that it is given last.
// CHECK-LABEL: func.func @main
// CHECK:         %[[E:.*]] = tensor.empty() : tensor<4x4xf32>
// CHECK:         "mw.collective"(%arg0, %[[E]]) {{.*}}symbol = "mw_all_reduce_sum_f32", title = "all_reduce[y] f32 4x4"
// CHECK-SAME:      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
func.func @main(%a: tensor<4x4xf32> {dist.layout = #dist.layout<"[x, _]">, dist.global = tensor<8x4xf32>})
    -> (tensor<4x4xf32> {dist.layout = #dist.layout<"[x, _]">, dist.global = tensor<8x4xf32>}) {
  %0 = "dist.all_reduce"(%a) {axes = ["y"], kind = "sum"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// Ranks that see each other's memory gather columns where they belong; others exchange messages: the program
// says from which layout to which, and each rank knows its part.
// CHECK-LABEL: func.func @columns
// CHECK:         "mw.collective"({{.*}}symbol = "mw_all_gather_box"
// MPI-LABEL:   func.func @columns
// MPI:           "mw.collective"({{.*}}exchange = 0 : i64{{.*}}symbol = "mw_exchange"
func.func @columns(%a: tensor<4x4xf32>) -> tensor<4x8xf32> {
  %0 = "dist.all_gather"(%a) {axes = ["x"], dim = 1 : i64} : (tensor<4x4xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// This rank's number in a group is asked for once.
// CHECK-LABEL: func.func @member
// CHECK:         %[[M:.*]] = "mw.member"() {group = 1 : i64} : () -> index
// CHECK-NEXT:    return %[[M]]
func.func @member() -> index {
  %0 = "dist.axis_index"() {axes = ["x"]} : () -> index
  return %0 : index
}

// A collective marked by dist-overlap starts where it stands and is waited for before its first reader.
// CHECK-LABEL: func.func @early
// CHECK:         %[[S:.*]] = "mw.start"(%arg0, %{{.*}}sent = 64 : i64{{.*}}ticket = 0 : i64
// CHECK:         math.exp %arg1
// CHECK:         %[[W:.*]] = "mw.wait"(%arg0, %[[S]]) {ticket = 0 : i64}
// CHECK-NEXT:    arith.addf %[[W]]
func.func @early(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "dist.all_reduce"(%a) {axes = ["y"], kind = "sum", dist.early} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = math.exp %b : tensor<4x4xf32>
  %2 = arith.addf %0, %1 : tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}
