"""Engine emulate against NumPy: every collective, library products, its checks and its failures."""

from __future__ import annotations

import numpy as np
import pytest
from depth import sampled
from runtime.gpu.programs import Collect, Launch, Multiply, OnRank, engine, program

from meshweave.bundle import numpy_dtype
from meshweave.device import GemmInfo
from meshweave.errors import MeshweaveError, RankError
from meshweave.layout import Mesh
from meshweave.runtime import ENGINES
from meshweave.runtime import engine as engine_named
from meshweave.runtime.gpu.products import alignment
from meshweave.simulator.driver.lt import rounded_tf32
from meshweave.simulator.driver.move import narrowed, reduced, widened

MESHES = ("x=1", "x=4", "x=2,y=2", "x=3,y=2")
KINDS = {"sum": np.add, "prod": np.multiply, "max": np.fmax, "min": np.fmin}
DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i8")
COUNT = 21
IN, OUT = ("input", 0), ("output", 0)


def drawn(dtype, shape, seed):
    """Small whole numbers, which every type sums without rounding; bf16 as its bits."""
    values = np.random.default_rng(seed).integers(-3, 4, shape)
    if dtype == "bf16":
        return narrowed(values.astype(np.float32))
    return values.astype(numpy_dtype(dtype))


def shown(values, dtype):
    return widened(values) if dtype == "bf16" else values


def ran(mesh, group, dtype, taken, given, collect, seed=0):
    """Inputs and outputs of every rank, and the members of its group."""
    bundle = program(mesh, [group], [(dtype, (taken,))], [(dtype, (given,))], [collect])
    on = Mesh.parse(mesh)
    inputs = [[drawn(dtype, taken, 10 * seed + rank)] for rank in range(on.nranks)]
    outputs = engine(seed=seed).load(bundle).run(inputs)
    members = [on.group(group, rank) for rank in range(on.nranks)]
    return [row[0] for row in inputs], [row[0] for row in outputs], members


@sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_reduce(kind, dtype):
    collect = Collect(f"mw_all_reduce_{kind}_{dtype}", 0, IN, OUT, (COUNT,))
    inputs, outputs, members = ran("x=2,y=2", ("x", "y"), dtype, COUNT, COUNT, collect)
    expected = KINDS[kind].reduce([shown(inputs[r], dtype) for r in members[0]])
    for output in outputs:
        assert np.array_equal(shown(output, dtype), expected)


@sampled(4)
@pytest.mark.parametrize("mesh", MESHES)
def test_groups_of_every_shape(mesh):
    for seed, group in enumerate([Mesh.parse(mesh).names[:1], Mesh.parse(mesh).names]):
        size = Mesh.parse(mesh).axis_count(group)
        cases = [
            (Collect("mw_all_reduce_sum_f32", 0, IN, OUT, (COUNT * size,)), size, size),
            (Collect("mw_reduce_scatter_sum_f32", 0, IN, OUT, (COUNT,)), size, 1),
            (Collect("mw_all_gather", 0, IN, OUT, (4 * COUNT,)), 1, size),
            (Collect("mw_all_to_all", 0, IN, OUT, (4 * COUNT,)), size, size),
        ]
        for collect, taken, given in cases:
            inputs, outputs, members = ran(
                mesh, group, "f32", taken * COUNT, given * COUNT, collect, seed
            )
            for rank, output in enumerate(outputs):
                place = members[rank].index(rank)
                parts = [inputs[r] for r in members[rank]]
                assert np.array_equal(output, expected(collect.symbol, parts, place)), collect


def expected(symbol, parts, place):
    """What a member gets, from the inputs of all members."""
    mine = slice(place * COUNT, (place + 1) * COUNT)
    if "all_reduce" in symbol:
        return sum(parts)
    if "reduce_scatter" in symbol:
        return sum(parts)[mine]
    if "all_gather" in symbol:
        return np.concatenate(parts)
    return np.concatenate([part[mine] for part in parts])


def test_permute():
    size, shift = 4, 1
    sources = tuple((m - shift) % size for m in range(size))
    targets = tuple((m + shift) % size for m in range(size))
    collect = Collect("mw_permute", 0, IN, OUT, (4 * COUNT, sources, targets))
    inputs, outputs, _ = ran("x=4", ("x",), "f32", COUNT, COUNT, collect)
    for rank in range(size):
        assert np.array_equal(outputs[rank], inputs[sources[rank]])


