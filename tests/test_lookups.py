"""Reads at computed places of tensors whose dims are cut, against NumPy; proofs of them, and of none that is wrong."""

import re

import numpy as np
import pytest
from depth import sampled
from test_scatters import status

import meshweave as mw
from meshweave.frontends.python.extras import reduce
from meshweave.frontends.python.functions import index
from tests.executed import on, partitioned, run

RNG = np.random.default_rng(8)


def program(table: tuple[int, int], count: int, layouts: tuple[str, str, str], kind: str) -> str:
    """Rows of %t that %i says."""
    (rows, columns), (t, i, r) = table, layouts
    return f"""
func.func @main(%t: tensor<{rows}x{columns}x{kind}> {{{t}}}, %i: tensor<{count}xi32> {{{i}}})
    -> (tensor<{count}x{columns}x{kind}> {{{r}}}) {{
  %0 = tensor.empty() : tensor<{count}x{columns}x{kind}>
  %1 = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
                        iterator_types = ["parallel", "parallel"]}}
      ins(%i : tensor<{count}xi32>) outs(%0 : tensor<{count}x{columns}x{kind}>) {{
  ^bb0(%at: i32, %old: {kind}):
    %first = arith.constant 0 : index
    %last = arith.constant {rows - 1} : index
    %p = arith.index_cast %at : i32 to index
    %q = arith.maxsi %p, %first : index
    %place = arith.minsi %q, %last : index
    %j = linalg.index 1 : index
    %x = tensor.extract %t[%place, %j] : tensor<{rows}x{columns}x{kind}>
    linalg.yield %x : {kind}
  }} -> tensor<{count}x{columns}x{kind}>
  return %1 : tensor<{count}x{columns}x{kind}>
}}
"""


MESHES = {
    "x=3": [
        ("[x, _]", "[_]", "[_, _]"),
        ("[x, _]", "[x]", "[x, _]"),
        ("[_, x]", "[_]", "[_, x]"),
    ],
    "x=2, y=2": [
        ("[x, _]", "[y]", "[y, _]"),
        ("[x*y, _]", "[_]", "[_, _]"),
        ("[y*x, _]", "[x]", "[x, y]"),
        ("[x, y]", "[_]", "[_, y]"),
        ("[x, y]", "[x]", "[_, _]"),
    ],
}
KINDS = {"f32": np.float32, "i8": np.int8, "i1": np.bool_, "f64": np.float64}


@sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES)
def test_tables_and_places_in_any_parts(mesh: str, kind: str) -> None:
    for number, layouts in enumerate(MESHES[mesh]):
        rows, columns, count = [(8, 4, 6), (7, 5, 9), (4, 1, 1), (11, 3, 5)][number % 4]
        t = RNG.integers(-3, 4, (rows, columns)).astype(KINDS[kind])
        if kind[0] == "f":
            t.flat[:3] = np.nan, -0.0, -np.inf
        i = RNG.integers(-2, rows + 2, count).astype(np.int32)
        (made,) = run(mesh, program((rows, columns), count, layouts, kind), t, i)
        wanted = t[np.clip(i, 0, rows - 1)]
        np.testing.assert_array_equal(made, wanted)
        np.testing.assert_array_equal(np.signbit(made * 1.0), np.signbit(wanted * 1.0))


WRONG = {
    "arith.subi": "arith.addi",
    "cmpi ult": "cmpi ule",
    'kind = "sum"': 'kind = "max"',
    "arith.constant -0.0": "arith.constant 1.0",
    "arith.minsi": "arith.maxsi",
    "dist.axis_index": None,
}


@sampled(1)
@pytest.mark.parametrize("table", [(7, 3), (8, 3), (2, 3)])
def test_what_ranks_look_up_is_proven_and_a_wrong_one_is_not(table: tuple[int, int]) -> None:
    text = program(table, 1, ("[x, _]", "[_]", "[_, _]"), "f32")
    local = partitioned("x=2", text)
    assert '"dist.all_reduce"' in local and "dist.all_gather" not in local
    assert status(on("x=2", text), local) == 0
    for a, b in WRONG.items():
        wrong = re.sub(r'"dist.axis_index"\(.*', "arith.constant 1 : index", local)
        wrong = local.replace(a, b) if b else wrong
        assert wrong != local, a
        assert status(on("x=2", text), wrong) != 0, a


