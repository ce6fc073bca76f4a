"""Slices that a mask takes out may be left out, and those that it leaves whole need no mask; others need it."""

import numpy as np
import pytest
from depth import sampled
from verify.pairs import answer, compared

import meshweave as mw

ROWS, KEYS, TILE = 6, 8, 2
WIDE, ROW, SUMS, TALL = [
    f"tensor<{n}xf32>" for n in (f"{ROWS}x{KEYS}", ROWS, f"{ROWS}x3", f"{KEYS}x3")
]
KEPT = "%kept = arith.cmpi sge, %i, %j : i64"
WINDOW = """%after = arith.cmpi sge, %i, %j : i64
    %back = arith.subi %i, %j : i64
    %four = arith.constant 4 : i64
    %near = arith.cmpi slt, %back, %four : i64
    %kept = arith.andi %after, %near : i1"""


def masked(name: str, given: str, shape: str, kept: str, row: str = "%c0", key: str = "%c0") -> str:
    """Scores behind a mask; row, key: where the first of them is in the whole."""
    return f"""
  {name} = linalg.generic {{
      indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]}}
      ins({given} : tensor<{shape}xf32>) outs({given} : tensor<{shape}xf32>) {{
  ^bb0(%in: f32, %out: f32):
    %d0 = linalg.index 0 : index
    %d1 = linalg.index 1 : index
    %here = arith.addi %d0, {row} : index
    %there = arith.addi %d1, {key} : index
    %i = arith.index_cast %here : index to i64
    %j = arith.index_cast %there : index to i64
    {kept}
    %minus = arith.constant 0xFF800000 : f32
    %score = arith.select %kept, %in, %minus : f32
    linalg.yield %score : f32
  }} -> tensor<{shape}xf32>"""


def whole(kept: str) -> str:
    return f"""
func.func @main(%s: {WIDE}, %v: {TALL}) -> {SUMS} {{
  %c0 = arith.constant 0 : index
  %low = arith.constant dense<0xFF800000> : {ROW}
  %zero = arith.constant dense<0.0> : {ROW}
  %nothing = arith.constant dense<0.0> : {SUMS}
  %e = tensor.empty() : {WIDE}{masked("%x", "%s", f"{ROWS}x{KEYS}", kept)}
  %max = linalg.reduce {{ arith.maximumf }} ins(%x : {WIDE}) outs(%low : {ROW}) dimensions = [1]
  %maxes = linalg.broadcast ins(%max : {ROW}) outs(%e : {WIDE}) dimensions = [1]
  %less = arith.subf %x, %maxes : {WIDE}
  %exp = math.exp %less : {WIDE}
  %sum = linalg.reduce {{ arith.addf }} ins(%exp : {WIDE}) outs(%zero : {ROW}) dimensions = [1]
  %sums = linalg.broadcast ins(%sum : {ROW}) outs(%e : {WIDE}) dimensions = [1]
  %p = arith.divf %exp, %sums : {WIDE}
  %r = linalg.matmul ins(%p, %v : {WIDE}, {TALL}) outs(%nothing : {SUMS}) -> {SUMS}
  return %r : {SUMS}
}}"""


def slices(name: str, first: str, last: str, inits: str, kept: str = "") -> str:
    """An online softmax over some slices of keys, of the rows of tile %t. kept: its mask, "" for none."""
    raw, tall = "%y" if not kept else "%raw", f"tensor<{TILE}x3xf32>"
    square, row = f"tensor<{TILE}x{TILE}xf32>", f"tensor<{TILE}xf32>"
    mask = masked("%y", "%raw", f"{TILE}x{TILE}", kept, "%row", "%key") if kept else ""
    return f"""
    {name}:3 = scf.for %k = {first} to {last} step %c1 iter_args({inits}) -> ({row}, {row}, {tall}) {{
      %key = arith.muli %k, %c2 : index
      {raw} = tensor.extract_slice %s[%row, %key] [{TILE}, {TILE}] [1, 1] : {WIDE} to {square}{mask}
      %u = tensor.extract_slice %v[%key, 0] [{TILE}, 3] [1, 1] : {TALL} to {tall}
      %new = linalg.reduce {{ arith.maximumf }} ins(%y : {square}) outs(%old : {row}) dimensions = [1]
      %none = arith.cmpf oeq, %new, %low : {row}
      %safe = arith.select %none, %zero, %new : tensor<{TILE}xi1>, {row}
      %safes = linalg.broadcast ins(%safe : {row}) outs(%e : {square}) dimensions = [1]
      %less = arith.subf %y, %safes : {square}
      %exp = math.exp %less : {square}
      %shift = arith.subf %old, %safe : {row}
      %alpha = math.exp %shift : {row}
      %held = arith.mulf %sum, %alpha : {row}
      %more = linalg.reduce {{ arith.addf }} ins(%exp : {square}) outs(%held : {row}) dimensions = [1]
      %alphas = linalg.broadcast ins(%alpha : {row}) outs(%w : {tall}) dimensions = [1]
      %part = arith.mulf %acc, %alphas : {tall}
      %made = linalg.matmul ins(%exp, %u : {square}, {tall}) outs(%part : {tall}) -> {tall}
      scf.yield %new, %more, %made : {row}, {row}, {tall}
    }}"""


