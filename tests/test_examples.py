"""The examples and what the README says of them: every command runs, and prints what is shown."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
MODULES = {"meshweave": "meshweave.tools.cli", "meshweave-opt": "meshweave.tools.opt"}


def commands() -> list[str]:
    """The lines of the README that begin with a prompt; FILE stands for any program."""
    found = re.findall(r"^\$ (.*)$", README, re.MULTILINE)
    return [c.replace("FILE", "examples/tour/product.mlir") for c in found]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_readme_run(command: str) -> None:
    name, *arguments = shlex.split(command)
    done = run(["-m", MODULES[name], *arguments])
    assert done.returncode == 0, done.stderr


def test_the_tour_shows_what_comes_out() -> None:
    done = run(
        ["-m", MODULES["meshweave-opt"], "examples/tour/product.mlir", "-p", "dist-pipeline"]
    )
    printed = done.stdout
    blocks = re.findall(r"```mlir\n(.*?)```", README, re.DOTALL)
    for line in blocks[1].strip().splitlines():
        start, _, end = line.strip().partition(
            " outs(%1 : ..)" if "%1 : .." in line else " outs(%4 : ..)"
        )
        assert any(start in p and end in p for p in printed.splitlines()), line


def test_the_tour_shows_what_goes_in() -> None:
    program = (ROOT / "examples" / "tour" / "product.mlir").read_text()
    blocks = re.findall(r"```mlir\n(.*?)```", README, re.DOTALL)
    for line in blocks[0].strip().splitlines():
        if ".." not in line:
            assert line.strip() in program, line


def test_the_demonstration_runs() -> None:
    done = run(["examples/demo.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("==>") == 6
    assert "All results agree" in done.stdout


def test_the_examples_are_small() -> None:
    nbytes = sum(p.stat().st_size for p in (ROOT / "examples").rglob("*") if p.is_file())
    assert nbytes < 6_000_000
