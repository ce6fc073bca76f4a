"""Products whose rows a call chooses have kernels for few rows, and a call takes the one for its rows."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.lowering.cpu import target
from meshweave.lowering.cpu.products import few
from meshweave.lowering.cpu.products.few import _groups, sized_units
from meshweave.lowering.nests.rows import KernelUnit

DEPTH, COLUMNS = 256, 520  # weights that no cache keeps from call to call
BF16 = ml_dtypes.bfloat16
TOLERANCE = {np.float32: 1e-5, BF16: 2e-2, np.float64: 1e-12}


def plain(x: Any, w: Any) -> Any:
    return x @ w


def transposed(x: Any, w: Any) -> Any:
    return x @ w.T


def batched(x: Any, w: Any) -> Any:
    return mw.maximum(x.reshape(-1, DEPTH) @ w, 0.0).reshape(x.shape[0], x.shape[1], COLUMNS)


def weights(function: Callable[..., Any], dtype: Any) -> np.ndarray:
    made = np.random.default_rng(0).standard_normal((DEPTH, COLUMNS)) / DEPTH**0.5
    return (made.T if function is transposed else made).astype(dtype)


def test_groups_are_those_of_a_program_for_the_size() -> None:
    assert _groups(1024) == [
        (1, 1), (2, 2), (3, 3), (4, 4), (6, 15), (8, 16), (9, 15), (16, 16),
    ]  # fmt: skip
    for bound in range(1, 40):
        for rows in range(1, min(bound, 16) + 1):
            size = next(size for most, size in _groups(bound) if rows <= most)
            group = -(-rows // -(-rows // 4))
            filled = -(-rows // group) * group
            assert size in (rows, bound) or (size % group == 0 and filled <= size <= bound)


@sampled(1)
@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("function", [plain, transposed])
def test_a_call_takes_the_kernel_for_its_rows(
    function: Callable[..., Any], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[list[few.SizedUnit], KernelUnit]] = []

    def noted(unit: KernelUnit) -> list[few.SizedUnit]:
        made = sized_units(unit)
        found.append((made, unit))
        return made

    monkeypatch.setattr(target, "sized_units", noted)
    w, n = weights(function, dtype), mw.Dim("n", max=300)
    f = mw.jit(function, dims={"x": (n, None)})
    x = np.random.default_rng(1).standard_normal((300, DEPTH)).astype(dtype)
    f(x, w)
    (made,) = [made for made, _ in found if made]
    assert [size.most for size in made] == [((0, most),) for most, _ in _groups(300)]
    before = f.cache_info().misses
    for rows in (1, 2, 3, 4, 5, 7, 9, 13, 16, 17, 33, 299):
        wanted = np.asarray(function(x[:rows].astype(np.float64), w.astype(np.float64)))
        got = np.asarray(f(x[:rows], w)).astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert f.cache_info().misses == before


@sampled(1)
@pytest.mark.parametrize(
    ("bound", "mesh", "layouts", "dtype"),
    [
        (5, None, None, np.float32),
        (11, None, None, np.float64),
        (16, "x=2", ("[_, _]", "[_, x]"), np.float32),
        (40, "x=2", ("[_, x]", "[x, _]"), BF16),
        (40, "x=2", ("[x, _]", "[_, _]"), np.float32),
    ],
)
def test_few_rows_are_right_for_every_bound_and_layout(
    bound: int, mesh: str | None, layouts: Any, dtype: Any
) -> None:
    w, n = weights(plain, dtype), mw.Dim("n", max=bound)
    settings: Any = {} if mesh is None else {"mesh": mesh, "in_layouts": layouts}
    f = mw.jit(plain, dims={"x": (n, None)}, **settings)
    for rows in range(1, min(bound, 18) + 1):
        x = np.random.default_rng(rows).standard_normal((rows, DEPTH)).astype(dtype)
        got = np.asarray(f(x, w)).astype(np.float64)
        wanted = x.astype(np.float64) @ w.astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_batch_and_length_that_are_few_together() -> None:
    w, b, n = weights(plain, np.float32), mw.Dim("b", max=6), mw.Dim("n", max=20)
    f = mw.jit(batched, dims={"x": (b, n, None)})
    for batch, rows in ((1, 1), (3, 1), (6, 1), (1, 7), (1, 20), (2, 3), (5, 19)):
        x = np.random.default_rng(batch).standard_normal((batch, rows, DEPTH), np.float32)
        got = np.asarray(f(x, w))
        np.testing.assert_allclose(got, np.maximum(x @ w, 0), rtol=1e-4, atol=1e-5)


def test_products_of_bf16_end_where_a_call_does() -> None:
    """What runs to the bound would read what lies there: here numbers of which sums are not finite."""
    n = mw.Dim("n", max=400)
    w = weights(plain, BF16)
    f = mw.jit(lambda x, w: mw.sum(mw.astype(x @ w, mw.float32), axis=0), dims={"x": (n, None)})
    x = np.full((400, DEPTH), 3e38).astype(BF16)
    f(x, w)
    few_rows = np.ones((33, DEPTH), np.float32).astype(BF16)
    wanted = (few_rows.astype(np.float64) @ w.astype(np.float64)).astype(BF16).astype(np.float64)
    np.testing.assert_allclose(np.asarray(f(few_rows, w)), wanted.sum(0), rtol=3e-2, atol=0.6)


@sampled(1)
@pytest.mark.parametrize("kernels", ["-gemm_bf16", "-gemm_bf16 -panels", "-blas"])
def test_other_kernels_of_bf16_end_too(kernels: str) -> None:
    n, w = mw.Dim("n", max=150), weights(plain, BF16)

    def hinted(x: Any, w: Any) -> Any:
        with mw.hint(kernels=kernels):
            return x @ w

    f = mw.jit(hinted, dims={"x": (n, None)})
    for rows in (1, 6, 31, 149, 150):
        x = np.random.default_rng(rows).standard_normal((rows, DEPTH)).astype(BF16)
        wanted = x.astype(np.float64) @ w.astype(np.float64)
        got = np.asarray(f(x, w)).astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)


GATHERED = """
#all = affine_map<(b, i, k) -> (b, i, k)>
#batch = affine_map<(b, i, k) -> (b)>
#rows = affine_map<(b, i, k) -> (b, i)>
func.func public @main(%a: tensor<3x4x4xf64>, %v: tensor<3x8xf64>, %starts: tensor<3xi32>) -> tensor<3x4xf64> {
  %zero = arith.constant 0.0 : f64
  %empty = tensor.empty() : tensor<3x4xf64>
  %none = linalg.fill ins(%zero : f64) outs(%empty : tensor<3x4xf64>) -> tensor<3x4xf64>
  %0 = linalg.generic {indexing_maps = [#all, #batch, #rows], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %starts : tensor<3x4x4xf64>, tensor<3xi32>) outs(%none : tensor<3x4xf64>) {
  ^bb0(%x: f64, %start: i32, %sum: f64):
    %b = linalg.index 0 : index
    %k = linalg.index 2 : index
    %first = arith.index_cast %start : i32 to index
    %place = arith.addi %first, %k : index
    %y = tensor.extract %v[%b, %place] : tensor<3x8xf64>
    %product = arith.mulf %x, %y : f64
    %next = arith.addf %sum, %product : f64
    linalg.yield %next : f64
  } -> tensor<3x4xf64>
  return %0 : tensor<3x4xf64>
}
"""


def test_rows_that_are_read_at_computed_places() -> None:
    """Each row of weights meets a part of a vector, whose start is a number of the program."""
    a, v = np.arange(48.0).reshape(3, 4, 4), np.arange(24.0).reshape(3, 8) ** 2
    starts = np.array([0, 2, 4], np.int32)
    with mw.compile(GATHERED) as program:
        (y,) = program(a, v, starts)
    wanted = [a[b] @ v[b, starts[b] : starts[b] + 4] for b in range(3)]
    np.testing.assert_allclose(y, wanted)
