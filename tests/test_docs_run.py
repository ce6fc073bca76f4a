"""Pages that show Python run: every fenced snippet of a page, in order, in one namespace."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONAL = ("jax", "torch")  # a page that imports one is for those who have it


def snippets(page: Path) -> list[tuple[int, str]]:
    """Line and text of each snippet of a page."""
    text = page.read_text()
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in FENCED.finditer(text)]


PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if snippets(page))


def missing(source: str) -> list[str]:
    """The optional packages that a page imports and that are not there."""
    wanted = [n for n in OPTIONAL if re.search(rf"^(import|from) {n}\b", source, re.MULTILINE)]
    return [name for name in wanted if importlib.util.find_spec(name) is None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = snippets(page)
    if names := missing("".join(source for _, source in found)):
        pytest.skip(f"{page.name} needs {', '.join(names)}")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": page.stem}
    for line, source in found:  # as many lines above as in the page: errors name its line
        exec(compile("\n" * line + source, str(page), "exec"), namespace)


def test_the_tour_and_the_pages_of_the_frontends_are_among_them() -> None:
    assert {"tour.md", "jax.md"} <= {page.name for page in PAGES}
    assert len(snippets(ROOT / "docs" / "tour.md")) >= 10


def test_a_snippet_that_fails_names_its_line() -> None:
    page = ROOT / "docs" / "tour.md"
    line, source = snippets(page)[1]
    assert page.read_text().splitlines()[line:][: source.count("\n")] == source.splitlines()
