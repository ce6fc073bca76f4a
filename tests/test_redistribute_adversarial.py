"""Redistributions that break others, by name: on the simulator, and compiled, on engine local.

Every element must arrive in its place, and the plan must state truly what it moves.
"""

import pytest
from commands import meshweave
from depth import sampled
from plan.engines import run_cases
from plan.sweep import check

from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh, Partial
from meshweave.layout.interchange import Pending, from_dtensor
from meshweave.plan.redistribute import plan_redistribute

X4, X2Y2, X2Y3, X4Y2 = Mesh(x=4), Mesh(x=2, y=2), Mesh(x=2, y=3), Mesh(x=4, y=2)
CUBE = Mesh(x=2, y=2, z=2)
FSDP = Mesh(dp=2, tp=4)
ONE = Mesh(x=4, one=1)

CASES = {
    "dim of size 0": [
        (X2Y2, (0, 4), "[x, _]", "[_, y*x]"),
        (X2Y2, (0,), "[x*y]", "[_]"),
        (X2Y2, (3, 0), "[_, y] +sum(x)", "[x, y]"),
        (X4, (0, 6), "[_*x, _]", "[x{0,0,0,0}, _]"),
        (X4, (0, 2), "[x, _] order(1, 0)", "[_, x]"),
    ],
    "dim of size 1": [
        (X2Y2, (1, 4), "[x*y, _]", "[_, x]"),
        (X2Y2, (1, 1), "[x, y]", "[y, x]"),
        (X4, (1,), "[_] +max(x)", "[x]"),
        (X4, (1, 5), "[_*x, _]", "[_, x]"),
    ],
    "axis of size 1": [
        (ONE, (8, 4), "[x*one, _]", "[one, x]"),
        (ONE, (8, 4), "[x, _] +sum(one)", "[_, one*x]"),
        (ONE, (6, 3), "[one, _] +sum(x)", "[x, one]"),
        (ONE, (7,), "[one{7}]", "[x]"),
    ],
    "more ranks than elements": [
        (Mesh(x=2, y=4), (3,), "[x*y]", "[y*x]"),
        (CUBE, (2, 2), "[x*y*z, _]", "[_, z*y*x]"),
        (CUBE, (3,), "[_] +sum(x, y)", "[z*y*x]"),
        (X4Y2, (2, 1), "[_*x, y]", "[y, x]"),
    ],
    "empty shards": [
        (X4, (5, 2), "[x, _]", "[_, x]"),
        (X4, (5,), "[x]", "[_*x]"),
        (X4, (8,), "[x{5,0,1,2}]", "[x]"),
        (X4, (5, 3), "[_, _] +sum(x)", "[x, _]"),
    ],
    "2/1/1/1 against 2/2/1/0": [
        (X2Y2, (5,), "[x*y] uneven(nested)", "[x*y]"),
        (X2Y2, (5,), "[x*y]", "[x*y] uneven(nested)"),
        (X2Y2, (5, 3), "[y*x, _] uneven(nested)", "[x*y, _]"),
        (X4, (5,), "[x{2,1,1,1}]", "[x]"),
    ],
    "swapped 2-axes": [
        (X2Y2, (8, 8), "[x, y]", "[y, x]"),
        (X2Y2, (8, 3), "[x*y, _]", "[y*x, _]"),
        (X2Y3, (12, 5), "[x*y, _]", "[y*x, _]"),
        (X2Y3, (7, 5), "[x, y]", "[y, x]"),
        (X2Y3, (7,), "[x*y]", "[y*x]"),
    ],
    "swapped 3-axes": [
        (CUBE, (8, 8, 8), "[x, y, z]", "[z, x, y]"),
        (CUBE, (5, 6, 7), "[x, y, z]", "[y, z, x]"),
        (Mesh(x=2, y=3, z=2), (13,), "[x*y*z]", "[z*x*y]"),
        (CUBE, (16, 2), "[x*y*z, _]", "[z*y*x, _]"),
    ],
    "FSDP over TP": [
        (FSDP, (16, 4), "[tp*dp, _]", "[tp, _]"),
        (FSDP, (16, 4), "[tp*dp, _]", "[dp*tp, _]"),
        (FSDP, (10, 4), "[tp*dp, _] uneven(nested)", "[_, tp]"),
        (FSDP, (10, 4), "[dp*tp, _]", "[tp*dp, _] uneven(nested)"),
        (FSDP, (16, 4), "[tp, _] +sum(dp)", "[tp*dp, _]"),
    ],
    "same layout under another spelling": [
        (X4, (8,), "[x]", "[x{2,2,2,2}]"),
        (X4, (10,), "[x]", "[x{3,3,3,1}]"),
        (X4, (8,), "[x]", "[x*2]"),
        (X2Y2, (8,), "[x*y]", "[x*y] uneven(nested)"),
        (X4, (8, 1), "[x, _]", "[x*1*2, _] order(1, 0.0, 0.1, 0.2)"),
        (X4, (8,), "[x]", "[x:(1)2*x:(2)2]"),
        (ONE, (8,), "[x] +sum(one)", "[x]"),
        (X4, (8, 6), "[x, _]", "[x, 2*_]"),
        (Mesh(x=2, y=3), (6, 4), "[x*y, _]", "[x*y*_, _] order(0, 1)"),
    ],
    "partial sum and shard together": [
        (X2Y2, (8, 6), "[y, _] +sum(x)", "[x, y]"),
        (X2Y2, (7, 5), "[y, _] +sum(x)", "[y*x, _]"),
        (X2Y2, (7, 5), "[y, _] +sum(x)", "[x, _] +sum(y)"),
        (X2Y2, (8, 6), "[x, _]", "[_, y] +sum(x)"),
        (X2Y3, (7, 4), "[y, _] +sum(x)", "[_, x*y]"),
        (CUBE, (5, 6), "[z, _] +sum(x, y)", "[x, y*z]"),
        (X4Y2, (9, 2), "[_*x, _] +sum(y)", "[x, y]"),
    ],
}  # fmt: skip


