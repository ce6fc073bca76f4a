"""A constant whose numbers are places, as masks have them, is computed from places; any other is not."""

import pytest
from verify.pairs import compared, mesh

SHAPE = "tensor<3x4xf32>"
MAP = "affine_map<(d0, d1) -> (d0, d1)>"
LOOPS = f'indexing_maps = [{", ".join([MAP] * 3)}], iterator_types = ["parallel", "parallel"]'


def kept(number: str, table: str = "") -> str:
    """Elements where a number is less than 9: one that a body computes, or of a table."""
    given = (
        f"%t = arith.constant dense<{table}> : tensor<3x4xi32>"
        if table
        else "%t = arith.constant dense<0> : tensor<3x4xi32>"
    )
    return f"""
func.func @main(%a: {SHAPE}) -> {SHAPE} {{
  {given}
  %r = linalg.generic {{{LOOPS}}} ins(%a, %t : {SHAPE}, tensor<3x4xi32>) outs(%a : {SHAPE}) {{
  ^bb0(%in: f32, %of: i32, %out: f32):
    {number}
    %nine = arith.constant 9 : i32
    %zero = arith.constant 0.0 : f32
    %is = arith.cmpi slt, %n, %nine : i32
    %s = arith.select %is, %in, %zero : f32
    linalg.yield %s : f32
  }} -> {SHAPE}
  return %r : {SHAPE}
}}"""


COMPUTED = """%i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %four = arith.constant 4 : index
    %five = arith.constant 5 : index
    %rows = arith.muli %i, %four : index
    %both = arith.addi %rows, %j : index
    %all = arith.addi %both, %five : index
    %n = arith.index_cast %all : index to i32"""
GIVEN = "%c = arith.constant 0 : i32\n    %n = arith.addi %of, %c : i32"


@pytest.mark.parametrize(
    ("table", "is_proven"),
    [
        ("[[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]", True),
        ("[[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 8]]", False),
        ("[[5, 6, 7, 9], [8, 10, 11, 12], [13, 14, 15, 16]]", False),
        ("[[5, 7, 9, 11], [9, 11, 13, 15], [13, 15, 17, 19]]", False),
    ],
)
def test_a_table_of_places_is_these_places(table: str, is_proven: bool) -> None:
    found = compared(kept(COMPUTED), kept(GIVEN, table))
    assert bool(found.proven) == is_proven, found


def test_beyond_the_end_of_a_table_of_places_nothing_is_known() -> None:
    """Five places on two ranks: the sixth is padding, which the sum on a rank must not read."""

    def summed(layout: str, size: int, body: str) -> str:
        return (
            mesh("x=2")
            + f"""
func.func @main(%a: tensor<i32>) -> tensor<i32> {{
  %t = arith.constant dense<[0, 1, 2, 3, 4]> : tensor<5xi32>
  %l = arith.constant dense<0> : tensor<i32>
  {body}
  %s = linalg.reduce {{ arith.addi }} ins(%p : tensor<{size}xi32>) outs(%l : tensor<i32>) dimensions = [0]
  {layout}
}}"""
        )

    whole = summed("return %s : tensor<i32>", 5, "%p = arith.addi %t, %t : tensor<5xi32>")
    piece = (
        '%q = "dist.all_slice"(%t) {axes = ["x"], dim = 0 : i64} : (tensor<5xi32>) -> tensor<3xi32>'
    )
    reduced = '"dist.all_reduce"(%s) {axes = ["x"], kind = "sum"} : (tensor<i32>) -> tensor<i32>'
    both = f"%r = {reduced}\n  return %r : tensor<i32>"
    local = summed(both, 3, f"{piece}\n  %p = arith.addi %q, %q : tensor<3xi32>")
    found = compared(whole, local)
    assert not found.proven and not found.refuted, found
