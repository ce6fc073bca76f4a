// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=4"} : () -> ()

// Each rank looks up what lies in its own rows; what lies in others' counts nothing.
// CHECK-LABEL: func.func @rows
// CHECK-SAME:    ([[T:%[a-z0-9]+]]: tensor<2x3xf32>
// CHECK:         %[[BEGIN:.*]] = arith.muli %{{.*}}, %c2
// CHECK:         linalg.generic
// CHECK:           %[[PLACE:.*]] = arith.minsi
// CHECK:           %[[HERE:.*]] = arith.subi %[[PLACE]], %[[BEGIN]] : index
// CHECK:           %[[MINE:.*]] = arith.cmpi ult, %[[HERE]], %{{.*}} : index
// CHECK:           %[[AT:.*]] = arith.select %[[MINE]], %[[HERE]], %{{.*}} : index
// CHECK:           %[[X:.*]] = tensor.extract [[T]][%[[AT]], %{{.*}}] : tensor<2x3xf32>
// CHECK:           arith.select %[[MINE]], %[[X]], %{{.*}} : f32
// CHECK:         "dist.all_reduce"(%{{.*}}) {axes = ["x"], kind = "sum"} : (tensor<2x3xf32>)
func.func @rows(%t: tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">}, %i: tensor<2xindex>) -> tensor<2x3xf32> {
  %0 = tensor.empty() : tensor<2x3xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%i : tensor<2xindex>) outs(%0 : tensor<2x3xf32>) {
  ^bb0(%p: index, %old: f32):
    %first = arith.constant 0 : index
    %last = arith.constant 7 : index
    %q = arith.maxsi %p, %first : index
    %place = arith.minsi %q, %last : index
    %j = linalg.index 1 : index
    %x = tensor.extract %t[%place, %j] : tensor<8x3xf32>
    linalg.yield %x : f32
  } -> tensor<2x3xf32>
  return %1 : tensor<2x3xf32>
}

// A place that may lie beyond the end is looked for in the whole.
// CHECK-LABEL: func.func @anywhere
// CHECK:         "dist.all_gather"(%{{.*}}) {{.*}} : (tensor<2x3xf32>) -> tensor<8x3xf32>
func.func @anywhere(%t: tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">}, %i: tensor<2xindex>) -> tensor<2x3xf32> {
  %0 = tensor.empty() : tensor<2x3xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%i : tensor<2xindex>) outs(%0 : tensor<2x3xf32>) {
  ^bb0(%p: index, %old: f32):
    %j = linalg.index 1 : index
    %x = tensor.extract %t[%p, %j] : tensor<8x3xf32>
    linalg.yield %x : f32
  } -> tensor<2x3xf32>
  return %1 : tensor<2x3xf32>
}

// The rank that has the row puts the slice there, the others put back what they have.
// CHECK-LABEL: func.func @put
// CHECK-SAME:    ([[T:%[a-z0-9]+]]: tensor<2x3xf32> {{.*}}, [[U:%[a-z0-9]+]]: tensor<1x3xf32>
// CHECK:         %[[AT:.*]] = arith.select %[[MINE:.*]], %{{.*}}, %{{.*}} : index
// CHECK:         %[[OLD:.*]] = tensor.extract_slice [[T]][%[[AT]], 0] [1, 3]
// CHECK:         linalg.generic {{.*}} ins([[U]], %[[OLD]] :
// CHECK:         tensor.insert_slice %{{.*}} into [[T]][%[[AT]], 0] [1, 3]
func.func @put(%t: tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">}, %u: tensor<1x3xf32>, %i: index)
    -> (tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %first = arith.constant 0 : index
  %last = arith.constant 7 : index
  %q = arith.maxsi %i, %first : index
  %p = arith.minsi %q, %last : index
  %r = tensor.insert_slice %u into %t[%p, 0] [1, 3] [1, 1] : tensor<1x3xf32> into tensor<8x3xf32>
  return %r : tensor<8x3xf32>
}
