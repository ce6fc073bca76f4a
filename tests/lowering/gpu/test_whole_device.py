"""Reductions to few results and products of few rows: two launches that keep the whole device busy."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from depth import examples, sampled, some
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

from lowering.gpu import machine_code, products
from lowering.gpu import maps_and_rows as programs
from lowering.gpu.device_runs import DeviceRun
from lowering.gpu.maps_and_rows import FLOATS, ROUNDING, doubles, stored

import meshweave as mw
from meshweave.api.program import Program as Loaded
from meshweave.lowering.gpu.families import pieces
from meshweave.lowering.gpu.families import rows as row_family
from meshweave.lowering.gpu.kernel import Target
from meshweave.simulator.engine import EmulateEngine
from meshweave.simulator.ptx import Checks

SMS = 132
SUM, LARGEST, WHOLE = programs.SUM, programs.LARGEST, programs.WHOLE_SUM


def reduce(shape, over, dtype, how, target=None):
    """Check a reduction of random numbers, and return what ran."""
    made = DeviceRun(programs.reduced(shape, over, dtype, how), target, assemble=False)
    rng = np.random.default_rng(math.prod(shape))
    whole = rng.integers(-9, 10, shape)
    x = stored(rng.standard_normal(shape) if dtype in FLOATS else whole, dtype)
    (found,) = made.run(x)
    (again,) = made.run(x)
    np.testing.assert_array_equal(found, again)
    wanted = how.numpy.reduce(doubles(x, dtype), axis=tuple(over))
    scale = max(1.0, float(np.abs(wanted).max()))
    error = np.abs(doubles(found, dtype) - wanted).max() / scale
    assert error <= (ROUNDING[dtype] if dtype in FLOATS else 0), error
    return made


REDUCTIONS = {
    "all of an odd length": ((20011,), [0], "f32", SUM),
    "all of it in bf16, odd": ((40003,), [0], "bf16", SUM),
    "all of a matrix": ((90, 417), [0, 1], "f16", LARGEST),
    "all of it, whole numbers": ((90, 417), [0, 1], "i32", WHOLE),
    "all of it in f64": ((16391,), [0], "f64", SUM),
    "few long rows": ((3, 9001), [1], "f32", SUM),
    "few long rows, aligned": ((3, 9216), [1], "bf16", LARGEST),
    "a tall column or three": ((9001, 3), [0], "f32", SUM),
    "tall columns": ((3001, 64), [0], "f32", SUM),
    "tall columns of an odd number": ((3001, 61), [0], "bf16", LARGEST),
    "statistics of channels": ((7, 3, 56, 57), [0, 2, 3], "f32", SUM),
    "statistics, aligned": ((7, 3, 56, 56), [0, 2, 3], "bf16", SUM),
    "channels last": ((7, 40, 41, 16), [0, 1, 2], "f32", SUM),
    "columns of several matrices": ((5, 900, 44), [1], "f16", SUM),
    "any": ((3001, 24), [0], "i8", programs.ANY),
}  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_to_few_results_are_two_launches(name):
    made = reduce(*REDUCTIONS[name])
    first, second = made.kernels
    assert first.grid[0] > second.grid[0] and first.family == second.family
    assert first.numerics == "deterministic"


@settings(max_examples=examples(12))
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(1, 3000), st.integers(0, 7), st.sampled_from([*FLOATS, "i64"]),
)  # fmt: skip
def test_random_reductions(sizes, long, which, dtype):
    shape = [*sizes, long] if which % 2 else [long, *sizes]
    over = [d for d, n in enumerate(shape) if n == long or (which >> 1) + d & 1] or [0]
    reduce(shape, over, dtype, SUM if dtype in FLOATS else WHOLE)


@sampled(1)
@pytest.mark.parametrize(
    ("shape", "over"),
    [
        ((1 << 20,), [0]), ((4096, 4096), [0, 1]), ((1 << 20, 64), [0]), ((8, 1 << 20), [1]),
        ((32, 64, 56, 56), [0, 2, 3]), ((1 << 20, 3), [0]), ((1 << 20, 1), [0]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_large_ones_have_a_block_for_each_multiprocessor(shape, over, dtype):
    made = DeviceRun(programs.reduced(shape, over, dtype, SUM), assemble=False)
    assert len(made.kernels) == 2 and made.kernels[0].grid[0] >= SMS
    assert f"vector<{4 if dtype == 'f32' else 8}x{dtype}>" in made.kernels[0].text or shape[-1] < 4


def test_what_the_result_begins_with_is_joined_last():
    shape = (5003, 8)
    kind = programs.tensor((8,), "f32")
    body = [
        programs.generic("%0", [("%a0", (0, 1), "f32")], ("%a1", (1,), "f32"), shape, [0],
                         ["%r = arith.addf %o, %x0 : f32"]),
    ]  # fmt: skip
    text = programs.function([programs.tensor(shape, "f32"), kind], body, "%0", kind)
    made = DeviceRun(text, assemble=False)
    x, start = np.ones(shape, np.float32), np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(made.run(x, start)[0], start + 5003)
    assert "columns" in made.families


def test_families_that_are_off_do_no_pieces():
    off = Target(disabled=frozenset({"rows", "columns"}))
    made = DeviceRun(programs.reduced((9001, 3), [0], "f32", SUM), off)
    assert made.families == ["plain"]


def test_what_follows_sums_of_columns_does_not_make_them_rows():
    """A kernel of rows would read every element of a column large steps apart."""

    def scaled(x, w, b):
        mean = mw.mean(x, axis=0)
        return (x - mean) / mw.sqrt(mw.mean(x * x, axis=0) + 1e-3), x[:1] @ w * 2 + b

    rng = np.random.default_rng(5)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((300, 260), (260, 256), (256,)))
    with mw.jit(scaled, engine="emulate").lower(x, w, b).compile().program as program:
        ran = [kernel.family for kernel in program.bundle.manifest.kernels]
        first, second = program(x, w, b)
    assert "columns" in ran and "elementwise" in ran and "rows" not in ran
    wanted = (x - x.mean(0)) / np.sqrt((x * x).mean(0) + 1e-3)
    np.testing.assert_allclose(np.asarray(first), wanted, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(np.asarray(second), x[:1] @ w * 2 + b, rtol=2e-4, atol=2e-4)


def test_pieces_follow_from_sizes_alone():
    assert pieces.number_along(1, 1 << 24) == pieces.BLOCKS
    assert pieces.number_along(64, 1 << 24) * 64 >= pieces.BLOCKS
    assert pieces.number_along(1, 4096) <= 1 and pieces.number_along(1000, 1 << 24) == 1


# Rows that begin anywhere.


@sampled(1)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(5, 1001, "bf16"), (3, 513, "f16"), (4, 2047, "bf16"), (2, 40001, "bf16"), (9, 519, "f16")],
)
def test_odd_rows_are_read_16_bytes_at_a_time(rows, columns, dtype):
    made = DeviceRun(programs.softmax(rows, columns, dtype), assemble=False)
    x = stored(np.random.default_rng(columns).standard_normal((rows, columns)), dtype)
    (found,) = made.run(x)
    wanted = programs.softmax_of(doubles(x, dtype))
    error = np.abs(doubles(found, dtype) - wanted).max() / wanted.max()
    assert made.families == ["rows"] and error <= ROUNDING[dtype]
    assert f"vector<8x{dtype}>" in made.kernels[0].text


@settings(max_examples=examples(8))
@given(
    st.integers(132, 140), st.integers(512, 1400), st.sampled_from(["bf16", "f16", "i16"]),
    st.sampled_from([SUM, LARGEST]),
)  # fmt: skip
def test_sums_of_odd_rows(rows, columns, dtype, how):
    how = how if dtype in FLOATS else WHOLE
    reduce((rows, columns | 1), [1], dtype, how)


LONG_ROWS = {"alone": "%0", "read twice": "%exp"}


@sampled(1)
@pytest.mark.parametrize("result", LONG_ROWS)
@pytest.mark.parametrize(("columns", "dtype"), [(4099, "bf16"), (4096, "f32"), (4097, "f32")])
def test_long_rows_compute_again_what_nobody_else_reads(columns, dtype, result, monkeypatch):
    monkeypatch.setattr(row_family, "REGISTERS", 0)  # no row fits
    monkeypatch.setattr(row_family, "MOST_SHARED", 0)
    text = programs.softmax(3, columns, dtype)
    kind, other = programs.tensor((3, columns), dtype), LONG_ROWS[result]
    text = text.replace(f"-> {kind} {{", f"-> ({kind}, {kind}) {{", 1)
    text = text.replace(f"return %0 : {kind}", f"return %0, {other} : {kind}, {kind}")
    alone = result == "alone"
    made = DeviceRun(programs.softmax(3, columns, dtype) if alone else text, assemble=False)
    x = stored(np.random.default_rng(columns).standard_normal((3, columns)), dtype)
    found = [doubles(each, dtype) for each in made.run(x, checks=Checks(traffic=True))]
    wanted = programs.softmax_of(doubles(x, dtype))
    assert np.abs(found[0] - wanted).max() <= ROUNDING[dtype] * wanted.max()
    if not alone:
        powers = np.exp(doubles(x, dtype) - doubles(x, dtype).max(1, keepdims=True))
        assert np.abs(found[1] - powers).max() <= ROUNDING[dtype]
    (kernel,) = made.kernels
    assert len(_stored_through(kernel.text)) == (1 if alone else 2)


KEPT = {"bf16": 9001, "f32": 4097, "f16": 9008}


def no_registers(monkeypatch):
    """Let no row fit in registers."""
    for name in ("REGISTERS", "FEWER"):
        monkeypatch.setattr(row_family, name, 0)


@pytest.mark.parametrize("dtype", KEPT)
def test_rows_too_long_for_registers_are_kept_in_shared_memory(dtype, monkeypatch):
    """Each element is read once, and what is made of it on the way takes its place."""
    no_registers(monkeypatch)
    columns = KEPT[dtype]
    made = DeviceRun(programs.softmax(3, columns, dtype), Target("sm_90"), assemble=False)
    x = stored(np.random.default_rng(columns).standard_normal((3, columns)), dtype)
    (found,) = made.run(x, checks=Checks(traffic=True))
    wanted = programs.softmax_of(doubles(x, dtype))
    assert np.abs(doubles(found, dtype) - wanted).max() <= ROUNDING[dtype] * wanted.max()
    (kernel,), (counts,) = made.kernels, made.counts
    assert kernel.block[0] * 2 == row_family.IN_FLIGHT  # two blocks to a multiprocessor
    assert (
        counts.least_sectors <= 2.01 * x.nbytes / 32
        and counts.sectors <= 1.2 * counts.least_sectors
    )
    assert counts.wavefronts == counts.least_wavefronts


def test_shared_memory_that_a_chip_lacks_holds_no_rows():
    text = programs.softmax(3, 50257, "f32")
    large, small = (DeviceRun(text, Target(chip), assemble=False) for chip in ("sm_90", "sm_86"))
    assert large.kernels[0].shared_bytes > 200_000 and not small.kernels[0].shared_bytes


@pytest.mark.parametrize("shared", [1 << 20, 0])
def test_what_a_long_row_has_one_of_is_read_in_each_phase(shared, monkeypatch):
    no_registers(monkeypatch)
    monkeypatch.setattr(row_family, "MOST_SHARED", shared)

    def scaled(x, s):
        y = x * s
        return (y - mw.max(y, axis=1, keepdims=True)) * s

    rng = np.random.default_rng(8)
    x, s = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4100), (3, 1)))
    with mw.jit(scaled, engine="emulate").lower(x, s).compile().program as program:
        (found,) = program(x, s)
        assert [kernel.family for kernel in program.bundle.manifest.kernels] == ["rows"]
    y = x * s
    np.testing.assert_allclose(
        np.asarray(found), (y - y.max(1, keepdims=True)) * s, rtol=1e-6, atol=1e-6
    )


def test_few_very_long_rows_are_read_three_times_and_written_once():
    x = np.random.default_rng(9).standard_normal((2, (1 << 17) + 8)).astype(np.float32)

    def softmax(x):
        e = mw.exp(x - mw.max(x, axis=1, keepdims=True))
        return e / mw.sum(e, axis=1, keepdims=True)

    with mw.jit(softmax, engine="emulate").lower(x).compile().program as program:
        (found,) = program(x)
        ran = [kernel.entry for kernel in program.bundle.manifest.kernels]
    wanted = programs.softmax_of(x.astype(np.float64))
    assert np.abs(np.asarray(found) - wanted).max() <= 1e-6 * wanted.max()
    assert [name.split("_")[0] for name in ran] == ["rows"] * 4 + ["elementwise"], ran


def _stored_through(text):
    """Return the pointers that a kernel stores through."""
    made = dict(re.findall(r"(%v\d+) = llvm.getelementptr inbounds (%\w+)", text))
    found = set()
    for place in re.findall(r"llvm.store %\w+, (%\w+)[^\n]*ptr<1>", text):
        while place in made:
            place = made[place]
        found.add(place)
    return found


def test_norms_of_odd_rows_read_their_scale_element_by_element():
    made = DeviceRun(programs.layer_norm(3, 771, "bf16"), assemble=False)
    rng = np.random.default_rng(8)
    given = [stored(rng.standard_normal(s), "bf16") for s in ((3, 771), (771,), (771,))]
    wanted = programs.layer_norm_of(*(doubles(v, "bf16") for v in given))
    error = np.abs(doubles(made.run(*given)[0], "bf16") - wanted).max() / np.abs(wanted).max()
    assert error <= ROUNDING["bf16"]


# Programs.


def test_two_streams_have_scratch_memory_of_their_own():
    def two(x, y):
        with mw.hint(stream=1):
            a = mw.sum(x, axis=0)
        with mw.hint(stream=2):
            b = mw.sum(y)
        return a + b

    rng = np.random.default_rng(3)
    x, y = (rng.integers(-9, 9, (6007, 16)).astype(np.float32) for _ in range(2))
    bundle = mw.jit(two, engine="emulate").lower(x, y).compile().program.bundle
    assert bundle.manifest.streams > 1 and bundle.manifest.scratch_bytes > 0
    for seed in range(2):
        with Loaded(bundle, EmulateEngine(seed=seed)) as program:
            (found,) = program(x, y)
        np.testing.assert_array_equal(np.asarray(found), x.sum(0) + y.sum())


def test_loops_and_functions_with_pieces():
    def steps(x):
        def body(total):
            return mw.sum(x + total, axis=0)

        return mw.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, body(s[1])), (0, mw.sum(x, axis=0))
        )[1]

    x = np.full((5000, 4), 0.25, np.float32)
    wanted = x.sum(0, dtype=np.float64)
    for _ in range(3):
        wanted = (x + wanted).sum(0)
    np.testing.assert_allclose(np.asarray(mw.jit(steps, engine="emulate")(x)), wanted, rtol=1e-6)


# Products of few rows.

Case = products.Case
FEW = {
    "four rows": Case(4, 512, 512, "bf16"),
    "four rows, turned": Case(4, 512, 512, "bf16", turned_b=True),
    "odd": Case(3, 257, 333, "f32"),
    "odd, turned": Case(7, 257, 333, "f16", turned_b=True),
    "deep and narrow": Case(5, 36, 3000, "f64"),
    "few columns": Case(300, 2, 500, "bf16"),
    "few columns, turned": Case(300, 6, 500, "f32", turned_a=True),
    "batches": Case(2, 64, 1000, "bf16", result="f32", batch=(3, 2)),
    "rows that lie apart": Case(2, 64, 1000, "bf16", turned_a=True, batch=(3,)),
    "added to what is there": Case(2, 64, 1000, "f16", accumulate=True),
    "both turned, result too": Case(4, 64, 200, "f32", turned_a=True, turned_b=True, turned_c=True),
}


@sampled(1)
@pytest.mark.parametrize("name", FEW)
def test_products_of_few_rows_are_exact_on_whole_numbers(name):
    case = FEW[name]
    made = DeviceRun(case.text(), assemble=False)
    assert "gemm_rows" in made.families
    inputs = case.inputs(1, whole=True)
    wanted = products.stored(case.expected(inputs), case.kind)
    np.testing.assert_array_equal(made.run(*inputs)[0], wanted)


@settings(max_examples=examples(15))
@given(
    st.integers(2, 7), st.integers(32, 80), st.integers(64, 400), st.sampled_from(FLOATS),
    st.tuples(*[st.booleans()] * 3), st.sampled_from([(), (2,)]),
)  # fmt: skip
def test_any_product_of_few_rows(m, n, k, dtype, flags, batch):
    turned_a, turned_b, swap = flags
    m, n = (n, m) if swap else (m, n)
    case = Case(m, n, k, dtype, turned_a=turned_a, turned_b=turned_b, batch=batch)
    made, inputs = DeviceRun(case.text(), assemble=False), case.inputs(k, whole=True)
    wanted = products.stored(case.expected(inputs), dtype)
    np.testing.assert_array_equal(made.run(*inputs)[0], wanted)


@pytest.mark.parametrize("turned", [False, True])
def test_decode_reads_each_weight_once(turned):
    made = DeviceRun(Case(4, 4096, 4096, "bf16", turned_b=turned).text(), assemble=False)
    assert made.kernels[0].family == "gemm_rows" and made.kernels[0].grid[0] >= SMS
    assert "vector<8xbf16>" in made.kernels[0].text
    small = Case(4, 256, 512, "bf16", turned_b=turned)
    made = DeviceRun(small.text(), assemble=False)
    made.run(*small.inputs(0, whole=True), checks=Checks(traffic=True))
    weights = 256 * 512 * 2 // 32
    assert max(sectors for sectors, _ in made.counts[0].by_line.values()) <= weights


@pytest.mark.parametrize("chip", some(["sm_80", "sm_90a"], 2))
def test_few_rows_spill_nothing(chip):
    pytest.importorskip("nvidia")
    for case in (
        Case(7, 4096, 4096, "bf16"), Case(7, 4096, 4096, "bf16", turned_b=True),
        Case(4, 4096, 4096, "f32"), Case(1 << 12, 3, 4096, "f16"),
    ):  # fmt: skip
        made = DeviceRun(case.text(), Target(chip), assemble=False)
        for kernel, module in zip(made.kernels, made.modules):
            taken = machine_code.resources(module)[kernel.entry]
            assert taken.spill_bytes + taken.stack == 0, f"{case}: {taken}"
            assert taken.registers <= 168, f"{case}: {taken}"
