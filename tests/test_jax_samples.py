"""Programs that JAX exported, from end to end: on their mesh and on one rank, against JAX's results."""

from pathlib import Path

import numpy as np
import pytest
from depth import sampled

import meshweave
from meshweave.api.program import one_rank
from meshweave.errors import CompileError

DATA = Path(__file__).resolve().parent / "data"
SAMPLES = sorted(p for p in DATA.glob("*.mlir") if not p.name.endswith(".generic.mlir"))
ONE_MESH = "'dist.to_local' op .* on a rank, not"
"""What is said of a shard_map on another mesh: shapes in its body are those of one rank."""
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 4e-3}
BF16 = 2e-2


def sample(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Arguments and results."""
    with np.load(path.with_suffix(".npz")) as arrays:
        sides = [
            sorted((n for n in arrays if n.startswith(s)), key=lambda n: int(n.lstrip("inout")))
            for s in ("in", "out")
        ]
        return [arrays[n] for n in sides[0]], [arrays[n] for n in sides[1]]


def agree(result: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    tolerance = TOLERANCE.get(result.dtype.name, 0.0)
    if dtype == "bf16":
        wanted, tolerance = (wanted.astype(np.uint32) << 16).view(np.float32), BF16
    else:
        assert wanted.dtype.kind != "u" or result.dtype == wanted.dtype
    assert result.shape == wanted.shape
    if tolerance == 0.0:
        np.testing.assert_array_equal(result, wanted)
        return
    finite = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance * float(finite))


@sampled(4)
@pytest.mark.parametrize("path", SAMPLES, ids=[p.stem for p in SAMPLES])
def test_a_sample_gives_what_jax_gives(path: Path) -> None:
    arguments, wanted = sample(path)
    shard_map = "sdy.manual_computation" in path.read_text()
    with meshweave.compile(path, timeout=30) as program:
        mesh, ports = program.mesh, program.outputs
        results = program(*arguments)
    for result, right, port in zip(results, wanted, ports, strict=True):
        agree(result, right, port.dtype)
    if shard_map:
        with pytest.raises(CompileError, match=ONE_MESH):
            meshweave.compile(path, mesh=one_rank(mesh))
    elif mesh.nranks > 1:
        with meshweave.compile(path, mesh=one_rank(mesh), timeout=30) as program:
            results = program(*arguments)
        for result, right, port in zip(results, wanted, ports, strict=True):
            agree(result, right, port.dtype)
