// RUN: meshweave-opt %s -p dist-report 2>&1 | filecheck %s
// RUN: meshweave-opt %s -p "dist-specialize-mesh{sizes=N=3},dist-legalize-redistribute" | filecheck %s --check-prefix=NUMBERS
// RUN: not meshweave-opt %s -p "dist-specialize-mesh{sizes=N=3},dist-report" 2>&1 | filecheck %s --check-prefix=CONCRETE

// CHECK: remark: mesh (x=N, y=2): redistributes receive 24*ceil(8/N)*(N - 1) + 40*ceil(8/N) bytes in 2 launches,
// CHECK-SAME: peak max(4*(6*ceil(8/N) + 48), 80*ceil(8/N)) bytes; exact for N=2; N=4; N=8
// At N=3: 24*3*2 and 40*3.
// NUMBERS: bytes = 144 : i64
// NUMBERS: bytes = 120 : i64
// CONCRETE: mesh (x=3, y=2) has no symbolic size: plans state their bytes
"dist.mesh"() {sym_name = "mesh", axes = "x=N, y=2"} : () -> ()
func.func @two(%a: tensor<8x6xf32>, %b: tensor<8x10xf32>) -> (tensor<8x6xf32>, tensor<8x10xf32>) {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, _]">} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %s = "dist.redistribute"(%b) {source = #dist.layout<"[x, _] +sum(y)">, target = #dist.layout<"[x, _]">} : (tensor<8x10xf32>) -> tensor<8x10xf32>
  return %r, %s : tensor<8x6xf32>, tensor<8x10xf32>
}
