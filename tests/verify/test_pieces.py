"""Tensors that are put together slice by slice: where the rank says, with a stride, at places that are computed."""

import numpy as np
import pytest
from verify.pairs import compared, mesh, texts

import meshweave as mw
from meshweave.errors import CompileError
from meshweave.verification.terms.indices import Expr, Var, of_var, plus
from meshweave.verification.terms.pieces import concat, narrowed, reached
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import Node, Term, Terms, dim_var

GATHERED = """
func.func @main(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[_, _]">}) { return %a : tensor<8x6xf32> }
"""
RING = """
func.func @main(%a: tensor<4x6xf32> {dist.global = tensor<8x6xf32>, dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x6xf32> {dist.global = tensor<8x6xf32>, dist.layout = #dist.layout<"[_, _]">}) {
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %rows = arith.constant 4 : index
  %e = tensor.empty() : tensor<8x6xf32>
  %x = "dist.axis_index"() {axes = ["x"]} : () -> index
  %at = arith.muli %x, %rows : index
  %m = tensor.insert_slice %a into %e[%at, 0] [4, 6] [1, 1] : tensor<4x6xf32> into tensor<8x6xf32>
  %b = "dist.permute"(%a) {axes = ["x"], sources = [1, 0]} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %n = arith.addi %x, %one : index
  %o = arith.remui %n, %two : index
  %p = arith.muli %o, %rows : index
  %r = tensor.insert_slice %b into %m[%p, 0] [4, 6] [1, 1] : tensor<4x6xf32> into tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}
"""


def test_slices_put_where_the_rank_says_are_a_gather() -> None:
    assert compared(mesh("x=2") + GATHERED, mesh("x=2") + RING).status == 0


def test_the_program_of_a_rank_is_refused_as_a_whole_program() -> None:
    """Whole tensors on all ranks are the same: what a permute brings is what was there. Cut along x, it is not."""
    with mw.compile(mesh("x=2") + RING) as program:
        a = np.arange(48, dtype=np.float32).reshape(8, 6)
        assert np.array_equal(program(a)[0], a)
    whole = RING.replace("dist.global = tensor<8x6xf32>, ", "")
    with pytest.raises(CompileError, match="is not what the program says"):
        mw.compile(mesh("x=2") + whole)


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("[1, 0]", "[0, 1]"),
        (
            "%r = tensor.insert_slice %b into %m[%p, 0]",
            "%r = tensor.insert_slice %b into %m[%at, 0]",
        ),
        ("into %m[", "into %e["),
        ("%p = arith.muli %o, %rows", "%p = arith.muli %o, %two"),
        ("%n = arith.addi %x, %one", "%n = arith.addi %x, %two"),
    ],
)
def test_a_slice_that_is_missing_or_another_one_is_no_gather(right: str, wrong: str) -> None:
    assert right in RING
    assert compared(mesh("x=2") + GATHERED, mesh("x=2") + RING.replace(right, wrong)).status != 0


SAME = "func.func @main(%a: tensor<7x6xf32>) -> tensor<7x6xf32> { return %a : tensor<7x6xf32> }"
BY_STRIDES = """
func.func @main(%a: tensor<7x6xf32>) -> tensor<7x6xf32> {
  %e = tensor.empty() : tensor<7x6xf32>
  %b = tensor.extract_slice %a[0, 0] [4, 6] [2, 1] : tensor<7x6xf32> to tensor<4x6xf32>
  %c = tensor.extract_slice %a[1, 0] [3, 6] [2, 1] : tensor<7x6xf32> to tensor<3x6xf32>
  %m = tensor.insert_slice %b into %e[0, 0] [4, 6] [2, 1] : tensor<4x6xf32> into tensor<7x6xf32>
  %r = tensor.insert_slice %c into %m[1, 0] [3, 6] [2, 1] : tensor<3x6xf32> into tensor<7x6xf32>
  return %r : tensor<7x6xf32>
}
"""


def test_rows_put_apart_are_joined() -> None:
    assert compared(SAME, BY_STRIDES).status == 0
    for right, wrong in (
        ("%c into %m[1, 0]", "%c into %e[1, 0]"),
        ("%a[1, 0] [3, 6]", "%a[2, 0] [3, 6]"),
        ("into %m[1, 0] [3, 6] [2, 1]", "into %m[1, 0] [3, 6] [1, 1]"),
    ):
        assert right in BY_STRIDES
        assert compared(SAME, BY_STRIDES.replace(right, wrong)).status != 0


