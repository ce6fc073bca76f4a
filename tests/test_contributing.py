"""The worked examples of CONTRIBUTING.md: a copy of the tree is changed as they say, and their commands run there."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
from commands import MODULES
from pages import ROOT, Reader, Snippet, snippets

PAGE = ROOT / "CONTRIBUTING.md"
COPIED = ("meshweave", "lit", "tests", "docs", "examples")


class Contributor(Reader):
    """Changes a copy of the tree as the page says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(PAGE, folder)
        (folder / "examples").unlink()
        for name in COPIED:
            shutil.copytree(
                ROOT / name,
                folder / name,
                symlinks=True,
            )
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder)

    def write_commands(self, folder: Path) -> dict[str, str]:
        """Write the commands of the copy, which a change is made of: each is a process of its own."""
        for name, module in MODULES.items():
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            script.chmod(0o755)
        return {}

    def _python(self, snippet: Snippet) -> None:
        target = self.folder / snippet.name
        assert not target.exists(), f"{snippet.name} is there already"
        target.write_text(snippet.text)

    _mlir = _python

    def _diff(self, snippet: Snippet) -> None:
        target = self.folder / snippet.name
        target.write_text(changed(target.read_text(), snippet.text))

    def _shell(self, command: str) -> str:
        return super()._shell(f'export PYTHONPATH="$PWD"; {command}')


def changed(text: str, change: str) -> str:
    """The text with lines that begin with + behind the line above them, and without those that begin with -."""
    lines, at = text.splitlines(), 0
    for line in change.splitlines():
        mark, content = line[:1], line[1:]
        if line.strip() == "...":
            continue
        if mark == "+":
            lines.insert(at, content)
            at += 1
            continue
        assert mark in ("-", " "), f"{line!r} begins with none of + - and a space"
        assert content in lines[at:], f"no line {content!r} where the change needs one"
        at = lines.index(content, at)
        if mark == "-":
            del lines[at]
        else:
            at += 1
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(not importlib.util.find_spec("llvmlite"), reason="needs llvmlite")
def test_the_worked_examples_work(tmp_path: Path) -> None:
    Contributor(tmp_path).read()


def test_a_change_is_made_where_its_lines_are() -> None:
    assert changed("a\nb\nc\n", " a\n+x\n ...\n-c\n+y\n") == "a\nx\nb\ny\n"
    with pytest.raises(AssertionError, match="no line 'a'"):
        changed("a\nb\n", " b\n a\n")


def test_the_page_counts_the_files_that_it_writes() -> None:
    parts = PAGE.read_text().split("\n### ")[1:]
    for part, wanted in zip(parts, (3, 2, 3, 3), strict=True):
        names = {s.name for s in snippets(PAGE) if s.name and f" {s.name}\n" in part}
        assert len(names) == wanted, part.splitlines()[0]
