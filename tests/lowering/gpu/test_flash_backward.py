"""Training an attention on gpus without its scores, in the emulator, beside NumPy in double precision."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import deep, some, thinned

pytest.importorskip("llvmlite")

from gpu.programs import TOLERANCE, masked
from gpu.programs import scores as scaled
from lowering.gpu import machine_code
from lowering.gpu.device_runs import DeviceRun, compiled
from lowering.gpu.device_runs import numbers as of_bits
from lowering.gpu.maps_and_rows import stored

import meshweave as mw
from benchmarks.gpu.programs import Case, attention, softmax
from meshweave.device import DeviceModule
from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.lowering.gpu.kernel import Target
from meshweave.pipeline import run_pipeline
from meshweave.simulator.ptx import EmulationError
from meshweave.transforms.kernels.select_kernels import kernel_rows
from meshweave.verification.check import verify

PASSES = "dist-propagate,dist-partition,remake-scores{target=gpu},select-kernels{target=gpu},canonicalize,cse"
Keep = Callable[[Any, Any], Any]


def several(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """Heads with queries of their own, on keys and values that all share: their gradients are added up."""
    return softmax(xp, q @ xp.permute_dims(k, (1, 0)) / q.shape[-1] ** 0.5) @ v


def biased(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    return softmax(xp, scaled(xp, q, k) + bias) @ v


def step(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of queries, keys and values."""

    def gradients(xp: Any, q: Any, k: Any, v: Any, do: Any, *more: Any) -> Any:
        return mw.vjp(lambda q, k, v: forward(xp, q, k, v, *more), q, k, v)[1](do)

    return gradients


