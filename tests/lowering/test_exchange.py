"""Exchanges compiled and run on both engines, against the element simulator."""

from __future__ import annotations

import random

import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering.exchanges import Exchange, compiled, run_and_check, tensor
from strategies import all_layouts, any_layouts, meshes, shapes

from meshweave.api.program import build
from meshweave.errors import CompileError, LayoutError
from meshweave.exchange.section import Section, largest
from meshweave.exchange.table import Table
from meshweave.layout import Layout, Mesh
from meshweave.lowering.communication import exchange
from meshweave.lowering.communication.exchange import exchange_of
from meshweave.lowering.cpu.collectives.objects import (
    Collective,
    collectives_object,
    compile_text,
    window_module,
)
from meshweave.runtime import engine

DTYPES = ("f64", "f32", "bf16", "i8", "i1", "i64", "f16")
MESHES = ("x=2", "x=4", "x=2, y=2", "x=2, y=3", "x=2, y=2, z=2")
BEYOND = {
    1: ("[_*x]", "[_*x*2]", "[2*x]", "[2*_] order(0.1, 0.0)", "[x:(1)2]", "[x*y] uneven(nested)",
        "[y*_*x]", "[x{1,4}]", "[x{0,9}]", "[x{3,1,0,6}]"),
    2: ("[_*x, _]", "[_, _*y]", "[x, y] order(1, 0)", "[_*x*2, y]", "[_, _*x*3]", "[_*x, _*y]",
        "[x*y, _] uneven(nested)", "[_, y*x] uneven(nested)", "[_, _] order(1, 0)",
        "[2*x, 2*y] order(1.0, 0.1, 1.1, 0.0)", "[x:(1)2, x:(2)2]", "[x:(2)2*y, _]", "[x{2,5}, _]",
        "[_, x{7,0,2,3}]"),
    3: ("[_*x, y, _]", "[_, x, y] order(2, 0, 1)", "[x, _*y, _]", "[_, 2*x, y*x]",
        "[z*y*x, _, _] uneven(nested)", "[_, _*z, x]"),
}  # fmt: skip
SHAPES = {
    1: ((8,), (24,), (0,), (1,), (5,), (9,), (10,)),
    2: ((8, 12), (7, 12), (6, 7), (5, 1), (2, 0), (40, 36), (1, 1)),
    3: ((4, 8, 4), (3, 5, 2), (6, 4, 20)),
}


@pytest.fixture(scope="module", params=["local", "mpi", "library"])
def running(request):
    """The engines; `library` is mpi without a shared window, so that messages are packed and sent."""
    if request.param == "local":
        started = engine("local", timeout=60.0)
    else:
        started = engine("mpi", timeout=60.0, window=request.param == "mpi")
    yield started
    started.close()


def fits(text, mesh, shape):
    """The layout, where it fits mesh and shape."""
    try:
        layout = Layout.parse(text)
        layout.check(mesh, shape)
    except LayoutError:
        return None
    return None if layout.partial else layout


def cases_for(mesh, number):
    """Random exchanges: half of them from or to what is no block."""
    draw = random.Random(f"exchange {mesh}")
    found = []
    while len(found) < number:
        ndim = draw.choice((1, 2, 2, 2, 3))
        shape = draw.choice(SHAPES[ndim])
        pools = (BEYOND[ndim], [str(layout) for layout in all_layouts(mesh, ndim)])
        ends = [fits(draw.choice(draw.choice(pools)), mesh, shape) for _ in range(2)]
        if None not in ends:
            found.append(Exchange(shape, str(ends[0]), str(ends[1]), draw.choice(DTYPES)))
    return found


@sampled(4)
@pytest.mark.parametrize("text", MESHES)
def test_random_exchanges(running, text):
    mesh = Mesh.parse(text)
    cases = cases_for(mesh, 40)
    bundle = compiled(mesh, cases, running.name)
    assert run_and_check(running, mesh, cases, bundle) > 1000


@sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_width(running, dtype):
    mesh = Mesh.parse("x=2, y=2")
    pairs = (
        ("[x, y]", "[y, x] order(1, 0)"),
        ("[_*x, _]", "[_, _*y*2]"),
        ("[x, _]", "[_, x]"),
        ("[_, _] order(1, 0)", "[y, x]"),
    )
    cases = [Exchange((34, 26), *pair, dtype) for pair in pairs]
    bundle = compiled(mesh, cases, running.name)
    assert run_and_check(running, mesh, cases, bundle) == (1 + 2 + 2 + 1) * 34 * 26


def test_exchanges_that_are_started_early(running):
    mesh = Mesh.parse("x=2, y=2")
    cases = [case for case in cases_for(mesh, 24) if case.axes(mesh)]
    bundle = compiled(mesh, cases, running.name, early=True)
    assert bundle.manifest.early_bytes > 0 and len(cases) > 5
    assert run_and_check(running, mesh, cases, bundle) > 100


def test_pending_reductions_stay_pending(running):
    mesh = Mesh.parse("x=2, y=2")
    pairs = (
        ("[x, _] +sum(y)", "[_, x] +sum(y)"),
        ("[_*x, _] +max(y)", "[x, _] +max(y)"),
        ("[_, _] +sum(x) +min(y)", "[_, _] +sum(x) +min(y) order(1, 0)"),
    )
    cases = [Exchange((9, 14), *pair) for pair in pairs]
    bundle = compiled(mesh, cases, running.name)
    assert run_and_check(running, mesh, cases, bundle) > 9 * 14 * 3


def test_report_and_status_rows(running):
    mesh = Mesh.parse("x=2, y=2")
    cases = [Exchange((8, 6), "[x, _]", "[_, x]"), Exchange((8, 6), "[x, _]", "[x, _] order(1, 0)")]
    manifest = compiled(mesh, cases, running.name).manifest
    assert [(c.op, c.axes, c.bytes) for c in manifest.collectives] == [("exchange", ("x",), 48)]
    assert [op.name for op in manifest.ops] == ["exchange[x] f32 4x6", "relayout f32 4x6"]


def test_what_exceeds_one_mpi_call_goes_in_pieces():
    started = engine("mpi", timeout=60.0, window=False)
    mesh = Mesh.parse("x=3")
    cases = [
        Exchange((40, 36), "[x, _]", "[_, x]"),
        Exchange((40, 36), "[_*x, _]", "[x, _]", "f64"),
        Exchange((41,), "[x]", "[_]"),
    ]
    whole = compiled(mesh, cases, "mpi")
    pieces = compile_text(*window_module([Collective("exchange")], limit=300, piece=256))
    bundle = type(whole)(whole.manifest, (*whole.objects[:-1], pieces))
    try:
        assert run_and_check(started, mesh, cases, bundle) > 1000
    finally:
        started.close()


def test_loops_are_written_for_the_runs_that_there_are_and_memcpy_does_the_same(running):
    mesh, symbols = Mesh.parse("x=2"), ["mw_exchange"]
    cases = [Exchange((40, 36), "[x, _]", "[_, x] order(1, 0)", dtype) for dtype in ("f32", "f16")]
    whole = compiled(mesh, cases, running.name)
    staging = 20 * 36 * 4 if running.name == "mpi" else 0  # bytes of a rank's largest operand
    needed, none = (
        collectives_object(running.name, symbols, staging, runs=runs) for runs in ((2, 4), ())
    )
    assert len(none) < len(needed) < len(collectives_object(running.name, symbols, staging))
    assert needed in whole.objects
    objects = tuple(none if code == needed else code for code in whole.objects)
    bundle = type(whole)(whole.manifest, objects)
    assert run_and_check(running, mesh, cases, bundle) >= 2 * 40 * 36


def described(source, target, mesh, shape, axes=("x",), messages=True):
    """An exchange of f32 between two layouts."""
    ends = Layout.parse(source), Layout.parse(target)
    return exchange_of(Table(*ends, Mesh.parse(mesh), shape), axes, 4, messages)