def test_in_place():
    steps = [
        Launch("twice", IN, ("arena", 0), COUNT),
        Collect("mw_all_reduce_sum_f32", 0, ("arena", 0), ("arena", 0), (COUNT,)),
        Launch("plus_one", ("arena", 0), OUT, COUNT),
    ]
    bundle = program("x=2", [("x",)], [("f32", (COUNT,))], [("f32", (COUNT,))], steps, 4096)
    outputs = engine(seed=1).load(bundle).run([[np.full(COUNT, r + 1, "f4")] for r in range(2)])
    assert (outputs[0][0] == 7).all() and (outputs[1][0] == 7).all()


def test_reductions_round_at_each_step():
    ones = [np.array([value], np.float16) for value in (2048, 1, 1)]
    assert reduced(ones, "f16", "sum")[0] == 2048
    bits = [narrowed(np.array([value], "f4")) for value in (256.0, 1.0, 1.0)]
    assert widened(reduced(bits, "bf16", "sum"))[0] == 256
    with_nan = [np.array([np.nan], "f4"), np.array([3.0], "f4")]
    assert reduced(with_nan, "f32", "max")[0] == 3


def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, np.nan, -0.0], "f4")
    found = widened(narrowed(values))
    assert found[:4].tolist() == [1.0, 1.0, 1 + 2**-6, np.inf]
    assert np.isnan(found[4]) and np.signbit(found[5])


PRODUCTS = [
    GemmInfo("f32", 5, 7, 3, 3, 7, 7),
    GemmInfo("f32", 5, 7, 3, 5, 3, 7, transpose_a=True, transpose_b=True),
    GemmInfo("f32", 4, 6, 8, 8, 6, 6, batch=3, stride_a=32, stride_b=48, stride_d=24),
    GemmInfo("f32", 4, 6, 8, 8, 6, 6, batch=2, stride_a=32, stride_b=0, stride_d=24),
    GemmInfo("f16", 4, 6, 8, 8, 6, 6),
    GemmInfo("bf16", 4, 6, 8, 8, 6, 6),
    GemmInfo("f32", 16, 16, 16, 16, 16, 16, compute="tf32"),
    GemmInfo("f32", 4, 6, 8, 10, 9, 12),  # rows apart
]


def matrix(values, rows, columns, lead, stride, info, turned):
    """The factor of each of a batch, as it is used."""
    flat = shown(values, info.dtype).astype(np.float64)
    shape = (columns, rows) if turned else (rows, columns)
    found = []
    for number in range(info.batch):
        part = flat[number * stride :]
        index = np.arange(shape[0])[:, None] * lead + np.arange(shape[1])
        found.append(part[index].T if turned else part[index])
    return found


@sampled(1)
@pytest.mark.parametrize("info", PRODUCTS, ids=str)
def test_library_products(info):
    sizes = [
        info.batch * max(stride, 1) + rows * lead
        for stride, rows, lead in (
            (info.stride_a, info.k if info.transpose_a else info.m, info.lda),
            (info.stride_b, info.n if info.transpose_b else info.k, info.ldb),
            (info.stride_d, info.m, info.ldd),
        )
    ]
    ports = [(info.dtype, (size,)) for size in sizes]
    steps = [Multiply(0, IN, ("input", 1), OUT)]
    bundle = program("x=1", [], ports[:2], ports[2:], steps, gemms=[info])
    inputs = [drawn(info.dtype, size, k) for k, size in enumerate(sizes[:2])]
    output = shown(engine().load(bundle).run([inputs])[0][0], info.dtype)
    left = matrix(inputs[0], info.m, info.k, info.lda, info.stride_a, info, info.transpose_a)
    right = matrix(inputs[1], info.k, info.n, info.ldb, info.stride_b, info, info.transpose_b)
    found = matrix(output, info.m, info.n, info.ldd, info.stride_d, info_f64(info), False)
    for a, b, d in zip(left, right, found):
        assert np.array_equal(a @ b, d)  # whole numbers: exact in every type


def info_f64(info):
    return GemmInfo("f64", *[getattr(info, n) for n in ("m", "n", "k", "lda", "ldb", "ldd")],
                    batch=info.batch)  # fmt: skip


def test_tf32_has_ten_bits():
    values = np.array([1 + 2**-10, 1 + 2**-11, 1 + 2**-11 + 2**-20, np.inf, np.nan], "f4")
    assert rounded_tf32(values)[:4].tolist() == [1 + 2**-10, 1.0, 1 + 2**-10, np.inf]
    assert np.isnan(rounded_tf32(values)[4])


