"""Kernels of each family, in the emulator, against NumPy in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from depth import deep, sampled
from lowering.harness import run_text as run_on_cpu

pytest.importorskip("llvmlite")

from lowering.gpu import maps_and_rows as programs
from lowering.gpu.device_runs import NUMPY, DeviceRun
from lowering.gpu.maps_and_rows import ROUNDING, doubles, generic, stored, tensor

from meshweave.hints.fast_paths import BIT_EXACT, DETERMINISTIC
from meshweave.lowering.gpu.families import registry as families
from meshweave.lowering.gpu.kernel import Target
from meshweave.simulator.ptx import Checks, EmulationError

SPECIAL = frozenset({"gemm", "transpose", "rows", "columns", "elementwise"})
PLAIN = Target(disabled=SPECIAL)
TRAFFIC = Checks(traffic=True)
RNG = np.random.default_rng(11)


def values(shape, dtype):
    x = RNG.standard_normal(shape) * 4
    if dtype == "i1":
        return x > 0
    return stored(x, dtype) if dtype in programs.FLOATS else x.astype(NUMPY[dtype])


def close(found, wanted, dtype, terms=1.0):
    """Equal for whole numbers; for floats within rounding of the largest element, `terms` times."""
    if dtype not in programs.FLOATS:
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))
        return
    largest = np.abs(wanted).max(initial=1.0)
    assert (
        np.abs(doubles(found, dtype) - wanted).max(initial=0.0) <= ROUNDING[dtype] * terms * largest
    )


# Maps.

MAPS = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor,
}  # fmt: skip
WHOLE = ("i64", "i32", "i16", "i8", "i1")


@sampled(4)
@pytest.mark.parametrize("dtype", [*programs.FLOATS, *WHOLE])
def test_ops_of_every_type_round_as_the_cpu_does(dtype):
    """One kernel per op; floats agree to the last bit with the element computed in f32 or f64."""
    kind = tensor((3, 24), dtype)
    ops = [op for op in MAPS if op.endswith("f") == (dtype in programs.FLOATS)]
    ops = [op for op in ops if dtype != "i1" or op[6:] in ("andi", "ori", "xori")]
    lines = [f"%{k} = {op} %a0, %a1 : {kind}" for k, op in enumerate(ops)]
    results, kinds = ", ".join(f"%{k}" for k in range(len(ops))), ", ".join([kind] * len(ops))
    text = (
        f"func.func @main(%a0: {kind}, %a1: {kind}) -> ({kinds}) {{\n"
        + "\n".join(lines)
        + f"\nreturn {results} : {kinds}\n}}"
    )
    made = DeviceRun(text)
    a, b = values((3, 24), dtype), values((3, 24), dtype)
    left, right = (
        doubles(v, dtype).astype(np.float32) if dtype in ("f16", "bf16") else v for v in (a, b)
    )
    assert {k.numerics for k in made.kernels} == {BIT_EXACT}
    for op, found in zip(ops, made.run(a, b)):
        wanted = MAPS[op](left, right)
        np.testing.assert_array_equal(
            found, stored(wanted, dtype) if dtype == "bf16" else wanted.astype(found.dtype)
        )


def test_functions_of_the_device_library():
    names = (
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "tanh",
        "sin",
        "cos",
        "erf",
        "log1p",
        "absf",
        "floor",
        "ceil",
    )
    wanted = {
        "erf": lambda x: np.array([__import__("math").erf(v) for v in x.ravel()]).reshape(x.shape),
        "rsqrt": lambda x: 1 / np.sqrt(x), "absf": np.abs,
    }  # fmt: skip
    for dtype in ("f32", "f64"):
        kind = tensor((20,), dtype)
        lines = "\n".join(f"%{k} = math.{n} %a0 : {kind}" for k, n in enumerate(names))
        results = ", ".join(f"%{k}" for k in range(len(names)))
        kinds = ", ".join([kind] * len(names))
        x = RNG.uniform(0.1, 3, 20).astype(NUMPY[dtype])
        found = DeviceRun(
            f"func.func @main(%a0: {kind}) -> ({kinds}) {{\n{lines}\nreturn {results} : {kinds}\n}}"
        ).run(x)
        for name, one in zip(names, found):
            expected = wanted.get(name, getattr(np, name, None))(x.astype(np.float64))
            error = 1e-13 if dtype == "f64" else 4e-7
            np.testing.assert_allclose(one, expected, rtol=error, atol=error)


@sampled(1)
@pytest.mark.parametrize("length", [1, 3, 4, 31, 32, 35, 1024, 1030])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_maps_of_any_length(dtype, length):
    add = "arith.addi" if dtype == "i8" else "arith.addf"
    kind = tensor((length,), dtype)
    text = programs.function([kind], [f"%0 = {add} %a0, %a0 : {kind}"], "%0", kind)
    x = values((length,), dtype)
    (found,) = DeviceRun(text).run(x)
    close(found, 2 * doubles(x, dtype), dtype)


SLICES = {
    "aligned": (8, 32, 1),
    "by one element": (1, 32, 1),
    "every second": (0, 20, 2),
    "uneven": (4, 30, 1),
}


@sampled(1)
@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("target", [Target(), PLAIN], ids=["chosen", "plain"])
def test_parts_of_rows_whatever_their_alignment(name, target):
    start, count, step = SLICES[name]
    whole, part = tensor((5, 48), "f32"), tensor((5, count), "f32")
    body = [
        f"%s = tensor.extract_slice %a0[0, {start}] [5, {count}] [1, {step}] : {whole} to {part}",
        f"%0 = arith.addf %s, %a1 : {part}",
        f"%1 = tensor.insert_slice %0 into %a2[0, {start}] [5, {count}] [1, {step}] : {part} into {whole}",
    ]
    text = programs.function([whole, part, whole], body, "%1", whole)
    a, b, c = (RNG.standard_normal(s).astype(np.float32) for s in ((5, 48), (5, count), (5, 48)))
    (found,) = DeviceRun(text, target).run(a, b, c)
    wanted, places = c.copy(), slice(start, start + count * step, step)
    wanted[:, places] = a[:, places] + b
    np.testing.assert_array_equal(found, wanted)


def test_gathers_indices_and_scalars():
    rows, table = tensor((6,), "i64"), tensor((9, 20), "f32")
    out = tensor((6, 20), "f32")
    body = [
        f"%e = tensor.empty() : {out}",
        "%0 = " + programs.generic(
            "", [("%a0", (0,), "i64")], ("%e", (0, 1), "f32"), (6, 20), [],
            ["%i = arith.index_cast %x0 : i64 to index", "%j = linalg.index 1 : index",
             f"%v = tensor.extract %a1[%i, %j] : {table}",
             "%c = arith.index_cast %j : index to i32", "%d = arith.sitofp %c : i32 to f32",
             "%r = arith.addf %v, %d : f32"],
        )[3:],
    ]  # fmt: skip
    text = programs.function([rows, table], body, "%0", out)
    index, x = RNG.integers(0, 9, 6), RNG.standard_normal((9, 20)).astype(np.float32)
    for target in (Target(), PLAIN):
        (found,) = DeviceRun(text, target).run(index, x)
        np.testing.assert_array_equal(found, x[index] + np.arange(20, dtype=np.float32))


@pytest.mark.parametrize("shape", [(2, 512), (3, 35)])
def test_maps_of_the_same_elements_hand_over_in_registers(shape):
    kind, whole = tensor(shape, "f32"), (0, 1)
    body = [
        f"%e = tensor.empty() : {kind}",
        generic("%p", [("%a0", whole, "f32")], ("%e", whole, "f32"), shape, [], ["%r = math.exp %x0 : f32"]),
        generic("%q", [("%p", whole, "f32"), ("%a0", whole, "f32")], ("%e", whole, "f32"), shape, [],
                ["%r = arith.subf %x0, %x1 : f32"]),
    ]  # fmt: skip
    text = programs.function([kind], body, "%p", kind)
    text = text.replace(f"-> {kind} {{", f"-> ({kind}, {kind}) {{", 1)
    made = DeviceRun(text.replace(f"return %p : {kind}", f"return %p, %q : {kind}, {kind}"))
    assert made.families == ["elementwise"]
    x = values(shape, "f32")
    powers, less = made.run(x, checks=TRAFFIC)
    close(powers, np.exp(x.astype(np.float64)), "f32")
    np.testing.assert_array_equal(less, powers - x)
    if shape == (2, 512):
        assert made.counts[0].sectors == 3 * 2 * 512 * 4 // 32


@pytest.mark.parametrize(
    "target",
    [Target(), pytest.param(Target(disabled=SPECIAL - {"rows"}), marks=deep)],
    ids=["chosen", "rows"],
)
def test_maps_in_place_of_what_an_earlier_kernel_left(target):
    """A chain too long for one kernel: the next one begins with a map that writes where it reads."""
    kind, steps = tensor((3, 8), "f32"), 220
    body = ["%t0 = math.tanh %a0 : " + kind]
    for k in range(steps):
        body += [f"%s{k} = math.tanh %t{k} : {kind}", f"%t{k + 1} = arith.addf %s{k}, %a0 : {kind}"]
    made = DeviceRun(programs.function([kind], body, f"%t{steps}", kind), target)
    assert len(made.kernels) > 1 and made.families[0] == (
        "rows" if target.disabled else "elementwise"
    )
    x = values((3, 8), "f32")
    wanted = np.tanh(x.astype(np.float64))
    for _ in range(steps):
        wanted = np.tanh(wanted) + x
    close(made.run(x)[0], wanted, "f32")


def test_parts_of_different_sizes_are_launched_one_after_another():
    """Two halves put side by side: the rows that they share are few."""
    left, right, both = (tensor((2, n), "f32") for n in (300, 200, 500))
    body = [
        f"%n = math.exp %a0 : {left}",
        f"%m = math.exp %a1 : {right}",
        f"%0 = tensor.concat dim(1) %n, %m : ({left}, {right}) -> {both}",
    ]
    made = DeviceRun(programs.function([left, right], body, "%0", both))
    assert len(made.kernels) >= 2 and "plain" not in made.families
    a, b = values((2, 300), "f32"), values((2, 200), "f32")
    close(made.run(a, b)[0], np.exp(np.concatenate([a, b], 1).astype(np.float64)), "f32")


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i64", "i1"])
def test_numbers_that_only_the_run_knows_are_parameters(dtype):
    kind, one = tensor((37,), dtype), tensor((), dtype)
    op = {"i64": "arith.muli", "i1": "arith.xori"}.get(dtype, "arith.mulf")
    body = [
        f"%s = tensor.extract %a0[] : {one}",
        f"%e = tensor.empty() : {kind}",
        generic(
            "%0",
            [("%a1", (0,), dtype)],
            ("%e", (0,), dtype),
            (37,),
            [],
            [f"%r = {op} %x0, %s : {dtype}"],
        ),
    ]
    made = DeviceRun(programs.function([one, kind], body, "%0", kind))
    assert made.kernels[0].parameters == ("ptr", "ptr", "i8" if dtype == "i1" else dtype)
    scalar, x = values((), dtype), values((37,), dtype)
    a, b = (doubles(v, dtype) for v in (np.asarray(scalar), x))
    close(made.run(scalar, x)[0], a ^ b if dtype == "i1" else a * b, dtype)


# Reductions.

SUMS = [
    ((40, 70), [1], "f32", programs.SUM), ((40, 70), [0], "f32", programs.SUM),
    ((3, 200), [1], "bf16", programs.SUM), ((200, 24), [0], "bf16", programs.SUM),
    ((4, 10, 12), [1], "f64", programs.SUM), ((4, 10, 12), [0, 2], "f16", programs.SUM),
    ((4, 10, 12), [0, 1, 2], "f32", programs.SUM), ((7, 5), [0], "f64", programs.PRODUCT),
    ((9, 3000), [1], "f32", programs.LARGEST), ((300, 9), [0], "f32", programs.LEAST),
    ((5, 9), [1], "f16", programs.LARGEST), ((33, 65), [0], "bf16", programs.LEAST),
    ((40, 50), [0], "i64", programs.WHOLE_SUM), ((40, 50), [1], "i32", programs.WHOLE_SUM),
    ((40, 50), [1], "i8", programs.WHOLE_LARGEST), ((40, 50), [0], "i16", programs.WHOLE_LARGEST),
    ((40, 50), [1], "i1", programs.ANY), ((40, 50), [0], "i1", programs.ALL),
    ((1, 20000), [1], "f32", programs.SUM),
]  # fmt: skip


@sampled(2)
@pytest.mark.parametrize("case", SUMS, ids=lambda c: f"{c[2]} {c[3].op} {c[0]} over {c[1]}")
@pytest.mark.parametrize("target", [Target(), PLAIN], ids=["chosen", "plain"])
def test_reductions_over_any_dims(case, target):
    shape, over, dtype, how = case
    made = DeviceRun(programs.reduced(shape, over, dtype, how), target)
    x = values(shape, dtype)
    (found,) = made.run(x)
    given, axes = doubles(x, dtype), tuple(over)
    wanted = how.numpy.reduce(given, axis=axes)
    terms = 4.0
    if how is programs.SUM:  # what is added may be far larger than its sum
        sizes = np.sqrt(np.square(given).sum(axes)) / np.maximum(1.0, np.abs(wanted).max())
        terms *= max(1.0, float(sizes.max()))
    close(found, wanted, dtype, terms)
    assert made.kernels[0].numerics == DETERMINISTIC
    assert (made.families == ["plain"]) == (target is PLAIN)


LONG = [
    ((1, 600_000), [1], "f32", Target()), ((8, 20_003), [0], "f32", Target()), ((20_003, 8), [0], "f32", Target()),
    ((2, 40_000), [1], "f32", PLAIN), ((2, 40_000), [1], "f64", PLAIN), ((50, 2, 700), [0, 2], "f32", PLAIN),
]  # fmt: skip


@sampled(4)
@pytest.mark.parametrize("shape, over, dtype, target", LONG)
def test_long_sums_are_no_further_from_the_truth_than_four_times_numpy(shape, over, dtype, target):
    made = DeviceRun(programs.reduced(shape, over, dtype, programs.SUM), target)
    for x in (np.full(shape, 0.1, NUMPY[dtype]), RNG.random(shape).astype(NUMPY[dtype])):
        (found,) = made.run(x)
        true, numpy = x.astype("longdouble").sum(tuple(over)), x.sum(tuple(over))
        most = 4 * max(np.abs(numpy / true - 1).max(), np.finfo(x.dtype).eps)
        assert np.abs(found / true - 1).max() <= most


@sampled(1)
@pytest.mark.parametrize("target", [Target(), PLAIN], ids=["chosen", "plain"])
@pytest.mark.parametrize("odd", [(np.inf,), (np.inf, -np.inf), (np.nan,)])
def test_long_sums_of_what_is_not_finite(odd, target):
    x = np.ones((3000, 8), np.float32)
    x[100 : 100 + len(odd), 2] = odd
    with np.errstate(invalid="ignore"):
        wanted = x.sum(0)
    (found,) = DeviceRun(programs.reduced(x.shape, [0], "f32", programs.SUM), target).run(x)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("over", [[0], [1]])
def test_maximum_of_what_is_no_number(over, special):
    x = RNG.standard_normal((40, 40)).astype(np.float32)
    x[3, 5] = special
    (found,) = DeviceRun(programs.reduced((40, 40), over, "f32", programs.LARGEST)).run(x)
    np.testing.assert_array_equal(found, x.max(axis=over[0]))


ARGMAX = """func.func @main(%a0: tensor<5x37xf32>) -> tensor<5xi32> {
%low = arith.constant 0xFF800000 : f32
%none = arith.constant 0 : i32
%ev = tensor.empty() : tensor<5xf32>
%ei = tensor.empty() : tensor<5xi32>
%fv = linalg.fill ins(%low : f32) outs(%ev : tensor<5xf32>) -> tensor<5xf32>
%fi = linalg.fill ins(%none : i32) outs(%ei : tensor<5xi32>) -> tensor<5xi32>
%0:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
    affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
    ins(%a0 : tensor<5x37xf32>) outs(%fv, %fi : tensor<5xf32>, tensor<5xi32>) {
  ^bb0(%x: f32, %v: f32, %p: i32):
    %j = linalg.index 1 : index
    %k = arith.index_cast %j : index to i32
    %more = arith.cmpf ogt, %x, %v : f32
    %nv = arith.select %more, %x, %v : f32
    %np = arith.select %more, %k, %p : i32
    linalg.yield %nv, %np : f32, i32
  } -> (tensor<5xf32>, tensor<5xi32>)
return %0#1 : tensor<5xi32>
}"""


def test_reductions_that_are_no_combination_run_in_order():
    x = RNG.standard_normal((5, 37)).astype(np.float32)
    made = DeviceRun(ARGMAX)
    (found,) = made.run(x)
    np.testing.assert_array_equal(found, x.argmax(1))
    assert made.kernels[0].numerics == BIT_EXACT


def test_sums_that_are_to_be_exact_have_the_bits_of_the_cpu():
    text = programs.reduced((6, 500), [1], "f32", programs.SUM)
    text = text.replace("linalg.generic {", 'linalg.generic {mw.kernel = "reference", ')
    x = values((6, 500), "f32")
    made = DeviceRun(text)
    assert made.families == ["plain"]
    np.testing.assert_array_equal(made.run(x)[0], run_on_cpu(text, x)[0])


# Rows.

ROWS = [
    (5, 128, "f32"), (3, 1000, "f32"), (7, 33, "f32"), (2, 4096, "bf16"), (4, 8, "f64"), (5, 96, "f16"),
    (100, 24, "f32"), (70, 3, "f32"), (2, 50000, "f32"), (3, 4100, "f64"),
]  # fmt: skip


@sampled(4)
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_softmax(case):
    rows, columns, dtype = case
    made = DeviceRun(programs.softmax(rows, columns, dtype))
    assert made.families == ["rows"]
    x = values((rows, columns), dtype)
    close(made.run(x)[0], programs.softmax_of(doubles(x, dtype)), dtype)


@sampled(4)
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_layer_norm(case):
    rows, columns, dtype = case
    made = DeviceRun(programs.layer_norm(rows, columns, dtype))
    assert made.families == ["rows"]
    x, scale, shift = (values(s, dtype) for s in ((rows, columns), (columns,), (columns,)))
    wanted = programs.layer_norm_of(*(doubles(v, dtype) for v in (x, scale, shift)))
    close(made.run(x, scale, shift)[0], wanted, dtype, terms=10)


@pytest.mark.parametrize("program", [programs.softmax, programs.layer_norm])
def test_nests_that_share_rows_in_plain_kernels(program, monkeypatch):
    monkeypatch.setattr(families, "ENOUGH_ROWS", 0)
    made = DeviceRun(program(6, 70, "f32"), PLAIN)
    assert made.families == ["plain"]
    x, scale, shift = (values(s, "f32") for s in ((6, 70), (70,), (70,)))
    if program is programs.softmax:
        close(made.run(x)[0], programs.softmax_of(x.astype(np.float64)), "f32")
    else:
        close(
            made.run(x, scale, shift)[0], programs.layer_norm_of(x, scale, shift), "f32", terms=10
        )


def test_a_row_is_read_once_and_written_once():
    """The powers between a softmax's passes are handed over in registers, and never stored."""
    made = DeviceRun(programs.softmax(8, 512, "f32"))
    made.run(values((8, 512), "f32"), checks=TRAFFIC)
    assert made.counts[0].sectors == 2 * 8 * 512 * 4 // 32


