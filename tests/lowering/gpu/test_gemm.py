"""Kernels for products: numbers against NumPy in double precision, resources, which one is taken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from depth import deep, examples, sampled, some, thinned
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowering.gpu import machine_code
from lowering.gpu.products import Case, doubles, einsum, stored

pytest.importorskip("llvmlite")

from lowering.gpu.device_runs import DeviceRun

from meshweave.device import CHIPS, DeviceModule
from meshweave.lowering.gpu.families import registry as families
from meshweave.lowering.gpu.families.gemm import mma as gemm_mma
from meshweave.lowering.gpu.families.gemm import wgmma
from meshweave.lowering.gpu.kernel import Target
from meshweave.simulator.ptx import Checks, Counts, EmulationError

# Errors in parts of the largest element.
WORST = {"f64": 1e-14, "f32": 2e-6, "f16": 1e-3, "bf16": 8e-3, "tf32": 2e-3}


def check(
    case: Case, target: Target | None = None, family: str = "", whole: bool = True
) -> DeviceRun:
    """Run the product; whole numbers must come out exact, others within rounding."""
    made = DeviceRun(case.text(), target, assemble=False)
    assert not family or family in made.families, made.families
    inputs = case.inputs(case.m + case.k, whole)
    (found,) = made.run(*inputs)
    wanted = case.expected(inputs)
    if whole:
        np.testing.assert_array_equal(
            doubles(found, case.kind), doubles(stored(wanted, case.kind), case.kind)
        )
    else:
        rounding = "tf32" if target and target.tf32 and case.dtype == "f32" else case.kind
        worst = np.abs(doubles(found, case.kind) - wanted).max() / np.abs(wanted).max()
        assert worst < WORST[rounding]
    return made


TF32, PLAIN = Target("sm_80", tf32=True), Target("sm_80")
KINDS = {
    "bf16": ("bf16", "", PLAIN, "gemm_mma"),
    "bf16 to f32": ("bf16", "f32", PLAIN, "gemm_mma"),
    "f16": ("f16", "", PLAIN, "gemm_mma"),
    "f16 to f32": ("f16", "f32", PLAIN, "gemm_mma"),
    "tf32": ("f32", "", TF32, "gemm_tf32"),
    "f32": ("f32", "", PLAIN, "gemm_fma"),
    "f64": ("f64", "", PLAIN, "gemm_fma"),
}
FORMS = {
    "even": {"m": 64, "n": 64, "k": 64},
    "ragged": {"m": 41, "n": 57, "k": 73},
    "ragged, rows of 16 bytes": {"m": 40, "n": 56, "k": 200},
    "rows of 4 bytes": {"m": 38, "n": 42, "k": 70},
    "A turned": {"m": 40, "n": 56, "k": 72, "turned_a": True},
    "B turned": {"m": 40, "n": 56, "k": 72, "turned_b": True},
    "both turned, ragged": {"m": 33, "n": 47, "k": 35, "turned_a": True, "turned_b": True},
    "C turned": {"m": 24, "n": 40, "k": 40, "turned_c": True},
    "added to": {"m": 40, "n": 24, "k": 24, "accumulate": True},
    "batch": {"m": 17, "n": 24, "k": 16, "batch": (3,)},
    "two batches, B turned": {"m": 24, "n": 16, "k": 24, "batch": (2, 3), "turned_b": True},
    "deep": {"m": 16, "n": 16, "k": 712},
}
FEW = ("ragged", "C turned", "added to")  # for types whose kernel another type has, too


@sampled(4)
@pytest.mark.parametrize(
    "kind, form",
    [(k, f) for k in KINDS for f in (FORMS if k in ("bf16", "tf32", "f32") else FEW)],
)
def test_whole_numbers_come_out_exact(kind, form):
    dtype, result, target, family = KINDS[kind]
    check(Case(dtype=dtype, result=result, **FORMS[form]), target, family)


@sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_random_numbers_within_rounding(kind):
    dtype, result, target, family = KINDS[kind]
    check(Case(70, 50, 90, dtype, result), target, family, whole=False)


@sampled(4)
@pytest.mark.parametrize("shape", gemm_mma.SHAPES, ids=lambda s: f"{s.m}x{s.n}")
@pytest.mark.parametrize("dtype, turned", [("bf16", False), ("bf16", True), ("f32", True)])
def test_every_tile_of_the_tensor_cores(shape, turned, dtype, monkeypatch):
    monkeypatch.setattr(gemm_mma, "SHAPES", (shape,))
    case = Case(shape.m, shape.n + 24, 136, dtype, turned_a=turned, turned_b=turned)
    check(case, TF32, "gemm_tf32" if dtype == "f32" else "gemm_mma")


HOPPER = Target("sm_90a")
WIDE = {
    "even": Case(128, 256, 128, "bf16"),
    "ragged": Case(136, 264, 200, "f16"),
    "A turned, uneven depth": Case(136, 72, 77, "bf16", "f32", turned_a=True),
    "B turned, uneven columns": Case(77, 133, 72, "bf16", turned_b=True),
    "both turned": Case(72, 77, 64, "f16", turned_a=True, turned_b=True, turned_c=True),
    "C turned": Case(64, 72, 48, "bf16", turned_c=True),
    "added to, deep": Case(64, 64, 712, "bf16", accumulate=True),
    "batch": Case(77, 72, 64, "bf16", batch=(2,), turned_b=True),
    "shallow": Case(64, 64, 8, "bf16"),
}


@pytest.fixture
def small(monkeypatch):
    """Small products are for Hopper's tensor cores, too."""
    monkeypatch.setattr(wgmma, "ENOUGH", 1)