def test_a_product_whose_operands_lie_otherwise_than_promised_is_told():
    info = GemmInfo("f32", 8, 8, 8, 8, 8, 8, alignment=16)
    ports = [("f32", (80,))] * 2
    steps = [Launch("twice", IN, ("arena", 0), 80), Multiply(0, ("arena", 4), IN, OUT)]
    bundle = program("x=1", [], ports[:1], ports[1:], steps, 4096, gemms=[info])
    line = r"rank 0: cublasLtMatmul: arena\+4 is no multiple of 16 bytes, as its algorithm was"
    with pytest.raises(RankError, match=line):
        engine().load(bundle).run([[np.zeros(80, "f4")]])


@pytest.mark.parametrize(
    ("info", "nbytes"),
    [
        (GemmInfo("f16", 8, 8, 8, 8, 8, 8), 2),
        (GemmInfo("f16", 8, 8, 8, 8, 8, 8, alignment=16), 16),
        (GemmInfo("f32", 8, 8, 8, 8, 9, 8, alignment=16), 4),
        (GemmInfo("f32", 8, 8, 8, 8, 8, 8, batch=2, stride_a=66, alignment=256), 8),
        (GemmInfo("f64", 8, 8, 8, 8, 8, 8), 8),
    ],
)
def test_what_is_known_of_the_alignment_of_rows(info, nbytes):
    assert alignment(info) == nbytes


def simple(mesh="x=2", steps=None):
    steps = steps or [Launch("twice", IN, OUT, COUNT)]
    port = [("f32", (COUNT,))]
    return program(mesh, [("x",)], port, port, steps)


def test_it_is_registered_beside_the_others():
    assert {"local", "mpi", "nccl", "emulate"} <= set(ENGINES)


def test_a_bundle_of_another_target_is_refused():
    from dataclasses import replace

    bundle = simple()
    other = type(bundle)(replace(bundle.manifest, target="cpu"), bundle.objects)
    for name in ("emulate", "nccl"):
        with pytest.raises(MeshweaveError, match=f'for target "cpu", engine "{name}" runs "gpu"'):
            engine_named(name).load(other)


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        ([[np.zeros(COUNT, "f4")]], "inputs for 1 ranks, the program has 2"),
        ([[], []], "rank 0: 0 inputs, the program has 1"),
        ([[np.zeros(COUNT, "f8")]] * 2, 'input 0 "in0", rank 0: dtype float64, float32 is right'),
        ([[np.zeros(3, "f4")]] * 2, 'input 0 "in0", rank 0: dim 0 has size 3, 21 is right'),
    ],
)
def test_arrays_that_do_not_fit_are_named(inputs, line):
    with pytest.raises(MeshweaveError, match=line):
        engine().load(simple()).run(inputs)


def test_a_call_reads_what_its_inputs_hold_then():
    call = engine().load(simple()).bind([[np.zeros(COUNT, "f4")] for _ in range(2)])
    for value in (1.0, 2.0):
        for row in call.inputs:
            row[0][:] = value
        call()
        assert (call.outputs[1][0] == 2 * value).all()
    call.close()


def test_a_closed_program_says_so():
    executable = engine().load(simple())
    executable.close()
    with pytest.raises(MeshweaveError, match="the program is closed: load it again"):
        executable.run([[np.zeros(COUNT, "f4")]] * 2)


def test_a_rank_that_computes_for_ever_is_given_up(times):
    """A step that neither ends nor calls anything."""
    import threading

    never = threading.Event()
    executable = engine(timeout=0.3 * times).load(simple())
    executable.ranks()[1]._step = lambda context: never.wait(60 * times) and 0
    with pytest.raises(RankError, match=r"^no progress for .* s: rank 1 computes$"):
        executable.run([[np.zeros(COUNT, "f4")]] * 2)
    never.set()
    assert (executable.run([[np.ones(COUNT, "f4")]] * 2)[1][0] == 2).all()  # loaded anew


def test_a_failed_rank_frees_those_that_wait():
    """Rank 1 waits for a collective that rank 0 leaves out, for it fails first."""
    reduce = Collect("mw_all_reduce_sum_f32", 0, IN, OUT, (COUNT,))
    wide = Collect("mw_all_reduce_sum_f32", 0, IN, OUT, (COUNT + 9,))
    executable = engine().load(simple(steps=[OnRank(1, (wide,), (reduce,))]))
    with pytest.raises(RankError, match="rank 1: all_reduce: 120 bytes at in0 reach 24 beyond"):
        executable.run([[np.zeros(COUNT, "f4")]] * 2)
