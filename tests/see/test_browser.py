"""Pages as people use them: in a browser, with the mouse and with the keyboard, light and dark."""

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT, meshweave
from depth import sampled, some

import meshweave as mw
from meshweave.see.page import Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is here")
SIZE = {"width": 1280, "height": 900}
PROGRAMS = ("block", "attention", "layers", "gpt2l", "mlp")
SHOTS = ROOT / "tests" / "data" / "page_shots.json"  # of the page of the planted block, by setting
X, W = np.ones((8, 16), np.float32), np.ones((16, 16), np.float32)


@mw.jit(mesh="dp=2, tp=2", in_layouts=("[dp, _]", "[_, tp]", "[tp, _]"), out_layouts="[dp, _]")
def layers(x: mw.Array, up: mw.Array, down: mw.Array) -> mw.Array:
    for number in range(48):
        h = x
        if number == 20:
            h = mw.constrain(mw.exp(x), "[dp, tp]")  # the planted gather
        x = x + mw.maximum(h @ up, 0.0) @ down
        x = x / (1.0 + mw.sum(x * x, axis=1, keepdims=True))
    return x


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of an example, whose result is wanted on all of dp, or of 48 layers; made when it is first asked for."""
    made = tmp_path_factory.mktemp("pages")

    @cache
    def page(name: str) -> Path:
        file, program = made / f"{name}.html", made / f"{name}.mlir"
        if name == "layers":
            report = layers.lower(X, W, W).report()
            Page("layers", mw.Mesh(dp=2, tp=2), "local", report).save(str(file))
            return file
        text = (ROOT / "examples" / name / f"{name}.mlir").read_text()
        wanted = '"result", sdy.sharding = #sdy.sharding<@mesh, [{{{}}}'
        assert wanted.format('"dp"') in text
        program.write_text(text.replace(wanted.format('"dp"'), wanted.format("")))
        done = meshweave("view", program, "-o", file)
        assert done.status == 0, done
        return file

    return page


@pytest.fixture
def opened(chromium: Any, page_of: Callable[[str], Path]) -> Iterator[Any]:
    """A function that opens the page of a program, which must load nothing else and have no error."""
    errors: list[str] = []
    context = chromium.new_context(viewport=SIZE)
    view = context.new_page()
    view.on("pageerror", lambda error: errors.append(str(error)))
    view.on("console", lambda said: errors.append(said.text))
    view.on(
        "request",
        lambda asked: errors.append(asked.url) if not asked.url.endswith(".html") else None,
    )

    def opening(name: str) -> Any:
        view.goto(page_of(name).as_uri())
        return view

    yield opening
    assert errors == []
    context.close()


@pytest.mark.parametrize("name", some(PROGRAMS, 2))
def test_a_planted_gather_is_named_with_its_cause_on_the_first_screen(
    opened: Any, name: str
) -> None:
    page = opened(name)
    cause = 'constraint "[dp, tp]"' if name == "layers" else "result 0 is wanted in"
    line = page.locator("header li", has_text=cause)
    assert line.count() == 1
    box = line.bounding_box()
    assert box["y"] + box["height"] < SIZE["height"]
    said = line.inner_text()
    if name == "layers":
        assert said.startswith("all_gather over tp: 1 x, 128 B test_browser.py:")
        assert "the planted gather" in said and 'try "[dp, _]" in that constraint' in said
    else:
        assert said.startswith("all_gather over dp: 1 x, ") and f"{name}.mlir:" in said
        assert "leave that result in" in said and "then nothing is moved" in said


PAINTED = """() => new Promise((told) => new PerformanceObserver((list) => {
  for (const entry of list.getEntriesByName("first-contentful-paint")) told(entry.startTime);
}).observe({type: "paint", buffered: true}))"""


def test_a_notebook_shows_the_page_in_a_frame(chromium: Any) -> None:
    f = mw.jit(lambda x: x + 1.0, mesh="x=2", in_layouts="[x, _]", out_layouts="[_, _]")
    shown = Page('a "title"', mw.Mesh(x=2), "local", f.lower(X).report())._repr_html_()
    page = chromium.new_page(viewport=SIZE)
    page.set_content(f"<body>{shown}</body>")
    frame = page.frame_locator("iframe")
    frame.locator("header h1", has_text='a "title"').wait_for()
    frame.get_by_label("Filter").fill("redistribute")
    assert frame.locator("#found").inner_text().startswith("1 of ")
    page.close()


def test_48_layers_are_painted_within_a_second(opened: Any, page_of: Callable[[str], Path]) -> None:
    assert page_of("layers").stat().st_size < 2_000_000
    opened("block")  # the browser has begun
    times = [opened("layers").evaluate(PAINTED) for _ in range(3)]
    assert min(times) < 1000, times


def test_collectives_open_and_ops_are_filtered(opened: Any) -> None:
    page = opened("layers")
    moves = page.locator("details.move")
    last = moves.last
    assert moves.first.get_attribute("open") is not None and last.get_attribute("open") is None
    last.locator("summary").click()
    assert last.get_by_text("next best plan").is_visible()
    rows = page.locator("#program tr[data-op]")
    everything = rows.count()
    field = page.get_by_label("Filter")
    field.fill("all_gather")
    shown = page.locator("#program tr[data-op]:not([hidden])")
    assert 0 < shown.count() < everything and shown.first.is_visible()
    assert page.locator("#found").inner_text() == f"{shown.count()} of {everything} ops"
    field.fill("")
    assert shown.count() == everything
    page.locator("details.move a").first.click()  # a layout: who holds an element
    asked = page.get_by_label("Who holds element").first
    asked.fill("7, 3")
    assert re.fullmatch(
        r"held by rank [\d, ]+", page.locator("[role=status]:text('held by')").inner_text()
    )
    drawing = page.locator("details[open] svg.map").first
    box = drawing.bounding_box()
    assert box["width"] > 300
    drawing.hover(position={"x": box["width"] - 2, "y": box["height"] - 2})
    shape = re.search(
        r"of (\d+)x(\d+)$", page.locator("#layouts details[open] summary").first.inner_text()
    )
    assert asked.input_value() == ", ".join(str(int(size) - 1) for size in shape.groups())
    drawing.hover(position={"x": 1, "y": 1})
    assert asked.input_value() == "0, 0"


def test_everything_is_reached_by_the_keyboard(opened: Any) -> None:
    page = opened("mlp")
    focused = (
        "(document.activeElement.tagName + ' ' + document.activeElement.innerText).split('\\n')[0]"
    )
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "A What moves, and why"
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(ring) == "solid"
    while not page.evaluate(focused).startswith("SUMMARY"):
        page.keyboard.press("Tab")
    first = page.locator("details.move").first
    assert first.get_attribute("open") is not None
    page.keyboard.press("Enter")
    assert first.get_attribute("open") is None
    page.keyboard.press("Space")
    assert first.get_attribute("open") is not None
    reached = "'SUMMARY,A,INPUT'.split(',').includes(document.activeElement.tagName)"
    count = page.locator("summary:visible, a:visible, input:visible").count()
    stops = 0
    page.locator("nav a").first.focus()
    while page.evaluate(reached) and stops <= count:
        stops += 1
        page.keyboard.press("Tab")
    assert stops == count


def test_a_screen_reader_is_told_what_everything_is(opened: Any) -> None:
    page = opened("mlp")
    tree = page.locator("body").aria_snapshot()
    for said in (
        '- heading "mlp.mlir" [level=1]', '- heading "What moves, and why" [level=2]', "- banner:", "- main:",
        "- navigation:", '- textbox "Filter"', '- columnheader "layout"', '- rowheader "next best plan"',
        '- img "live bytes op by op"', '- region "Program"',
    ):  # fmt: skip
        assert said in tree, said
    named = "e.labels?.length || e.ariaLabel || e.textContent.trim()"
    every = "Array.from(document.querySelectorAll('input, svg:not([aria-hidden]), a'))"
    assert page.evaluate(f"{every}.every((e) => {named})")
    assert page.evaluate("document.documentElement.lang") == "en"


CONTRAST = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    const [r, g, b] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return ["--text", "--faint", "--strong", "--bad"].flatMap((front) => ["--back", "--panel"].map((back) => {
    const [high, low] = [light(front), light(back)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  }));
}"""
SMALL = """async (png) => {
  const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
  const canvas = new OffscreenCanvas(32, 24), context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(await createImageBitmap(new Blob([bytes])), 0, 0, 32, 24);
  const data = context.getImageData(0, 0, 32, 24).data;
  return Array.from({length: 32 * 24}, (_, k) => Math.round((data[4 * k] + data[4 * k + 1] + data[4 * k + 2]) / 3));
}"""


def small(page: Any) -> np.ndarray:
    """The first screen in 32 x 24 shades of grey: words are blurs, so fonts matter little."""
    return np.array(page.evaluate(SMALL, base64.b64encode(page.screenshot()).decode()))


@sampled(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_look_as_they_did(opened: Any, scheme: str) -> None:
    page = opened("block")
    page.emulate_media(color_scheme=scheme)
    assert min(page.evaluate(CONTRAST)) >= 4.5  # of the WCAG's level AA
    known, now = np.array(json.loads(SHOTS.read_text())[scheme]), small(page)
    assert np.abs(now - known).mean() < 9
    page.evaluate("document.querySelector('style').disabled = true")
    assert np.abs(small(page) - known).mean() > 9  # the comparison sees that the style is gone
