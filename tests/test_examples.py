"""The demonstration runs, and the examples stay small."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_the_demonstration_runs() -> None:
    done = run(["examples/demo.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("==>") == 6
    assert "All results agree" in done.stdout


def test_the_examples_are_small() -> None:
    nbytes = sum(p.stat().st_size for p in (ROOT / "examples").rglob("*") if p.is_file())
    assert nbytes < 6_000_000
