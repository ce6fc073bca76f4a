"""Collectives that are started before they are waited for: the same results, and nobody waits too early."""

from __future__ import annotations

import dataclasses
import random
import time

import numpy as np
import pytest
from depth import sampled, some
from runtime.programs import ENGINES, CallOf, exits, on_rank, program, sleeps, started
from runtime.test_collectives import (
    OPS,
    Case,
    blocks,
    call_of,
    check,
    expected,
    groups_of,
    values,
)

from meshweave.abi import DTYPES, KINDS, AsyncArea
from meshweave.bundle import numpy_dtype
from meshweave.errors import RankError
from meshweave.layout import Mesh
from meshweave.runtime.processes import launch

OURS = tuple(op for op in OPS if op != "in_place")
EXTERNALS = ("sleep", "usleep", "_exit")


@pytest.fixture(scope="module", params=ENGINES)
def running(request):
    made = started(request.param)
    yield made
    made.close()


@pytest.fixture(params=ENGINES)
def impatient(request, times):
    made = started(request.param, timeout=0.6 * times)
    yield made
    made.close()


def halves(call: CallOf, place: int, sent: int) -> tuple[CallOf, CallOf]:
    """The start and the wait of a collective whose area begins at `place` of the arena."""
    return tuple(
        dataclasses.replace(call, symbol=f"{call.symbol}_{end}", area=(place, sent))
        for end in ("start", "wait")
    )


def cases_for(mesh, seed, number):
    draw = random.Random(f"{mesh} {seed}")
    cases = []
    for index in range(number):
        kind = draw.choice(KINDS)
        dtypes = [d for d in DTYPES if d != "i1" or kind in ("max", "min")]
        group = draw.randrange(len(groups_of(mesh)))
        shift = draw.randrange(mesh.axis_count(groups_of(mesh)[group]))
        count = draw.choice((1, 3, 64, 65, 1025))
        cases.append(Case(OURS[index % len(OURS)], kind, draw.choice(dtypes), group, count, shift))
    return cases


def bundle_of(mesh, cases, name, rounds=1):
    """All started, in order; all waited for, in another one: so often."""
    groups, place, pairs = groups_of(mesh), 0, []
    sizes = [mesh.axis_count(groups[case.group]) for case in cases]
    for index, (case, size) in enumerate(zip(cases, sizes, strict=True)):
        nbytes = case.count * blocks(case, size)[0] * numpy_dtype(case.dtype).itemsize
        pairs.append(halves(call_of(case, index, size), place, nbytes))
        place += AsyncArea.nbytes(nbytes)
    order = list(range(len(cases)))
    random.Random(str(mesh)).shuffle(order)
    calls = [[start for start, _ in pairs] + [pairs[k][1] for k in order]] * rounds
    ports = [
        [
            (case.dtype, (case.count * blocks(case, size)[which],))
            for case, size in zip(cases, sizes, strict=True)
        ]
        for which in (0, 1)
    ]
    return program(
        str(mesh), name, groups, *ports, [c for round_ in calls for c in round_], place,
        early_bytes=place,
    )  # fmt: skip


@sampled(4)
@pytest.mark.parametrize("text", some(["x=2", "x=1", "x=2, y=3", "x=4"], 2))
def test_many_on_their_way_at_once_agree_with_numpy(running, text):
    mesh = Mesh.parse(text)
    cases = cases_for(mesh, 5, 25)
    rng = np.random.default_rng(8)
    groups = groups_of(mesh)
    sizes = [mesh.axis_count(groups[case.group]) for case in cases]
    inputs = [
        [values(c, c.count * blocks(c, s)[0], rng) for c, s in zip(cases, sizes, strict=True)]
        for _ in range(mesh.nranks)
    ]
    executable = running.load(bundle_of(mesh, cases, running.name, rounds=3))
    call = executable.bind(inputs)
    call()
    call()  # the counters of areas go on
    for rank in range(mesh.nranks):
        for index, case in enumerate(cases):
            members = mesh.group(groups[case.group], rank)
            sources = [inputs[member][index] for member in members]
            right = expected(case, sources, members.index(rank))
            exact = running.name == "local" or (executable.through_window and mesh.nranks > 1)
            check(case, call.outputs[rank][index], right, exact)
    executable.close()


def naps(microseconds, tag):
    return f"""
  %micro{tag} = llvm.mlir.constant({microseconds} : i32) : i32
  %napped{tag} = llvm.call @usleep(%micro{tag}) : (i32) -> i32"""