LOOKED_UP = """
func.func @main(%a: tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[{axis}, _]">}},
                %b: tensor<{n}x2xf32> {{dist.layout = #dist.layout<"[{axis}, _]">}}, %i: tensor<i32>, %j: tensor<i32>)
    -> (tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[{axis}, _]">}}) {{
  %k = tensor.extract %i[] : tensor<i32>
  %l = tensor.extract %j[] : tensor<i32>
  %at = arith.index_cast %k : i32 to index
  %to = arith.index_cast %l : i32 to index
  %s = tensor.extract_slice %a[0, {at}] [{n}, 2] [1, 1] : tensor<{n}x6xf32> to tensor<{n}x2xf32>
  %t = arith.addf %s, %b : tensor<{n}x2xf32>
  %r = tensor.insert_slice %t into %a[0, {to}] [{n}, 2] [1, 1] : tensor<{n}x2xf32> into tensor<{n}x6xf32>
  return %r : tensor<{n}x6xf32>
}}
"""


def looked_up(n: int, **names: str) -> str:
    return mesh("x=2") + LOOKED_UP.format(n=n, **{"axis": "x", "at": "%at", "to": "%to"} | names)


def test_slices_at_places_that_are_computed() -> None:
    whole = looked_up(8)
    assert compared(whole, looked_up(4)).status == 0
    for wrong in (
        {"at": "%to"},
        {"to": "%at"},
        {"at": "%to", "to": "%at"},
        {"at": "0"},
        {"to": "3"},
    ):
        assert compared(whole, looked_up(4, **wrong)).status != 0


ROW_BY_ROW = """
func.func @main(%a: tensor<4x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<4x6xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %rows = arith.constant 4 : index
  %last = arith.constant 3 : index
  %e = tensor.empty() : tensor<4x6xf32>
  %r = scf.for %t = %zero to %rows step %one iter_args(%m = %e) -> (tensor<4x6xf32>) {
    %u = arith.subi %last, %t : index
    %s = tensor.extract_slice %a[%u, 0] [1, 6] [1, 1] : tensor<4x6xf32> to tensor<1x6xf32>
    %v = math.exp %s : tensor<1x6xf32>
    %n = tensor.insert_slice %v into %m[%u, 0] [1, 6] [1, 1] : tensor<1x6xf32> into tensor<4x6xf32>
    scf.yield %n : tensor<4x6xf32>
  }
  return %r : tensor<4x6xf32>
}
"""
EXP = """
func.func @main(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %r = math.exp %a : tensor<8x6xf32>
  return %r : tensor<8x6xf32>
}
"""


def test_rows_one_by_one_are_all_rows() -> None:
    whole = mesh("x=2") + EXP
    assert compared(whole, mesh("x=2") + ROW_BY_ROW).status == 0
    for right, wrong in (
        ("into %m[%u, 0]", "into %m[%t, 0]"),
        ("%a[%u, 0]", "%a[%t, 0]"),
        ("%zero to %rows", "%one to %rows"),
        ("%zero to %rows", "%zero to %last"),
    ):
        assert right in ROW_BY_ROW
        assert compared(whole, mesh("x=2") + ROW_BY_ROW.replace(right, wrong)).status != 0


PADDED = """
func.func @main(%a: tensor<2x5xf32> {dist.layout = #dist.layout<"[_, x]">})
    -> (tensor<3xf32> {dist.layout = #dist.layout<"[_]">}) {
  %one = arith.constant 1.0 : f32
  %zero = arith.constant dense<0.0> : tensor<3xf32>
  %p = tensor.pad %a low[0, 0] high[1, 0] {
  ^bb0(%i: index, %j: index):
    tensor.yield %one : f32
  } : tensor<2x5xf32> to tensor<3x5xf32>
  %r = linalg.reduce { arith.addf } ins(%p : tensor<3x5xf32>) outs(%zero : tensor<3xf32>) dimensions = [1]
  return %r : tensor<3xf32>
}
"""


def test_padding_that_is_masked_is_no_part_of_a_row_of_ones() -> None:
    """Uneven columns: each rank has a row of three ones below its block, of which the whole row has five."""
    whole, local = texts(mesh("x=2") + PADDED)
    assert compared(whole, local).status in (0, 3)
    wrong = local.replace("constant 5 : index", "constant 6 : index")
    assert wrong != local and compared(whole, wrong).status != 0


