// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition | filecheck %s
// A function of Python with effects runs on rank 0 alone: the others add its results, as integers, to zeros.

"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK: %[[MADE:.*]]:2 = "mw.host"(%{{.*}}) {effects, first, function = "draw", number = 7 : i64}
// CHECK: %[[ME:.*]] = "dist.axis_index"() {axes = ["x", "y"]}
// CHECK: %[[FIRST:.*]] = arith.cmpi eq, %[[ME]], %{{.*}} : index
// CHECK: %[[OWN:.*]] = arith.select %[[FIRST]], %[[MADE]]#0, %{{.*}} : tensor<5xi32>
// CHECK: "dist.all_reduce"(%[[OWN]]) {axes = ["x", "y"], kind = "sum"}
// CHECK-NOT: dist.all_reduce
func.func @main(%a: tensor<5xf32> {dist.layout = #dist.layout<"[x]">}) -> (tensor<5xi32> {dist.layout = #dist.layout<"[_]">}) {
  %0:2 = "mw.host"(%a) {number = 7 : i64, function = "draw", effects, first} : (tensor<5xf32>) -> (tensor<5xi32>, tensor<i8>)
  return %0#0 : tensor<5xi32>
}