def test_what_somebody_else_reads_is_stored():
    text = programs.softmax(8, 64, "f32").replace(
        "-> tensor<8x64xf32> {", "-> (tensor<8x64xf32>, tensor<8x64xf32>) {", 1
    )
    text = text.replace(
        "return %0 : tensor<8x64xf32>", "return %0, %exp : tensor<8x64xf32>, tensor<8x64xf32>"
    )
    x = values((8, 64), "f32")
    result, powers = DeviceRun(text).run(x)
    wide = x.astype(np.float64)
    close(powers, np.exp(wide - wide.max(-1, keepdims=True)), "f32")
    close(result, programs.softmax_of(wide), "f32")


FIRST_OF_ROW = """func.func @main(%a0: tensor<4x512xf32>) -> (tensor<4x512xf32>, tensor<4x512xf32>) {
%e = tensor.empty() : tensor<4x512xf32>
%p = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]} ins(%a0 : tensor<4x512xf32>) outs(%e : tensor<4x512xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = math.exp %x : f32
    linalg.yield %y : f32
} -> tensor<4x512xf32>
%s = tensor.extract_slice %p[0, 300] [4, 1] [1, 1] : tensor<4x512xf32> to tensor<4xf32>
%q = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
    affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
    ins(%p, %s : tensor<4x512xf32>, tensor<4xf32>) outs(%e : tensor<4x512xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %z = arith.divf %x, %y : f32
    linalg.yield %z : f32
} -> tensor<4x512xf32>
return %p, %q : tensor<4x512xf32>, tensor<4x512xf32>
}"""


