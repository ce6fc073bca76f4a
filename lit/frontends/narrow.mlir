// RUN: meshweave-opt %s | filecheck %s
// RUN: meshweave-opt %s | meshweave-opt | filecheck %s

// A float of 8 bits is its byte; its user sees what `dist.bits` says. Constants are bytes, moves move them.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: (%{{.*}}: tensor<4xi8> {dist.bits = "f8E4M3FN"}, %{{.*}}: tensor<4xi8> {dist.bits = "i4", dist.unsigned})
// CHECK-SAME: -> (tensor<4xf32>, tensor<4xi8> {dist.bits = "f8E4M3FN"}, tensor<4xi32>)
func.func public @main(%a: tensor<4xf8E4M3FN>, %n: tensor<4xi4> {dist.unsigned}) -> (tensor<4xf32>, tensor<4xf8E4M3FN>, tensor<4xi32>) {
  // CHECK-DAG: arith.constant dense<[56, -62, 127, 1]> : tensor<4xi8>
  %c = arith.constant dense<[1.0, -2.5, 0x7F, 0.001953125]> : tensor<4xf8E4M3FN>
  // CHECK-NOT: f8E4M3FN
  // CHECK-NOT: i4>
  %e = tensor.empty() : tensor<4xf32>
  // CHECK: linalg.generic
  // CHECK: arith.extui %{{.*}} : i8 to i32
  // CHECK: arith.bitcast %{{.*}} : i32 to f32
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%a : tensor<4xf8E4M3FN>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f8E4M3FN, %y: f32):
    %z = arith.extf %x : f8E4M3FN to f32
    linalg.yield %z : f32
  } -> tensor<4xf32>
  %f = tensor.empty() : tensor<4xf8E4M3FN>
  // CHECK: linalg.generic
  // CHECK: arith.addf %{{.*}} : f32
  // CHECK: arith.trunci %{{.*}} : i32 to i8
  %s = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%a, %c : tensor<4xf8E4M3FN>, tensor<4xf8E4M3FN>) outs(%f : tensor<4xf8E4M3FN>) {
  ^bb0(%x: f8E4M3FN, %y: f8E4M3FN, %o: f8E4M3FN):
    %z = arith.addf %x, %y : f8E4M3FN
    linalg.yield %z : f8E4M3FN
  } -> tensor<4xf8E4M3FN>
  %g = tensor.empty() : tensor<4xi32>
  // CHECK: arith.andi %{{.*}}, %{{.*}} : i8
  // CHECK: arith.extui %{{.*}} : i8 to i32
  %t = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%n : tensor<4xi4>) outs(%g : tensor<4xi32>) {
  ^bb0(%x: i4, %y: i32):
    %z = arith.extui %x : i4 to i32
    linalg.yield %z : i32
  } -> tensor<4xi32>
  return %r, %s, %t : tensor<4xf32>, tensor<4xf8E4M3FN>, tensor<4xi32>
}
