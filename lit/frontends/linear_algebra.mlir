// RUN: meshweave-opt %s | filecheck %s
// RUN: meshweave-opt %s -p lower-collectives,fuse-kernels,plan-memory | filecheck %s --check-prefix=BUFFERS
// RUN: meshweave-opt %s -p "select-kernels{only=reference},lower-collectives,fuse-kernels" | filecheck %s --check-prefix=LOOPS
//
// Factorisations and triangular systems are routines of LAPACK, on a batch of matrices. Where the library may not be
// called they are loops over elements.

// CHECK-LABEL: func.func public @main
// CHECK: %[[FACTOR:.*]]:2 = "mw.lapack"(%arg0) {lower, routine = "potrf"}
// CHECK: "mw.lapack"(%[[FACTOR]]#0, %arg1) {lower, routine = "trsm_left", transposed}
// CHECK-NOT: stablehlo

// LU needs memory for its matrix transposed.
// BUFFERS: %[[WORK:.*]] = "mw.place"() {{.*}} memref<64xi8>
// BUFFERS: "mw.lapack"({{.*}}, %[[WORK]]) {outs = 3 : i64, routine = "getrf"} : (memref<4x4xf32{{.*}}>, {{.*}}, memref<64xi8>) -> ()

// LOOPS: scf.for
// LOOPS: math.sqrt
// LOOPS-NOT: mw.lapack
module {
  func.func public @main(%a: tensor<2x4x4xf32>, %b: tensor<2x4x3xf32>, %c: tensor<4x4xf32>)
      -> (tensor<2x4x4xf32>, tensor<2x4x3xf32>, tensor<4x4xf32>) {
    %0 = stablehlo.cholesky %a, lower = true : tensor<2x4x4xf32>
    %1 = "stablehlo.triangular_solve"(%0, %b) {left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose TRANSPOSE>} : (tensor<2x4x4xf32>, tensor<2x4x3xf32>) -> tensor<2x4x3xf32>
    %2:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%c) : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xi32>, tensor<i32>)
    return %0, %1, %2#0 : tensor<2x4x4xf32>, tensor<2x4x3xf32>, tensor<4x4xf32>
  }
}