@sampled(5)
@pytest.mark.parametrize(
    "shape, what",
    [(shape, what) for what in WIDE for shape in wgmma.SHAPES],
    ids=lambda each: each if isinstance(each, str) else f"{each.m}x{each.n}",
)
def test_whole_numbers_come_out_exact_on_hopper(shape, what, small, monkeypatch):
    monkeypatch.setattr(wgmma, "SHAPES", (shape,))
    check(WIDE[what], HOPPER, wgmma.FAMILY)


def test_random_numbers_within_rounding_on_hopper(small):
    check(Case(70, 128, 136, "bf16"), HOPPER, wgmma.FAMILY, whole=False)


def test_the_fastest_tile_is_taken_on_hopper():
    """The fastest of those that were measured."""
    for size, m, n in ((4096, 128, 256), (3072, 128, 256), (2048, 128, 256), (1024, 128, 64)):
        (kernel,) = DeviceRun(Case(size, size, 64, "bf16").text(), HOPPER).kernels
        assert kernel.grid == (size // m * size // n, 1, 1)


def test_many_small_products_share_a_launch_and_large_tiles_take_over():
    small = DeviceRun(Case(32, 32, 32, "bf16", batch=(4,)).text(), PLAIN)
    large = DeviceRun(Case(4096, 4096, 64, "bf16").text(), PLAIN)
    assert small.kernels[0].grid == (4, 1, 1)
    assert large.kernels[0].grid == (32 * 32, 1, 1)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(8, 70),
    st.integers(8, 70),
    st.integers(2, 100),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from([(), (2,), (2, 2)]),
)
def test_any_product(kind, m, n, k, flags, batch):
    dtype, result, target, family = KINDS[kind]
    check(Case(m, n, k, dtype, result, *flags[:3], batch, flags[3]), target, family)


# Loops that no stride makes one. Heads beside depth in A and beside columns in C: two loops of rows,
# of depth, of columns; and B holding the two loops of depth the other way round.
SPECS = {
    "ijkl,klxy->ixjy": ({"i": 6, "j": 5, "k": 3, "l": 16, "x": 4, "y": 9}, "bf16", "f32"),
    "ikl,lkj->ij": ({"i": 24, "j": 40, "k": 3, "l": 20}, "f16", "f16"),
    "bik,bkj->ibj": ({"b": 3, "i": 20, "j": 24, "k": 17}, "f32", "f32"),
}


