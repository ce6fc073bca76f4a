"""Products in one form: an online softmax is a softmax, if it takes the maximum off; one that is wrong is none."""

import pytest
from depth import sampled
from verify.pairs import compared

WHOLE = """
func.func @main(%s: tensor<4x6xf32>, %m: tensor<4x6xi1>, %v: tensor<6x2xf32>) -> tensor<4x2xf32> {
  %low = arith.constant dense<0xFF800000> : tensor<4xf32>
  %zero = arith.constant dense<0.0> : tensor<4xf32>
  %nothing = arith.constant dense<0.0> : tensor<4x2xf32>
  %e = tensor.empty() : tensor<4x6xf32>
  SCORES
  %max = linalg.reduce { arith.maximumf } ins(%x : tensor<4x6xf32>) outs(%low : tensor<4xf32>) dimensions = [1]
  %maxes = linalg.broadcast ins(%max : tensor<4xf32>) outs(%e : tensor<4x6xf32>) dimensions = [1]
  %less = arith.subf %x, %maxes : tensor<4x6xf32>
  %exp = math.exp %less : tensor<4x6xf32>
  %sum = linalg.reduce { arith.addf } ins(%exp : tensor<4x6xf32>) outs(%zero : tensor<4xf32>) dimensions = [1]
  %sums = linalg.broadcast ins(%sum : tensor<4xf32>) outs(%e : tensor<4x6xf32>) dimensions = [1]
  %p = arith.divf %exp, %sums : tensor<4x6xf32>
  %r = linalg.matmul ins(%p, %v : tensor<4x6xf32>, tensor<6x2xf32>) outs(%nothing : tensor<4x2xf32>) -> tensor<4x2xf32>
  return %r : tensor<4x2xf32>
}
"""
ONLINE = """
func.func @main(%s: tensor<4x6xf32>, %m: tensor<4x6xi1>, %v: tensor<6x2xf32>) -> tensor<4x2xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %low = arith.constant dense<0xFF800000> : tensor<4xf32>
  %zero = arith.constant dense<0.0> : tensor<4xf32>
  %nothing = arith.constant dense<0.0> : tensor<4x2xf32>
  %e = tensor.empty() : tensor<4x3xf32>
  %w = tensor.empty() : tensor<4x2xf32>
  SCORES
  %l:3 = scf.for %t = %c0 to %c2 step %c1 iter_args(%old = %low, %sum = %zero, %acc = %nothing)
      -> (tensor<4xf32>, tensor<4xf32>, tensor<4x2xf32>) {
    %at = arith.muli %t, %c3 : index
    %y = tensor.extract_slice %x[0, %at] [4, 3] [1, 1] : tensor<4x6xf32> to tensor<4x3xf32>
    %u = tensor.extract_slice %v[%at, 0] [3, 2] [1, 1] : tensor<6x2xf32> to tensor<3x2xf32>
    %new = linalg.reduce { arith.maximumf } ins(%y : tensor<4x3xf32>) outs(%old : tensor<4xf32>) dimensions = [1]
    %none = arith.cmpf oeq, %new, %low : tensor<4xf32>
    %safe = arith.select %none, %zero, %new : tensor<4xi1>, tensor<4xf32>
    %safes = linalg.broadcast ins(%safe : tensor<4xf32>) outs(%e : tensor<4x3xf32>) dimensions = [1]
    %less = arith.subf %y, %safes : tensor<4x3xf32>
    %exp = math.exp %less : tensor<4x3xf32>
    %shift = arith.subf %old, %safe : tensor<4xf32>
    %alpha = math.exp %shift : tensor<4xf32>
    %kept = arith.mulf %sum, %alpha : tensor<4xf32>
    %more = linalg.reduce { arith.addf } ins(%exp : tensor<4x3xf32>) outs(%kept : tensor<4xf32>) dimensions = [1]
    %alphas = linalg.broadcast ins(%alpha : tensor<4xf32>) outs(%w : tensor<4x2xf32>) dimensions = [1]
    %held = arith.mulf %acc, %alphas : tensor<4x2xf32>
    %made = linalg.matmul ins(%exp, %u : tensor<4x3xf32>, tensor<3x2xf32>)
      outs(%held : tensor<4x2xf32>) -> tensor<4x2xf32>
    scf.yield %new, %more, %made : tensor<4xf32>, tensor<4xf32>, tensor<4x2xf32>
  }
  %sums = linalg.broadcast ins(%l#1 : tensor<4xf32>) outs(%w : tensor<4x2xf32>) dimensions = [1]
  %r = arith.divf %l#2, %sums : tensor<4x2xf32>
  return %r : tensor<4x2xf32>
}
"""
PLAIN = "%half = arith.constant dense<0.5> : tensor<4x6xf32>\n  %x = arith.mulf %s, %half : tensor<4x6xf32>"
MASKED = """%lows = arith.constant dense<0xFF800000> : tensor<4x6xf32>
  %x = arith.select %m, %s, %lows : tensor<4x6xi1>, tensor<4x6xf32>"""