def parsed(rows):
    return [(mesh, shape, Layout.parse(a), Layout.parse(b)) for mesh, shape, a, b in rows]


@pytest.mark.parametrize("name", CASES)
def test_simulator(name):
    for case in parsed(CASES[name]):
        check(*case)


@sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_engine_local(name):
    asked = parsed(CASES[name])
    results = [wrong for _, wrong in run_cases(asked, "local")]
    assert results == [None] * len(asked)


@pytest.mark.parametrize("name", ["same layout under another spelling"])
def test_no_bytes_moved(name):
    for mesh, shape, one, other in parsed(CASES[name]):
        for source, target in ((one, other), (other, one)):
            made = check(mesh, shape, source, target)
            assert made.nbytes == 0 == made.launches and made.proved_minimal
            assert all(step.op == "relayout" for step in made), str(made)


@pytest.mark.parametrize("name", ["2/1/1/1 against 2/2/1/0"])
def test_not_taken_for_each_other(name):
    """One element moves, to each of two ranks."""
    for mesh, shape, source, target in parsed(CASES[name][:2]):
        made = plan_redistribute(source, target, mesh, shape, 4)
        assert made.nbytes == made.lower_bound == 4


UNKNOWN = {
    "unknown reduction kind": lambda: Layout.parse("[_] +mean(x)"),
    "unknown reduction kind by hand": lambda: Layout.blocks([()], [Partial("mean", ("x",))]),
    "unknown reduction kind of DTensor": lambda: from_dtensor((Pending("mean"),), X4, 1),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_refused(name):
    with pytest.raises(LayoutError, match=r'mean.*there are sum|expected "sum" or "max"'):
        UNKNOWN[name]()


@pytest.mark.parametrize("name", ["unknown reduction kind"])
def test_refused_on_the_command_line(name):
    words = ("--mesh", "x=4", "--shape", "8", "--from", "[_] +mean(x)", "--to", "[x]", "--json")
    done = meshweave("plan", *words)
    assert done.status == 1 and done.out == "" and done.err.count("\n") == 1
    assert 'expected "sum" or "max"' in done.err
