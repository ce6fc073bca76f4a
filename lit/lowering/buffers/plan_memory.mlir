// RUN: meshweave-opt %s -p lower-collectives,fuse-kernels,plan-memory | filecheck %s
// RUN: meshweave-opt %s -p lower-collectives,fuse-kernels | meshweave-opt - -p plan-memory | meshweave-opt - | filecheck %s

// Rows of a softmax run as one kernel; what dies inside it shares its place; the last result is the caller's buffer.

// CHECK-LABEL: func.func @main(%arg0: memref<8x16xf32>, %arg1: memref<8x16xf32>)
// CHECK-SAME:    attributes {mw.arena_bytes = [[BYTES:[0-9]+]] : i64, mw.outputs = 1 : i64}
// CHECK-DAG:     %[[M:.*]] = "mw.place"() {{.*}}lifetime = array<i64: 1, 1>, offset = {{[0-9]+}} : i64} : () -> memref<8xf32>
// CHECK:         "mw.fuse"() ({
// CHECK-NEXT:      "mw.launch"(%arg0, %{{.*}}) {kernel = @k0
// CHECK-NEXT:      "mw.launch"(
// CHECK-NEXT:      "mw.launch"(
// CHECK-NEXT:      "mw.launch"(%{{.*}}, %arg1) {kernel = @k3
// CHECK-NEXT:      "mw.yield"() : () -> ()
// CHECK-NEXT:    }) {rows = 1 : i64} : () -> ()
// CHECK-NEXT:    return
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %e = tensor.empty() : tensor<8x16xf32>
  %y = linalg.softmax dimension(1) ins(%x : tensor<8x16xf32>) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  return %y : tensor<8x16xf32>
}