GUARD = ("%safe = arith.select %none, %zero, %new", "%safe = arith.select %none, %new, %new")
WRONG = [
    ("%shift = arith.subf %old, %safe", "%shift = arith.subf %safe, %old"),
    ("%shift = arith.subf %old, %safe", "%shift = arith.subf %old, %old"),
    ("%kept = arith.mulf %sum, %alpha", "%kept = arith.mulf %sum, %sum"),
    ("outs(%kept : ", "outs(%sum : "),
    ("outs(%held : ", "outs(%acc : "),
    ("%sum = %zero", "%sum = %low"),
    ("%c0 to %c2 step", "%c1 to %c2 step"),
    ("%c0 to %c2 step", "%c0 to %c1 step"),
    ("%v[%at, 0]", "%v[0, 0]"),
    ("%x[0, %at]", "%x[0, %t]"),
    ("scf.yield %new,", "scf.yield %old,"),
    ("ins(%l#1", "ins(%l#0"),
    ("%exp = math.exp %less", "%exp = math.exp2 %less"),
    ("%less = arith.subf %y, %safes", "%less = arith.subf %safes, %y"),
]


def verdict(scores: str, right: str = "", wrong: str = "") -> int:
    assert right in ONLINE
    local = ONLINE.replace(right, wrong) if right else ONLINE
    return compared(WHOLE.replace("SCORES", scores), local.replace("SCORES", scores)).status


@pytest.mark.parametrize("scores", [PLAIN, MASKED], ids=["plain", "masked"])
def test_an_online_softmax_is_a_softmax(scores: str) -> None:
    assert verdict(scores) == 0


@sampled(1)
@pytest.mark.parametrize("scores", [PLAIN, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("right, wrong", WRONG)
def test_one_that_is_wrong_is_none(scores: str, right: str, wrong: str) -> None:
    assert verdict(scores, right, wrong) != 0


def test_a_slice_in_which_all_is_masked_needs_care() -> None:
    """Without it, -inf is taken from -inf: right for scores that are numbers, not for masked ones."""
    assert verdict(PLAIN, *GUARD) == 0
    assert verdict(MASKED, *GUARD) == 3


SHIFTED = [
    ("outs(%low : tensor<4xf32>)", "outs(%zero : tensor<4xf32>)"),  # of low scores all become 0
    ("%exp = math.exp %less", "%exp = math.exp %x"),  # of large ones none is a number
    # The largest of another row.
    (
        "%less =",
        "%row = tensor.extract_slice %max[0] [1] [1] : tensor<4xf32> to tensor<1xf32>\n"
        "%one = tensor.collapse_shape %row [] : tensor<1xf32> into tensor<f32>\n"
        "%all = linalg.broadcast ins(%one : tensor<f32>) outs(%e : tensor<4x6xf32>) dimensions = [0, 1]\n"
        "%less = arith.subf %x, %all : tensor<4x6xf32>\n%unread =",
    ),
]


@pytest.mark.parametrize("right, wrong", SHIFTED)
def test_a_softmax_takes_off_the_maximum_of_its_row(right: str, wrong: str) -> None:
    """Of real numbers all of these are the same."""
    whole = WHOLE.replace("SCORES", PLAIN)
    assert right in whole
    assert compared(whole, whole.replace(right, wrong)).status == 3
    assert compared(whole.replace(right, wrong), whole).status == 3


@pytest.mark.parametrize("scores", [PLAIN, MASKED], ids=["plain", "masked"])
def test_slices_begin_with_no_maximum(scores: str) -> None:
    assert verdict(scores, "%old = %low", "%old = %zero") == 3
    assert verdict(scores, "outs(%old : tensor<4xf32>)", "outs(%low : tensor<4xf32>)") == 3


SAME = "func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> { BODY return %r : tensor<4xf32> }"


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("mulf %a, %b", "mulf %b, %a", True),
        ("divf %a, %b", "divf %b, %a", False),
        ("mulf %a, %a", "mulf %a, %b", False),
        ("addf %a, %b", "mulf %a, %b", False),
    ],
)
def test_factors_have_no_order(one: str, other: str, same: bool) -> None:
    texts = [SAME.replace("BODY", f"%r = arith.{op} : tensor<4xf32>") for op in (one, other)]
    assert (compared(*texts).status == 0) is same


def test_what_may_be_0_does_not_go_with_its_inverse() -> None:
    """`a / a * b` has no number where a is 0; with `abs(a) + 1` it is b. An exponential may be too large."""
    whole = SAME.replace("BODY", "%r = arith.addf %b, %a : tensor<4xf32>").replace(
        "%b, %a", "%b, %b"
    )
    head = "%d = arith.addf %b, %b : tensor<4xf32> "
    tail = "%q = arith.divf %c, %c : tensor<4xf32> %r = arith.mulf %q, %d : tensor<4xf32>"
    some = "math.absf %a : tensor<4xf32> %o = arith.constant dense<1.0> : tensor<4xf32> "
    more = f"{some} %c = arith.addf %p, %o"
    for make, status in ((more, 0), ("math.exp %a", 3), ("math.sin %a", 3)):
        assert (
            compared(
                whole,
                SAME.replace(
                    "BODY", f"{head}%{'p' if make == more else 'c'} = {make} : tensor<4xf32> {tail}"
                ),
            ).status
            == status
        )
