// RUN: meshweave-opt %s -p dist-propagate,dist-insert-redistribute | filecheck %s

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// The numbers of rows and of columns are counted twice: a rank needs those of its rows, and of all columns.
// CHECK-LABEL: func.func @below
// CHECK-NOT:   dist.redistribute
func.func @below(%a: tensor<8x8xi64> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x8xi1> {dist.layout = #dist.layout<"[x, _]">}) {
  %e = tensor.empty() : tensor<8xi64>
  %n = linalg.map outs(%e : tensor<8xi64>) (%o: i64) {
    %i = linalg.index 0 : index
    %c = arith.index_cast %i : index to i64
    linalg.yield %c : i64
  }
  %f = tensor.empty() : tensor<8x8xi64>
  %rows = linalg.broadcast ins(%n : tensor<8xi64>) outs(%f : tensor<8x8xi64>) dimensions = [1]
  %columns = linalg.broadcast ins(%n : tensor<8xi64>) outs(%f : tensor<8x8xi64>) dimensions = [0]
  %sum = arith.addi %a, %rows : tensor<8x8xi64>
  %0 = arith.cmpi slt, %sum, %columns : tensor<8x8xi64>
  return %0 : tensor<8x8xi1>
}
