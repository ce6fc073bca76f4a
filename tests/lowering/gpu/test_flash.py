"""Attention without its scores, in the emulator, beside NumPy in double precision."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import sampled, some, thinned

pytest.importorskip("llvmlite")

from gpu.programs import TOLERANCE, causal, masked, scores, shared, window
from lowering.gpu import machine_code
from lowering.gpu.device_runs import DeviceRun, compiled
from lowering.gpu.maps_and_rows import stored

import meshweave as mw
from benchmarks.gpu.programs import Case, attention, softmax
from meshweave.device import DeviceModule
from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.lowering.gpu.families.gemm.warpgroup import GROUP
from meshweave.lowering.gpu.kernel import Target
from meshweave.pipeline import run_pipeline
from meshweave.simulator.ptx import Checks, EmulationError

PASSES = "dist-propagate,dist-partition,select-kernels{target=gpu},canonicalize,cse"


later = masked(lambda i, j: j >= i)


def empty_rows(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """A causal mask that leaves the first queries nothing: these are 0."""
    i, j = xp.arange(q.shape[1])[:, None], xp.arange(k.shape[1])[None, :]
    s = xp.where(j + 9 <= i, scores(xp, q, k), -np.inf)
    most = xp.max(s, axis=-1, keepdims=True)
    e = xp.exp(s - xp.where(most == -np.inf, 0.0, most))
    total = xp.sum(e, axis=-1, keepdims=True)
    return e / xp.where(total == 0, 1.0, total) @ v


def biased(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    return softmax(xp, scores(xp, q, k) + bias) @ v


def penalised(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    """A bias of each head, on queries, keys and values that all heads share."""
    s = q @ xp.permute_dims(k, (0, 2, 1)) / 4 + bias
    return softmax(xp, s) @ v


def turned(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """Everything lies the other way: heads x width x positions."""
    q, k, v = (xp.permute_dims(x, (0, 2, 1)) for x in (q, k, v))
    return xp.permute_dims(attention(xp, q, k, v), (1, 0, 2))


def cut(xp: Any, qkv: Any) -> Any:
    """Queries, keys and values of one product, as a model has them: batch x positions x 3 x heads x width."""
    batch, positions, _, heads, width = qkv.shape
    parts = xp.permute_dims(qkv, (2, 0, 3, 1, 4))
    q, k, v = (xp.reshape(parts[n], (batch * heads, positions, width)) for n in range(3))
    mixed = xp.reshape(attention(xp, q, k, v), (batch, heads, positions, width))
    return xp.reshape(xp.permute_dims(mixed, (0, 2, 1, 3)), (batch, positions, heads * width))


def shapes(heads: int, queries: int, keys: int, inner: int, columns: int) -> tuple[Any, ...]:
    return (heads, queries, inner), (heads, keys, inner), (heads, keys, columns)


CASES = {
    case.name: (case, dtype)
    for case, dtype in (
        (Case("plain", attention, shapes(2, 64, 128, 32, 32)), "bf16"),
        (Case("wide", attention, shapes(1, 64, 64, 128, 128)), "f16"),
        (Case("ragged", attention, shapes(2, 70, 90, 64, 48)), "f16"),
        (Case("odd", attention, shapes(1, 9, 65, 33, 17)), "bf16"),
        (Case("pairs", attention, shapes(1, 9, 3, 70, 100)), "bf16"),
        (Case("two keys", attention, shapes(1, 9, 2, 16, 8)), "bf16"),
        (Case("thin", attention, shapes(1, 130, 65, 1, 1)), "f16"),
        (Case("decode", attention, shapes(3, 1, 400, 32, 32)), "bf16"),
        (Case("decode wide", attention, shapes(1, 1, 700, 128, 128)), "f16"),
        (Case("decode shared", shared, ((6, 1, 64), (2, 300, 64), (2, 300, 64))), "bf16"),
        (Case("decode masked", empty_rows, shapes(2, 12, 330, 16, 24)), "f16"),
        (Case("widest", attention, shapes(1, 20, 70, 256, 256)), "bf16"),
        (Case("decode widest", attention, shapes(1, 2, 70, 200, 160)), "f16"),
        (Case("causal", causal, shapes(1, 150, 200, 16, 16)), "bf16"),
        (Case("window", window, shapes(1, 200, 300, 16, 16)), "f16"),
        (Case("later", later, shapes(1, 128, 128, 16, 16)), "bf16"),
        (Case("empty rows", empty_rows, shapes(1, 80, 70, 16, 16)), "bf16"),
        (Case("biased", biased, (*shapes(2, 40, 70, 16, 16), (40, 70))), "bf16"),
        (Case("penalised", penalised, (*shapes(1, 40, 70, 16, 16), (3, 1, 70))), "f16"),
        (Case("shared", shared, ((4, 40, 32), (2, 70, 32), (2, 70, 32))), "bf16"),
        (Case("turned", turned, ((3, 32, 72), (3, 32, 64), (3, 40, 64))), "bf16"),
        (Case("cut", cut, ((2, 40, 3, 2, 16),)), "f16"),
    )
}  # fmt: skip


HOPPER = {
    case.name: (case, dtype)
    for case, dtype in (
        (Case("hopper ragged", attention, shapes(1, 70, 137, 64, 64)), "f16"),
        (Case("hopper wide", attention, shapes(2, 128, 256, 128, 128)), "bf16"),
        (Case("hopper long", attention, shapes(1, 65, 700, 64, 128)), "bf16"),
        (Case("hopper padded", attention, shapes(1, 100, 330, 96, 72)), "f16"),
        (Case("hopper one tile", attention, shapes(2, 65, 60, 64, 64)), "bf16"),
        (Case("hopper causal", causal, shapes(1, 257, 257, 128, 128)), "bf16"),
        (Case("hopper window", window, shapes(1, 300, 400, 64, 64)), "f16"),
        (Case("hopper later", later, shapes(1, 256, 256, 64, 64)), "bf16"),
        (Case("hopper empty rows", empty_rows, shapes(1, 200, 190, 64, 64)), "bf16"),
        (Case("hopper shared", shared, ((4, 72, 64), (2, 136, 64), (2, 136, 64))), "bf16"),
        (Case("hopper turned", turned, ((2, 64, 136), (2, 64, 200), (2, 72, 200))), "bf16"),
        (Case("hopper biased", biased, (*shapes(2, 72, 136, 64, 64), (72, 136))), "bf16"),
    )
}  # fmt: skip
CASES |= HOPPER


def made(name: str) -> DeviceRun:
    case, dtype = CASES[name]
    target = Target("sm_90a" if name in HOPPER else "sm_90")
    return DeviceRun(case.text(dtype), target, assemble=False, passes=PASSES)


def threads(run: DeviceRun) -> int:
    return run.kernels[0].block[0]


def given(name: str, run: DeviceRun) -> list[np.ndarray]:
    case, dtype = CASES[name]
    return [stored(x, dtype) for x in case.arguments(dtype)]


def numbers(result: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (result.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return result.astype(np.float64)


@pytest.mark.parametrize("name", some(CASES, 7))
def test_an_attention_gives_what_float64_gives(name):
    (case, dtype), run = CASES[name], made(name)
    assert set(run.families) == {"flash"} and run.program.plan.arena_bytes == 0
    assert (threads(run) == 3 * GROUP) == (name in HOPPER)
    (result,) = run.run(*given(name, run))
    wanted = case.expected(dtype)
    limit = TOLERANCE[dtype] * np.abs(wanted).max()
    np.testing.assert_allclose(numbers(result, dtype), wanted, rtol=0, atol=limit)


@sampled(1)
@pytest.mark.parametrize("layout", ["[_, _, x, _]", "[_, x, _, _]"])
def test_a_model_in_bf16_whose_softmax_is_f32(layout):
    """Heads, or queries, over two ranks; several share keys. Weights are rounded as the result is."""
    types = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(5)
    sizes = (1, 40, 4, 16), (1, 70, 2, 16), (1, 70, 2, 16)
    given = [rng.standard_normal(s).astype(types.bfloat16) for s in sizes]
    keys = layout if layout.startswith("[_, _") else "[_, _, _, _]"
    program = mw.jit(
        lambda q, k, v: mw.nn.dot_product_attention(q, k, v, is_causal=True),
        mesh=mw.Mesh(x=2), in_layouts=(layout, keys, keys), out_layouts=layout, engine="emulate",
    )  # fmt: skip
    compiled = program.lower(*given).compile()
    manifest = compiled.program.bundle.manifest
    assert [kernel.family for kernel in manifest.kernels][:1] == ["flash"]
    assert str(manifest.certificate).startswith("1 of 1")
    q, k, v = (x.astype(np.float64) for x in given)
    k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
    s = np.einsum("bqhd,bkhd->bhqk", q, k) / 4
    s = np.where(np.tri(40, 70, dtype=bool), s, -np.inf)
    wanted = np.einsum("bhqk,bkhd->bqhd", softmax(np, s), v)
    result = np.asarray(program(*given)).astype(np.float64)
    np.testing.assert_allclose(result, wanted, rtol=0, atol=3e-2 * np.abs(wanted).max())


def test_queries_and_keys_that_are_scaled_in_f32_first():
    """As PyTorch writes attention of bf16 out: the numbers go behind the product."""
    types = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((2, n, 16)).astype(types.bfloat16) for n in (40, 70, 70))

    def program(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (mw.astype(x, "f32") for x in (q, k, v))
        s = (q * 0.5) @ mw.permute_dims(k * 0.25, (0, 2, 1))
        return mw.astype(softmax(mw, s) @ v, "bf16")

    jitted = mw.jit(program, mesh="x=1", engine="emulate")
    manifest = jitted.lower(q, k, v).compile().program.bundle.manifest
    assert [kernel.family for kernel in manifest.kernels] == ["flash"]
    assert str(manifest.certificate).startswith("1 of 1")
    wide = (x.astype(np.float64) for x in (q, k, v))
    wanted = (lambda q, k, v: softmax(np, q @ k.transpose(0, 2, 1) / 8) @ v)(*wide)
    result = np.asarray(jitted(q, k, v)).astype(np.float64)
    np.testing.assert_allclose(result, wanted, rtol=0, atol=3e-2 * np.abs(wanted).max())


MUTANTS = {
    "operands": ("(%arg0, %arg1, %arg2)", "(%arg1, %arg0, %arg2)"),
    "scale": ("arith.divf", "arith.mulf"),
    "mask": ("arith.cmpi sle", "arith.cmpi slt"),
}


def test_the_checker_reads_the_op():
    case = Case("checked", causal, shapes(2, 64, 64, 16, 16))
    whole = case.text("bf16")
    with context(), ir.Location.unknown():
        module = ir.Module.parse(whole)
        run_pipeline(module, PASSES)
        local = str(module)
    assert mw.verify(whole, local).proven
    for name, (old, new) in MUTANTS.items():
        assert local.count(old) >= 1, (name, local)
        assert not mw.verify(whole, local.replace(old, new)).proven, name


def test_tiles_that_a_mask_leaves_nothing_of_are_never_computed():
    """200 queries and 300 keys: of 2 x 5 tiles a window of 40 keys goes through 3 of each row of tiles."""
    plain = DeviceRun(
        Case("all", attention, CASES["window"][0].shapes).text("f16"), assemble=False, passes=PASSES
    )
    run = made("window")
    for each in (run, plain):
        each.run(*given("window", each), checks=Checks(traffic=True))
    assert run.counts[0].sectors < 0.8 * plain.counts[0].sectors


@pytest.mark.parametrize("name", ["plain", "wide"])
def test_copies_and_fragments_meet_no_bank_twice(name):
    run = made(name)
    run.run(*given(name, run), checks=Checks(traffic=True))
    (counts,), lines = run.counts, run.modules[0].ptx.split("\n")
    assert counts.sectors == counts.least_sectors, counts
    seen = set()
    for (space, line), (found, least) in counts.by_line.items():
        word = lines[line - 1].strip().split(".")[0]
        if space == "shared" and word in ("ldmatrix", "cp"):
            seen.add(word)
            assert found == least, (lines[line - 1], found, least)
    assert seen == {"ldmatrix", "cp"}


SYNCHRONISES = (
    "bar.sync", "bar.arrive", "cp.async.wait_group", "cp.async.commit_group", "fence.proxy", "wgmma.fence",
    "wgmma.commit", "wgmma.wait",
)  # fmt: skip


@pytest.mark.parametrize(
    ("queries", "keys", "chip", "every"),
    [(64, 200, "sm_90", 6), (1, 200, "sm_90", 6), (65, 600, "sm_90a", 36)],
)
def test_every_barrier_and_every_wait_is_needed(queries, keys, chip, every):
    """Without any one of them the emulator finds a race, or a read of what is not there yet."""
    case = Case("seven", attention, shapes(1, queries, keys, 64 if chip == "sm_90a" else 16, 64))
    run = DeviceRun(case.text("bf16"), Target(chip), assemble=False, passes=PASSES)
    inputs = [stored(x, "bf16") for x in case.arguments("bf16")]
    module, *others = run.modules
    lines = module.ptx.split("\n")
    places = [k for k, line in enumerate(lines) if line.strip().startswith(SYNCHRONISES)]
    missed = []
    for place in thinned(places, every):
        without = "\n".join(lines[:place] + lines[place + 1 :])
        run.modules = [DeviceModule(module.chip, without), *others]
        try:
            run.run(*inputs)
        except EmulationError:
            continue
        missed.append(lines[place].strip())
    assert not missed, missed


def test_what_hoppers_kernel_is_not_for():
    """Other chips, few queries, narrow and very wide heads, lines that begin at odd places."""
    for chip, sizes in (
        ("sm_90", (1, 128, 128, 64, 64)),
        ("sm_90a", (1, 64, 128, 64, 64)),
        ("sm_90a", (1, 128, 128, 32, 64)),
        ("sm_90a", (1, 128, 128, 64, 200)),
        ("sm_90a", (1, 128, 128, 65, 64)),
    ):
        case = Case("other", attention, shapes(*sizes))
        run = DeviceRun(case.text("bf16"), Target(chip), assemble=False, passes=PASSES)
        assert run.families == ["flash"] and threads(run) == GROUP, (chip, sizes)


# What ptxas makes of it: see test_gemm.py.

TABLE = Path(__file__).parents[2] / "data" / "gpu_flash.json"
MORE_REGISTERS = 24
LARGE = {
    "128": Case("l", attention, shapes(32, 2048, 2048, 128, 128)),
    "64": Case("l", attention, shapes(32, 2048, 2048, 64, 64)),
    "causal 128": Case("l", causal, shapes(32, 2048, 2048, 128, 128)),
    "causal 64": Case("l", causal, shapes(32, 2048, 2048, 64, 64)),
    "256": Case("l", attention, shapes(32, 2048, 2048, 256, 256)),
    "causal 256": Case("l", causal, shapes(32, 2048, 2048, 256, 256)),
    "decode 256": Case("l", attention, shapes(32, 1, 8192, 256, 256)),
    "decode 128": Case("l", attention, shapes(32, 1, 8192, 128, 128)),
    "decode shared": Case("l", shared, ((64, 1, 128), (8, 4096, 128), (8, 4096, 128))),
    "ragged 96": Case("l", attention, shapes(32, 2000, 2000, 96, 96)),
}


def resources(chip: str, names: Iterable[str] = LARGE) -> dict[str, dict[str, int]]:
    """Of the kernel of each large attention."""
    kernels = [
        DeviceRun(LARGE[name].text("bf16"), Target(chip), passes=PASSES).kernels[0]
        for name in names
    ]
    found = {}
    for name, kernel, module in zip(names, kernels, compiled(kernels, chip, assemble=False)):
        cubin, taken_by = machine_code.assembled(module)
        (used,) = taken_by.values()
        counts = machine_code.opcodes(cubin)
        found[name] = {
            "registers": used.registers,
            "spilled": used.spill_bytes,
            "shared": kernel.shared_bytes,
            **{op: counts[op] for op in ("HMMA", "HGMMA", "LDSM", "LDGSTS", "STG", "LDG")},
        }
    return found


@pytest.mark.parametrize("chip", some(("sm_90a", "sm_80", "sm_90"), 3))
def test_registers_shared_memory_and_opcodes(chip):
    pytest.importorskip("nvidia")
    table = json.loads(TABLE.read_text())[chip]
    for name, found in resources(chip, thinned(table, 6)).items():
        wanted = table[name]
        assert found["spilled"] <= wanted["spilled"], (name, found)
        assert found["registers"] <= wanted["registers"] + MORE_REGISTERS, (name, found)
        given = ("registers", "spilled")
        assert {k: v for k, v in found.items() if k not in given} == {
            k: v for k, v in wanted.items() if k not in given
        }, name
