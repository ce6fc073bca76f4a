"""What the frontend makes of loops, branches, manual computations and their collectives."""

# ruff: noqa: E501 (lines of MLIR text)
from pathlib import Path

import numpy as np
import pytest
from frontends.execute import run

import meshweave
from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.frontends.load import load_module

DATA = Path(__file__).parents[1] / "data"


def text_of(source):
    """The loaded module as text."""
    return load_module(source, context()).operation.get_asm()


def manual(
    body, kind="tensor<2x4xf32>", ins='{"dp"}, {"tp"}', axes='"dp", "tp"', mesh='"dp"=2, "tp"=2'
):
    return f"""module {{
  sdy.mesh @mesh = <[{mesh}]>
  func.func public @main(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {{
    %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{ins}]>] out_shardings=[<@mesh, [{ins}]>] manual_axes={{{axes}}} (%x: {kind}) {{
      {body}
      sdy.return %r : {kind}
    }} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }}
}}
"""


def reduce_over(groups, op="add"):
    rows = len(groups)
    return f"""%r = "stablehlo.all_reduce"(%x) <{{replica_groups = dense<{groups}> : tensor<{rows}x{len(groups[0])}xi64>}}> ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %s = stablehlo.{op} %p, %q : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}) : (tensor<2x4xf32>) -> tensor<2x4xf32>"""


def permute(pairs):
    return f'%r = "stablehlo.collective_permute"(%x) <{{source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>}}> : (tensor<2x4xf32>) -> tensor<2x4xf32>'


def test_a_scan_counts_in_a_for_loop_and_a_condition_stays_a_while():
    assert "scf.for" in text_of(DATA / "scan.mlir") and "scf.while" not in text_of(
        DATA / "scan.mlir"
    )
    assert "scf.while" in text_of(DATA / "while_loop.mlir")
    assert text_of(DATA / "cond_switch.mlir").count("scf.if") == 3


def test_selections_are_orders_and_nothing_sorts_all():
    text = text_of(DATA / "top_k.mlir")
    assert "descending, dim = 1 : i64, total}" in text and "scf.for" not in text


def test_comparators_of_sorts_are_scalar_code():
    text = """module { func.func public @main(%k: tensor<13xi32>, %v: tensor<13xi32>) -> (tensor<13xi32>, tensor<13xi32>) {
  %0:2 = "stablehlo.sort"(%k, %v) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
      %x = stablehlo.add %a, %c : tensor<i32>
      %y = stablehlo.add %b, %d : tensor<i32>
      %s = stablehlo.compare LT, %x, %y : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %s : tensor<i1>
  }) : (tensor<13xi32>, tensor<13xi32>) -> (tensor<13xi32>, tensor<13xi32>)
  return %0#0, %0#1 : tensor<13xi32>, tensor<13xi32> } }"""
    loops = str(load_module(text, context())).split("scf.for", 1)[1]
    assert "linalg" not in loops


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ([[0, 1], [2, 3]], '["tp"]'),
        ([[2, 0], [3, 1]], '["dp"]'),  # the order of members is nothing to a sum
        ([[0, 1, 2, 3]], '["dp", "tp"]'),
        ([[0, 2, 1, 3]], '["tp", "dp"]'),
    ],
)
def test_groups_are_found_again_as_axes(groups, axes):
    text = text_of(manual(reduce_over(groups)))
    assert '"dist.all_reduce"(%' in text and f'{{axes = {axes}, kind = "sum"}}' in text


def test_groups_of_one_move_nothing():
    assert "all_reduce" not in text_of(manual(reduce_over([[0], [1], [2], [3]])))


def test_a_shift_without_wrap_around_leaves_zeros():
    text = text_of(manual(permute([[0, 1], [2, 3]])))
    assert "sources = [1, 0]}" in text and '"dist.axis_index"() {axes = ["tp"]}' in text
    assert "arith.select" in text


def test_an_axis_named_nowhere_may_be_left_out():
    text = manual(
        reduce_over([[0, 1], [2, 3]]), ins='{}, {"tp"}', kind="tensor<4x4xf32>", axes='"tp"'
    )
    assert "dist.manual" in text_of(text.replace("tensor<2x4xf32>", "tensor<4x4xf32>"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            manual(reduce_over([[0, 3], [1, 2]])),
            "are not those of any axes of the mesh (dp=2, tp=2)",
        ),
        (manual(reduce_over([[0, 1]])), "groups of 2 devices on a mesh of 4"),
        (
            manual(reduce_over([[0, 1], [2, 3]], op="power")),
            "its reduction (stablehlo.power) is none of",
        ),
        (manual(permute([[0, 7], [7, 0]])), "not the same permutation along any axes"),
        (
            manual("%r = stablehlo.negate %x : tensor<4x4xf32>", kind="tensor<4x4xf32>"),
            "operand 0 of shape [4, 8] in layout [dp, tp] is [2, 4] on a rank",
        ),
        (
            manual("%r = stablehlo.negate %x : tensor<2x4xf32>", axes='"tp"'),
            "operand 0 of shape [4, 8] in layout [_, tp] is [4, 4] on a rank",
        ),
        (
            manual('%r = sdy.sharding_constraint %x <@mesh, [{"dp"}, {}]> : tensor<2x4xf32>'),
            "whose values are local already",
        ),
        (
            manual("%r = stablehlo.negate %x : tensor<2x4xf32>", ins='{"dp"}, {"zz"}'),
            'no axis "zz"',
        ),
    ],
)
def test_what_has_no_words_is_refused(text, says):
    with pytest.raises(CompileError) as caught:
        load_module(text, context(), source_name="p.mlir")
    assert says in str(caught.value) and str(caught.value).startswith("p.mlir:")