def local(kept: str) -> str:
    """Tiles of rows, each over the slices of keys that it sees: those before its own without the mask."""
    tall, row = f"tensor<{TILE}x3xf32>", f"tensor<{TILE}xf32>"
    begin = "%old = %low, %sum = %zero, %acc = %nothing"
    rest = "%old = %a#0, %sum = %a#1, %acc = %a#2"
    before = slices("%a", "%first", "%t", begin, "" if kept == KEPT else kept)
    return f"""
func.func @main(%s: {WIDE}, %v: {TALL}) -> {SUMS} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %low = arith.constant dense<0xFF800000> : {row}
  %zero = arith.constant dense<0.0> : {row}
  %nothing = arith.constant dense<0.0> : {tall}
  %e = tensor.empty() : tensor<{TILE}x{TILE}xf32>
  %w = tensor.empty() : {tall}
  %into = tensor.empty() : {SUMS}
  %r = scf.for %t = %c0 to %c3 step %c1 iter_args(%to = %into) -> ({SUMS}) {{
    %row = arith.muli %t, %c2 : index
    %end = arith.addi %t, %c1 : index
    %from = arith.subi %t, %c2 : index
    %first = arith.maxsi %from, %c0 : index{before}{slices("%b", "%t", "%end", rest, kept)}
    %sums = linalg.broadcast ins(%b#1 : {row}) outs(%w : {tall}) dimensions = [1]
    %part = arith.divf %b#2, %sums : {tall}
    %done = tensor.insert_slice %part into %to[%row, 0] [{TILE}, 3] [1, 1] : {tall} into {SUMS}
    scf.yield %done : {SUMS}
  }}
  return %r : {SUMS}
}}"""


WRONG = [
    ("%first to %t step", "%first to %end step"),
    ("%first to %t step", "%t to %t step"),
    ("%t to %end step", "%t to %t step"),
    ("cmpi sge, %i, %j", "cmpi sgt, %i, %j"),
    ("cmpi sge, %i, %j", "cmpi sle, %i, %j"),
    ("%here = arith.addi %d0, %row", "%here = arith.addi %d0, %key"),
    ("%there = arith.addi %d1, %key", "%there = arith.addi %d1, %row"),
    ("%row = arith.muli %t, %c2", "%row = arith.muli %t, %c1"),
    ("%score = arith.select %kept, %in, %minus", "%score = arith.select %kept, %in, %in"),
    ("0xFF800000 : f32", "0.0 : f32"),
    ("%v[%key, 0]", "%v[%row, 0]"),
    ("iter_args(%old = %a#0", "iter_args(%old = %low"),
    ("%acc = %a#2", "%acc = %nothing"),
]


@pytest.mark.parametrize("kept", [KEPT, WINDOW], ids=["causal", "window"])
def test_slices_that_a_mask_takes_out_may_be_left_out(kept: str) -> None:
    found = compared(whole(kept), local(kept))
    assert found.status == 0, found


@sampled(1)
@pytest.mark.parametrize("kept", [KEPT, WINDOW], ids=["causal", "window"])
@pytest.mark.parametrize("right, wrong", WRONG)
def test_what_leaves_out_others_is_proven_only_where_it_is_the_same(
    kept: str, right: str, wrong: str
) -> None:
    text = local(kept)
    assert right in text
    changed = text.replace(right, wrong)
    if compared(whole(kept), changed).status:
        return
    np.testing.assert_allclose(result(changed), result(text), rtol=1e-5)


def result(text: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("f4") for shape in ((ROWS, KEYS), (KEYS, 3))]
    with mw.compile(text) as program:
        return np.array(program(*arrays)[0])


def test_most_wrong_ones_are_told() -> None:
    texts = [local(KEPT).replace(*pair) for pair in WRONG]
    proven = [p for p, text in zip(WRONG, texts) if compared(whole(KEPT), text).status == 0]
    # In its own tile row and key are the same.
    assert all("arith.addi" in right for right, _ in proven), proven


