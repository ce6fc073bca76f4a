// A loop whose number of trips nobody knows.
func.func public @main(%a: tensor<4xi32>, %c: tensor<i1>) -> tensor<4xi32> {
  %r = scf.while (%x = %a) : (tensor<4xi32>) -> tensor<4xi32> {
    %go = tensor.extract %c[] : tensor<i1>
    scf.condition(%go) %x : tensor<4xi32>
  } do {
  ^bb0(%x: tensor<4xi32>):
    %y = arith.addi %x, %x : tensor<4xi32>
    scf.yield %y : tensor<4xi32>
  }
  return %r : tensor<4xi32>
}
