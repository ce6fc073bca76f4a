"""The example programs on meshes of several shapes and on both engines, against the results of JAX on one device."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from depth import sampled, thinned

import meshweave
from meshweave.api.program import build

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NAMES = ("mlp", "attention", "block", "gpt2l")
MESHES = ("dp=2, tp=2", "dp=4, tp=1", "dp=1, tp=4", "dp=2, tp=4", "dp=1, tp=1")
TOLERANCE = 2e-4
"""Of the largest element."""


def arguments(name: str) -> list[np.ndarray]:
    folder = EXAMPLES / name
    return [np.load(folder / f"in{i}.npy") for i in range(len(list(folder.glob("in*.npy"))))]


@sampled(3)
@pytest.mark.parametrize("engine", ["local", "mpi"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_what_jax_gives(name: str, mesh: str, engine: str) -> None:
    wanted = np.load(EXAMPLES / name / "out0.npy")
    path = EXAMPLES / name / f"{name}.mlir"
    with meshweave.compile(path, mesh=mesh, engine=engine, timeout=60) as program:
        (result,) = program(*arguments(name))
    assert result.dtype == wanted.dtype
    np.testing.assert_allclose(result, wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())


def collectives(name: str, mesh: str) -> list[str]:
    bundle = build(EXAMPLES / name / f"{name}.mlir", mesh=mesh)
    return [f"{c.op}[{','.join(c.axes)}]" for c in bundle.manifest.collectives]


@pytest.mark.parametrize("mesh", ["dp=2, tp=2", "dp=1, tp=4"])
def test_mlp_adds_up_once(mesh: str) -> None:
    assert collectives("mlp", mesh) == ["all_reduce[tp]"]


@sampled(1)
@pytest.mark.parametrize("mesh", MESHES)
def test_attention_does_not_communicate(mesh: str) -> None:
    assert collectives("attention", mesh) == []


def test_a_block_adds_up_behind_attention_and_behind_its_mlp() -> None:
    found = collectives("block", "dp=2, tp=2")
    assert found.count("all_reduce[tp]") == 2
    assert not any("[dp]" in c for c in found)


def test_training_has_the_same_losses_on_every_mesh() -> None:
    sys.path.insert(0, str(EXAMPLES / "train"))
    train = importlib.import_module("train")
    for one in thinned((train.train_attention, train.train_mlp), 2):
        alone, spread = one("dp=1, tp=1", 12), one("dp=2, tp=2", 12)
        np.testing.assert_allclose(spread, alone, rtol=1e-4)
        assert alone[-1] < 0.8 * alone[0]