@pytest.mark.parametrize("target", [Target(), PLAIN], ids=["chosen", "plain"])
def test_what_other_threads_of_a_row_wrote_waits_for_a_barrier(target, monkeypatch):
    monkeypatch.setattr(families, "ENOUGH_ROWS", 0)
    made = DeviceRun(FIRST_OF_ROW, target, assemble=False)
    assert made.families == ["rows" if target is not PLAIN else "plain"]
    x = values((4, 512), "f32")
    powers, divided = made.run(x)
    close(powers, np.exp(x.astype(np.float64)), "f32")
    np.testing.assert_allclose(divided, powers / powers[:, 300:301], rtol=1e-6)
    (kernel,) = made.kernels
    made.kernels[0] = replace(kernel, text=kernel.text.replace("nvvm.barrier\n", ""))
    del made.modules
    with pytest.raises(EmulationError, match=r"race|barrier"):
        made.run(x)


# Transposes.

TURNS = [
    ((64, 128), (1, 0), "f32"), ((100, 60), (1, 0), "f32"), ((33, 70), (1, 0), "f32"), ((3, 64, 40), (2, 0, 1), "f16"),
    ((3, 64, 40), (0, 2, 1), "f64"), ((3, 4, 50, 8), (0, 2, 1, 3), "f32"), ((16, 32, 8), (2, 1, 0), "i8"),
    ((72, 136), (1, 0), "bf16"), ((31, 35), (1, 0), "bf16"), ((31, 35), (1, 0), "i64"), ((9, 40), (1, 0), "i1"),
]  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("case", TURNS, ids=lambda c: f"{c[2]} {c[0]} to {c[1]}")
def test_transposes(case):
    shape, order, dtype = case
    text = programs.transposed(shape, order, dtype)
    x = values(shape, dtype)
    nothing = np.zeros_like(x.transpose(order))
    made = DeviceRun(text)
    np.testing.assert_array_equal(made.run(x, nothing)[0], x.transpose(order))
    assert made.families == ["elementwise" if order[-1] == len(order) - 1 else "transpose"]


