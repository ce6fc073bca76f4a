"""The programs of the gallery run and print what the pages show; each compares its result with another's by itself."""

import runpy
from pathlib import Path

import pytest
from pages import GALLERY, ROOT, Command, commands, not_in, pages, snippets

PROGRAMS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
SHOWN = [
    command
    for page in pages()
    for snippet in snippets(page)
    if snippet.kind == "console"
    for command in commands(snippet)
    if command.text.startswith(GALLERY)
]


def program(command: Command) -> Path:
    """Return the program that a command runs."""
    return ROOT / command.text.removeprefix("python ")


def marks(command: Command) -> list[pytest.MarkDecorator]:
    return [pytest.mark.torch] if "import torch" in program(command).read_text() else []


def test_each_program_is_on_a_page() -> None:
    assert sorted(map(program, SHOWN)) == PROGRAMS and len(PROGRAMS) == 10


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=marks(c), id=program(c).stem) for c in SHOWN]
)
def test_a_program_prints_what_its_page_shows(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(program(command)), run_name="__main__")
    printed = capsys.readouterr().out
    line = not_in(command.shown, printed)
    assert line is None, f"{command.text} prints no {line!r}, but\n{printed}"
