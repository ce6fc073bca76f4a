"""The demonstration runs, and the examples stay small."""

import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_demonstration_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands are those of forks, which need not load everything again."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    statuses = []

    def run(command: list[str], cwd: Path, env: dict[str, str]) -> Any:
        assert cwd == ROOT and env["MESHWEAVE_CACHE"] == "off"
        outcome = commands.meshweave(*command[command.index("run") :])
        assert outcome.status == 0, outcome
        statuses.append(outcome.status)
        return subprocess.CompletedProcess(command, outcome.status)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(run=run))
    demo.main()
    assert statuses == [0] * 6
    said = capsys.readouterr().out
    assert said.count("==>") == 6 and "All results agree" in said


def test_the_examples_are_small() -> None:
    nbytes = sum(p.stat().st_size for p in (ROOT / "examples").rglob("*") if p.is_file())
    assert nbytes < 6_000_000
