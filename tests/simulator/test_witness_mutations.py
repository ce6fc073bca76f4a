"""Kernels that are broken on purpose, in the witness and in the emulator: what orders threads left out, an index
or an operand changed. Both must notice, by another result or an error, but for what does not matter.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")

from depth import thinned
from lowering.gpu import maps_and_rows as programs
from lowering.gpu.test_kernels import FIRST_OF_ROW
from simulator.test_witness_programs import numbers, of, product, reduced, softmax
from simulator.witnesses import broken, device_code, noticed, outcome_here, outcome_there, witness

from meshweave.lowering.gpu.families import registry as families

PROGRAMS = {
    "gemm_mma": lambda: product(m=32, n=32, k=256, dtype="bf16", result="f32"),
    "columns": lambda: reduced((70, 64), [0], "f32", programs.SUM),
    "rows": lambda: softmax(2, 1100, "f32"),
}
SEEDS = range(6)


def missed(name: str, kinds: tuple[str, ...], most: int) -> tuple[int, list[str], list[str]]:
    """How many kernels were broken, and which of them the witness and the emulator did not notice."""
    run, inputs = PROGRAMS[name]()
    (kernel,) = run.kernels
    right, there = run.run(*inputs, launch=witness(run.target.chip)), run.run(*inputs)
    every = [b for b in broken(device_code(kernel.text)) if b.kind in kinds]
    tried = [every[k] for k in np.random.default_rng(1).permutation(len(every))[:most]]
    here = [
        b.what for b in tried
        if not any(noticed(outcome_here(run, kernel.entry, b.code, inputs, s), right) for s in SEEDS)
    ]  # fmt: skip
    emulated = [b.what for b in tried if not noticed(outcome_there(run, 0, b.code, inputs), there)]
    return len(tried), here, emulated


@pytest.mark.parametrize("name", PROGRAMS)
def test_witness_and_emulator_notice_what_orders_threads_left_out(name):
    """The lanes of a warp go in step in the emulator: what they tell each other without a barrier it does not see."""
    count, here, emulated = missed(name, ("dropped", "weaker"), 12)
    assert count >= 2 and not here
    assert not emulated or name == "columns"


@pytest.mark.parametrize("name", thinned(PROGRAMS, 2))
def test_witness_notices_changed_indices_and_operands(name):
    """Some do not matter: a place that is never reached, a remainder of what is small enough."""
    count, here, emulated = missed(name, ("index", "place", "swapped"), 6)
    assert count == 6 and len(here) <= 1 and len(emulated) <= 1


def test_witness_lanes_of_a_warp_are_not_in_step(monkeypatch):
    """What one lane leaves in memory for another waits for `bar.warp.sync`; in the emulator all lanes are as far."""
    monkeypatch.setattr(families, "ENOUGH_ROWS", 0)
    text = FIRST_OF_ROW.replace("4x512", "4x96").replace("0, 300", "0, 70")
    run, inputs = of(text, numbers((4, 96), "f32"))
    (kernel,) = run.kernels
    (cut,) = [b for b in broken(device_code(kernel.text)) if b.kind == "dropped"]
    assert "bar.warp.sync" in cut.what
    right, there = run.run(*inputs, launch=witness("sm_80")), run.run(*inputs)
    assert not noticed(right, there)
    for seed in range(3):
        assert noticed(outcome_here(run, kernel.entry, cut.code, inputs, seed), right)
    assert not noticed(outcome_there(run, 0, cut.code, inputs), there)