@sampled(1)
@pytest.mark.parametrize("spec", SPECS)
def test_loops_that_no_stride_makes_one(spec):
    sizes, dtype, kind = SPECS[spec]
    made = DeviceRun(einsum(spec, sizes, dtype, kind), PLAIN)
    assert made.families[0].startswith("gemm")
    rng = np.random.default_rng(2)
    a, b = (
        rng.integers(-4, 5, [sizes[d] for d in dims]) for dims in spec.split("->")[0].split(",")
    )
    (found,) = made.run(stored(a, dtype), stored(b, dtype))
    np.testing.assert_array_equal(found, stored(np.einsum(spec, a, b), kind))


def test_a_part_of_a_wider_matrix():
    """Rows of 64 elements of which 50 are read: the last copy of a row is cut short."""
    case = Case(40, 44, 50, "bf16")
    text = f"""func.func @main(%w: tensor<40x64xbf16>, %b: {case.type("b")}) -> {case.type("c")} {{
      %a = tensor.extract_slice %w[0, 8] [40, 50] [1, 1] : tensor<40x64xbf16> to tensor<40x50xbf16>
      {case.filled()}
      %0 = {case.product("%f")}
      return %0 : {case.type("c")}
    }}"""
    wide = np.random.default_rng(5).integers(-4, 5, (40, 64))
    b = case.inputs(3, whole=True)[1]
    made = DeviceRun(text, PLAIN)
    assert made.families == ["gemm_mma"]
    (found,) = made.run(stored(wide, "bf16"), b)
    wanted = wide[:, 8:58] @ doubles(b, "bf16")
    np.testing.assert_array_equal(doubles(found, "bf16"), doubles(stored(wanted, "bf16"), "bf16"))


@sampled(4)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_copies_and_fragments_touch_no_bank_twice(kind, turned, monkeypatch):
    """Shared memory in the fewest wavefronts, global memory in the fewest sectors."""
    monkeypatch.setattr(gemm_mma, "SHAPES", gemm_mma.SHAPES[:1])
    dtype, _, target, _ = KINDS[kind]
    short, long = (
        traffic(Case(128, 128, k, dtype, "", turned, turned), target) for k in (128, 256)
    )
    assert long.wavefronts - short.wavefronts == long.least_wavefronts - short.least_wavefronts > 0
    assert short.wavefronts <= 1.2 * short.least_wavefronts  # with what happens after the sums
    assert long.sectors == long.least_sectors


def traffic(case: Case, target: Target) -> Counts:
    """What the kernel of a product touches."""
    made = DeviceRun(case.text(), target, assemble=False)
    made.run(*case.inputs(1, whole=True), checks=Checks(traffic=True))
    return made.counts[0]


def test_copies_touch_no_bank_twice_on_hopper(small, monkeypatch):
    """What wgmma reads by itself is not counted."""
    monkeypatch.setattr(wgmma, "SHAPES", wgmma.SHAPES[:1])
    for turned in (False, True):
        short, long = (
            traffic(Case(128, 256, k, "bf16", "", turned, turned), HOPPER) for k in (128, 256)
        )
        assert long.wavefronts > short.wavefronts == short.least_wavefronts
        assert long.wavefronts == long.least_wavefronts and long.sectors == long.least_sectors


SYNCHRONISES = ("bar.sync", "cp.async.wait_group", "cp.async.commit_group")


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_every_barrier_and_every_wait_is_needed(kind):
    """Without any one of them the emulator finds a race, or a read of what is not there yet."""
    dtype, _, target, _ = KINDS[kind]
    case = Case(32, 32, 776, dtype)  # 13 tiles: the last one lies where the sums are put
    made = DeviceRun(case.text(), target, assemble=False)
    (module,) = made.modules
    lines = module.ptx.split("\n")
    inputs = case.inputs(1, whole=True)
    places = [k for k, line in enumerate(lines) if line.strip().startswith(SYNCHRONISES)]
    assert len(places) == {"bf16": 7, "f32": 2}[kind]
    for place in places:
        without = "\n".join(lines[:place] + lines[place + 1 :])
        made.modules = [DeviceModule(module.chip, without)]
        with pytest.raises(EmulationError):
            made.run(*inputs)


