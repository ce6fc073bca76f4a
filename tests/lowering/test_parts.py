"""The objects that a program is cut into."""

import sys

import numpy as np
import pytest
from depth import sampled
from lowering.harness import compile_text, run_ranks

from meshweave.lowering.cpu import codegen, parts

TEXT = """
!rows = tensor<300x200xf32>
!columns = tensor<200x300xf32>
!pair = tensor<2xf32>
!square = tensor<300x300xf32>
func.func @main(%a: !rows, %b: !columns) -> (!square, !rows, !pair) {
  %0 = tensor.empty() : !square
  %zero = arith.constant 0.0 : f32
  %1 = linalg.fill ins(%zero : f32) outs(%0 : !square) -> !square
  %2 = linalg.matmul ins(%a, %b : !rows, !columns) outs(%1 : !square) -> !square
  %3 = linalg.tanh ins(%2 : !square) outs(%0 : !square) -> !square
  %4 = tensor.empty() : !rows
  %c = arith.constant dense<[1.5, 2.0]> : !pair
  %5 = linalg.transpose ins(%b : !columns) outs(%4 : !rows) permutation = [1, 0]
  return %3, %5, %c : !square, !rows, !pair
}
"""


@sampled(1)
@pytest.mark.parametrize("ops", [1, 100])
def test_a_program_in_parts_computes_the_same(ops: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compile_text(TEXT)
    monkeypatch.setattr(parts, "PART_OPS", ops)
    cut = compile_text(TEXT)
    assert len(cut.objects) > len(whole.objects)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, np.float32) for s in [(300, 200), (200, 300)])
    results = [run_ranks(bundle, [[a, b]])[0] for bundle in (whole, cut)]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(results[1][2], [1.5, 2.0])
    np.testing.assert_allclose(results[1][0], np.tanh(a @ b), rtol=1e-4, atol=1e-5)


def test_no_wrapper_repeats_the_code_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    (program, *_) = compile_text(TEXT).objects
    assert b"mw_kernel_1" in program and b"_mlir_step" in program
    assert b"_mlir_mw_kernel" not in program
    monkeypatch.setattr(parts, "PART_OPS", 1)
    step, *kernels = compile_text(TEXT).objects
    assert b"_mlir_mw_kernel" not in step and b"_mlir_mw_kernel_0" in b"".join(kernels)
    assert sum(map(len, kernels)) < 2 * len(program)


def test_the_same_program_is_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_OPS", 50)
    assert compile_text(TEXT).objects == compile_text(TEXT).objects


def test_threads_take_short_turns_until_the_last_compile_is_done():
    before = sys.getswitchinterval()
    outer, inner = codegen._SWITCHING, codegen._SWITCHING
    with pytest.raises(ZeroDivisionError), outer:
        with inner:
            assert sys.getswitchinterval() < before
        assert sys.getswitchinterval() < before
        raise ZeroDivisionError
    assert sys.getswitchinterval() == before
