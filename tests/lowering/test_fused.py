"""What is computed inside a kernel: places that a gather reads, long chains; not what several places would repeat."""

import numpy as np
import pytest
from depth import sampled
from lowering.harness import run_text

from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.ir.ops import ops_named, ops_where
from meshweave.pipeline import run_pipeline


def fused(text: str) -> tuple[int, int]:
    """How many launches a program of one rank has, and how many ops all its kernels."""
    text = f'"dist.mesh"() {{sym_name = "mesh", axes = "x=1"}} : () -> ()\n{text}'
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        run_pipeline(module, "lower-collectives,fuse-kernels")
        kernels = ops_named(module.operation, "mw.kernel")
        return len(ops_named(module.operation, "mw.launch")), sum(
            len(ops_where(kernel, lambda op: op.name.startswith("arith."))) for kernel in kernels
        )


GATHER = """
func.func @main(%t: tensor<{t}xf32>, %a: tensor<{n}xi32>, %b: tensor<{n}xi32>) -> tensor<{n}xf32> {{
  %c0 = arith.constant 0 : index
  %p = arith.addi %a, %b : tensor<{n}xi32>
  %q = tensor.expand_shape %p [[0, 1]] output_shape [{n}, 1] : tensor<{n}xi32> into tensor<{n}x1xi32>
  %e = tensor.empty() : tensor<{n}xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]}} ins(%a : tensor<{n}xi32>) outs(%e : tensor<{n}xf32>) {{
    ^bb0(%x: i32, %o: f32):
      %i = linalg.index 0 : index
      %k = tensor.extract %q[%i, %c0] : tensor<{n}x1xi32>
      %place = arith.index_cast %k : i32 to index
      %v = tensor.extract %t[%place] : tensor<{t}xf32>
      %f = arith.sitofp %x : i32 to f32
      %w = arith.addf %v, %f : f32
      linalg.yield %w : f32
  }} -> tensor<{n}xf32>
  return %r : tensor<{n}xf32>
}}
"""


@pytest.mark.parametrize("n", [1, 7, 33])
def test_places_that_a_gather_reads_are_computed_inside_it(n: int) -> None:
    rng = np.random.default_rng(n)
    table = rng.standard_normal(20).astype(np.float32)
    a, b = (rng.integers(0, 10, n).astype(np.int32) for _ in range(2))
    text = GATHER.format(t=20, n=n)
    np.testing.assert_array_equal(
        run_text(text, table, a, b)[0], table[a + b] + a.astype(np.float32)
    )
    assert fused(text)[0] == 1


def chain(steps: list[str], n: int) -> str:
    """A program that goes on from %0 step by step; `{k}` is the value so far, `{m}` the next one's number."""
    lines = [step.format(k=k, m=k + 1, n=n, t=f"tensor<{n}xf32>") for k, step in enumerate(steps)]
    head = f"func.func @main(%0: tensor<{n}xf32>) -> tensor<{n}xf32> {{"
    return "\n".join([head, *lines, f"return %{len(steps)} : tensor<{n}xf32>", "}"])


TWICE = "%{m} = arith.addf %{k}, %{k} : {t}"
SIZE = "%a{m} = math.absf %{k} : {t}\n%b{m} = arith.negf %{k} : {t}\n%{m} = arith.maximumf %a{m}, %b{m} : {t}"


def test_what_is_read_twice_at_one_place_counts_once() -> None:
    text = chain([SIZE, TWICE] * 12, 19)
    assert fused(text)[0] == 1
    x = np.random.default_rng(1).standard_normal(19).astype(np.float32)
    np.testing.assert_array_equal(run_text(text, x)[0], np.abs(x) * np.float32(1 << 12))


def test_long_chains_are_cut_into_few_kernels() -> None:
    launches, ops = fused(chain([TWICE] * 1000, 5))
    assert launches <= 4 and ops <= 2 * 1000


NEIGHBOURS = """
%l{m} = tensor.extract_slice %{k}[0] [{n}] [1] : tensor<{o}xf32> to tensor<{n}xf32>
%r{m} = tensor.extract_slice %{k}[1] [{n}] [1] : tensor<{o}xf32> to tensor<{n}xf32>
%s{m} = arith.subf %r{m}, %l{m} : tensor<{n}xf32>
%{m} = arith.mulf %s{m}, %s{m} : tensor<{n}xf32>"""


@pytest.mark.parametrize("levels", [1, 3, 6])
def test_what_neighbours_would_repeat_is_stored(levels: int) -> None:
    n = 40
    lines = [NEIGHBOURS.format(k=k, m=k + 1, o=n - k, n=n - k - 1) for k in range(levels)]
    left = f"tensor<{n - levels}xf32>"
    head = f"func.func @main(%0: tensor<{n}xf32>) -> {left} {{"
    text = "\n".join([head, *lines, f"return %{levels} : {left}", "}"])
    x = np.random.default_rng(levels).standard_normal(n).astype(np.float32)
    (made,) = run_text(text, x)
    for _ in range(levels):
        x = (x[1:] - x[:-1]) ** 2
    np.testing.assert_allclose(made, x, rtol=1e-6)
    assert fused(text)[1] <= 400 * levels


@sampled(1)
@pytest.mark.parametrize("count, launches", [(4, 1), (5, 1), (6, 2), (20, 4)])
def test_a_kernel_computes_few_functions(count: int, launches: int) -> None:
    text = chain(["%{m} = math.sin %{k} : {t}"] * count, 9)
    found, _ = fused(text)
    assert found == launches
    x = np.linspace(-2, 2, 9, dtype=np.float32)
    right = x
    for _ in range(count):
        right = np.sin(right)
    np.testing.assert_allclose(run_text(text, x)[0], right, rtol=1e-5)
