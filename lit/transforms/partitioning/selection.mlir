// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// Each rank selects of its own rows, all gather what they have selected, and select of that.
// CHECK-LABEL: func.func @largest
// CHECK-SAME:    ([[A:%[a-z0-9]+]]: tensor<2x3xi32>
// CHECK:         %[[OWN:.*]]:2 = linalg.reduce ins([[A]], %{{.*}} : tensor<2x3xi32>, tensor<2x3xi32>)
// CHECK:         %[[VALUE:.*]] = tensor.expand_shape %[[OWN]]#0
// CHECK:         %[[VALUES:.*]] = "dist.all_gather"(%[[VALUE]]) {axes = ["x"], dim = 0 : i64} : (tensor<1x3xi32>) -> tensor<4x3xi32>
// CHECK:         %[[PLACE:.*]] = tensor.expand_shape %[[OWN]]#1
// CHECK:         %[[PLACES:.*]] = "dist.all_gather"(%[[PLACE]]) {axes = ["x"], dim = 0 : i64} : (tensor<1x3xi32>) -> tensor<4x3xi32>
// CHECK:         linalg.generic {{.*}}iterator_types = ["reduction", "parallel"]{{.*}} ins(%[[VALUES]], %[[PLACES]] :
// CHECK:         arith.cmpi sgt
func.func @largest(%a: tensor<8x3xi32> {dist.layout = #dist.layout<"[x, _]">},
                   %p: tensor<8x3xi32> {dist.layout = #dist.layout<"[x, _]">}) -> (tensor<3xi32>, tensor<3xi32>) {
  %least = arith.constant dense<-2147483648> : tensor<3xi32>
  %none = arith.constant dense<0> : tensor<3xi32>
  %r:2 = linalg.reduce ins(%a, %p : tensor<8x3xi32>, tensor<8x3xi32>)
                       outs(%least, %none : tensor<3xi32>, tensor<3xi32>) dimensions = [0]
    (%x: i32, %i: i32, %y: i32, %j: i32) {
      %k = arith.cmpi sgt, %x, %y : i32
      %v = arith.select %k, %x, %y : i32
      %w = arith.select %k, %i, %j : i32
      linalg.yield %v, %w : i32, i32
    }
  return %r#0, %r#1 : tensor<3xi32>, tensor<3xi32>
}

// The place of the other is no selection: it matters how parts are grouped, and the rows are gathered.
// CHECK-LABEL: func.func @other
// CHECK:         "dist.all_gather"(%{{.*}}) {{.*}} : (tensor<2x3xi32>) -> tensor<8x3xi32>
// CHECK:         linalg.reduce ins(%{{.*}} : tensor<8x3xi32>, tensor<8x3xi32>)
func.func @other(%a: tensor<8x3xi32> {dist.layout = #dist.layout<"[x, _]">},
                 %p: tensor<8x3xi32> {dist.layout = #dist.layout<"[x, _]">}) -> (tensor<3xi32>, tensor<3xi32>) {
  %least = arith.constant dense<-2147483648> : tensor<3xi32>
  %none = arith.constant dense<0> : tensor<3xi32>
  %r:2 = linalg.reduce ins(%a, %p : tensor<8x3xi32>, tensor<8x3xi32>)
                       outs(%least, %none : tensor<3xi32>, tensor<3xi32>) dimensions = [0]
    (%x: i32, %i: i32, %y: i32, %j: i32) {
      %k = arith.cmpi sgt, %x, %y : i32
      %v = arith.select %k, %x, %y : i32
      %w = arith.select %k, %j, %i : i32
      linalg.yield %v, %w : i32, i32
    }
  return %r#0, %r#1 : tensor<3xi32>, tensor<3xi32>
}