@sampled(1)
@pytest.mark.parametrize("cut", [("x=3", "[_*x]", "[x]"), ("x=2, y=2", "[y*x]", "[_]"), None])
@pytest.mark.parametrize("kind", ["f4", "u1"])
def test_many_places_in_a_sorted_vector_are_found_by_halves(
    cut: tuple[str, str, str] | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MOST_COMPARED", 0)
    row, wanted = RNG.integers(0, 30, 101).astype(kind), RNG.integers(0, 33, 19).astype(kind)
    if kind == "f4":
        row[:5], wanted[:2] = np.nan, (np.nan, -1)
    row = np.sort(row)
    options = {"mesh": cut[0], "in_layouts": cut[1:]} if cut else {}
    find = mw.jit(
        lambda r, w: [mw.searchsorted(r, w, side=s) for s in ("left", "right")], **options
    )
    for made, side in zip(find(row, wanted), ("left", "right"), strict=True):
        np.testing.assert_array_equal(np.asarray(made), np.searchsorted(row, wanted, side=side))
    assert "unproven" not in find.lower(row, wanted).compile().explain()


@sampled(1)
@pytest.mark.parametrize("cut", ["x=3 [_*x]", "x=2, y=2 [y*x]", ""])
def test_many_numbers_are_counted_where_they_belong(
    cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reduce, index):
        monkeypatch.setattr(module, "MOST_COMPARED", 0)
        monkeypatch.setattr(module, "FEW_EDGES", 4)
    mesh, _, layout = cut.rpartition(" ")
    options = {"mesh": mesh, "in_layouts": (layout, layout, "[_]")} if cut else {}
    x, w = RNG.integers(-20, 30, (2, 50)).astype("f4") / 4
    x[3], some = np.nan, np.array([np.nan, 1, 2.25, -3, 7, -0.0], "f4")

    def counted(mod, x, w, some):
        numbers = w.astype("int32") if mod is np else mw.astype(w, mw.int32)
        size = {"minlength": 9} if mod is np else {"length": 9}
        numbers = abs(numbers) if mod is np else mw.abs(numbers)
        bins = np.linspace(-4, 5, 8, dtype="f4")
        bins = bins if mod is np else mw.asarray(bins)
        return [
            mod.histogram(x, bins)[0],
            mod.histogram(x, bins, weights=w)[0],
            mod.bincount(numbers, **size),
            mod.bincount(numbers, w, **size),
            mod.isin(x, some),
            mod.isin(x, some, invert=True),
        ]

    f = mw.jit(lambda *given: counted(mw, *given), **options)
    for made, wanted in zip(f(x, w, some), counted(np, x, w, some), strict=True):
        np.testing.assert_allclose(np.asarray(made), wanted, rtol=1e-5)
    assert "unproven" not in f.lower(x, w, some).compile().explain()


ARRANGED = {
    "x=3": [("[_*x, _]", "[_]", "[_, _]"), ("[x{50,0,17}, _]", "[_]", "[_, _]")],
    "x=2, y=2": [
        ("[_*y, x]", "[x]", "[x, _]"),
        ("[x*y, _] uneven(nested)", "[_]", "[_, _]"),
        ("[x*_*y, _]", "[x]", "[x, y]"),
        ("[y*_*x*4, _]", "[y]", "[_, _]"),
    ],
}


@sampled(1)
@pytest.mark.parametrize("mesh", ARRANGED)
def test_tables_that_are_not_in_blocks_stay_where_they_lie(mesh: str) -> None:
    for number, layouts in enumerate(ARRANGED[mesh]):
        text = program((67, 4), 3, layouts, "f32")
        local = partitioned(mesh, text)
        assert not re.search(r'"dist.*\(%arg0', local)
        assert status(on(mesh, text), local) == 0
        t = RNG.integers(-3, 4, (67, 4)).astype(np.float32)
        t.flat[:3] = np.nan, -0.0, -np.inf
        i = np.array([[0, 66, 50], [-1, 68, 49], [3, 4, 5]][number % 3], np.int32)
        (made,) = run(mesh, text, t, i)
        np.testing.assert_array_equal(made, t[np.clip(i, 0, 66)])


@pytest.mark.parametrize("table", [("[_*x, _]", (8, 3)), ("[x{50,14}, _]", (64, 3))])
def test_what_ranks_look_up_in_cyclic_and_irregular_parts_is_proven(
    table: tuple[str, tuple[int, int]],
) -> None:
    layout, shape = table
    text = program(shape, 1, (layout, "[_]", "[_, _]"), "f32")
    local = partitioned("x=2", text)
    assert status(on("x=2", text), local) == 0
    swaps = [("divui", "remui"), ("arith.muli", "arith.addi"), ("cmpi eq", "cmpi sle")]
    if layout != "[_*x, _]":
        swaps = [("dense<[50, 64]>", "dense<[49, 64]>"), ("dense<[0, 50]>", "dense<[0, 49]>")]
        swaps += [("cmpi ult", "cmpi ule"), ("arith.subi", "arith.addi")]
    for a, b in [*swaps, ("arith.minsi", "arith.maxsi"), ("constant -0.0", "constant 1.0")]:
        wrong = local.replace(a, b)
        assert wrong != local, a
        assert status(on("x=2", text), wrong) != 0, a


def test_a_place_that_may_be_in_no_block_is_not_proven() -> None:
    """There what the ranks make is 0, and the whole tensor has nothing."""
    text = program((8, 3), 1, ("[x, _]", "[_]", "[_, _]"), "f32")
    local = partitioned("x=2", text)
    far = [s.replace("arith.constant 7", "arith.constant 9") for s in (on("x=2", text), local)]
    assert far[1] != local
    assert status(*far) != 0


def sliced(rows: int, put: bool, layouts: tuple[str, str]) -> str:
    """A row of %t at a place that is held within it, or %u put there."""
    t, u = layouts
    made = (
        f"tensor.insert_slice %u into %t[%p, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<{rows}x4xf32>"
        if put
        else f"tensor.extract_slice %t[%p, 0] [1, 4] [1, 1] : tensor<{rows}x4xf32> to tensor<1x4xf32>"
    )
    count, given = (rows, f"{{{t}}}") if put else (1, "")
    return f"""
func.func @main(%t: tensor<{rows}x4xf32> {{{t}}}, %u: tensor<1x4xf32> {{{u}}}, %i: tensor<index>)
    -> (tensor<{count}x4xf32> {given}) {{
  %first = arith.constant 0 : index
  %last = arith.constant {rows - 1} : index
  %at = tensor.extract %i[] : tensor<index>
  %low = arith.maxsi %at, %first : index
  %p = arith.minsi %low, %last : index
  %r = {made}
  return %r : tensor<{count}x4xf32>
}}
"""


@sampled(2)
@pytest.mark.parametrize("put", [False, True])
@pytest.mark.parametrize("rows", [8, 7, 2])
def test_a_row_at_a_computed_place_is_read_and_put_where_it_lies(rows: int, put: bool) -> None:
    cuts = [("x=3", ("[x, _]", "[_, _]")), ("x=2, y=2", ("[x, y]", "[_, y]"))]
    for mesh, layouts in [*cuts, ("x=2, y=2", ("[y*x, _]", "[_, _]"))]:
        text = sliced(rows, put, layouts)
        local = partitioned(mesh, text)
        assert not re.search(r"dist\.(all_gather|all_to_all)", local) or not put
        assert status(on(mesh, text), local) == 0
        t, u = (RNG.integers(-3, 4, (n, 4)).astype(np.float32) for n in (rows, 1))
        for place in (-1, 0, rows // 2, rows):
            (made,) = run(mesh, text, t, u, np.array(place))
            wanted, at = t.copy(), min(max(place, 0), rows - 1)
            wanted[at] = u[0] if put else t[at]
            np.testing.assert_array_equal(made, wanted if put else wanted[at : at + 1])


@pytest.mark.parametrize("put", [False, True])
def test_a_row_read_or_put_elsewhere_is_not_proven(put: bool) -> None:
    text = sliced(8, put, ("[x, _]", "[_, _]"))
    local = partitioned("x=2", text)
    assert status(on("x=2", text), local) == 0
    wrongs = {
        "arith.subi": "arith.addi",
        "cmpi ult": "cmpi ule",
        "arith.constant 4": "arith.constant 3",
        "arith.select %(\\d+), %(in\\w*), %(\\w+) : f32": "arith.select %\\1, %\\3, %\\2 : f32",
        "extract_slice %arg0\\[%\\w+, 0\\]": "extract_slice %arg0[0, 0]",
    }
    for a, b in wrongs.items():
        wrong = re.sub(a, b, local)
        assert wrong != local and status(on("x=2", text), wrong) != 0, a


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2, tp=2"])
def test_cross_entropy_moves_numbers_of_rows_only(mesh: str) -> None:
    """The vocabulary is cut over tp: of a row move its maximum, its sum and the logit of its label."""
    batch, words, dp = 12, 64, "dp" if "dp" in mesh else "_"
    logits = RNG.standard_normal((batch, words)).astype(np.float32)
    labels = RNG.integers(0, words, batch).astype(np.int32)

    @mw.jit(mesh=mesh, in_layouts=(f"[{dp}, tp]", f"[{dp}]"))
    def loss(x, at):  # type: ignore[no-untyped-def]
        chosen = mw.take_along_axis(mw.log_softmax(x, axis=-1), at[:, None], axis=1)
        return -mw.mean(chosen)

    rows = batch // (2 if dp == "dp" else 1)
    said = " ".join(str(loss.lower(logits, labels).compile().explain()).split())
    assert "1 of 1 results proven" in said and "all_gather" not in said and "all_to_all" not in said
    received = int(re.search(r"busiest rank ([\d,]+) bytes", said)[1].replace(",", ""))  # type: ignore[index]
    assert received <= 3 * 4 * rows + 4
    made = loss(logits, labels)
    shifted = logits - logits.max(1, keepdims=True)
    wanted = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(batch), labels]
    np.testing.assert_allclose(np.asarray(made), wanted.mean(), rtol=1e-5)