def test_messages_that_lie_back_to_back_need_no_memory():
    assert described("[x, _]", "[_, _]", "x=4", (8, 6)).info.staging == 0
    # Each receives rows of its columns back to back, from three others 16 bytes.
    assert described("[x, _]", "[_, x]", "x=4", (8, 8)).info.staging == 64
    assert described("[_*x, _]", "[_, x]", "x=4", (8, 8)).info.staging == 64 + 48
    assert described("[_*x, _]", "[_, x]", "x=4", (8, 8), messages=False).info.staging == 0


@settings(max_examples=examples(200))
@given(meshes(), st.data(), st.integers(0, 3))
def test_no_rank_needs_more_memory_for_messages_than_it_is_given(mesh, data, ndim):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=())) for _ in range(2))
    table = Table(source, target, mesh, shape)
    made = exchange_of(table, mesh.names, 4, messages=True)
    message, end = largest(table, 4)
    received = []
    for rank in range(mesh.nranks):
        mail = Section(table, rank, mesh.group(mesh.names, rank), 4, messages=True).mail
        assert mail.staging <= made.info.staging
        received.append(sum(row[2] for row in mail.rows))
        for out, begin, into, at in mail.rows:
            assert max(out, into) <= message and max(begin + out, at + into) <= end
    assert max(received) == made.received


@sampled(1)
@pytest.mark.parametrize("engine", ["local", "mpi"])
@pytest.mark.parametrize("source, target", [("[_*x, _]", "[x, _]"), ("[x*y, _]", "[y*x, _]")])
def test_thousands_of_ranks_make_no_more_code_than_two(source, target, engine):
    sizes = {}
    for mesh in (Mesh.parse("x=2, y=2"), Mesh.parse("x=64, y=64")):
        whole = [text.replace("_*x,", "_*x*y,") for text in (source, target)]
        case = Exchange((mesh.nranks * 64 + 5, 8), *(t.replace("[x,", "[x*y,") for t in whole))
        sizes[mesh.nranks] = len(compiled(mesh, [case], engine, ("x", "y")).to_bytes())
    assert sizes[4096] < sizes[4] + 1024 < 32 << 10


@sampled(1)
@pytest.mark.parametrize("engine", ["local", "mpi"])
@pytest.mark.parametrize(
    "source, target",
    [("[_*x*y, _]", "[x*y, _]"), ("[x*y, _] uneven(nested)", "[y*x, _]"), ("[_*x, y]", "[_*y, x]")],
)
def test_whole_programs_of_thousands_of_ranks_stay_small(source, target, engine):
    layouts = [f'{{dist.layout = #dist.layout<"{text}">}}' for text in (source, target)]
    whole = tensor((64 * 64 * 3 + 5, 131), "f32")
    bundle = build(
        '"dist.mesh"() {sym_name = "mesh", axes = "x=64, y=64"} : () -> ()\n'
        f"func.func @main(%a: {whole} {layouts[0]}) -> ({whole} {layouts[1]}) {{\n"
        f"  return %a : {whole}\n}}\n",
        engine=engine,
    )
    assert [c.op for c in bundle.manifest.collectives] == ["exchange"]
    assert len(bundle.to_bytes()) < 16 << 10


def test_a_table_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(exchange, "LIMIT", 800)
    with pytest.raises(CompileError, match=r"takes 848 bytes on rank \d, the most is 800"):
        described("[_*x]", "[x]", "x=8", (64,))


def test_a_group_that_is_too_small_is_refused():
    with pytest.raises(CompileError, match="dim 0 comes from ranks of other groups"):
        described("[x]", "[y]", "x=2, y=2", (8,), ("y",))
    with pytest.raises(CompileError, match=r"relayout .* a rank lacks 4 elements"):
        described("[x]", "[y]", "x=2, y=2", (8,), ())
