"""Forms of which upstream makes wrong programs, silently or not: ours are right.

A test that shows upstream's fault fails when upstream is mended: what we do about the form can go.
"""

import numpy as np
import pytest

import meshweave as mw
from meshweave.dialects import context
from meshweave.ir.bindings import PassManager, ir

GAPS = """func.func @main(%a: tensor<2xf32>) -> tensor<7xf32> {
  %c = arith.constant 0.0 : f32
  %p = tensor.pad %a low[1] high[1] {
  ^bb0(%i: index):
    tensor.yield %c : f32
  } : tensor<2xf32> to tensor<4xf32>
  %e = tensor.empty() : tensor<7xf32>
  %f = linalg.fill ins(%c : f32) outs(%e : tensor<7xf32>) -> tensor<7xf32>
  %r = tensor.insert_slice %p into %f[0] [4] [2] : tensor<4xf32> into tensor<7xf32>
  return %r : tensor<7xf32>
}
"""
PADS = """func.func @main(%a: tensor<2xf32>) -> tensor<7xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.pad %a, %c, low = [1], high = [1], interior = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<4xf32>
  %r = stablehlo.pad %p, %c, low = [0], high = [0], interior = [1] : (tensor<4xf32>, tensor<f32>) -> tensor<7xf32>
  return %r : tensor<7xf32>
}
"""


def test_upstream_puts_what_is_padded_into_gaps_where_there_are_none() -> None:
    with context(), ir.Location.unknown():
        module = ir.Module.parse(GAPS)
        PassManager.parse("builtin.module(canonicalize)").run(module.operation)
        assert "into %1[1] [2] [2]" in str(module)


@pytest.mark.parametrize("text", [GAPS, PADS])
def test_what_is_padded_may_have_gaps(text: str) -> None:
    with mw.compile(text) as program:
        (found,) = program(np.array([1, 2], np.float32))
    np.testing.assert_array_equal(found, [0, 0, 1, 0, 2, 0, 0])


BROADCASTS = [
    ((1,), (1, 2), (1,)),
    ((1,), (1, 1, 2), (2,)),
    ((1, 1), (1, 1, 2), (1, 2)),
    ((1,), (3, 2), (1,)),
    ((1, 3), (1, 2, 3), (1, 2)),
    ((3, 1), (1, 3, 2), (1, 2)),
    ((1, 1), (2, 4), (0, 1)),
]


@pytest.mark.parametrize("dtype", ["f32", "ui8", "i1"])
def test_dims_of_one_element_become_longer(dtype: str) -> None:
    def tensor(shape: tuple[int, ...]) -> str:
        return f"tensor<{'x'.join(map(str, shape))}x{dtype}>"

    given = ", ".join(f"%a{i}: {tensor(s)}" for i, (s, _, _) in enumerate(BROADCASTS))
    lines = [
        f"%r{i} = stablehlo.broadcast_in_dim %a{i}, dims = {list(dims)} : ({tensor(s)}) -> {tensor(r)}"
        for i, (s, r, dims) in enumerate(BROADCASTS)
    ]
    results = ", ".join(tensor(r) for _, r, _ in BROADCASTS)
    names = ", ".join(f"%r{i}" for i in range(len(BROADCASTS)))
    text = f"func.func @main({given}) -> ({results}) {{\n" + "\n".join(lines)
    kind = {"f32": np.float32, "ui8": np.uint8, "i1": np.bool_}[dtype]
    values = [(np.arange(np.prod(s)).reshape(s) + 201).astype(kind) for s, _, _ in BROADCASTS]
    with mw.compile(f"{text}\nreturn {names} : {results}\n}}\n") as program:
        found = program(*values)
    for value, y, (_, result, dims) in zip(values, found, BROADCASTS, strict=True):
        shape = [1] * len(result)
        for n, d in zip(value.shape, dims, strict=True):
            shape[d] = n
        np.testing.assert_array_equal(y, np.broadcast_to(value.reshape(shape), result))
