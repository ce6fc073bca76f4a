"""NVIDIA's compute-sanitizer finds nothing wrong with the kernels of any family."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu.programs import KERNELS, RANKS

from benchmarks.gpu.device import gpus
from meshweave.runtime.gpu.launcher import rank_environment

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which(
    "compute-sanitizer"
)

OUR_CALLS = ["--report-api-errors", "no"]
"""NCCL asks for kernels that are not there; our own calls are checked."""
NOT_OURS = ["--kernel-name-exclude", "kernel_substring=nccl"]
"""NCCL's kernels meet in part of a block. initcheck looks at them, too: it has to see what they write for ours."""


OF_TENSOR_CORES = ("attention", "product")
LOOKED_AT = [
    *(pytest.param(case, "f32", id=case.name) for case in (*KERNELS.values(), RANKS["cyclic"])),
    *(
        pytest.param(case, "bf16", id=f"{case.name}-bf16")
        for case in KERNELS.values()
        if case.name.startswith(OF_TENSOR_CORES)
    ),
]


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
@pytest.mark.parametrize(("case", "dtype"), LOOKED_AT)
def test_the_sanitizer_is_content(
    case, dtype: str, tool: str, bundle_of, runs_on, tmp_path
) -> None:
    if runs_on != "nccl":
        pytest.skip("there is no device to look at")
    if SANITIZER is None:
        pytest.skip("compute-sanitizer is not installed")
    bundle, path = bundle_of(case, dtype), tmp_path / "p.mwb"
    bundle.write(path)
    ranks = math.prod(int(size.split("=")[1]) for size in bundle.manifest.mesh.split(","))
    left_out = [] if tool == "initcheck" else NOT_OURS
    command = [str(SANITIZER), "--tool", tool, "--error-exitcode", "9", *OUR_CALLS, *left_out]
    jobs = [
        subprocess.Popen(
            [*command, sys.executable, str(ROOT / "tests" / "gpu" / "inside.py"), str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ
            | rank_environment(rank, ranks, share=ranks > gpus())
            | {"MESHWEAVE_STORE": f"file://{tmp_path}", "PYTHONPATH": str(ROOT)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        for job in jobs:
            said, _ = job.communicate(timeout=100)
            assert job.returncode == 0, said
            counts = re.findall(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+) ", said)
            assert counts and set(counts) == {"0"}, said
    finally:
        for job in jobs:
            job.kill()