def test_each_use_of_an_area_gives_its_own_values(running):
    """A chain in one area, its ranks late in turn: r(k + 1) = all_reduce of r(k)."""
    ranks, length, count = 3, 12, 70
    calls = []
    for k in range(length):
        source = ("input", 0) if k == 0 else ("output", k - 1)
        whole = CallOf("mw_all_reduce_sum_i64", 0, source, ("output", k), (count,))
        start, wait = halves(whole, 0, count * 8)
        calls += [start, on_rank(k % ranks, naps(3000, f"n{k}"), f"r{k}"), wait]
    area = AsyncArea.nbytes(count * 8)
    bundle = program(
        f"x={ranks}", running.name, [("x",)], [("i64", (count,))], [("i64", (count,))] * length,
        calls, area, EXTERNALS, early_bytes=area,
    )  # fmt: skip
    inputs = [[np.arange(count) + 7 * rank] for rank in range(ranks)]
    total = sum(row[0] for row in inputs)
    executable = running.load(bundle)
    for row in executable.run(inputs):
        for k, result in enumerate(row):
            np.testing.assert_array_equal(result, total * ranks**k)
    executable.close()


COUNT = 50
WHOLE = CallOf("mw_all_gather", 0, ("input", 0), ("output", 0), (COUNT * 4,))
START, WAIT = halves(WHOLE, 0, COUNT * 4)
AREA = AsyncArea.nbytes(COUNT * 4)


def gathering(name, *calls):
    return program(
        "x=2", name, [("x",)], [("f32", (COUNT,))], [("f32", (2 * COUNT,))], calls, AREA, EXTERNALS,
        early_bytes=AREA,
    )  # fmt: skip


def inputs():
    return [[np.full(COUNT, rank, "f4")] for rank in range(2)]


def said_by(running, *calls):
    with pytest.raises(RankError) as caught:
        running.load(gathering(running.name, *calls)).run(inputs())
    return str(caught.value)


def test_who_starts_does_not_wait_for_who_has_not(impatient, times):
    """Rank 1 is through its start, and in its wait, before rank 0 has come to its own start."""
    line = said_by(impatient, on_rank(0, sleeps(3 * times), "s"), START, WAIT)
    assert "rank 0 computes, before the first collective; " in line
    assert line.endswith("rank 1 is in mw_all_gather_wait at test.mlir:3:1")


def test_who_waits_does_not_wait_for_who_computes(times):
    """Rank 1 gets what rank 0 has sent, while that one computes between its start and its wait."""
    for name in ENGINES[:2]:  # the library may need rank 0 to move what it sends
        running = started(name, timeout=0.6 * times)
        line = said_by(running, START, on_rank(0, sleeps(3 * times), "s"), WAIT)
        running.close()
        assert "rank 0 computes, after mw_all_gather_start at test.mlir:1:1; " in line
        assert line.endswith("rank 1 has returned")


def test_a_rank_that_fails_in_between_frees_the_others_and_the_program_runs_again(impatient):
    returned = """
  %bad = llvm.mlir.constant(196613 : i32) : i32
  llvm.br ^fail(%bad : i32)
^never:"""
    line = said_by(impatient, on_rank(0, returned, "r"), START, WAIT)
    assert line.startswith("rank 0 failed in mw_all_gather_wait at test.mlir:3:1: ")
    good = impatient.load(gathering(impatient.name, START, WAIT))
    np.testing.assert_array_equal(good.run(inputs())[1][0], np.repeat([0, 1], COUNT))


@pytest.mark.parametrize("name", ENGINES[1:])
def test_a_rank_that_dies_in_between_is_named_with_its_op(name):
    running = started(name)
    line = said_by(running, START, on_rank(0, exits(9), "e"), WAIT)
    running.close()
    assert "rank 0 died" in line
    assert "last seen: computes, after mw_all_gather_start at test.mlir:1:1" in line


def test_the_first_to_die_is_named_though_another_takes_no_message_after_it(monkeypatch):
    """The launcher ends the others before they are told what to run."""
    running, sent = started("library"), []

    def late(link, data, *rest):
        sent.append(data)
        if b'"run"' in data and sum(b'"run"' in one for one in sent) == 2:
            time.sleep(1.0)
        launch_send(link, data, *rest)

    launch_send = launch.send_frame
    monkeypatch.setattr(launch, "send_frame", late)
    line = said_by(running, START, on_rank(0, exits(9), "e"), WAIT)
    running.close()
    assert sum(b'"run"' in one for one in sent) == 2
    assert "rank 0 died" in line


def test_without_the_wait_the_result_is_not_there(running):
    """What the other tests rest on: a program that forgets to wait reads what was there before."""
    executable = running.load(gathering(running.name, on_rank(0, sleeps(1), "s"), START))
    call = executable.bind(inputs())
    for row in call.outputs:
        row[0][...] = -1
    call()
    assert all((row[0] == -1).any() for row in call.outputs)
    executable.close()
