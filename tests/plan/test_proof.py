"""What plans claim to be the fewest bytes, beside every row of steps there is (every_step.py)."""

from itertools import product

import pytest
from depth import sampled
from plan.every_step import fewest_bytes
from strategies import all_layouts

from meshweave.layout import Layout, Mesh
from meshweave.plan.proof import minimal_among
from meshweave.plan.redistribute import plan_redistribute

CUBE = Mesh(x=2, y=2, z=2)


@sampled(4)
@pytest.mark.parametrize(
    "mesh, shape, part",
    [
        (Mesh(x=2, y=2), (5,), 1),
        (Mesh(x=2, y=2), (4, 4), 1),
        (Mesh(x=2, y=2), (4, 3), 1),
        (Mesh(x=2, y=2), (1, 4), 1),
        (Mesh(x=2, y=3), (6,), 1),
        (Mesh(x=2, y=3), (2, 3), 1),
        (Mesh(x=4, y=2), (8, 4), 1),
        (CUBE, (8,), 5),
        (CUBE, (2, 4), 101),
    ],
    ids=str,
)
def test_no_row_of_steps_has_fewer_bytes_than_is_claimed(mesh, shape, part):
    fewest = fewest_bytes(mesh, shape)
    claims = 0
    for number, (source, target) in enumerate(product(all_layouts(mesh, len(shape)), repeat=2)):
        if number % part == 0:
            made = plan_redistribute(source, target, mesh, shape, 1)
            best = fewest[source, target]
            assert made.lower_bound <= best, (str(source), str(target), list(map(str, made)))
            if minimal_among(made, mesh, shape, 1) is not None:
                claims += 1
                assert made.nbytes <= best, (str(source), str(target), list(map(str, made)))
    assert claims > 20


@pytest.mark.parametrize(
    "source, target, ops, nbytes",
    [
        ("[_, x]", "[_, _] +sum(y)", ["all_slice", "all_gather", "embed"], 4),
        ("[x, _]", "[_, x] +max(y)", ["all_slice", "all_to_all", "embed"], 3),
        ("[_, x]", "[_, _] +avg(y)", ["local", "all_gather"], 8),
    ],
)
def test_replicas_share_the_work_of_what_becomes_pending(source, target, ops, nbytes):
    made = plan_redistribute(Layout.parse(source), Layout.parse(target), Mesh(x=2, y=2), (4, 4), 1)
    assert ([step.op for step in made], made.nbytes) == (ops, nbytes)


def test_what_is_not_proved_is_not_claimed():
    source, target = Layout.parse("[x] +sum(y)"), Layout.parse("[y] +sum(x)")
    made = plan_redistribute(source, target, CUBE, (8,), 1)
    assert (made.nbytes, minimal_among(made, CUBE, (8,), 1)) == (4, None)
    far = plan_redistribute(Layout.parse("[_*x]"), Layout.parse("[x]"), CUBE, (8,), 1)
    assert far.steps[0].op == "exchange" and minimal_among(far, CUBE, (8,), 1) == "all plans"
