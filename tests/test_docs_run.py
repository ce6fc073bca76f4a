"""Pages do what they show: every snippet and command of every page, in order (how: pages.py)."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pages import KINDS, NEEDS, ROOT, Reader, commands, marked, missing, not_in, pages, snippets
from stripped import agree, asks_for_hints, listen

PAGES = pages()
CHANGES = ROOT / "CONTRIBUTING.md"  # which test_contributing.py runs
RUN = [p for p in PAGES if p != CHANGES and {s.kind for s in snippets(p)} - {"pycon", ""}]


@pytest.mark.parametrize("page", marked(RUN), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if names := missing(page):
        pytest.skip(f"{page.name} needs {', '.join(names)}")
    compiled = listen(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Reader(page, tmp_path).read()
    if page.parent.name == "docs" and "hint" in page.read_text():
        shown = [s.text for s in snippets(page) if s.kind == "python" and not s.name]
        asked = [agree(text, mesh) for text, mesh in compiled.hinted()]
        assert all(asked), "with its hints stripped a program gives the same"
        assert bool(asked) == any(map(asks_for_hints, shown))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_snippet_says_what_it_is(page: Path) -> None:
    for snippet in snippets(page):
        where = f"{page.name}:{snippet.line + 1}"
        assert snippet.kind in KINDS, f"{where}: nothing runs {snippet.kind!r}: one of {KINDS}"
        if snippet.kind == "console":
            for command in commands(snippet):
                assert command.needs in ("", *NEEDS), f"{where}: {command.needs!r} is no {NEEDS}"
        elif snippet.kind != "pycon":
            run = re.search(r"^(\$|>>>) ", snippet.text, re.MULTILINE)
            assert not run, f"{where}: commands stand in a console snippet"
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert "```" not in prose, f"{page.name}: a fence is not closed, or not at the start of a line"
    assert not re.search(r"^\s*\$ ", prose, re.MULTILINE), (
        f"{page.name}: a command outside a snippet"
    )


def test_examples_of_docstrings_are_shown_in_the_reference_alone() -> None:
    assert {p.name for p in PAGES if any(s.kind == "pycon" for s in snippets(p))} == {"api.md"}


def test_the_pages_that_users_begin_with_are_run() -> None:
    names = {str(page.relative_to(ROOT)) for page in RUN}
    assert {"README.md", "docs/tour.md", "docs/jax.md", "docs/pytorch.md", "docs/gpu.md"} <= names
    assert sum(s.kind == "python" for s in snippets(ROOT / "docs" / "tour.md")) >= 10


def page_of(folder: Path, text: str) -> Reader:
    (folder / "page.md").write_text(text)
    return Reader(folder / "page.md", folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nassert 1 == 2, 'wrong'\n```\n", r"page.md:2: wrong"),
        ("```console\n$ echo a\na\n$ echo b\nc\n```\n", r"page.md:4: echo b prints no 'c'"),
        ("```console\n$ exit 3\n```\n", r"page.md:2: exit 3: exit status 3"),
        ("```mlir\nfunc.func @f( {\n```\n", r"page.md:2: .* exit status 1"),
        ("```console\n$ echo %a %c\n```\n```mlir\n%a .. %b\n```\n", r"has no '%a .. %b'"),
        ("```python\nprint('a')\n```\n```text\nb\n```\n", r"page.md:5: nothing printed 'b'"),
    ],
)
def test_what_a_page_shows_wrongly_is_found(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=message):
        page_of(tmp_path, text).read()


def test_excerpts_are_in_order_and_dots_stand_for_anything() -> None:
    printed = "one 1\ntwo   2 of 7\nthree 3\n"
    assert not_in("one\ntwo 2 .. 7\n..\nthree 3", printed) is None
    assert not_in("three\none", printed) == "one"
    assert not_in("two .. 8", printed) == "two .. 8"


def takes(process: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    found = re.search(
        r"^SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text(), re.MULTILINE
    )
    return bool(found) and bool(int(found[1], 16) >> (number - 1) & 1)


def test_a_command_that_is_ended_ends_what_runs_it(tmp_path: Path) -> None:
    reader = page_of(tmp_path, "")
    with subprocess.Popen(
        [tmp_path / "bin" / "meshweave-opt", "-"],  # it reads standard input, which does not end
        stdin=subprocess.PIPE,
        env={**os.environ, **reader.environment},
    ) as command:
        while not takes(command.pid, signal.SIGTERM):
            time.sleep(0.02)
        command.terminate()
        # The process that is ended waits for the one that runs the command, and gives its status.
        assert command.wait(100) > 0
