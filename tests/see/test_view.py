"""The page about a program: what it says, and that it needs nothing else. test_browser.py opens it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from commands import meshweave
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes, shapes

import meshweave as mw
from meshweave.errors import UsageError
from meshweave.layout.places import owners
from meshweave.report import OpRow, RegionRow, Report
from meshweave.see.folding import repeats, starts
from meshweave.see.page import Page
from meshweave.see.tiles import held
from meshweave.see.timeline import end_of, in_slices, predicted

VOID = {"meta", "input", "br", "path", "rect", "use", "link"}
X, W = np.ones((8, 16), np.float32), np.ones((16, 16), np.float32)


class Read(HTMLParser):
    """Reads a page: tags must match; ids, links and what is loaded are kept."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.said: list[str] = []
        self.feed(page)
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in given:
            self.ids.append(given["id"] or "")
        if "href" in given:
            self.links.append(given["href"] or "")
        self.loaded += [given[name] or "" for name in ("src", "srcset", "action") if name in given]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open[-1] == tag, (tag, self.open[-3:], self.getpos())
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.said.append(data)

    @property
    def text(self) -> str:
        """What a reader sees."""
        return " ".join(" ".join(self.said).split())


def read(page: Page) -> Read:
    """A page, which must be sound: ids once, links that lead somewhere in it, nothing from elsewhere."""
    html = page.html
    found = Read(html)
    assert len(set(found.ids)) == len(found.ids)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)
    assert all(link.startswith("#") for link in found.links)
    assert (
        found.loaded == [] and "http" not in html and "@import" not in html and "url(" not in html
    )
    return found


def gathering() -> mw.Program:
    @mw.jit(mesh="x=2, y=2", in_layouts=("[x, _]", "[_, _]"), out_layouts="[_, _]")
    def layer(rows: mw.Array, w: mw.Array) -> mw.Array:
        h = mw.constrain(mw.tanh(rows), "[_, _]")  # the planted gather
        return mw.exp(h) @ w

    return layer


def test_a_planted_gather_is_named_with_its_cause_on_the_first_screen() -> None:
    layer = gathering()
    layer(X, W)
    text = read(layer.view()).text
    first = text[: text.index("Arguments and results")]
    assert "all_gather over x: 1 x, 256 B" in first
    assert 'argument rows lies in "[x, _]", as it was said' in first
    assert 'constraint "[_, _]"' in first and "the planted gather" in first
    assert "next best plan" in first and "to move less" in first


def test_the_head_of_the_page_says_what_one_would_write_to_move_less() -> None:
    @mw.jit(mesh="x=2", in_layouts=("[_, _]", "[_, x]"), out_layouts="[_, x]")
    def layer(rows: mw.Array, w: mw.Array) -> mw.Array:
        return mw.constrain(mw.exp(rows), "[_, x]") @ w

    text = read(Page("layer", mw.Mesh(x=2), "local", layer.lower(X, W).report())).text
    head = text[text.index("To move less") : text.index("What moves, and why")]
    assert "all_gather over x: 1 x, 256 B" in head and 'constraint "[_, x]", but argument w' in head
    assert 'try "[_, _]" in that constraint, or leave it out' in head


def test_the_page_shows_ops_layouts_memory_and_both_times() -> None:
    layer = gathering()
    layer(X, W)
    with mw.trace() as t:
        layer(X, W)
    page = layer.view(t)
    found = read(page)
    for said in (
        "a product",
        "8x16xf32",
        "[x, _]",
        "codegen",
        "A rank holds",
        "predicted",
        "measured",
    ):
        assert said in found.text, said
    assert "<th>" not in page.html, "a screen reader is told what each head is of"
    for rank in range(4):
        assert f"rank {rank}" in found.text
    shown = page._repr_html_()
    assert shown.startswith("<iframe") and "<script" not in shown


def test_names_of_the_user_are_no_markup() -> None:
    page = Page("<script>alert(1)</script>", mw.Mesh(x=2, y=2), "local", gathering_report())
    assert "<script>alert" not in page.html
    read(page)


def gathering_report() -> object:
    return gathering().lower(X, W).report()


