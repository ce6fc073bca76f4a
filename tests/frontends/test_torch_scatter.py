"""Scatters of PyTorch over ranks: dims that torch-mlir merges are dims again, and nothing moves that need not."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import meshweave as mw  # noqa: E402


class Function(torch.nn.Module):
    """A module of a function of a tensor, places and what goes there."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, i: Any, s: Any) -> Any:
        return self.function(x, i, s)


def losses(x: Any, i: Any, s: Any) -> Any:
    """The gradient of a mean of log-likelihoods."""
    rows = i[:, 0].contiguous()
    return torch.ops.aten.nll_loss_backward(s.sum(), x, rows, None, 1, -100, torch.tensor(7.0))


FUNCTIONS = {
    "add": (lambda x, i, s: x.scatter_add(1, i, s), 0),
    "largest": (lambda x, i, s: x.scatter_reduce(1, i, s, "amax"), 0),
    "set": (lambda x, i, s: x.scatter(1, i, s), 0),
    "loss": (losses, 8),
}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_stay_where_they_are(name: str, ranks: int) -> None:
    function, most = FUNCTIONS[name]
    torch.manual_seed(3)
    places = torch.stack([torch.randperm(11)[:5] for _ in range(8)])
    args = torch.randn(8, 11), places, torch.randn(8, 5)
    laid = dict.fromkeys(("x", "i", "s"), "[x, _]")
    module = Function(function)
    program = mw.from_torch(module, args, mesh=f"x={ranks}", placements=laid)
    torch.testing.assert_close(program(*args), module(*args))
    said = program.explain()
    assert "unproven" not in said
    moved = [c.bytes for c in program.program.bundle.manifest.collectives]
    assert sum(moved) <= most * ranks