def test_products_of_16_bit_floats_add_up_in_32():
    text = text_of(DATA / "bf16.mlir")
    assert "linalg.matmul" in text and "-> tensor<3x7xf32>" in text and "arith.truncf" in text


def test_unsigned_arguments_are_marked():
    assert "tensor<3x5xi8> {dist.unsigned}" in text_of(DATA / "unsigned.mlir")


def test_scatter_skips_what_lies_outside():
    module = load_module(
        """module { func.func public @main(%x: tensor<4xf32>, %i: tensor<3x1xi32>, %u: tensor<3xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.scatter"(%x, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) : (tensor<4xf32>, tensor<3x1xi32>, tensor<3xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32> } }""",
        context(),
    )
    at = np.array([[-1], [2], [4]], np.int32)
    (out,) = run(module, [np.zeros(4, np.float32), at, np.ones(3, np.float32)])
    assert out.tolist() == [0, 0, 1, 0]


def test_sort_is_stable_and_takes_any_length():
    text = """module { func.func public @main(%k: tensor<3x13xi32>, %v: tensor<3x13xi32>) -> (tensor<3x13xi32>, tensor<3x13xi32>) {
  %0:2 = "stablehlo.sort"(%k, %v) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
      %s = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %s : tensor<i1>
  }) : (tensor<3x13xi32>, tensor<3x13xi32>) -> (tensor<3x13xi32>, tensor<3x13xi32>)
  return %0#0, %0#1 : tensor<3x13xi32>, tensor<3x13xi32> } }"""
    keys = np.random.default_rng(0).integers(0, 4, (3, 13)).astype(np.int32)
    values = np.tile(np.arange(13, dtype=np.int32), (3, 1))
    order = np.argsort(keys, axis=1, kind="stable")
    got = run(load_module(text, context()), [keys, values])
    assert np.array_equal(got[0], np.sort(keys, axis=1)) and np.array_equal(got[1], order)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE"])
def test_triangular_systems_are_solved_from_every_side(lower, left, transpose):
    rng = np.random.default_rng(2)
    a = rng.normal(size=(2, 4, 4)) + 4 * np.eye(4)
    b = rng.normal(size=(2, 4, 3) if left else (2, 3, 4))
    shape = "x".join(map(str, b.shape))
    text = (
        f"module {{ func.func public @main(%a: tensor<2x4x4xf64>, %b: tensor<{shape}xf64>) -> tensor<{shape}xf64> {{\n"
        f'%0 = "stablehlo.triangular_solve"(%a, %b) {{left_side = {str(left).lower()}, lower = {str(lower).lower()}, '
        f"unit_diagonal = false, transpose_a = #stablehlo<transpose {transpose}>}} "
        f": (tensor<2x4x4xf64>, tensor<{shape}xf64>) -> tensor<{shape}xf64>\n"
        f"return %0 : tensor<{shape}xf64> }} }}"
    )
    with meshweave.compile(text) as program:
        (x,) = program(a, b)
    triangle = np.tril(a) if lower else np.triu(a)
    if transpose == "TRANSPOSE":
        triangle = triangle.swapaxes(1, 2)
    np.testing.assert_allclose(triangle @ x if left else x @ triangle, b, rtol=0, atol=1e-12)


def test_cholesky_reads_one_triangle():
    a = np.random.default_rng(2).normal(size=(4, 4))
    positive = a @ a.T + np.eye(4)
    for lower, given in ((True, np.tril(positive)), (False, np.triu(positive))):
        text = (
            "module { func.func public @main(%a: tensor<4x4xf64>) -> tensor<4x4xf64> {\n"
            f"%0 = stablehlo.cholesky %a, lower = {str(lower).lower()} : tensor<4x4xf64>\n"
            "return %0 : tensor<4x4xf64> } }"
        )
        with meshweave.compile(text) as program:
            (factor,) = program(given)
        right = np.linalg.cholesky(positive)
        np.testing.assert_allclose(factor, right if lower else right.T, rtol=0, atol=1e-12)


def test_a_sum_of_booleans_is_an_or():
    text = """func.func @main(%a: tensor<4xi1>, %b: tensor<4xi1>) -> (tensor<4xi1>, tensor<i1>) {
      %0 = stablehlo.add %a, %b : tensor<4xi1>
      %c = stablehlo.constant dense<false> : tensor<i1>
      %1 = stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = [0] : (tensor<4xi1>, tensor<i1>) -> tensor<i1>
      return %0, %1 : tensor<4xi1>, tensor<i1>
    }"""
    with meshweave.compile(text) as program:
        each, one = program(np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool))
    assert each.tolist() == [True, True, True, False] and bool(one)


def test_a_nan_is_infinite_where_no_mantissa_is_left():
    text = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.reduce_precision %a, format = e5m0 : tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    with meshweave.compile(text) as program:
        (found,) = program(np.array([np.nan, -np.inf, 1.5, 3], np.float32))
    assert found.tolist() == [np.inf, -np.inf, 2, 2]