# Corners.


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
@pytest.mark.parametrize("over", [[0], [1]])
def test_reductions_of_nothing(shape, over):
    made = DeviceRun(programs.reduced(shape, over, "f32", programs.SUM))
    (found,) = made.run(np.zeros(shape, np.float32))
    np.testing.assert_array_equal(found, np.zeros(shape[1 - over[0]], np.float32))


def test_a_single_number():
    kind = tensor((), "f64")
    text = programs.function([kind], [f"%0 = math.sqrt %a0 : {kind}"], "%0", kind)
    (found,) = DeviceRun(text).run(np.array(2.0))
    np.testing.assert_allclose(found, np.sqrt(2.0))


LONG = tensor((3 << 30,), "f16")
HUGE = {
    "a map": programs.function([LONG], [f"%0 = arith.addf %a0, %a0 : {LONG}"], "%0", LONG),
    "rows": programs.reduced((1 << 20, 1 << 12), [1], "bf16", programs.SUM),
    "columns": programs.reduced((1 << 20, 1 << 12), [0], "bf16", programs.SUM),
    "a transpose": programs.transposed((1 << 16, 1 << 16), (1, 0), "bf16"),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("target", [Target(), PLAIN], ids=["chosen", "plain"])
def test_more_than_two_to_the_31_bytes_have_64_bit_offsets(name, target):
    kernel = DeviceRun(HUGE[name], target).kernels[0]
    assert kernel.grid[0] < 1 << 31 and kernel.grid[1:] == (1, 1)
    assert ": i64" in kernel.text and "overflow<nsw> : i32" not in kernel.text


def test_entries_tell_what_the_kernel_does():
    made = DeviceRun(programs.softmax(5, 128, "f32"))
    assert made.kernels[0].entry == "rows_5x128_f32_maximumf_subf_exp_addf"
    assert made.kernels[0].parameters[0] == "ptr"
