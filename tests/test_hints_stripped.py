"""Hints change nothing but how a program runs: all that we show gives the same results with its hints stripped."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT
from hint_programs import bits_are_promised
from pages import Reader, missing, snippets

from meshweave import api
from meshweave.api import Program, lowered, random_arguments
from meshweave.layout import Mesh
from meshweave.lowering import bundle_of
from meshweave.runtime.local import LocalEngine
from meshweave.targets import Goal
from meshweave.transforms.hint_ledger import read_ledger

PAGES = [p for p in sorted((ROOT / "docs").glob("*.md")) if "hint" in p.read_text()]
SCRIPTS = sorted((ROOT / "examples" / "native").glob("*.py"))
FILES = sorted((ROOT / "examples").rglob("*.mlir"))
LIT = [ROOT / "lit" / p for p in ("transforms/hint_slice.mlir", "transforms/hint_ring.mlir",
       "transforms/hint_verify.mlir", "transforms/hint_strip.mlir", "lowering/hint_budget.mlir")]  # fmt: skip


def results(text: str, mesh: "Mesh | None", strip: bool, seed: int = 1) -> tuple[list[Any], int]:
    """The results on random arguments, and how many hints were asked for."""
    with lowered(text, "shown", mesh, strip=strip) as (module, program):
        asked = len(read_ledger(module).said)
        bundle = bundle_of(program, Goal.of(engine="local"))
    with Program(bundle, LocalEngine(timeout=60)) as loaded:
        given = random_arguments(loaded.inputs, seed)
        small = [a * a.dtype.type(0.1) if a.dtype.kind in "fc" else a for a in given]
        return list(loaded(*small)), asked


def agree(text: str, mesh: "Mesh | None" = None) -> int:
    """Check a program with and without its hints; how many it has."""
    (hinted, asked), (plain, left) = results(text, mesh, False), results(text, mesh, True)
    assert left == 0
    for one, other in zip(hinted, plain, strict=True):
        if bits_are_promised(text):
            np.testing.assert_array_equal(one, other)
        else:
            largest = np.abs(other).max(initial=1) if other.dtype.kind in "fc" else 0
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * largest)
    return asked


class Built:
    """Programs that were compiled meanwhile: text and mesh."""

    def __init__(self) -> None:
        self.programs: dict[tuple[str, str], Mesh | None] = {}

    def hinted(self) -> list[tuple[str, "Mesh | None"]]:
        found = [(text, mesh) for (text, _), mesh in self.programs.items()]
        return [(text, mesh) for text, mesh in found if "hint.region" in text]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Built]:
    made, build = Built(), api._built

    def listening(text: str, name: str, mesh: "Mesh | None", *rest: Any) -> Any:
        bundle = build(text, name, mesh, *rest)
        made.programs[text, str(mesh)] = mesh
        return bundle

    monkeypatch.setattr(api, "_built", listening)
    yield made


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_what_the_pages_show(
    page: Path, compiled: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = snippets(page)
    for snippet in shown:
        text = snippet.text
        if snippet.kind == "mlir" and "hint.region" in text and "func.func @main" in text:
            assert agree(text) > 0
    if names := missing(page):
        pytest.skip(f"{page.name} needs {', '.join(names)}")
    monkeypatch.chdir(tmp_path)
    Reader(page, tmp_path).read()
    asked = [agree(text, mesh) for text, mesh in compiled.hinted()]
    assert all(asked)
    assert bool(asked) == any(_asks(s.text) for s in shown if s.kind == "python" and not s.name)


def _asks(source: str) -> bool:
    return "mw.hint(" in source or '"meshweave": {' in source


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_what_the_example_scripts_do(
    script: Path, compiled: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    assert compiled.programs
    asked = [agree(text, mesh) for (text, _), mesh in list(compiled.programs.items())]
    assert any(asked) == _asks(script.read_text())


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


@pytest.mark.parametrize("text", list(functions()))
def test_the_programs_of_the_lit_tests(text: str) -> None:
    assert agree(text) > 0
