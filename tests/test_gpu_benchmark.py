"""The benchmark of GPUs: it says so where there is none, and measures what it says on a device that
the recorder plays.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from depth import deep

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import device as gpu_device
from benchmarks.gpu import groups, timing
from benchmarks.gpu.device import Device
from benchmarks.gpu.groups import OF_COPY
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


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A device that is played, for the benchmark to measure, briefly."""
    recorder = Recorder(1, EmulatedKernels(False), Scheduler(move, None, False))
    recorder.set_current(0)
    monkeypatch.setattr(timing, "SAMPLES", 1)
    monkeypatch.setattr(timing, "REST_SECONDS", 0.0)
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(gpu_device, "COPIED", 1 << 10)
    monkeypatch.setattr(gpu, "gpus", lambda: 1)
    monkeypatch.setattr(gpu, "Device", lambda: Device(recorder))
    monkeypatch.setattr(groups, "LINKS", 2)
    return recorder


def test_it_measures_launches(recorder: Recorder, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert gpu.main(["--only", "launch", "--repeat", "1", "--out", str(out)]) == 0
    copy, launch = json.loads(out.read_text())["rows"]
    assert copy["bytes_per_second"] > 0 and launch["enqueued"] > 0 and launch["kernels"] >= 2
    assert recorder.live() == [], "all that was made is given back"


@deep
def test_it_measures_all_that_it_lists(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text('print(\'{"name": "block bf16", "torch_seconds": 1.0, "error": 0.5}\')')
    monkeypatch.setattr(gpu, "PEER", (str(peer),))
    monkeypatch.setattr(gpu, "find_spec", lambda name: name)
    out = tmp_path / "r.json"
    asked = ["--divide", "128", "--repeat", "1", "--out", str(out)]
    assert gpu.main(asked) == 0
    written = json.loads(out.read_text())
    assert written["about"]["chip"] == "sm_90a" and written["about"]["driver"] == "13.0"
    rows = {row["name"]: row for row in written["rows"]}
    assert len(rows) == 2 + len(groups.timed(128)), "what is listed, a copy and launches"
    assert all("seconds" in row for name, row in rows.items() if name != "copy")
    assert all(
        "of_copy" in r for r in rows.values() if r["group"] in OF_COPY and r["name"] != "copy"
    )
    assert "of_best" in rows["block bf16"] and rows["block bf16"]["error"] == 0.5
    assert rows["launch"]["kernels"] >= 2
    assert recorder.live() == [], "all that was made is given back"
    monkeypatch.setattr(Device, "run", None)
    assert gpu.main([*asked, "--resume"]) == 0, "what is known is not measured again"
    assert len(json.loads(out.read_text())["rows"]) == len(rows)


@pytest.mark.torch
def test_the_peer_compares_and_prints_seconds_by_name(tmp_path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch (make test-torch)")
    for each in groups.timed(128):
        value = each.case.function(np, *each.case.sampled(each.dtype))
        np.save(tmp_path / f"{each.name.replace(' ', '_')}.npy", np.float32(value))
    command = [sys.executable, "-m", "benchmarks.peers.gpu", "--device", "cpu", "--divide", "128"]
    command += ["--repeat", "1", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert set(found) == {each.name for each in groups.timed(128) if each.peer}
    assert max(row["error"] for row in found.values()) < 1e-4