def test_48_layers_fit_in_2_mb() -> None:
    @mw.jit(mesh="dp=2, tp=2", in_layouts=("[dp, _]", "[_, tp]", "[tp, _]"), out_layouts="[dp, _]")
    def model(x: mw.Array, up: mw.Array, down: mw.Array) -> mw.Array:
        for _ in range(48):
            x = x + mw.maximum(x @ up, 0.0) @ down
            x = x / (1.0 + mw.sum(x * x, axis=1, keepdims=True))
        return x

    lowered = model.lower(X, W, W)
    page = Page("model", mw.Mesh(dp=2, tp=2), "local", lowered.report())
    assert len(page.html.encode()) < 2_000_000
    assert "48 x" in read(page).text
    names = [bar.name for bar in predicted(page.report)]
    layer = names[len(names) // 2 :][: len(names) // 48]  # one after the other, not op by op of all
    assert sum(name.startswith("redistribute") for name in layer) == 1 and len(set(layer)) > 4


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_who_holds_an_element(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes(2))
    layout = data.draw(any_layouts(mesh, shape))
    found = held(layout, mesh, shape)
    if found is None:
        return
    for index in np.ndindex(*shape):
        holders = [
            rank
            for rank, dims in enumerate(found["held"])
            if all(any(a <= i < b for a, b in runs) for i, runs in zip(index, dims))
        ]
        assert holders == sorted(owners(layout, mesh, shape, list(index)))


PROGRAM = """func.func @main(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[OUT]">}) {
  %e = math.exp %a : tensor<8x6xf32>
  return %e : tensor<8x6xf32>
}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
"""


def test_the_command_writes_the_page_of_a_program_or_a_bundle(tmp_path: Path) -> None:
    program, other = tmp_path / "p.mlir", tmp_path / "q.mlir"
    program.write_text(PROGRAM.replace("OUT", "_, _"))
    other.write_text(PROGRAM.replace("OUT", "x, _"))
    page, trace, bundle = tmp_path / "p.html", tmp_path / "t.json", tmp_path / "p.mwb"
    assert meshweave("run", program, "--trace", trace).status == 0
    done = meshweave("view", program, "-o", page, "--trace", trace, "--diff", other)
    assert done.status == 0, done
    text = Read(page.read_text()).text
    assert (
        'argument %a lies in "[x, _]", as it was said' in text and "measured, the last call" in text
    )
    assert "1 x all_gather over x nothing -96" in text and "q.mlir" in text
    assert meshweave("compile", program, "-o", bundle).status == 0
    assert meshweave("view", bundle, "-o", page).status == 0
    text = Read(page.read_text()).text
    assert "all_gather over x: 1 x, 96 B" in text and "source is not at hand" in text
    wrong = tmp_path / "wrong.json"
    for content in ("[", "[1]", json.dumps({"traceEvents": [{"name": "thread_name"}]})):
        wrong.write_text(content)
        refused = meshweave("view", program, "-o", page, "--trace", wrong)
        assert refused.status == 2 and "no trace that meshweave has written" in refused.err, refused


HINTED = """func.func @main(%a: tensor<64x32xf32> {dist.layout = #dist.layout<"[x, _]">}, %w: tensor<32x64xf32>)
    -> (tensor<64x64xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %r = "hint.region"() ({
    %e = tensor.empty() : tensor<64x64xf32>
    %0 = linalg.matmul ins(%a, %w : tensor<64x32xf32>, tensor<32x64xf32>) outs(%e : tensor<64x64xf32>)
      -> tensor<64x64xf32>
    %1 = math.exp %0 : tensor<64x64xf32>
    %2 = math.tanh %1 : tensor<64x64xf32>
    "hint.yield"(%2) : (tensor<64x64xf32>) -> ()
  }) {hints = {slice = "t=8", order = "dfs"}} : () -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
"""


def test_ops_under_hints_are_shown_with_what_became_of_these(tmp_path: Path) -> None:
    program, other, page = (tmp_path / name for name in ("p.mlir", "q.mlir", "p.html"))
    program.write_text(HINTED)
    other.write_text(HINTED.replace("t=8", "t=2"))
    done = meshweave("view", program, "-o", page, "--diff", other)
    assert done.status == 0, done
    text = Read(page.read_text()).text
    assert "the program (3 ops)" in text and "order=dfs honoured; slice=t=8 honoured" in text
    assert f"{64 * 64 * 32 // 2:,}" in text  # iterations of the product on a rank
    assert "exp 64x64xf32, slice 8 of 8, p.mlir:" in text  # in the picture of time
    assert "; the line: without hints" in text and 'class="other"' in page.read_text()
    assert re.search(r"otherwise op place here there hint slice=t=8 a product .* honoured", text)
    assert "hint slice=t=2 a product" in text


def test_a_function_that_was_not_called_has_no_page() -> None:
    with pytest.raises(UsageError, match=r"view: no call has compiled yet: call it first"):
        gathering().view()


@pytest.mark.parametrize("order", ["dfs", "bfs"])
def test_slices_are_predicted_in_their_order_beside_the_memory_without_hints(order: str) -> None:
    with mw.compile(HINTED.replace('"dfs"', f'"{order}"').replace("t=8", "t=2")) as program:
        page = program.view()
    ops = ["a product", "exp", "tanh"]
    made = [(op, part) for part in (1, 2) for op in ops]
    if order == "bfs":
        made = [(op, part) for op in ops for part in (1, 2)]
    bars = predicted(page.report)
    assert [bar.name for bar in bars] == [f"{op} 64x64xf32, slice {n} of 2" for op, n in made]
    assert page.before is not None and not page.before.regions
    assert "; the line: without hints" in Read(page.html).text


LOOP = """func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %low = arith.constant 1 : index
  %high = arith.constant 8 : index
  %step = arith.constant 2 : index
  %r = scf.for %i = %low to %high step %step iter_args(%c = %a) -> (tensor<8x8xf32>) {
    %n = math.exp %c : tensor<8x8xf32>
    scf.yield %n : tensor<8x8xf32>
  }
  return %r : tensor<8x8xf32>
}
"""


def test_ops_of_a_loop_take_its_rounds() -> None:
    with mw.compile(LOOP) as program:
        page = program.view()
    (bar,) = predicted(page.report)
    (once,) = predicted(
        replace(page.report, ops=tuple(replace(o, rounds=1) for o in page.report.ops))
    )
    assert bar.name == "exp 8x8xf32, 4 rounds" and bar.end == pytest.approx(4 * once.end)


def test_collectives_that_run_ahead_are_beside_the_ops_of_the_next_slice() -> None:
    @mw.jit(mesh="x=2", in_layouts=("[_, x]", "[x, _]"), out_layouts="[_, _]", engine="mpi")
    def f(a: mw.Array, w: mw.Array) -> mw.Array:
        with mw.hint(slice="t=4", overlap="auto"):
            return mw.tanh(a @ w)

    x = np.ones((512, 512), np.float32)
    report = f.lower(x, x).report()
    bars = predicted(report)
    aside = [bar for bar in bars if bar.aside]
    work = [bar for bar in bars if not bar.aside and bar.kind == "kernel"]
    assert [bar.kind for bar in aside] == ["collective"] * 4 and len(work) == 8
    for number, moved in enumerate(aside):
        product, tanh = (
            next(b for b in work if word in b.name and f"slice {number + 1} " in b.name)
            for word in ("product", "elementwise")
        )
        assert product.end <= moved.start and moved.end <= tanh.start
        over = [b.name for b in work if b.start < moved.end and b.end > moved.start]
        assert number == 3 or any(
            f"product 512x512xf32, slice {number + 2} " in each for each in over
        )
    plain = predicted(replace(report, ledger=()))
    assert not any(bar.aside for bar in plain) and end_of(bars) < end_of(plain)
    assert ">beside</text>" in Page("f", mw.Mesh(x=2), "mpi", report).html


def test_slices_of_regions_are_not_mixed() -> None:
    """Two regions at one place, and one in a function that is called twice, run one after the other."""
    rows = [
        OpRow("main", 1, op, "8xf32", (8,), "[_]", "f:1", 8, region=n)
        for n, op in ((0, "a"), (0, "b"), (1, "c"))
    ]
    settled = [RegionRow("r", 2, "dfs", 1, 0, "f:1")] * 2
    made = [
        f"{row.op}{part.number}"
        for row, part in in_slices([*rows[:2], *rows[:2], rows[2]], settled)
    ]
    assert made == [*("a0", "b0", "a1", "b1"), *("a0", "b0", "a1", "b1"), *("c0", "c1")]


def test_layers_that_repeat_are_folded_from_where_one_begins() -> None:
    assert repeats("xabcabcabcy", {3, 6}) == [
        *((k, 1, 1) for k in range(3)),
        (3, 3, 2),
        (9, 1, 1),
        (10, 1, 1),
    ]
    assert starts(["head", "layers.0.up", "layers.0.down", "layers.1.up", "norm"]) == {1, 3}
    up, down = (
        OpRow("main", 1, op, "4x4xf32", (4, 4), "[_, _]", "f:1:1", 16)
        for op in ("a product", "a sum")
    )
    rows = [
        replace(row, layer=f"layers.{k}.{name}", where=f"f:{line}:1")
        for k in range(3)
        for row, name, line in ((up, "up", 1), (down, "down", 2))
    ]
    text = Page("p", mw.Mesh(), "local", Report(0, 0, ops=tuple(rows))).html
    assert (
        "<b>3 times</b> the same 2 lines, from <code>layers.0.up</code> to <code>layers.2.up</code>"
        in text
    )
    assert text.count("data-op=") == 2 and 'layers.2.up"' in text
