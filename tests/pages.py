"""The snippets of Markdown pages, and how each is run: what a page shows is what happens.

The word behind a fence says what stands in it:

python    run, in order, all of a page in one namespace; with a name behind it, put into that file instead
console   commands behind `$ `, run by the shell in one folder for the page; lines below one are an excerpt of its
          output. A command that this machine cannot run ends in `# needs ..` (see NEEDS).
mlir      a program that meshweave-opt reads; with a name behind it, it is put into that file for the commands to come.
          With the path of a file of this repository, an excerpt of it; with `..` in it, of the last command's output.
diff      a change of the file with the name behind it, which CONTRIBUTING.md has (tests/test_contributing.py)
text      an excerpt of what the snippets before it printed
pycon     an example of a docstring, which tests/test_docstrings.py runs
(none)    notation, and what stands before and after a pass: no commands

In an excerpt the lines stand in order, and `..` stands for anything; spaces in a row are one.
"""

import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from commands import forked, forks

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("python", "console", "mlir", "text", "diff", "pycon", "")
COLUMNS = 100
NEEDS = ("needs a GPU", "needs two hosts")
"""What a command may need that the tests have not: it is shown, and not run."""

SET_UP = ("pip install ", "git clone ", "cd ", "source .venv/bin/activate")
"""How commands begin that set a machine up, as has been done where tests run: not run either."""

GALLERY = "python examples/gallery/"
"""How commands begin that run a program of the gallery, which tests/test_gallery.py does."""

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OPTIONAL = {"jax": "jax", "torch": "torchrun ", "llvmlite": "--target gpu|emulate",
             "aiohttp": "meshweave serve"}  # fmt: skip
"""Package -> what in a page says, besides an import, that it is needed."""


@dataclass(frozen=True)
class Snippet:
    """A fenced part of a page. line: how many lines of the page are above its text."""

    line: int
    kind: str
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command and the excerpt of its output that a page shows. needs: why it is not run, or ""."""

    line: int
    text: str
    shown: str
    needs: str


def pages() -> list[Path]:
    """Every page of the repository that is written for readers."""
    folders = ("docs", "examples", "benchmarks", "tests")
    found = [page for folder in folders for page in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *found])


def snippets(page: Path) -> list[Snippet]:
    """All fenced parts of a page, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        kind, _, name = match[1].strip().partition(" ")
        found.append(Snippet(text.count("\n", 0, match.start(2)), kind, name, match[2]))
    return found


def commands(snippet: Snippet) -> list[Command]:
    """The commands of a console snippet."""
    found: list[Command] = []
    for number, line in enumerate(snippet.text.splitlines(), snippet.line + 1):
        if line.startswith("$ "):
            said = re.search(r"\s+# (needs .*)$", line)
            found.append(Command(number, line[2:], "", said[1] if said else ""))
        else:
            assert found, f"line {number}: output without a command"
            last = found.pop()
            found.append(Command(last.line, last.text, f"{last.shown}{line}\n", last.needs))
    return found


def needed(page: Path) -> list[str]:
    """Return the optional packages that a page needs."""
    source = "".join(s.text for s in snippets(page) if s.kind in ("python", "console"))
    found = []
    for package, sign in _OPTIONAL.items():
        imported = re.search(rf"^(import|from) {package}\b", source, re.MULTILINE)
        signed = sign != package and re.search(sign, source)
        if imported or signed:
            found.append(package)
    return found


def missing(page: Path) -> list[str]:
    """Return the optional packages that a page needs and that are not installed."""
    return [package for package in needed(page) if importlib.util.find_spec(package) is None]


def marked(pages: list[Path]) -> list[Any]:
    """Return pages as parameters of a test; those that need PyTorch have the mark `torch`."""
    marks = {True: [pytest.mark.torch], False: []}
    return [pytest.param(page, marks=marks["torch" in needed(page)]) for page in pages]


def not_in(shown: str, printed: str) -> str | None:
    """The first line of an excerpt that is not in `printed` behind the one above it; spaces in a row are one."""
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    for line in (" ".join(line.split()) for line in shown.splitlines()):
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in line.split("..")))
        if line.strip(". ") and not any(pattern.search(other) for other in lines):
            return line
    return None


class Reader:
    """Does what a page says, in a folder, as a reader would who copies snippet after snippet."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.namespace: dict[str, Any] = {"__name__": page.stem}
        self.printed = ""  # by the snippets so far
        self.output = ""  # of the last command
        (folder / "bin").mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        self.environment = self.write_commands(folder / "bin")

    def write_commands(self, folder: Path) -> dict[str, str]:
        """Write the commands of this tree into a folder; return what they need in their environment."""
        forked().write_commands(str(folder))
        return {forked().SOCKET: forks()}

    def read(self) -> None:
        """Run all snippets in order, in a terminal of COLUMNS; AssertionError names the line of one that does not do
        what it shows.
        """
        with mock.patch.dict(os.environ, COLUMNS=str(COLUMNS)):
            for snippet in snippets(self.page):
                with self._named(snippet.line):
                    getattr(self, f"_{snippet.kind or 'notation'}")(snippet)

    @contextlib.contextmanager
    def _named(self, line: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not str(error).startswith(f"{self.page.name}:"):
                error.args = (f"{self.page.name}:{line + 1}: {error}",)
            raise

    def _python(self, snippet: Snippet) -> None:
        if snippet.name:
            (self.folder / snippet.name).write_text(snippet.text)
            return
        # As many lines above as in the page, so that errors name its line.
        code = compile("\n" * snippet.line + snippet.text, str(self.page), "exec")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, self.namespace)
        self.printed += said.getvalue()

    def _console(self, snippet: Snippet) -> None:
        for command in commands(snippet):
            if not command.needs:
                with self._named(command.line - 1):
                    self._command(command)

    def _command(self, command: Command) -> None:
        if command.text.startswith("make "):  # what it does has a test of its own
            self._shell(f"make -n -C {ROOT} {command.text[5:]}")
            return
        if command.text.startswith((*SET_UP, GALLERY)):
            return
        self.output = self._shell(command.text)
        line = not_in(command.shown, self.output)
        assert line is None, f"{command.text} prints no {line!r}, but\n{self.output}"

    def _shell(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.folder,
            env={
                **os.environ,
                **self.environment,
                "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, f"{command}: exit status {done.returncode}: {done.stdout}"
        return done.stdout

    def _mlir(self, snippet: Snippet) -> None:
        if ".." in snippet.text or (ROOT / snippet.name).is_file():
            of = (ROOT / snippet.name).read_text() if snippet.name else self.output
            line = not_in(snippet.text, of)
            assert line is None, f"{snippet.name or 'the output above'} has no {line!r}"
            return
        file = self.folder / (snippet.name or "snippet.mlir")
        file.write_text(snippet.text)
        self._shell(f"meshweave-opt {file} > /dev/null")

    def _text(self, snippet: Snippet) -> None:
        line = not_in(snippet.text, self.printed)
        assert line is None, f"nothing printed {line!r}, but\n{self.printed}"

    def _pycon(self, snippet: Snippet) -> None:
        """Of a docstring: run where that is."""

    def _notation(self, snippet: Snippet) -> None:
        """Nothing to run: `test_every_snippet_says_what_it_is` holds that."""
