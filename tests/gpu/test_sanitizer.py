"""NVIDIA's compute-sanitizer finds nothing wrong with the kernels of any family."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu.programs import KERNELS, RANKS

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which(
    "compute-sanitizer"
)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
@pytest.mark.parametrize("case", [*KERNELS.values(), RANKS["cyclic"]], ids=lambda c: c.name)
def test_the_sanitizer_is_content(case, tool: str, bundle_of, runs_on, tmp_path) -> None:
    if runs_on != "nccl":
        pytest.skip("there is no device to look at")
    if SANITIZER is None:
        pytest.skip("compute-sanitizer is not installed")
    path = tmp_path / "p.mwb"
    bundle_of(case, "f32").write(path)
    command = [str(SANITIZER), "--tool", tool, "--target-processes", "all"]
    command += [sys.executable, "-m", "meshweave.tools.cli", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    errors = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    assert errors and set(errors) == {"0"}, done.stdout
