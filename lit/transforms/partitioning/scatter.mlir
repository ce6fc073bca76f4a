// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

#row = affine_map<(i, j) -> (i)>
#both = affine_map<(i, j) -> (i, j)>
#to = affine_map<(i, j, p) -> (p, j)>

// Each rank adds its own rows into a table of its own; the tables are added up.
// CHECK-LABEL: func.func @rows
// CHECK-SAME:    (%[[I:.*]]: tensor<32xi32>
// CHECK:         %[[PART:.*]] = "mw.scatter"(%[[I]], %{{.*}}, %{{.*}}) ({
// CHECK:         : (tensor<32xi32>, tensor<32x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
// CHECK:         "dist.all_reduce"(%[[PART]]) {axes = ["x"], kind = "sum"}
func.func @rows(%i: tensor<64xi32> {dist.layout = #dist.layout<"[x]">},
                %u: tensor<64x3xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<5x3xf32> {
  %t = arith.constant dense<0.0> : tensor<5x3xf32>
  %0 = "mw.scatter"(%i, %u, %t) ({
  ^bb0(%a: index, %b: index, %at: i32, %x: f32, %old: f32):
    %yes = arith.constant true
    %p = arith.index_cast %at : i32 to index
    %z = arith.addf %old, %x : f32
    "mw.yield"(%yes, %p, %z) : (i1, index, f32) -> ()
  }) {maps = [#row, #both, #to]} : (tensor<64xi32>, tensor<64x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
  return %0 : tensor<5x3xf32>
}

// A rank that has some rows of the table leaves the others out: places count from where its own begin.
// CHECK-LABEL: func.func @table
// CHECK-NOT:     dist.all
// CHECK-DAG:     %[[ME:.*]] = "dist.axis_index"() {axes = ["x"]}
// CHECK-DAG:     %[[FIRST:.*]] = arith.muli %[[ME]], %{{.*}} : index
// CHECK:         "mw.scatter"(
// CHECK:           %[[P:.*]] = arith.index_cast
// CHECK:           %[[OWN:.*]] = arith.subi %[[P]], %[[FIRST]] : index
// CHECK:           "mw.yield"(%{{.*}}, %[[OWN]], %{{.*}})
// CHECK:         : (tensor<4xi32>, tensor<4x3xf32>, tensor<25x3xf32>) -> tensor<25x3xf32>
func.func @table(%i: tensor<4xi32>, %u: tensor<4x3xf32>,
                 %t: tensor<50x3xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<50x3xf32> {
  %0 = "mw.scatter"(%i, %u, %t) ({
  ^bb0(%a: index, %b: index, %at: i32, %x: f32, %old: f32):
    %yes = arith.constant true
    %p = arith.index_cast %at : i32 to index
    %z = arith.addf %old, %x : f32
    "mw.yield"(%yes, %p, %z) : (i1, index, f32) -> ()
  }) {maps = [#row, #both, #to]} : (tensor<4xi32>, tensor<4x3xf32>, tensor<50x3xf32>) -> tensor<50x3xf32>
  return %0 : tensor<50x3xf32>
}

// The last of uneven parts has padding, which is no update.
// CHECK-LABEL: func.func @uneven
// CHECK:         "mw.scatter"(
// CHECK-NEXT:    ^bb0(%[[A:.*]]: index, %{{.*}}: index, %{{.*}}: i32,
// CHECK:           %[[AT:.*]] = arith.addi %[[A]], %{{.*}} : index
// CHECK:           %[[IN:.*]] = arith.cmpi ult, %[[AT]], %{{.*}} : index
// CHECK:           %[[HOLDS:.*]] = arith.andi %{{.*}}, %[[IN]] : i1
// CHECK:           "mw.yield"(%[[HOLDS]],
// CHECK:         : (tensor<33xi32>, tensor<33x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
func.func @uneven(%i: tensor<65xi32> {dist.layout = #dist.layout<"[x]">},
                  %u: tensor<65x3xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<5x3xf32> {
  %t = arith.constant dense<0.0> : tensor<5x3xf32>
  %0 = "mw.scatter"(%i, %u, %t) ({
  ^bb0(%a: index, %b: index, %at: i32, %x: f32, %old: f32):
    %yes = arith.constant true
    %p = arith.index_cast %at : i32 to index
    %z = arith.addf %old, %x : f32
    "mw.yield"(%yes, %p, %z) : (i1, index, f32) -> ()
  }) {maps = [#row, #both, #to]} : (tensor<65xi32>, tensor<65x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
  return %0 : tensor<5x3xf32>
}
