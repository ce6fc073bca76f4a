"""Padded tensors against NumPy: what is inside and each border are written once."""

from __future__ import annotations

import numpy as np
import pytest
from depth import sampled
from lowering.harness import DTYPES, run_text

from meshweave.dialects import context
from meshweave.dialects.alias import module_text
from meshweave.ir.bindings import ir
from meshweave.lowering import stages

BITS = {**DTYPES, "bf16": np.uint16}  # bf16 as its bits: moved about, they stay what they are
SHAPES = [
    ((5,), (1,), (2,)),
    ((20000,), (0,), (3,)),
    ((3, 7000), (2, 0), (0, 5)),
    ((129, 131), (3, 4), (5, 6)),
    ((1, 9, 2000), (1, 0, 2), (0, 1, 1)),
    ((200, 0), (1, 60), (2, 70)),
    ((4, 30, 33, 8), (0, 1, 1, 0), (0, 1, 1, 0)),
    ((128, 128), (0, 0), (0, 0)),
]


def padded(shape, low, high, dtype, body=""):
    """A program that pads its argument, which is put into `body` first, by its second argument."""
    whole = [a + n + b for a, n, b in zip(low, shape, high)]
    small, large = (f"tensor<{''.join(f'{n}x' for n in sizes)}{dtype}>" for sizes in (shape, whole))
    indices = ", ".join(f"%i{k}: index" for k in range(len(shape)))
    return f"""func.func @main(%a: {small}, %v: tensor<{dtype}>) -> {large} {{
  %z = tensor.extract %v[] : tensor<{dtype}>
  {body.format(kind=small) or f"%x = tensor.cast %a : {small} to {small}"}
  %p = tensor.pad %x low{list(low)} high{list(high)} {{
    ^bb0({indices}):
    tensor.yield %z : {dtype} }} : {small} to {large}
  return %p : {large}
}}"""


@sampled(3)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("shape, low, high", SHAPES)
def test_pads(shape, low, high, dtype):
    rng = np.random.default_rng(len(shape))
    a = rng.integers(0, 2 if dtype == "i1" else 100, shape).astype(BITS[dtype])
    value = np.array(1 if dtype == "i1" else 77, BITS[dtype])
    (got,) = run_text(padded(shape, low, high, dtype), a, value)
    want = np.pad(a, list(zip(low, high)), constant_values=value)
    np.testing.assert_array_equal(got.view(want.dtype), want)


def test_what_is_padded_is_computed_in_its_place():
    text = padded((300, 200), (1, 2), (3, 4), "f32", "%x = math.exp %a : {kind}")
    a = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    (got,) = run_text(text, a, np.float32(-1))
    want = np.pad(np.exp(a.astype(np.float64)), ((1, 3), (2, 4)), constant_values=-1)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_what_is_made_in_its_place_is_not_copied_there() -> None:
    """A reflected pad: its left part is computed where it belongs."""
    text = """#back = affine_map<(i, j) -> (i, 2 - j)>
#same = affine_map<(i, j) -> (i, j)>
func.func @main(%a: tensor<50x70xf32>) -> tensor<50x76xf32> {
  %e = tensor.empty() : tensor<50x3xf32>
  %l = tensor.extract_slice %a[0, 1] [50, 3] [1, 1] : tensor<50x70xf32> to tensor<50x3xf32>
  %r = tensor.extract_slice %a[0, 66] [50, 3] [1, 1] : tensor<50x70xf32> to tensor<50x3xf32>
  %left = linalg.generic {indexing_maps = [#back, #same], iterator_types = ["parallel", "parallel"]}
      ins(%l : tensor<50x3xf32>) outs(%e : tensor<50x3xf32>) {
    ^bb0(%x: f32, %y: f32): linalg.yield %x : f32 } -> tensor<50x3xf32>
  %right = linalg.generic {indexing_maps = [#back, #same], iterator_types = ["parallel", "parallel"]}
      ins(%r : tensor<50x3xf32>) outs(%e : tensor<50x3xf32>) {
    ^bb0(%x: f32, %y: f32): linalg.yield %x : f32 } -> tensor<50x3xf32>
  %p = tensor.concat dim(1) %left, %a, %right
      : (tensor<50x3xf32>, tensor<50x70xf32>, tensor<50x3xf32>) -> tensor<50x76xf32>
  return %p : tensor<50x76xf32>
}"""
    a = np.random.default_rng(0).standard_normal((50, 70)).astype(np.float32)
    np.testing.assert_array_equal(run_text(text, a)[0], np.pad(a, ((0, 0), (3, 3)), "reflect"))
    with context(), ir.Location.unknown():
        mesh = '"dist.mesh"() {sym_name = "mesh", axes = "x=1"} : () -> ()\n'
        module = ir.Module.parse(text.replace("func.func", f"{mesh}func.func"))
        found = module_text(stages.lowered_to(stages.BUFFERS, module, "local"))
    assert found.count("memref.copy") == 1
