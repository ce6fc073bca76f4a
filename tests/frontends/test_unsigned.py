"""Unsigned integers of StableHLO go in and come out as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from depth import sampled

import meshweave as mw

TEXT = """
module {{
  {mesh}
  func.func @main(%a: tensor<5x{t}>{cut}, %b: tensor<5x{t}>) -> (tensor<5x{t}>, tensor<5xi1>, tensor<5x{s}>) {{
    %0 = stablehlo.divide %a, %b : tensor<5x{t}>
    %1 = stablehlo.compare LT, %a, %b : (tensor<5x{t}>, tensor<5x{t}>) -> tensor<5xi1>
    %2 = stablehlo.convert %a : (tensor<5x{t}>) -> tensor<5x{s}>
    return %0, %1, %2 : tensor<5x{t}>, tensor<5xi1>, tensor<5x{s}>
  }}
}}
"""
MESHES = {
    "": ("", ""),
    "x=2": ('sdy.mesh @m = <["x"=2]>', ' {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}'),
    "x=3": ('sdy.mesh @m = <["x"=3]>', ' {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}'),
}


@sampled(1)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_they_keep_their_kind(bits, mesh):
    declared, cut = MESHES[mesh]
    kind = np.dtype(f"uint{bits}")
    most = np.iinfo(kind).max
    a = np.array([0, 1, most // 2 + 1, most - 1, most], kind)
    b = np.array([3, 1, 1, most, 2], kind)
    text = TEXT.format(mesh=declared, cut=cut, t=f"ui{bits}", s=f"i{bits}")
    with mw.from_stablehlo(text) as program:
        quotient, less, signed = map(np.asarray, program(a, b))
        again = np.asarray(program(program(a, b)[0], b)[0])
        with pytest.raises(mw.MeshweaveError, match=f"dtype int{bits}, uint{bits} is right"):
            program(a.view(f"i{bits // 8}"), b)
    assert quotient.dtype == kind and np.array_equal(quotient, a // b)
    assert np.array_equal(less, a < b)
    assert signed.dtype == f"int{bits}" and np.array_equal(signed, a.view(f"i{bits // 8}"))
    assert np.array_equal(again, a // b // b)


def test_no_buffer_is_donated_between_signed_and_unsigned():
    text = """
    func.func @main(%a: tensor<4xui32> {tf.aliasing_output = 0 : i32}) -> tensor<4xi32> {
      %0 = stablehlo.convert %a : (tensor<4xui32>) -> tensor<4xi32>
      return %0 : tensor<4xi32>
    }"""
    with mw.from_stablehlo(text) as program:
        assert not program.bundle.manifest.donated
        (made,) = program(np.array([1, 2, 3, 2**32 - 1], np.uint32))
    assert np.asarray(made).tolist() == [1, 2, 3, -1]
