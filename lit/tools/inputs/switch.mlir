// An op that the check has no rule for, on two ranks: on one, programs written alike need none.
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func public @main(%a: tensor<4xi32>, %n: tensor<index>) -> tensor<4xi32> {
  %k = tensor.extract %n[] : tensor<index>
  %r = scf.index_switch %k -> tensor<4xi32>
  case 1 {
    %y = arith.addi %a, %a : tensor<4xi32>
    scf.yield %y : tensor<4xi32>
  }
  default {
    scf.yield %a : tensor<4xi32>
  }
  return %r : tensor<4xi32>
}