BEYOND = """
func.func @main(%a: tensor<7x6xf32>) -> tensor<7x6xf32> {
  %first = arith.constant FIRST : index
  %seven = arith.constant 7 : index
  %one = arith.constant 1 : index
  %e = tensor.empty() : tensor<7x6xf32>
  %b = tensor.extract_slice %a[%first, 0] [1, 6] [1, 1] : tensor<7x6xf32> to tensor<1x6xf32>
  %m = scf.for %i = %first to %seven step %one iter_args(%to = %e) -> (tensor<7x6xf32>) {
    %c = tensor.extract_slice %a[%i, 0] [1, 6] [1, 1] : tensor<7x6xf32> to tensor<1x6xf32>
    %n = tensor.insert_slice %c into %to[%i, 0] [1, 6] [1, 1] : tensor<1x6xf32> into tensor<7x6xf32>
    scf.yield %n : tensor<7x6xf32>
  }
  return %m : tensor<7x6xf32>
}
"""


def test_a_slice_beyond_the_end_of_a_tensor_has_no_meaning_though_nothing_reads_it() -> None:
    assert compared(SAME, BEYOND.replace("FIRST", "0")).status == 0
    found = compared(SAME, BEYOND.replace("FIRST", "-1"))
    assert found.status == 3 and "a slice beyond the end of a tensor" in str(found)


def test_the_sum_of_pieces_is_that_of_each() -> None:
    head = "func.func @main(%a: tensor<7x6xf32>) -> tensor<6xf32> {\n  %z = arith.constant dense<0.0> : tensor<6xf32>\n"
    total = "linalg.reduce { arith.addf } ins(%IN : tensor<NxF>) outs(%z : tensor<6xf32>) dimensions = [0]\n"
    whole = f"{head}%s = {total.replace('IN', 'a').replace('NxF', '7x6xf32')} return %s : tensor<6xf32> }}"
    local = f"""{head}
  %b = tensor.extract_slice %a[0, 0] [5, 6] [1, 1] : tensor<7x6xf32> to tensor<5x6xf32>
  %c = tensor.extract_slice %a[FROM, 0] [2, 6] [1, 1] : tensor<7x6xf32> to tensor<2x6xf32>
  %p = {total.replace("IN", "b").replace("NxF", "5x6xf32")}
  %q = {total.replace("IN", "c").replace("NxF", "2x6xf32")}
  %e = arith.constant dense<0.0> : tensor<2x6xf32>
  %m = tensor.insert_slice %p into %e[0, 0] [1, 6] [1, 1] : tensor<6xf32> into tensor<2x6xf32>
  %n = tensor.insert_slice %q into %m[1, 0] [1, 6] [1, 1] : tensor<6xf32> into tensor<2x6xf32>
  %s = {total.replace("IN", "n").replace("NxF", "2x6xf32")} return %s : tensor<6xf32>
}}"""
    assert compared(whole, local.replace("FROM", "5")).status == 0
    assert compared(whole, local.replace("FROM", "4")).status == 1


def test_a_view_in_front_of_all_pieces_stays_as_it_is() -> None:
    terms = Terms(100)
    a, b = [terms.put(Node("argument", (k,), (), "f32"), (n,)) for k, n in ((0, 1), (1, 3))]
    row, at = Var("i", "i0", 4), Var("i", "i0", 2)
    first = Term(a, (of_var(row),), (None,))
    second = Term(b, (plus(of_var(row), Expr(-1)),), (None,))
    whole = concat(terms, row, [((0, 1), first), ((1, 4), second)])
    before = terms.composed(whole, {row: plus(of_var(at), Expr(-9))})
    assert narrowed(terms, before) == before


def test_what_lies_before_all_pieces_is_left_as_it_is() -> None:
    terms = Terms(100, apply)
    piece = Term(terms.put(Node("argument", (0,), (), "f32"), (8,)), (of_var(dim_var(0)),), (None,))
    node = terms.put(Node("concat", ((2, 4), (4, 8)), (piece, piece), "f32"), (8,))
    before = terms.view(node, [of_var(Var("i", "0", 2))])
    assert reached(terms, before) == before
