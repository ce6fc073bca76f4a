"""Hints change nothing but how a program runs: all that we show gives the same results with its hints stripped."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from depth import sampled
from pages import snippets
from stripped import agree, asks_for_hints, listen

PAGES = [p for p in sorted((ROOT / "docs").glob("*.md")) if "hint" in p.read_text()]
SCRIPTS = sorted((ROOT / "examples" / "native").glob("*.py"))
FILES = sorted((ROOT / "examples").rglob("*.mlir"))
LIT = [ROOT / "lit" / p for p in ("transforms/slicing/slice.mlir", "transforms/slicing/ring.mlir",
       "transforms/slicing/verify.mlir", "transforms/slicing/strip.mlir", "lowering/budget.mlir")]  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_modules_that_the_pages_show(page: Path) -> None:
    """What else a page does is compared by test_docs_run.py, which runs it."""
    for snippet in snippets(page):
        text = snippet.text
        if snippet.kind == "mlir" and "hint.region" in text and "func.func @main" in text:
            assert agree(text) > 0


@sampled(4)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_what_the_example_scripts_do(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = listen(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    assert compiled.programs
    asked = [agree(text, mesh) for (text, _), mesh in list(compiled.programs.items())]
    assert any(asked) == asks_for_hints(script.read_text())


@sampled(2)
@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_the_example_files(file: Path) -> None:
    assert agree(file.read_text()) == 0


def functions() -> Iterator[Any]:
    """The functions of lit tests that have hints, each as a program."""
    for file in LIT:
        for chunk in file.read_text().split("// -----"):
            head = "\n".join(re.findall(r'^"dist.mesh".*$', chunk, re.MULTILINE))
            for text in re.findall(r"^func\.func @.*?^}$", chunk, re.MULTILINE | re.DOTALL):
                if "hint.region" in text and "@main" not in text:
                    name = re.match(r"func\.func @(\w+)", text)[1]  # type: ignore[index]
                    main = text.replace(f"@{name}(", "@main(", 1)
                    yield pytest.param(f"{head}\n{main}", id=f"{file.stem}-{name}")


def test_a_model_of_torch_as_text() -> None:
    assert agree((ROOT / "tests" / "data" / "torch" / "hinted_block.mlir").read_text()) > 0


@sampled(1)
@pytest.mark.parametrize("text", list(functions()))
def test_the_programs_of_the_lit_tests(text: str) -> None:
    assert agree(text) > 0
