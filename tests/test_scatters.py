"""Scatters over ranks, against plain loops of NumPy: dims of updates and of tensors, in even and uneven parts."""

import numpy as np
import pytest
from depth import sampled

from meshweave.dialects import lent_context
from meshweave.frontends.load import load_module
from meshweave.verification.check import verify
from tests.executed import on, partitioned, run

COMBINE = {
    "arith.addf": np.add,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.mulf": np.multiply,
    "set": lambda _, new: new,
}
RNG = np.random.default_rng(3)


def program(
    kind: str, rows: int, table: int, columns: int, layouts: tuple[str, str, str, str]
) -> str:
    """Rows of %u scattered into the rows of %t that %i says."""
    made = "%x" if kind == "set" else "%z"
    body = "" if kind == "set" else f"    %z = {kind} %old, %x : f32\n"
    i, u, t, r = layouts
    return f"""
func.func @main(%i: tensor<{rows}xi32> {{{i}}}, %u: tensor<{rows}x{columns}xf32> {{{u}}},
                %t: tensor<{table}x{columns}xf32> {{{t}}}) -> (tensor<{table}x{columns}xf32> {{{r}}}) {{
  %0 = "mw.scatter"(%i, %u, %t) ({{
  ^bb0(%a: index, %b: index, %at: i32, %x: f32, %old: f32):
    %yes = arith.constant true
    %p = arith.index_cast %at : i32 to index
{body}    "mw.yield"(%yes, %p, {made}) : (i1, index, f32) -> ()
  }}) {{maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j, p) -> (p, j)>]}}
    : (tensor<{rows}xi32>, tensor<{rows}x{columns}xf32>, tensor<{table}x{columns}xf32>) -> tensor<{table}x{columns}xf32>
  return %0 : tensor<{table}x{columns}xf32>
}}
"""


def given(rows: int, table: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, some outside, whole numbers to put there, and those that are there."""
    i = RNG.integers(-2, table + 2, rows).astype(np.int32)
    u, t = (RNG.integers(-3, 4, (n, columns)).astype(np.float32) for n in (rows, table))
    return i, u, t


def in_order(kind: str, i: np.ndarray, u: np.ndarray, t: np.ndarray) -> np.ndarray:
    made = t.copy()
    for place, row in zip(i, u, strict=True):
        if 0 <= place < len(t):
            made[place] = COMBINE[kind](made[place], row)
    return made


MESHES = {
    "x=1": [("[x]", "[x, _]", "[_, _]", "[_, _]")],
    "x=2": [
        ("[x]", "[x, _]", "[_, _]", "[_, _]"),
        ("[_]", "[_, _]", "[x, _]", "[x, _]"),
        ("[x]", "[x, _]", "[x, _]", "[x, _]"),
        ("[_]", "[_, x]", "[_, x]", "[_, x]"),
    ],
    "x=2, y=2": [
        ("[x]", "[x, _]", "[y, _]", "[y, _]"),
        ("[x]", "[x, y]", "[_, y]", "[_, y]"),
        ("[y*x]", "[y*x, _]", "[_, x*y]", "[x, y]"),
        ("[_]", "[y, x]", "[x*y, _]", "[y, x]"),
    ],
}


@sampled(4)
@pytest.mark.parametrize("kind", COMBINE)
@pytest.mark.parametrize("mesh", MESHES)
def test_updates_and_tensors_in_any_parts(mesh: str, kind: str) -> None:
    for number, layouts in enumerate(MESHES[mesh]):
        sizes = [(9, 7, 5), (1, 6, 4), (64, 3, 4), (5, 1, 1)][number % 4]
        i, u, t = given(*sizes)
        (made,) = run(mesh, program(kind, *sizes, layouts), i, u, t)
        np.testing.assert_array_equal(made, in_order(kind, i, u, t))


@pytest.mark.parametrize("sizes", [(0, 3, 2), (3, 2, 0)])
def test_no_updates(sizes: tuple[int, int, int]) -> None:
    i, u, t = given(*sizes)
    layouts = ("[_]", "[_, _]", "[_, _]", "[_, _]")
    (made,) = run("x=2", program("arith.addf", *sizes, layouts), i, u, t)
    np.testing.assert_array_equal(made, in_order("arith.addf", i, u, t))


def test_numbers_that_are_none_stay_where_they_are() -> None:
    i = np.array([0, 2, 2, 0], np.int32)
    u = np.array([[np.nan], [-0.0], [np.inf], [1.0]], np.float32)
    t = np.array([[1.0], [-0.0], [-np.inf], [np.nan]], np.float32)
    for kind in ("arith.addf", "arith.maximumf"):
        text = program(kind, 4, 4, 1, ("[x]", "[x, _]", "[_, _]", "[_, _]"))
        (made,) = run("x=2", text, i, u, t)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(made, in_order(kind, i, u, t))


PARTS = {
    "rows": ("[x]", "[x, _]", "[_, _]", "[_, _]"),
    "table": ("[_]", "[_, _]", "[x, _]", "[x, _]"),
    "columns": ("[_]", "[_, x]", "[_, x]", "[_, x]"),
}


def status(whole: str, local: str) -> int:
    with lent_context() as ctx, ctx:
        return verify(load_module(whole, ctx), load_module(local, ctx)).status


@sampled(1)
@pytest.mark.parametrize("kind", ["arith.addf", "arith.maximumf", "set"])
@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_proven_and_a_wrong_one_is_not(part: str, kind: str) -> None:
    text = program(kind, 65, 51, 5, PARTS[part])
    local = partitioned("x=2", text)
    assert status(on("x=2", text), local) == 0
    wrongs = {
        "arith.subi": "arith.addi",  # places counted from the wrong end
        "arith.andi %true": "arith.ori %true",  # padding is an update
        "arith.index_cast": "arith.index_castui",
        'kind = "sum"': 'kind = "max"',
    }
    found = [local.replace(a, b) for a, b in wrongs.items() if a in local]
    assert found and all(status(on("x=2", text), wrong) != 0 for wrong in found)


SINGLE = [
    ("[_, y, x]", "[x*y, _]", "[_, y, _]"),
    ("[_, x, y]", "[x*y, _]", "[_, _, y]"),
    ("[_, y, x]", "[_, y]", "[x, _, y]"),
    ("[_, _, _]", "[_, _]", "[_, x, y]"),
]


@sampled(1)
@pytest.mark.parametrize("layouts", SINGLE)
def test_a_single_window_at_a_place_that_is_written_out(layouts: tuple[str, str, str]) -> None:
    """No loop is around the choice whether it is made, which has one buffer all the same."""
    x, u, r = layouts
    text = f"""
func.func public @main(%x: tensor<1x2x3xf32> {{{x}}}, %u: tensor<1x3xf32> {{{u}}}) -> (tensor<1x2x3xf32> {{{r}}}) {{
  %c = stablehlo.constant dense<1> : tensor<1xi64>
  %0 = "stablehlo.scatter"(%x, %c, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<
      update_window_dims = [0, 1], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1]>}}> ({{
  ^bb0(%old: tensor<f32>, %new: tensor<f32>):
    %1 = stablehlo.maximum %old, %new : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) : (tensor<1x2x3xf32>, tensor<1xi64>, tensor<1x3xf32>) -> tensor<1x2x3xf32>
  return %0 : tensor<1x2x3xf32>
}}
"""
    old = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    new = np.array([[9, 1, 7]], np.float32)
    (made,) = run("x=2, y=2", text, old, new)
    np.testing.assert_array_equal(made, [[[0, 1, 2], [9, 4, 7]]])