def expected(q: Any, k: Any, v: Any, do: Any, bias: Any = 0.0, keep: Keep | None = None) -> Any:
    """The same of heads x positions x width in float64; keys and values that heads share have no heads."""
    q, k, v, do, bias = (np.asarray(x, np.float64) for x in (q, k, v, do, bias))
    t = lambda x: np.swapaxes(x, -1, -2)  # noqa: E731
    s = q @ t(k) / q.shape[-1] ** 0.5 + bias
    if keep is not None:
        rows, keys = s.shape[-2:]
        s = np.where(keep(np.arange(rows)[:, None] + (keys - rows), np.arange(keys)), s, -np.inf)
    p = softmax(np, s)
    dp = do @ t(v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / q.shape[-1] ** 0.5
    dk, dv = t(ds) @ q, t(p) @ do
    return (ds @ k, dk, dv) if k.ndim == 3 else (ds @ k, dk.sum(0), dv.sum(0))


def shapes(heads: int, queries: int, keys: int, inner: int, columns: int) -> tuple[Any, ...]:
    q, k, v = (heads, queries, inner), (heads, keys, inner), (heads, keys, columns)
    return q, k, v, (heads, queries, columns)


SYNCHRONISES = ("bar.sync", "cp.async.wait_group", "cp.async.commit_group")
KEPT: dict[str, Keep] = {
    "causal": lambda i, j: j <= i,
    "window": lambda i, j: (j <= i) & (j > i - 40),
    "later": lambda i, j: j >= i,
}
CASES = {
    case.name: (case, dtype)
    for case, dtype in (
        (Case("plain", step(attention), shapes(2, 64, 128, 16, 16)), "bf16"),
        (Case("odd", step(attention), shapes(1, 9, 65, 33, 17)), "f16"),
        (Case("wide", step(attention), shapes(1, 70, 66, 128, 100)), "f16"),
        (Case("thin", step(attention), shapes(1, 130, 3, 2, 1)), "f16"),
        (Case("causal", step(masked(KEPT["causal"])), shapes(1, 70, 140, 16, 24)), "f16"),
        (Case("window", step(masked(KEPT["window"])), shapes(1, 70, 190, 16, 16)), "f16"),
        (Case("later", step(masked(KEPT["later"])), shapes(1, 66, 128, 16, 16)), "bf16"),
        (Case("biased", step(biased), (*shapes(2, 40, 70, 16, 16), (40, 70))), "f16"),
        (Case("several", step(several), ((3, 40, 16), (70, 16), (70, 24), (3, 40, 24))), "f16"),
    )
}  # fmt: skip


def made(name: str) -> DeviceRun:
    case, dtype = CASES[name]
    return DeviceRun(case.text(dtype), assemble=False, passes=PASSES)


def given(name: str) -> list[np.ndarray]:
    case, dtype = CASES[name]
    return [stored(x, dtype) for x in case.arguments(dtype)]


@pytest.mark.parametrize("name", some(CASES, 16))
def test_gradients_are_those_of_float64(name):
    (case, dtype), run = CASES[name], made(name)
    assert run.families.count("flash") >= 6, run.families
    assert run.program.plan.arena_bytes <= 32 * np.prod(case.shapes[0][:2]) + 512  # numbers of rows
    q, k, v, do, *more = case.arguments(dtype)
    wanted = expected(q, k, v, do, *more, keep=KEPT.get(name))
    for found, right in zip(run.run(*given(name)), wanted):
        value = of_bits(found) if dtype == "bf16" else found
        limit = 2 * TOLERANCE[dtype] * np.abs(right).max()
        np.testing.assert_allclose(value.astype(np.float64), right, rtol=0, atol=limit)


def training(heads: int, positions: int, width: int) -> str:
    """Gradients of a causal attention of bf16 whose softmax is f32."""
    types = pytest.importorskip("ml_dtypes")
    one = np.zeros((1, positions, heads, width), types.bfloat16)

    def gradients(q: Any, k: Any, v: Any, do: Any) -> Any:
        forward = lambda *qkv: mw.nn.dot_product_attention(*qkv, is_causal=True)  # noqa: E731
        return mw.vjp(forward, q, k, v)[1](do)

    return mw.jit(gradients, mesh="x=1").lower(*[one] * 4).as_text()


MUTANTS = {
    "rows": ("math.exp", "math.exp2"),
    "scale": ("arith.mulf", "arith.divf"),
    "mask": ("arith.cmpi sge", "arith.cmpi sgt"),
    "sum": ('kind = "addf"', 'kind = "maximumf"'),
}


def test_the_checker_reads_the_op():
    whole = training(2, 64, 16)
    with context(), ir.Location.unknown():
        module = ir.Module.parse(whole)
        run_pipeline(module, PASSES)
        (row,) = [row for row in kernel_rows(module) if row["op"].startswith("backward")]
        assert row["kernel"] == "flash"
        given = ir.Module.parse(whole)
        assert len(verify(given, module, again=False).proven) == 3
        before, after = str(module).split('"mw.reduced_scores"', 1)
        for name, (old, new) in MUTANTS.items():
            assert after.count(old) >= 1, name
            changed = f'{before}"mw.reduced_scores"{after.replace(old, new, 1)}'
            assert not verify(given, ir.Module.parse(changed), again=False).proven, name


@deep
def test_the_arena_of_a_step_of_training_holds_no_scores():
    """Of 4 heads and 256 positions: a matrix of scores is 256 KiB in bf16, and without flash there are several."""
    types = pytest.importorskip("ml_dtypes")
    one = np.zeros((1, 256, 4, 16), types.bfloat16)

    def loss(w: Any, x: Any) -> Any:
        parts = [mw.reshape(x @ w[n], (1, 256, 4, 16)) for n in range(3)]
        return mw.sum(mw.reshape(mw.nn.dot_product_attention(*parts, is_causal=True), x.shape) * x)

    w, x = np.zeros((3, 64, 64), types.bfloat16), one.reshape(1, 256, 64)
    arenas = []
    for flash in (True, False):
        with mw.kernels(flash=flash):
            lowered = mw.jit(mw.grad(loss), mesh="x=1", engine="emulate").lower(w, x)
            arenas.append(lowered.compile().program.bundle.manifest.arena_bytes)
    assert arenas[0] <= 16 * x.nbytes < 4 * 256 * 256 * 4 <= arenas[1], arenas


@deep
def test_every_barrier_and_every_wait_is_needed():
    """Without any one of them, in the last two kernels, the emulator finds a race, or a read of what is not there."""
    run = DeviceRun(training(1, 130, 16), assemble=False, passes=PASSES)
    inputs = [stored(np.ones((1, 130, 1, 16), np.float32), "bf16")] * 4
    *others, left, right = run.modules
    for module in (left, right):
        lines = module.ptx.split("\n")
        places = [k for k, line in enumerate(lines) if line.strip().startswith(SYNCHRONISES)]
        missed = []
        for place in thinned(places, 24):
            without = DeviceModule(module.chip, "\n".join(lines[:place] + lines[place + 1 :]))
            pair = [without if module is each else each for each in (left, right)]
            run.modules = [*others, *pair]
            try:
                run.run(*inputs)
            except EmulationError:
                continue
            missed.append(lines[place].strip())
        assert places and not missed, missed


# What ptxas makes of it: see test_gemm.py.

TABLE = Path(__file__).parents[2] / "data" / "gpu_flash_backward.json"
MORE_REGISTERS = 24
OPCODES = ("HMMA", "LDSM", "LDGSTS", "STG", "LDG", "LDS")


def resources(chip: str, width: int) -> list[dict[str, int]]:
    """Of the kernels of a backward: the maximum, the sum, the sum of gradients; those of values, keys and queries."""
    run = DeviceRun(training(32, 2048, width), Target(chip), passes=PASSES)
    kernels = [kernel for kernel in run.kernels if kernel.family == "flash"]
    kernels = thinned(kernels, 2)
    found = []
    for kernel, module in zip(kernels, compiled(kernels, chip, assemble=False), strict=True):
        cubin, taken_by = machine_code.assembled(module)
        (used,) = taken_by.values()
        counts = machine_code.opcodes(cubin)
        found.append(
            {
                "registers": used.registers,
                "spilled": used.spill_bytes,
                "shared": kernel.shared_bytes,
                **{op: counts[op] for op in OPCODES},
            }
        )
    return found


@deep
@pytest.mark.parametrize("place", ["sm_90 128", "sm_90 64", "sm_80 128", "sm_80 64"])
def test_registers_shared_memory_and_opcodes(place):
    pytest.importorskip("nvidia")
    chip, width = place.split()
    table = thinned(json.loads(TABLE.read_text())[place], 2)
    for found, wanted in zip(resources(chip, int(width)), table, strict=True):
        assert found["spilled"] == 0, found
        assert found["registers"] <= wanted["registers"] + MORE_REGISTERS, (found, wanted)
        assert {**found, "registers": 0} == {**wanted, "registers": 0}
