"""Long compiles show where they are, on a terminal alone."""

import io
import sys
import time

import pytest

import meshweave as mw
from meshweave.api import progress
from meshweave.api.progress import Bar

TEXT = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, file: io.StringIO, delay: float) -> str:
    """What compiling TEXT writes to standard error."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("MESHWEAVE_CACHE", "off")
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(progress, "DELAY", delay)
    mw.compile(TEXT).close()
    return file.getvalue()


def test_a_terminal_gets_a_bar_for_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "compiling" in shown(monkeypatch, Terminal(), 0.0)


def test_nothing_is_shown_of_short_compiles_nor_into_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Terminal(), 60.0) == ""
    assert shown(monkeypatch, io.StringIO(), 0.0) == ""


def test_more_stages_than_were_said_do_not_run_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "DELAY", 0.01)
    with Bar("x", 2) as bar:
        time.sleep(0.02)
        for stage in "abcd":
            bar(stage)
        (task,) = bar._shown.tasks
        assert task.completed == 1 and task.total == 2