# What takes part.

OTHERS = {
    "too few rows and columns": (Case(4, 24, 64, "bf16"), PLAIN),
    "few rows switched off": (Case(4, 64, 64, "bf16"), Target("sm_80", disabled=frozenset({"gemm_rows"}))),
    "switched off": (Case(64, 64, 64, "bf16"), Target("sm_80", disabled=frozenset({"gemm_mma"}))),
    "f32 switched off": (Case(64, 64, 64, "f32"), Target("sm_80", disabled=frozenset({"gemm_fma"}))),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_left_to_other_families(what):
    case, target = OTHERS[what]
    assert not any(f.startswith("gemm") for f in DeviceRun(case.text(), target).families)


@pytest.mark.parametrize(
    "case, target",
    [
        (Case(1024, 1024, 64, "bf16"), Target("sm_90")),
        (Case(1024, 1025, 64, "bf16"), HOPPER),
        (Case(63, 8192, 64, "bf16"), HOPPER),
        (Case(512, 512, 64, "bf16"), HOPPER),
        (Case(1024, 1024, 64, "bf16"), Target("sm_90a", disabled=frozenset({wgmma.FAMILY}))),
    ],
    ids=["another chip", "rows of 2 bytes", "few rows", "small", "switched off"],
)
def test_what_is_left_to_mma(case, target):
    assert DeviceRun(case.text(), target).families == ["gemm_mma"]


def test_products_written_to_be_exact_are_done_in_order():
    text = (
        Case(16, 16, 32, "f32")
        .text()
        .replace("linalg.generic {", 'linalg.generic {mw.kernel = "reference", ')
    )
    assert not any(f.startswith("gemm") for f in DeviceRun(text, TF32).families)


# What ptxas makes of it. tests/data/gpu_gemm.json holds registers and shared memory; a register more
# or less may come with another ptxas, so up to 24 more are let through; spills never are.

TABLE = Path(__file__).parents[2] / "data" / "gpu_gemm.json"
MORE_REGISTERS = 24
LARGE = {
    "bf16 4096": (Case(4096, 4096, 4096, "bf16"), False),
    "bf16 4096, A turned": (Case(4096, 4096, 4096, "bf16", turned_a=True), False),
    "bf16 4096, B turned": (Case(4096, 4096, 4096, "bf16", turned_b=True), False),
    "bf16 ragged": (Case(4000, 4104, 4008, "bf16"), False),
    "bf16 rows of 2 bytes": (Case(4001, 4001, 4001, "bf16"), False),
    "f16 to f32 1024": (Case(1024, 1024, 1024, "f16", "f32"), False),
    "tf32 4096": (Case(4096, 4096, 4096, "f32"), True),
    "tf32 4096, B turned": (Case(4096, 4096, 4096, "f32", turned_b=True), True),
    "f32 4096": (Case(4096, 4096, 4096, "f32"), False),
    "f32 batch": (Case(64, 64, 16, "f32", batch=(4, 8)), False),
    "f64 512": (Case(512, 512, 512, "f64"), False),
}


def turned(chip: str) -> DeviceRun:
    """A product of f32 rounded to tf32, whose A lies by columns: the tile that takes most shared memory."""
    return DeviceRun(
        Case(4096, 4096, 4096, "f32", turned_a=True, turned_b=False).text(), Target(chip, tf32=True)
    )


@pytest.mark.parametrize("chip", some(CHIPS, 3))
def test_a_block_has_the_shared_memory_that_its_kernel_needs(chip):
    (kernel,) = turned(chip).kernels
    assert kernel.shared_bytes <= CHIPS[chip].shared_bytes
    assert kernel.family == ("gemm_tf32" if CHIPS[chip].tensor_cores else "gemm_fma")
    most = {"sm_80": 104_448, "sm_86": 79_872}
    assert kernel.shared_bytes == most.get(chip, kernel.shared_bytes)


SAME = ("bf16 4096", "bf16 ragged", "tf32 4096", "f32 batch")  # what is looked at on every chip


def resources(chip: str) -> dict[str, dict[str, int]]:
    """Of each large kernel, and the opcodes that tell how it works."""
    found = {}
    for name, (case, tf32) in thinned(LARGE.items(), 3):
        if chip != "sm_80" and name not in SAME:
            continue
        target = Target(chip, tf32, frozenset({wgmma.FAMILY}))
        made = DeviceRun(case.text(), target, assemble=False)
        (kernel,), (module,) = made.kernels, made.modules
        cubin, taken_by = machine_code.assembled(module)
        taken, counts = taken_by[kernel.entry], machine_code.opcodes(cubin)
        found[name] = {
            "registers": taken.registers,
            "spilled": taken.spill_bytes + taken.stack,
            "shared": kernel.shared_bytes + taken.static_shared,
            **{op: counts[op] for op in ("HMMA", "LDSM", "LDGSTS", "FFMA", "DFMA", "STG", "LDG")},
        }
    return found


@pytest.mark.parametrize("chip", some(("sm_80", "sm_90", "sm_90a"), 3))
def test_registers_shared_memory_and_opcodes(chip):
    pytest.importorskip("nvidia")
    table = json.loads(TABLE.read_text())[chip]
    for name, made in resources(chip).items():
        wanted = table[name]
        assert made["spilled"] == 0, f"{name}: {made}"
        assert made["shared"] == wanted["shared"], name
        assert made["registers"] <= min(255, wanted["registers"] + MORE_REGISTERS), (
            f"{name}: {made}"
        )
        for op in ("HMMA", "LDSM", "LDGSTS", "FFMA", "DFMA"):
            assert (made[op] > 0) == (wanted[op] > 0), f"{name}: {op} {made[op]}"
    assert table["bf16 4096"]["HMMA"] == 128 and table["bf16 4096"]["LDSM"] == 32


HGMMA = [(shape, turned) for shape in wgmma.SHAPES for turned in (False, True)]


@deep
@pytest.mark.parametrize("kind", HGMMA, ids=lambda x: f"{x[0].m}x{x[0].n} {x[1]}")
def test_registers_shared_memory_and_opcodes_on_hopper(kind, monkeypatch):
    shape, turned = kind
    pytest.importorskip("nvidia")
    monkeypatch.setattr(wgmma, "SHAPES", (shape,))
    case = Case(4096, 4096, 4096, "bf16", turned_a=turned, turned_b=turned)
    made = DeviceRun(case.text(), HOPPER, assemble=False)
    cubin, taken_by = machine_code.assembled(made.modules[0])
    taken, counts = taken_by[made.kernels[0].entry], machine_code.opcodes(cubin)
    assert taken.spill_bytes + taken.stack == 0
    assert taken.registers * wgmma.THREADS * shape.blocks <= 65_536
    assert made.kernels[0].shared_bytes * shape.blocks <= CHIPS["sm_90a"].shared_bytes
    # Four steps of each of a warpgroup's products, in a loop, perhaps once more behind it; nothing else multiplies.
    steps = 4 * shape.m // (wgmma.GROUPS * wgmma.ROWS)
    assert counts["HGMMA"] in (steps, 2 * steps) and not counts["HMMA"]
    each = (shape.m + shape.n) * 8 // wgmma.THREADS
    assert counts["LDGSTS"] == each * (shape.stages - 1)


def test_families_are_asked_in_their_order():
    assert [name for name, _ in families.FAMILIES][:2] == ["flash", "gemm"]
