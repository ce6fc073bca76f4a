"""Every collective on every engine against NumPy, on meshes of 1 to 8 ranks."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from depth import sampled, some, thinned
from runtime.programs import ENGINES, CallOf, program, started

from meshweave.abi import DTYPES, KINDS
from meshweave.bundle import numpy_dtype
from meshweave.errors import CompileError
from meshweave.layout import Mesh
from meshweave.lowering.cpu.collectives.objects import (
    Collective,
    collectives_object,
    compile_text,
    window_module,
)
from meshweave.runtime.arrays.elements import narrow, wide

MESHES = ("x=1", "x=2", "x=4", "x=2, y=2", "x=2, y=3", "x=2, y=2, z=2")
OPS = ("all_reduce", "in_place", "reduce_scatter", "all_gather", "all_to_all", "permute")
COUNTS = (0, 1, 3, 64, 65, 1000, 1024, 4097)


@dataclass(frozen=True)
class Case:
    """One collective: `count` elements per rank, or per block."""

    op: str
    kind: str
    dtype: str
    group: int
    count: int
    shift: int = 0


@pytest.fixture(scope="module", params=ENGINES)
def running(request):
    made = started(request.param)
    yield made
    made.close()


def groups_of(mesh):
    names = mesh.names
    return [names[:1], names[-1:], names, tuple(reversed(names))]


def cases_for(mesh, seed, number):
    draw = random.Random(f"{mesh} {seed}")
    cases = []
    for index in range(number):
        op = OPS[index % len(OPS)]
        kind = draw.choice(KINDS)
        dtypes = [d for d in DTYPES if d != "i1" or kind in ("max", "min")]
        group = draw.randrange(len(groups_of(mesh)))
        size = mesh.axis_count(groups_of(mesh)[group])
        shift = draw.randrange(size)
        cases.append(Case(op, kind, draw.choice(dtypes), group, draw.choice(COUNTS), shift))
    return cases


def blocks(case, size):
    """Blocks of `count` elements in source and result."""
    return {
        "reduce_scatter": (size, 1),
        "all_gather": (1, size),
        "all_to_all": (size, size),
    }.get(case.op, (1, 1))


def call_of(case, index, size):
    nbytes = case.count * numpy_dtype(case.dtype).itemsize
    source, target = ("input", index), ("output", index)
    if case.op in ("all_reduce", "in_place", "reduce_scatter"):
        op = "reduce_scatter" if case.op == "reduce_scatter" else "all_reduce"
        symbol = f"mw_{op}_{case.kind}_{case.dtype}"
        place = source if case.op == "in_place" else target
        return CallOf(symbol, case.group, source, place, (case.count,))
    if case.op == "permute":
        receives = tuple((k + case.shift) % size for k in range(size))
        sends = tuple((k - case.shift) % size for k in range(size))
        return CallOf("mw_permute", case.group, source, target, (nbytes, receives, sends))
    return CallOf(f"mw_{case.op}", case.group, source, target, (nbytes,))


def values(case, count, rng):
    if case.dtype == "i1":
        return rng.random(count) < 0.5
    if case.dtype.startswith("i"):
        return rng.integers(-50, 50, count).astype(numpy_dtype(case.dtype))
    numbers = rng.standard_normal(count)
    if case.kind in ("max", "min") and count > 2:
        numbers[rng.integers(count)] = np.nan
    return narrow(numbers.astype("f4"), "bf16") if case.dtype == "bf16" else numbers.astype(
        numpy_dtype(case.dtype)
    )  # fmt: skip


def reduced(case, parts):
    """In member order, narrow floats in f32 and rounded once."""
    reduce = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[case.kind]
    wides = [wide(part, case.dtype) for part in parts]
    if case.dtype == "f16":
        wides = [part.astype("f4") for part in wides]
    total = wides[0]
    for part in wides[1:]:
        total = reduce(total, part)
    if case.dtype == "f16":
        return total.astype("f2")
    return narrow(total, case.dtype)


def expected(case, sources, member):
    size, count = len(sources), case.count
    own = slice(member * count, (member + 1) * count)
    if case.op in ("all_reduce", "in_place"):
        return reduced(case, sources)
    if case.op == "reduce_scatter":
        return reduced(case, [source[own] for source in sources])
    if case.op == "all_gather":
        return np.concatenate(sources)
    if case.op == "all_to_all":
        return np.concatenate([source[own] for source in sources])
    return sources[(member + case.shift) % size]


def check(case, result, right, exact):
    if (
        exact
        or not case.dtype.startswith(("f", "bf"))
        or "all_to" in case.op
        or "gather" in case.op
    ):
        np.testing.assert_array_equal(result, right, err_msg=str(case))
        return
    tolerance = {"f64": 1e-12, "f32": 1e-5, "f16": 5e-3, "bf16": 4e-2}[case.dtype]
    np.testing.assert_allclose(
        wide(result, case.dtype).astype("f8"),
        wide(right, case.dtype).astype("f8"),
        rtol=tolerance,
        atol=tolerance,
        err_msg=str(case),
    )


def run_and_check(running, mesh, cases, bundle):
    rng = np.random.default_rng(len(cases))
    groups = groups_of(mesh)
    sizes = [mesh.axis_count(groups[case.group]) for case in cases]
    inputs = [
        [values(c, c.count * blocks(c, s)[0], rng) for c, s in zip(cases, sizes, strict=True)]
        for _ in range(mesh.nranks)
    ]
    kept = [[value.copy() for value in row] for row in inputs]
    executable = running.load(bundle)
    if running.name == "mpi" and mesh.nranks > 1:
        assert executable.through_window == running.window
    call = executable.bind(inputs)
    call()
    for rank in range(mesh.nranks):
        for index, case in enumerate(cases):
            members = mesh.group(groups[case.group], rank)
            sources = [kept[member][index] for member in members]
            right = expected(case, sources, members.index(rank))
            rows = call.inputs if case.op == "in_place" else call.outputs
            exact = running.name == "local" or (executable.through_window and mesh.nranks > 1)
            check(case, rows[rank][index], right, exact)
    executable.close()


def bundle_of(mesh, cases, name):
    groups = groups_of(mesh)
    sizes = [mesh.axis_count(groups[case.group]) for case in cases]
    pairs = list(zip(cases, sizes, strict=True))
    return program(
        str(mesh),
        name,
        groups,
        [(case.dtype, (case.count * blocks(case, size)[0],)) for case, size in pairs],
        [(case.dtype, (case.count * blocks(case, size)[1],)) for case, size in pairs],
        [call_of(case, index, size) for index, (case, size) in enumerate(pairs)],
    )


@sampled(4)
@pytest.mark.parametrize("text", some(MESHES, 2))
def test_collectives_agree_with_numpy(running, text):
    mesh = Mesh.parse(text)
    cases = cases_for(mesh, 1, 48)
    run_and_check(running, mesh, cases, bundle_of(mesh, cases, running.name))


@sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_reduction_of_a_dtype(running, dtype):
    mesh = Mesh.parse("x=3")
    kinds = [kind for kind in KINDS if dtype != "i1" or kind in ("max", "min")]
    cases = [
        Case(op, kind, dtype, 0, 130)
        for kind in kinds
        for op in ("all_reduce", "in_place", "reduce_scatter")
    ]
    run_and_check(running, mesh, cases, bundle_of(mesh, cases, running.name))


def test_what_is_larger_than_a_cache(running):
    mesh = Mesh.parse("x=2")
    cases = [Case(op, "sum", "f32", 0, 300_001, shift=1) for op in OPS]
    run_and_check(running, mesh, cases, bundle_of(mesh, cases, running.name))


def test_all_ranks_hold_the_same_bits(running):
    case = Case("all_reduce", "sum", "f32", 0, 5000)
    bundle = bundle_of(Mesh.parse("x=4"), [case], running.name)
    rng = np.random.default_rng(3)
    inputs = [[(rng.standard_normal(5000) * 10.0**r).astype("f4")] for r in range(4)]
    executable = running.load(bundle)
    first, second = executable.run(inputs), executable.run(inputs)
    assert all((row[0] == first[0][0]).all() for row in (*first, *second))
    executable.close()


def test_what_exceeds_one_mpi_call_goes_in_pieces():
    made = started("library")
    cases = [
        Case(op, "sum", dtype, 2, 1000, shift=1) for op in OPS for dtype in ("i32", "f32", "bf16")
    ]
    for mesh in thinned((Mesh.parse("x=3"), Mesh.parse("x=2, y=2")), 2):
        whole = bundle_of(mesh, cases, "mpi")
        wanted = sorted({Collective.parse(op.name) for op in whole.manifest.ops})
        made_of = window_module(wanted, limit=300, piece=256)
        pieces = type(whole)(whole.manifest, (whole.objects[0], compile_text(*made_of)))
        run_and_check(made, mesh, cases, pieces)
    made.close()


@sampled(1)
@pytest.mark.parametrize(
    ("engine_name", "symbol", "message"),
    [
        ("local", "mw_broadcast", "no collective mw_broadcast"),
        ("local", "mw_all_reduce_avg_f32", 'all_reduce: no reduction "avg"'),
        ("mpi", "mw_all_reduce_sum_i1", "all_reduce: cannot reduce i1 by sum"),
        ("mpi", "mw_reduce_scatter_max_c64", "reduce_scatter: cannot reduce c64 by max"),
        ("tcp", "mw_all_gather", 'no collectives for engine "tcp"'),
    ],
)
def test_what_cannot_be_made_is_refused(engine_name, symbol, message):
    with pytest.raises(CompileError, match=message):
        collectives_object(engine_name, [symbol])
