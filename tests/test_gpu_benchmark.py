"""The benchmark of GPUs: it says so where there is none, and measures what it says on a device that
the recorder plays.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from depth import deep

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import device as gpu_device
from benchmarks.gpu.device import Device
from meshweave.simulator.driver.emulated import EmulatedKernels
from meshweave.simulator.driver.move import move
from meshweave.simulator.driver.recorder import Recorder
from meshweave.simulator.driver.replay import Scheduler

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")


def test_without_a_gpu_it_says_so_and_ends_well() -> None:
    if gpu_device.gpus():
        pytest.skip("there is a GPU")
    assert gpu.main([]) == 0
    for target in ("test-gpu", "bench-gpu"):
        rule = (ROOT / "Makefile").read_text().split(f"\n{target}:")[1].split("\n\n")[0]
        assert {"test-gpu": "tests/gpu", "bench-gpu": "benchmarks.gpu"}[target] in rule


@deep
def test_it_measures_all_that_it_lists(tmp_path, monkeypatch) -> None:
    recorder = Recorder(1, EmulatedKernels(False), Scheduler(move, None, False))
    recorder.set_current(0)
    monkeypatch.setattr(gpu_device, "SAMPLES", 1)
    monkeypatch.setattr(gpu_device, "COPIED", 1 << 10)
    monkeypatch.setattr(gpu, "gpus", lambda: 1)
    monkeypatch.setattr(gpu, "Device", lambda: Device(recorder))
    monkeypatch.setattr(gpu, "LINKS", 2)
    monkeypatch.setattr(gpu, "SQUARES", (2048,))
    monkeypatch.setattr(gpu, "torch_seconds", lambda python, by: {"block bf16": 1.0})
    out = tmp_path / "r.json"
    assert gpu.main(["--divide", "128", "--repeat", "1", "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    assert results["about"]["chip"] == "sm_90a" and results["about"]["driver"] == "13.0"
    for rows in ("memory", "products", "launch", "block"):
        assert results[rows], rows
    rates = [row["bytes_per_second"] for row in results["memory"]]
    assert len(rates) == 13 and all(rate is not None for rate in rates)
    assert results["launch"][0]["kernels"] >= 2
    assert recorder.live() == [], "all that was made is given back"


@pytest.mark.torch
def test_the_peer_prints_seconds_by_name() -> None:
    pytest.importorskip("torch", reason="needs PyTorch (make test-torch)")
    command = [sys.executable, "-m", "benchmarks.peers.gpu", "--device", "cpu", "--divide", "128"]
    done = subprocess.run([*command, "--repeat", "1"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert {"block bf16", "product_2048 f32"} <= set(json.loads(done.stdout))
