"""The models of examples/ as PyTorch modules give what JAX computed, on four ranks, their hints honoured."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDER = {  # of the parameters among the inputs of the example, after the arguments
    "mlp": ("w1", "b1", "w2", "b2"),
    "attention": (),
    "block": ("b1", "b2", "g1", "g2", "down", "up", "out", "qkv"),
}


@pytest.fixture(scope="module")
def models() -> Any:
    spec = importlib.util.spec_from_file_location("models", EXAMPLES / "pytorch" / "models.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("name", ORDER)
def test_a_model_gives_what_jax_gives(models: Any, name: str) -> None:
    folder = EXAMPLES / name
    values = [
        torch.from_numpy(np.load(folder / f"in{k}.npy"))
        for k in range(len(list(folder.glob("in*"))))
    ]
    right = torch.from_numpy(np.load(folder / "out0.npy"))
    module = models.KINDS[name]()
    arguments = values[: len(values) - len(ORDER[name])]
    module.load_state_dict(dict(zip(ORDER[name], values[len(arguments) :], strict=True)))
    with models.compiled(name, module, *arguments) as program:
        found = program(*arguments)
        assert float((found - right).abs().max()) <= 2e-4 * float(right.abs().max())
        assert program.program.mesh.nranks == 4
        outcomes = {row["outcome"] for row in program.ledger()}
        assert outcomes == ({"honoured"} if name == "block" else set())
