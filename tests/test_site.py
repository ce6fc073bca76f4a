"""The pages become a site: each is in its table of contents, and links between them lead to pages of the site."""

import importlib.util
import os
import re
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def website() -> ModuleType:
    spec = importlib.util.spec_from_file_location("website", ROOT / "docs" / "website.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_pages_are_in_the_contents_once(website: ModuleType) -> None:
    made = website.site_pages()
    listed = re.findall(r"^[\w/.-]+$", website.contents(made), re.MULTILINE)
    assert sorted(listed) == sorted(
        name[:-3] for name in made if name.endswith(".md") and name != "index.md"
    )
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in made


def test_links_lead_to_pages_of_the_site(website: ModuleType) -> None:
    made = website.site_pages()
    for name, text in made.items():
        if name.startswith("source/") or not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text):
            place = os.path.normpath(PurePosixPath(name).parent / target)
            assert place in made, f"{name}: {target}"
    assert "(source/examples/gallery/kmeans.py.md)" in made["gallery.md"]
    assert "(docs/" not in made["overview.md"]


def test_sources_are_listed_as_they_are(website: ModuleType) -> None:
    shown = website.site_pages()["source/examples/gallery/kmeans.py.md"]
    assert (ROOT / "examples" / "gallery" / "kmeans.py").read_text() in shown
