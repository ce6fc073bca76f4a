"""Layouts in the words of others against what the others themselves place where: DTensor, JAX, Shardy.

Their answers are recorded in data/placements_*.json. Where torch and jax are installed, or MESHWEAVE_TORCH_PYTHON
and MESHWEAVE_JAX_PYTHON name interpreters that have them, they are asked again.
"""

import importlib.util
import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest

from meshweave.errors import LayoutError
from meshweave.layout import Mesh, dim_indices
from meshweave.layout.algebra import same_placement
from meshweave.layout.interchange import (
    P,
    Replicate,
    Shard,
    StridedShard,
    from_dtensor,
    from_shardy,
    from_spec,
    to_dtensor,
    to_shardy,
    to_spec,
)

DATA = Path(__file__).parents[1] / "data"
PACKAGES = {"dtensor": "torch", "jax": "jax"}
ASKED = [pytest.param("dtensor", marks=pytest.mark.torch), "jax"]


def recorded(peer):
    return json.loads((DATA / f"placements_{peer}.json").read_text())


def mesh_of(row):
    return Mesh(**dict(zip("xyz", row["mesh"])))


def placements_of(row):
    """Our placements, of words: R, S and a dim, T and a dim and its split factor."""
    made = []
    for word in row["placements"]:
        dim, _, split = word[1:].partition("/")
        strided = StridedShard(int(dim), int(split)) if split else None
        made.append(Replicate() if word == "R" else strided or Shard(int(dim)))
    return tuple(made)


def held(layout, mesh, shape, rank):
    """Numbers of the elements of a rank, in row-major order, padding left out."""
    index = [dim_indices(layout, mesh, shape, dim, rank) for dim in range(len(shape))]
    numbers = np.arange(prod(shape)).reshape(shape)
    return numbers[np.ix_(*[row[row >= 0] for row in index])]


@pytest.mark.parametrize("peer", ASKED)
def test_peers_answer_as_recorded(peer):
    package = PACKAGES[peer]
    python = os.environ.get(f"MESHWEAVE_{package.upper()}_PYTHON")
    if python is None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed, and MESHWEAVE_{package.upper()}_PYTHON not set")
    command = [python or sys.executable, str(DATA / "placements.py"), peer]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == recorded(peer)


def test_each_rank_holds_what_dtensor_gives_it():
    """Or the placements are refused: never anything else."""
    refused = {}
    rows = recorded("dtensor")
    for row in rows:
        mesh, shape, placements = mesh_of(row), tuple(row["shape"]), placements_of(row)
        try:
            layout = from_dtensor(placements, mesh, len(shape), shape=shape)
        except LayoutError as error:
            refused[str(row["mesh"]), shape, tuple(row["placements"])] = error.message
            continue
        for rank, right in enumerate(row["shards"]):
            mine = held(layout, mesh, shape, rank).reshape(-1).tolist()
            assert mine == right, (row, rank, str(layout))
    assert len(rows) == 513 and len(refused) == 268
    assert all("no layout says how" in why for why in refused.values())
    assert not any(all(word[0] != "T" for word in words) for _, _, words in refused)


def test_placements_come_back_as_dtensor_would_write_them():
    count = 0
    for row in recorded("dtensor"):
        mesh, shape, placements = mesh_of(row), tuple(row["shape"]), placements_of(row)
        try:
            layout = from_dtensor(placements, mesh, len(shape), shape=shape)
        except LayoutError:
            continue
        back = to_dtensor(layout, mesh, shape)
        again = from_dtensor(back, mesh, len(shape), shape=shape)
        assert same_placement(again, layout, mesh, shape), row
        count += 1
    assert count == 245


def test_shard_orders_are_read_as_torch_reads_them():
    """Where torch reads an order of cuts from strided shards, the layout has that order, and naming
    the order to us gives the same layout.
    """
    count = 0
    for row in recorded("dtensor"):
        mesh, shape, placements = mesh_of(row), tuple(row["shape"]), placements_of(row)
        if row["orders"] is None:
            continue
        layout = from_dtensor(placements, mesh, len(shape))
        for dim, axes in row["orders"]:
            assert layout.axes_of(dim) == tuple(mesh.names[axis] for axis in axes), row
        plain = tuple(Shard(p.dim) if isinstance(p, StridedShard) else p for p in placements)
        assert from_dtensor(plain, mesh, len(shape), dict(row["orders"])) == layout
        count += 1
    assert count == 144


def test_each_device_holds_what_jax_gives_it():
    count = {"spec": 0, "sdy": 0}
    for row in recorded("jax"):
        mesh, shape = mesh_of(row), tuple(row["shape"])
        if "spec" in row:
            spec = P(*map(tuple, row["spec"]))
            layout = from_spec(spec, len(shape))
            assert from_spec(to_spec(layout), len(shape)) == layout
        else:
            layout = from_shardy(f"#sdy.sharding<@mesh, {row['sdy']}>").layout
            text = to_shardy(layout, mesh, shape)
            assert same_placement(from_shardy(text).layout, layout, mesh, shape)
        for rank, box in enumerate(row["boxes"]):
            right = np.arange(prod(shape)).reshape(shape)[tuple(slice(*ends) for ends in box)]
            assert np.array_equal(held(layout, mesh, shape, rank), right), (row, rank, str(layout))
        count["spec" if "spec" in row else "sdy"] += 1
    assert count["spec"] > 80 and count["sdy"] > 12
