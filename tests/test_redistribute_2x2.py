"""Every pair of layouts of a matrix on a mesh of 2x2, both orders of axes, from and to partial: each is
planned and right, with the fewest bytes known, never more than Shardy or DTensor take.

The peers' figures are recorded in data/redistribute_peers.json. Where jax and torch are installed, or
MESHWEAVE_JAX_PYTHON and MESHWEAVE_TORCH_PYTHON name interpreters that have them, they are asked again.
"""

import json
import os
from itertools import product
from math import prod
from pathlib import Path

import pytest
from depth import sampled
from plan.sweep import check

from benchmarks.redistribute import layouts
from benchmarks.redistribute_peers import PEERS, Comparison, ask, compare, plans, record
from meshweave.layout import Layout, Mesh
from meshweave.plan.proof import BYTES_ONLY
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.steps import BLOCK_OPS, COLLECTIVES

X2Y2 = Mesh(x=2, y=2)
EVERY = layouts(X2Y2, 2, True)
PAIRS = list(product(EVERY, EVERY))
RECORDED = Path(__file__).parent / "data" / "redistribute_peers.json"
SHAPES = [(16, 8), (1024, 1024)]


@pytest.mark.parametrize("shape", [(16, 8), (7, 5), (4, 1)])
def test_every_pair_works(shape):
    assert len(PAIRS) >= 256
    for source, target in PAIRS:
        check(X2Y2, shape, source, target)


@pytest.mark.parametrize("shape", [*SHAPES, (1000, 1001), (7, 5)])
def test_bytes_are_within_3_percent_of_the_fewest_known(shape):
    total = best = 0
    for source, target in PAIRS:
        made = plan_redistribute(source, target, X2Y2, shape, 4)
        total += made.nbytes
        best += plan_redistribute(source, target, X2Y2, shape, 4, profile=BYTES_ONLY).nbytes
    assert best <= total <= 1.03 * best


@pytest.mark.parametrize("shape", [*SHAPES, (7, 5)])
def test_peak_is_the_larger_end_and_stated_staging(shape):
    for source, target in PAIRS:
        made = plan_redistribute(source, target, X2Y2, shape, 4)
        ends = [prod(la.local_shape(X2Y2, shape)) * 4 for la in (source, target)]
        assert made.peak_bytes == max(ends) + made.staging_bytes
        assert made.staging_bytes <= max(ends)
        between = [prod(step.target.local_shape(X2Y2, shape)) * 4 for step in made]
        assert max(between, default=0) <= max(ends)  # no tensor on the way is larger than both


@pytest.mark.parametrize("shape", [*SHAPES, (1000, 1001), (7, 5)])
def test_with_exchange_every_pair_without_partials_is_at_its_lower_bound(shape):
    plain = layouts(X2Y2, 2, False)
    for source, target in product(plain, plain):
        alone = plan_redistribute(source, target, X2Y2, shape, 4, ops=("exchange", "relayout"))
        assert alone.nbytes == alone.lower_bound and alone.launches <= 1
        assert alone.proved_minimal, (str(source), str(target))


@pytest.mark.parametrize("shape", SHAPES)
def test_default_plans_without_partials_are_minimal_where_sizes_divide(shape):
    plain = layouts(X2Y2, 2, False)
    for source, target in product(plain, plain):
        made = plan_redistribute(source, target, X2Y2, shape, 4)
        assert made.proved_minimal, (str(source), str(target))


def test_what_plans_of_the_collectives_alone_cost():
    """Without exchanges, two all_to_alls or a permute and one do what one exchange does."""
    source, target = Layout.parse("[_, x*y]"), Layout.parse("[y*x, _]")
    made = plan_redistribute(source, target, X2Y2, (16, 8), 4, ops=BLOCK_OPS)
    assert [step.op for step in made] == ["all_to_all", "all_to_all"] and made.nbytes == 128
    made = plan_redistribute(source, target, X2Y2, (16, 8), 4)
    assert [step.op for step in made] == ["exchange"] and made.nbytes == 96
    assert sum(step.op in COLLECTIVES for step in made) == 1


def never_more(found: Comparison) -> None:
    assert found.worse == []
    assert found.bound <= found.ours < found.theirs


def recorded():
    data = json.loads(RECORDED.read_text())
    assert data["mesh"] == "2,2"
    shape = tuple(map(int, data["shape"].split("x")))
    answers = {}
    for peer, rows in data["bytes"].items():
        answers[peer] = {
            tuple(pair.split(" -> ")): {"error": ""} if n is None else {"bytes": n, "ops": []}
            for pair, n in rows.items()
        }
    return shape, answers


@pytest.mark.parametrize("peer, pairs", [("Shardy", 121), ("DTensor", 223)])
def test_never_more_bytes_than_a_peer_as_recorded(peer, pairs):
    shape, answers = recorded()
    found = compare(plans(X2Y2, shape)[0], answers[peer])
    assert found.pairs == pairs
    never_more(found)


@sampled(1)
@pytest.mark.parametrize("peer", ["Shardy", pytest.param("DTensor", marks=pytest.mark.torch)])
@pytest.mark.parametrize("mesh, shape", [("2,2", "1024x1024"), ("2,4", "1024x1024")])
def test_never_more_bytes_than_a_peer(peer, mesh, shape):
    package = PEERS[peer][0]
    python = os.environ.get(f"MESHWEAVE_{package.upper()}_PYTHON")
    rows = ask(peer, python, mesh, shape)
    if rows is None:
        pytest.skip(f"{package} is not installed, and MESHWEAVE_{package.upper()}_PYTHON not set")
    x, y = map(int, mesh.split(","))
    never_more(compare(plans(Mesh(x=x, y=y), tuple(map(int, shape.split("x"))))[0], rows))
    data = json.loads(RECORDED.read_text())
    if (mesh, shape) == (data["mesh"], data["shape"]):
        again = json.loads(record({peer: rows}, mesh, shape))
        assert again["bytes"][peer] == data["bytes"][peer], "the peer's answers are not as recorded"
