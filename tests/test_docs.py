"""Docs are current, and what is public says what it is."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_generated_pages_are_current() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for path, text in generate.pages().items():
        assert path.exists() and path.read_text() == text, (
            f"{path.relative_to(ROOT)}: run make docs"
        )


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "adr").glob("*.md")), ids=lambda p: p.name)
def test_decisions_have_context_decision_and_price(page: Path) -> None:
    text = page.read_text()
    for heading in ("## Context", "## Decision", "## Price"):
        assert heading in text, f"{page.name} lacks {heading}"


def test_relative_links_lead_somewhere() -> None:
    import re

    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_the_glossary_is_short_and_has_no_word_twice() -> None:
    rows = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    words = [row.split("|")[1].strip() for row in rows if row.startswith("| ")]
    words = [word for word in words if word not in ("word", "---")]
    assert 40 <= len(words) <= 60 and len(set(words)) == len(words)
