"""The product's own tensor-core kernels, with their barriers, waits, fences and swizzles broken."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from meshweave.lowering.gpu.families.gemm import wgmma
from meshweave.lowering.gpu.kernel import Target
from meshweave.simulator.ptx import EmulationError

pytest.importorskip("llvmlite", reason="the PTX is made by llvmlite (pip install 'meshweave[gpu]')")

from lowering.gpu.device_runs import DeviceRun
from lowering.gpu.products import Case

# The last tile lies where the results go afterwards.
CASES = {
    "gemm_mma": (Case(64, 64, 256, "bf16", "f32"), "sm_80", 20),
    "gemm_wgmma": (Case(64, 64, 576, "bf16", "f32"), "sm_90a", 14),
}


def whole(seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers as bf16 and as f64: their products are exact."""
    values = np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16), values.astype(np.float64)


def outcome(product: DeviceRun, case: Case, ptx: str) -> str:
    """ "right", "wrong result", or what the emulator says."""
    (a, a64), (b, b64) = whole(0, case.shape("a")), whole(1, case.shape("b"))
    (module,) = product.modules
    product.modules = [replace(module, ptx=ptx)]
    try:
        (c,) = product.run(a, b)
    except EmulationError as error:
        return error.message
    finally:
        product.modules = [module]
    return "right" if np.array_equal(c.reshape(a64.shape[0], -1), a64 @ b64) else "wrong result"


def mutants(ptx: str) -> list[tuple[str, str]]:
    """What was done, and the text: every barrier, fence and wait left out, every wait one weaker, some
    swizzles (xor) made sums of bits.
    """
    lines, found = ptx.split("\n"), []
    for at, line in enumerate(lines):
        what = line.strip().replace("\t", " ")
        if re.search(r"bar\.sync|wait_group|commit_group|fence\.", line):
            found.append((f"{at + 1}: no {what}", [*lines[:at], *lines[at + 1 :]]))
        if wait := re.search(r"(wait_group\s+)(\d+)", line):
            weaker = line.replace(wait[0], f"{wait[1]}{int(wait[2]) + 1}")
            found.append((f"{at + 1}: weaker {what}", [*lines[:at], weaker, *lines[at + 1 :]]))
        if "xor.b32" in line:
            changed = line.replace("xor", "or")
            found.append((f"{at + 1}: or for {what}", [*lines[:at], changed, *lines[at + 1 :]]))
    return [(what, "\n".join(text)) for what, text in found]


@pytest.mark.parametrize("family", CASES)
def test_what_is_broken_is_noticed(family, monkeypatch):
    monkeypatch.setattr(wgmma, "ENOUGH", 1)
    case, chip, least = CASES[family]
    product = DeviceRun(case.text(), Target(chip=chip))
    assert product.families == [family]
    ptx = product.modules[0].ptx
    assert outcome(product, case, ptx) == "right"
    said = {what: outcome(product, case, text) for what, text in mutants(ptx)}
    missed = [what for what, text in said.items() if text == "right"]
    assert len(said) - len(missed) >= least
    # Truly redundant: the last group of copies is empty, and so would be a wait for it; the last products go on with
    # sums that nothing else has touched, and are waited for at once.
    last = max(int(what.split(":")[0]) for what in said if "cp.async.commit" in what)
    assert all(int(what.split(":")[0]) >= last and "bar" not in what for what in missed)
    assert not any("fence.proxy" in what for what in missed)
