"""The simulator: each op by hand, and what it refuses."""

import numpy as np
import pytest

from meshweave.errors import PlanError
from meshweave.layout import Layout, Mesh
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import PlanStep

X3 = Mesh(x=3)


def run(op, source, target, shards, shape, mesh=X3, axes=("x",), **fields):
    step = PlanStep(op, axes, Layout.parse(source), Layout.parse(target), 0, **fields)
    ran = simulate([step], [np.array(shard) for shard in shards], mesh, shape)
    return [shard.tolist() for shard in ran.shards], ran.received[0]


def test_all_slice_keeps_the_own_piece():
    whole = [1, 2, 3, 4, 5, 6, 7]
    shards, received = run("all_slice", "[_]", "[x]", [whole] * 3, (7,), dim=0)
    pad = np.iinfo(np.int64).max
    assert shards == [[1, 2, 3], [4, 5, 6], [7, pad, pad]] and received == (0, 0, 0)


def test_all_gather_joins_and_cuts():
    shards, received = run("all_gather", "[x]", "[_]", [[1, 2], [3, 4], [5, 0]], (5,), dim=0)
    assert shards == [[1, 2, 3, 4, 5]] * 3 and received == (32, 32, 32)


def test_all_to_all_moves_a_dim_to_another():
    rows = [[[1, 2, 3, 4]], [[5, 6, 7, 8]], [[0, 0, 0, 0]]]
    shards, received = run(
        "all_to_all", "[x, _]", "[_, x]", rows, (2, 4), split_dim=1, concat_dim=0
    )
    assert shards[:2] == [[[1, 2], [5, 6]], [[3, 4], [7, 8]]] and received == (32, 32, 32)


def test_reductions():
    operands = [[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400]]
    shards, received = run("all_reduce", "[_] +sum(x)", "[_]", operands, (4,), kind="sum")
    assert shards == [[111, 222, 333, 444]] * 3
    assert received == (48, 48, 48)  # the busiest: its chunk of 2 twice, and then the others
    shards, received = run(
        "reduce_scatter", "[_] +max(x)", "[x]", operands, (4,), dim=0, kind="max"
    )
    assert shards[:2] == [[100, 200], [300, 400]] and received == (32, 32, 32)


def test_permute_reads_from_its_sources():
    shards, received = run("permute", "[x]", "[x]", [[1], [2], [3]], (3,), sources=(0, 2, 1))
    assert shards == [[1], [3], [2]] and received == (0, 8, 8)


def test_local_leaves_the_operand_to_the_first():
    shards, received = run("local", "[_]", "[_] +prod(x)", [[7]] * 3, (1,), kind="prod")
    assert shards == [[7], [1], [1]] and received == (0, 0, 0)
    assert run("local", "[_]", "[_] +avg(x)", [[7]] * 3, (1,), kind="avg")[0] == [[7]] * 3


def test_members_count_over_the_axes_in_their_order():
    mesh, layouts = Mesh(x=2, y=2), ("[y*x]", "[_]")
    shards, _ = run("all_gather", *layouts, [[1], [2], [3], [4]], (4,), mesh, ("y", "x"), dim=0)
    assert shards == [[1, 3, 2, 4]] * 4


def test_what_does_not_fit_is_refused():
    with pytest.raises(PlanError, match=r"mesh \(x=3\) needs 3 shards, got 1"):
        run("all_gather", "[x]", "[_]", [[1]], (3,), dim=0)
    with pytest.raises(PlanError, match=r"rank 1: all_gather .* is given a tensor of shape \(2,\)"):
        run("all_gather", "[x]", "[_]", [[1], [1, 2], [1]], (3,), dim=0)
    with pytest.raises(PlanError, match=r"rank 0: all_reduce .* gives \(3,\), not \(1,\)"):
        run("all_reduce", "[_] +sum(x)", "[x]", [[1, 2, 3]] * 3, (3,), kind="sum")
    with pytest.raises(PlanError, match="sources are not a permutation of the 3 members"):
        run("permute", "[x]", "[x]", [[1], [2], [3]], (3,), sources=(0, 0, 1))
