"""Exchanges compiled and run on both engines, against the element simulator."""

from __future__ import annotations

import random

import pytest
from lowering.exchanges import Exchange, compiled, run_and_check
from strategies import all_layouts

from meshweave.errors import CompileError, LayoutError
from meshweave.layout import Layout, Mesh
from meshweave.lowering.communication import exchange
from meshweave.lowering.communication.exchange import box_of, data_of
from meshweave.lowering.cpu.collectives.objects import (
    Collective,
    collectives_object,
    compile_text,
    window_module,
)
from meshweave.plan.exchange import Piece, Table
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
        started = engine("local", timeout=20.0)
    else:
        started = engine("mpi", timeout=20.0, window=request.param == "mpi")
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


@pytest.mark.parametrize("text", MESHES)
def test_random_exchanges(running, text):
    mesh = Mesh.parse(text)
    cases = cases_for(mesh, 40)
    bundle = compiled(mesh, cases, running.name)
    assert run_and_check(running, mesh, cases, bundle) > 1000


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
    started = engine("mpi", timeout=20.0, window=False)
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


def test_runs_are_joined_and_levels_dropped():
    assert box_of(Piece(0, (4, 1, 6), 2, (6, 6, 1), 0, (6, 9, 1)), 4) == (8, 0, 96, ())
    assert box_of(Piece(0, (4, 3, 2), 0, (24, 4, 1), 0, (6, 2, 1)), 4) == (
        0, 0, 8, ((3, 16, 8), (4, 96, 24)),
    )  # fmt: skip
    # Levels that follow on each other on both sides are one.
    assert box_of(Piece(0, (4, 3), 0, (6, 2), 0, (9, 3)), 2).levels == ((12, 4, 6),)
    # A transposing copy: the target's smallest step, then the source's.
    box = box_of(Piece(0, (5, 7, 3), 0, (21, 3, 1), 0, (1, 5, 35)), 4)
    assert [level[0] for level in box.levels] == [5, 3, 7]


def test_messages_that_lie_back_to_back_are_not_packed():
    mesh = Mesh.parse("x=4")
    rows, columns = Layout.parse("[x, _]"), Layout.parse("[_, x]")
    gathered = data_of(Table(rows, Layout.parse("[_, _]"), mesh, (8, 6)), ("x",), 4, True)
    assert gathered.staging == 0
    # Each receives rows of its columns back to back, from three others 16 bytes.
    assert data_of(Table(rows, columns, mesh, (8, 8)), ("x",), 4, True).staging == 64
    cyclic = Layout.parse("[_*x, _]")
    assert data_of(Table(cyclic, columns, mesh, (8, 8)), ("x",), 4, True).staging == 64 + 48


def test_equal_sections_are_stored_once():
    source, target = Layout.parse("[x, _]"), Layout.parse("[_, x]")
    one = data_of(Table(source, target, Mesh.parse("x=2"), (8, 8)), ("x",), 4, False)
    many = data_of(Table(source, target, Mesh.parse("x=2, y=16"), (8, 8)), ("x",), 4, False)
    assert len(many.words) == len(one.words) + 8 * 30


def test_a_table_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(exchange, "LIMIT", 1000)
    table = Table(Layout.parse("[_*x]"), Layout.parse("[x]"), Mesh.parse("x=8"), (64,))
    with pytest.raises(CompileError, match=r"takes more than .* bytes, the most is 1,000"):
        data_of(table, ("x",), 4, False)


def test_a_group_that_is_too_small_is_refused():
    table = Table(Layout.parse("[x]"), Layout.parse("[y]"), Mesh.parse("x=2, y=2"), (8,))
    with pytest.raises(CompileError, match=r"rank 1 receives from rank 3, .*\[0, 1\]"):
        data_of(table, ("y",), 4, False)


def test_blocks_that_never_meet_make_many_pieces():
    table = Table(Layout.parse("[_*x*3]"), Layout.parse("[_*x*7]"), Mesh.parse("x=4"), (200_000,))
    pieces = table.receives(1)
    assert sum(piece.size for piece in pieces) == 50_001  # its part: 7 * 7,143
    assert len(pieces) > 5_000