def causal(q, k, v, window=None, shift=0):
    i, j = mw.arange(q.shape[-2])[:, None] + shift, mw.arange(k.shape[-2])[None, :]
    kept = i >= j if window is None else mw.logical_and(i >= j, i - j < window)
    return mw.softmax(mw.where(kept, q @ mw.matrix_transpose(k), -np.inf)) @ v


@sampled(4)
@pytest.mark.parametrize("rows, keys", [(200, 200), (129, 300), (300, 129)])
@pytest.mark.parametrize("window, shift", [(None, 0), (None, 37), (60, 0), (None, -20)])
def test_flash_leaves_out_slices(rows: int, keys: int, window: "int | None", shift: int) -> None:
    arrays = [np.ones((2, n, 16), "f4") for n in (rows, keys, keys)]
    text = mw.jit(lambda q, k, v: causal(q, k, v, window, shift)).lower(*arrays).as_text()
    found = answer(text)
    assert found.status == 0, found


def norm(x):
    less = x - mw.mean(x, axis=-1, keepdims=True)
    return less / mw.sqrt(mw.mean(less * less, axis=-1, keepdims=True) + 1e-5)


def block(x, wq, wk, wv, wo):
    def heads(w):
        return mw.permute_dims(mw.reshape(norm(x) @ w, (x.shape[0], 2, -1)), (1, 0, 2))

    made = causal(heads(wq), heads(wk), heads(wv))
    return x + mw.reshape(mw.permute_dims(made, (1, 0, 2)), (x.shape[0], -1)) @ wo


@sampled(1)
@pytest.mark.parametrize("mesh", [{}, {"mesh": "x=2"}], ids=str)
def test_one_block_after_another(mesh: "dict[str, str]") -> None:
    """What is a number decides what goes with its inverse: sums of squares, and rows that see some key, are not 0."""
    layouts = ("[_, _]", *["[_, x]"] * 3, "[x, _]")
    options = {**mesh, "in_layouts": layouts, "out_layouts": "[_, _]"} if mesh else {}
    arrays = [np.ones((200, 8), "f4"), *[np.ones((8, 8), "f4")] * 4]
    text = mw.jit(lambda x, *w: block(block(x, *w), *w), **options).lower(*arrays).as_text()
    found = answer(text)
    assert found.status == 0, found


def sums_of_rows(name: str, first: int, sizes: tuple[int, int, int], kept: bool) -> str:
    """For each row the sum of a part of `%a`, from place `first` on; kept: without what lies before the row."""
    part = "x".join(map(str, sizes))
    value = """%at = linalg.index 1 : index
    %row = linalg.index 0 : index
    %kept = arith.cmpi uge, %at, %row : index
    %nothing = arith.constant 0.0 : f32
    %value = arith.select %kept, %e, %nothing : f32"""
    return f"""
  %part{name} = tensor.extract_slice %a[{first}, 0, 0] [{", ".join(map(str, sizes))}] [1, 1, 1]
      : tensor<8x3x3xf32> to tensor<{part}xf32>
  %{name} = linalg.generic {{
      indexing_maps = [affine_map<(r, g, i, j) -> (g, i, j)>, affine_map<(r, g, i, j) -> (r)>],
      iterator_types = ["parallel", "reduction", "reduction", "reduction"]}}
      ins(%part{name} : tensor<{part}xf32>) outs(%zero : tensor<4xf32>) {{
  ^bb0(%in: f32, %sum: f32):
    %e = math.exp %in : f32
    {value if kept else ""}
    %more = arith.addf %sum, {"%value" if kept else "%e"} : f32
    linalg.yield %more : f32
  }} -> tensor<4xf32>"""


def test_parts_behind_a_mask_are_of_the_same_shape() -> None:
    head = """func.func @main(%a: tensor<8x3x3xf32>) -> tensor<4xf32> {
  %zero = arith.constant dense<0.0> : tensor<4xf32>"""
    all_of_it = f"{head}{sums_of_rows('r', 0, (8, 2, 3), True)}\n  return %r : tensor<4xf32>\n}}"
    for sizes, status in (((4, 2, 3), 0), ((4, 3, 2), 1)):
        parts = sums_of_rows("p", 0, (4, 2, 3), True) + sums_of_rows("q", 4, sizes, False)
        both = "%r = arith.addf %p, %q : tensor<4xf32>"
        local = f"{head}{parts}\n  {both}\n  return %r : tensor<4xf32>\n}}"
        assert compared(all_of_it, local).status == status
