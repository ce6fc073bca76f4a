"""Bodies of linalg ops, read as expressions."""

from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Scalar, read_body
from meshweave.ir.ops import body_of, ops_named

FILL = """
func.func @f(%x: f32, %out: tensor<4xf32>) -> tensor<4xf32> {
  %0 = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      outs(%out : tensor<4xf32>) {
  ^bb0(%o: f32):
    linalg.yield %x : f32
  } -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_a_body_may_yield_a_value_from_outside() -> None:
    with context():
        module = ir.Module.parse(FILL)
        (generic,) = ops_named(module.operation, "linalg.generic")
        body = read_body(body_of(generic))
        assert isinstance(body.nodes[body.results[0]], Scalar)
