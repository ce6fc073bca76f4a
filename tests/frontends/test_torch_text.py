"""The second half of the import from PyTorch, without PyTorch: recorded programs, on their mesh and on one rank."""

from pathlib import Path

import numpy as np
import pytest
from depth import sampled

import meshweave
from meshweave.api import program as api
from meshweave.transforms.slicing.ledger import read_ledger

DATA = Path(__file__).resolve().parent.parent / "data" / "torch"
SAMPLES = sorted(DATA.glob("*.mlir"))
TOLERANCE = 2e-4


def sides(path: Path) -> list[list[np.ndarray]]:
    """Arguments and results."""
    with np.load(path.with_suffix(".npz")) as arrays:
        return [
            [arrays[f"{side}{i}"] for i in range(sum(n.startswith(side) for n in arrays.files))]
            for side in ("in", "out")
        ]


def test_there_are_samples() -> None:
    assert {path.stem for path in SAMPLES} >= {"mlp", "block", "hinted_block", "embedding", "conv"}


@sampled(4)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
@pytest.mark.parametrize("single", [False, True], ids=["mesh", "one rank"])
def test_recorded_programs_give_what_torch_gave(path: Path, single: bool) -> None:
    arguments, wanted = sides(path)
    text = path.read_text()
    mesh = None
    if single:
        axes = text.split('axes = "', 1)[1].split('"', 1)[0]
        mesh = ", ".join(f"{axis.split('=')[0].strip()}=1" for axis in axes.split(",") if axis)
    with meshweave.compile(str(path), mesh=mesh or None) as program:
        found = program(*arguments)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * np.abs(other).max())


def test_the_hints_of_a_recorded_block_are_honoured() -> None:
    path = DATA / "hinted_block.mlir"
    with api.lowered(path.read_text(), path.name, None) as (module, _):
        rows = read_ledger(module).rows()
    assert {(row["hint"], row["outcome"]) for row in rows} == {
        ("slice=t=2", "honoured"),
        ("order=dfs", "honoured"),
    }
    assert all("torch_models.py" in row["location"] for row in rows)
