// RUN: meshweave-opt %s | filecheck %s
//
// A complex tensor is two real ones; an argument or result is one of both parts, of the same bytes, which a transform
// reads as it is.

// CHECK-LABEL: func.func public @main
// CHECK-SAME:    %arg0: tensor<4x6x2xf32> {dist.complex, dist.layout = #layout}) -> (tensor<4x6x2xf32> {dist.complex})
// CHECK:       %[[RE:.*]] = tensor.extract_slice %arg0[0, 0, 0] [4, 6, 1]
// CHECK:       %[[IM:.*]] = tensor.extract_slice %arg0[0, 0, 1] [4, 6, 1]
// CHECK:       %[[ROWS:.*]]:2 = "mw.fft"(%arg0) {dim = 1 : i64, kind = "fft", length = 6 : i64}
// CHECK:       "mw.fft"(%[[ROWS]]#0, %[[ROWS]]#1) {dim = 0 : i64, kind = "fft", length = 4 : i64}
// CHECK:       linalg.generic {{.*}} ins(%{{.*}}#0, %{{.*}}#1, %[[RE]], %[[IM]]
// CHECK:       arith.mulf
// CHECK:       arith.subf
// CHECK:       arith.select
// CHECK-NOT:   complex.
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%a: tensor<4x6xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x6xcomplex<f32>> {
    %0 = stablehlo.fft %a, type = FFT, length = [4, 6] : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xcomplex<f32>>
    %1 = stablehlo.multiply %0, %a : tensor<4x6xcomplex<f32>>
    return %1 : tensor<4x6xcomplex<f32>>
  }
}
