"""What `mw.kernel` on an op asks of the lowering: the library, our loops, or every op as written."""

import numpy as np
import pytest

import meshweave
from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.lowering.cpu.target import bundle_of, lower

N = 48
T = f"tensor<{N}x{N}xf32>"


def program(kernel: str) -> str:
    """A product, then exp and the sum of each row, under one choice."""
    attrs = f'{{mw.kernel = "{kernel}"}}' if kernel else ""
    return f"""
func.func @main(%a: {T}, %b: {T}) -> ({T}, tensor<{N}xf32>) {{
  %c0 = arith.constant 0.0 : f32
  %e = tensor.empty() : {T}
  %r = tensor.empty() : tensor<{N}xf32>
  %z = linalg.fill ins(%c0 : f32) outs(%e : {T}) -> {T}
  %zr = linalg.fill ins(%c0 : f32) outs(%r : tensor<{N}xf32>) -> tensor<{N}xf32>
  %p = linalg.matmul {attrs} ins(%a, %b : {T}, {T}) outs(%z : {T}) -> {T}
  %x = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}} ins(%p : {T}) outs(%zr : tensor<{N}xf32>) attrs = {attrs or "{}"} {{
    ^bb0(%v: f32, %acc: f32):
      %w = math.exp %v : f32
      %s = arith.addf %acc, %w : f32
      linalg.yield %s : f32
  }} -> tensor<{N}xf32>
  return %p, %x : {T}, tensor<{N}xf32>
}}"""


def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(-1, 1, (N, N)).astype(np.float32) for _ in range(2)]


def in_order(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product with every sum from first to last, each step rounded."""
    total = np.zeros((N, N), np.float32)
    for k in range(N):
        total = total + a[:, k : k + 1] * b[k : k + 1, :]
    return total


@pytest.mark.parametrize("kernel", ["", "blas", "codegen", "reference"])
def test_every_choice_computes_the_same(kernel: str) -> None:
    a, b = arguments()
    with meshweave.compile(program(kernel)) as compiled:
        product, sums = compiled(a, b)
    np.testing.assert_allclose(product, a @ b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sums, np.exp(a @ b).sum(1), rtol=1e-4)


def test_reference_does_every_op_as_written() -> None:
    a, b = arguments()
    with meshweave.compile(program("reference")) as compiled:
        product, _ = compiled(a, b)
    np.testing.assert_array_equal(product, in_order(a, b))


def test_only_blas_calls_the_library() -> None:
    def libraries(kernel: str) -> tuple[str, ...]:
        ctx = context()
        with ctx, ir.Location.unknown():
            return bundle_of(lower(ir.Module.parse(program(kernel)))).manifest.libraries

    assert "openblas" in libraries("") and "openblas" in libraries("blas")
    assert "openblas" not in libraries("codegen") and "openblas" not in libraries("reference")


def test_a_kernel_that_does_not_exist_is_refused() -> None:
    ctx = context()
    with ctx, ir.Location.unknown(), pytest.raises(CompileError, match=r'no kernel "blass"'):
        lower(ir.Module.parse(program("blass")))
