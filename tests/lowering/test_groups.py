"""Products of rows of which each has one matrix of several are those of NumPy, and leave the other matrices out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from depth import sampled

import meshweave as mw

ROWS, GROUPS, DEPTH, COLUMNS = 17, 4, 8, 12
Array = np.ndarray[Any, Any]


def rows(a: Any, b: Any, inside: Any) -> Any:
    return mw.einsum("gmk,gkn->mn", mw.where(inside[:, :, None], a[None], 0.0), b)


def depth(a: Any, b: Any, inside: Any) -> Any:
    return mw.einsum("gmk,mn->gkn", mw.where(inside[:, :, None], a[None], 0.0), b)


def rows_of_numpy(a: Array, b: Array, inside: Array) -> Array:
    return np.einsum("gm,mk,gkn->mn", inside.astype(a.dtype), a, b)


def given(dtype: type = np.float32, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((ROWS, DEPTH)).astype(dtype)
    b = rng.standard_normal((GROUPS, DEPTH, COLUMNS)).astype(dtype)
    return a, b, sorted_rows((3, 0, 9, 5))


def sorted_rows(counts: tuple[int, ...]) -> Array:
    """Return which rows belong to which group, each group a run."""
    of = np.repeat(np.arange(GROUPS), counts)
    inside = np.zeros((GROUPS, ROWS), bool)
    inside[of, np.arange(len(of))] = True
    return inside


INSIDE = {
    "runs": sorted_rows((3, 0, 9, 5)),
    "one group": sorted_rows((0, 17, 0, 0)),
    "rows of none": sorted_rows((4, 4, 0, 1)),
    "nothing": np.zeros((GROUPS, ROWS), bool),
    "mixed": np.random.default_rng(1).integers(0, 2, (GROUPS, ROWS)).astype(bool),
}


@sampled(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("inside", INSIDE.values(), ids=INSIDE)
def test_rows_meet_their_own_matrices(inside: Array, dtype: type) -> None:
    a, b, _ = given(dtype)
    found = np.asarray(mw.jit(rows)(a, b, inside))
    np.testing.assert_allclose(found, rows_of_numpy(a, b, inside), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inside", INSIDE.values(), ids=INSIDE)
def test_a_part_of_the_depth_is_added_up(inside: Array) -> None:
    a, _, _ = given()
    b = np.random.default_rng(2).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    wanted = np.einsum("gm,mk,mn->gkn", inside.astype(np.float32), a, b)
    np.testing.assert_allclose(
        np.asarray(mw.jit(depth)(a, b, inside)), wanted, rtol=1e-4, atol=1e-5
    )


def test_matrices_without_rows_are_not_read() -> None:
    a, b, inside = given()
    b[1] = np.nan
    found = np.asarray(mw.jit(rows)(a, b, inside))
    np.testing.assert_allclose(
        found, rows_of_numpy(a, np.nan_to_num(b), inside), rtol=1e-4, atol=1e-5
    )


@sampled(1)
@pytest.mark.parametrize(
    ("mesh", "layouts"),
    [
        ("x=3", ("[x, _]", "[_, _, _]", "[_, _]")),
        ("x=3", ("[_, _]", "[x, _, _]", "[_, _]")),
        ("x=2", ("[_, x]", "[_, x, _]", "[_, _]")),
        ("x=3", ("[_, _]", "[_, _, x]", "[_, _]")),
        ("x=2, y=2", ("[x, _]", "[_, _, y]", "[_, x]")),
    ],
)
def test_each_rank_multiplies_its_part(mesh: str, layouts: tuple[str, ...]) -> None:
    a, b, inside = given()
    found = np.asarray(mw.jit(rows, mesh=mesh, in_layouts=layouts)(a, b, inside))
    np.testing.assert_allclose(found, rows_of_numpy(a, b, inside), rtol=1e-4, atol=1e-5)


def test_gradients_meet_their_own_matrices() -> None:
    a, b, inside = given()
    weights = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype(np.float32)

    def loss(a: Any, b: Any, inside: Any) -> Any:
        return mw.sum(rows(a, b, inside) * weights)

    by_a, by_b = (np.asarray(x) for x in mw.jit(mw.grad(loss, argnums=(0, 1)))(a, b, inside))
    kept = inside.astype(np.float32)
    np.testing.assert_allclose(
        by_a, np.einsum("gm,mn,gkn->mk", kept, weights, b), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        by_b, np.einsum("gm,mk,mn->gkn", kept, a, weights), rtol=1e-4, atol=1e-5
    )


def test_kernels_of_reference_compute_as_written() -> None:
    a, b, inside = given()
    with mw.kernels(only=("reference",)):
        found = np.asarray(mw.jit(rows)(a, b, inside))
    np.testing.assert_allclose(found, rows_of_numpy(a, b, inside), rtol=1e-4, atol=1e-5)
