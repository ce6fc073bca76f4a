"""Run as one rank of a job: train with PyTorch, and compare with the same steps in eager PyTorch."""

import copy
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import meshweave as mw
from meshweave.errors import RankError

ROWS = 7


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = (
            nn.Linear(6, 8, bias=False),
            nn.BatchNorm1d(8),
            nn.Linear(8, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.dropout(torch.tanh(self.norm(self.up(x))), 0.2, self.training))


def train_step(model: nn.Module, optimizer: Any, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss, out


PLACEMENTS = {"up.weight": "[tp, _]", "down.weight": "[_, tp]", "up.weight.exp_avg": "[_, tp]"}


def setup() -> tuple[Any, Any, Any, Any, Tensor, Tensor]:
    torch.manual_seed(0)
    ours = Mlp()
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.AdamW(one.parameters(), 0.02) for one in (ours, theirs)]
    return ours, theirs, *optimizers, torch.randn(ROWS, 6), torch.randint(5, (ROWS,))


def run(step: Any, model: nn.Module, optimizer: Any, x: Any, y: Any) -> tuple[list[float], Any]:
    """Train for six steps; the parameters are written between two of them, and read by rank 0 where it has them."""
    schedule, losses = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10), []
    torch.manual_seed(3)
    for number in range(6):
        loss, out = step(model, optimizer, x, y)
        losses.append(loss.item())
        schedule.step()
        if number == 2:
            with torch.no_grad():
                model.up.weight.mul_(0.5)  # type: ignore[union-attr]
    return losses, out


def whole_arguments() -> None:
    """Losses, results, parameters, running statistics and state of the optimizer are those of eager PyTorch."""
    mesh, (ours, theirs, own, other, x, y) = mw.Mesh(tp=mw.size()), setup()
    step = mw.from_torch(train_step, (ours, own, x, y), PLACEMENTS, mesh)
    losses, out = run(step, ours, own, x, y)
    wanted, result = run(train_step, theirs, other, x, y)
    assert np.allclose(losses, wanted, rtol=1e-5), (losses, wanted)
    assert isinstance(out, mw.Array)
    assert np.allclose(np.asarray(mw.redistribute(out, "[_, _]")), result.detach(), atol=1e-4)
    assert str(step.parameters["up.weight.exp_avg"].layout) == "[_, tp]"
    assert step.parameters["up.weight"].local().shape == (8 // mw.size(), 6)
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    for number, row in other.state_dict()["state"].items():
        for key, value in row.items():
            found = own.state_dict()["state"][number][key]
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)
    compiled(ours, theirs, x, mesh)
    step.close()
    assert type(ours.up.weight) is nn.Parameter


def compiled(ours: Any, theirs: Any, x: Tensor, mesh: mw.Mesh) -> None:
    """A module whose parameters lie with the ranks is evaluated through torch.compile, as one piece."""
    backend = mw.torch_backend(mesh=mesh)
    fast = torch.compile(ours.eval(), backend=backend)
    for _ in range(2):
        with torch.no_grad():
            assert torch.allclose(fast(x), theirs.eval()(x), atol=1e-4)
    assert backend.cache_info().misses == 1
    ours.train()


def own_parts() -> None:
    """Each rank gives its rows of the batch, and no mesh is said; what ranks do otherwise is refused on all."""
    mesh, (ours, theirs, own, other, x, y) = mw.Mesh(dp=mw.size()), setup()
    x, y = x[: 3 * mw.size()], y[: 3 * mw.size()]
    rows = slice(3 * mw.rank(), 3 * mw.rank() + 3)
    parts = [
        mw.Array.from_local(v[rows], mesh=mesh, layout=lies, shape=v.shape)
        for v, lies in ((x, "[dp, _]"), (y, "[dp]"))
    ]
    step = mw.from_torch(train_step, (ours, own, *parts))
    losses, out = run(step, ours, own, *parts)
    wanted, result = run(train_step, theirs, other, x, y)
    assert np.allclose(losses, wanted, rtol=1e-5), (losses, wanted)
    assert str(out.layout) == "[dp, _]"
    assert np.allclose(out.local(), result.detach()[rows], atol=1e-4)

    def another_rate() -> None:
        own.param_groups[0]["lr"] = 0.1 * mw.rank()

    def written_on_one() -> None:
        with torch.no_grad():
            ours.norm.weight.mul_(1.0 + mw.rank())

    def other_seeds() -> None:
        torch.manual_seed(mw.rank())

    for change, what in (
        (written_on_one, r"what was written since the last call \((nothing|norm.weight)\)"),
        (other_seeds, "the state of torch's random numbers"),
        (another_rate, "the learning rate"),
    ):
        refused(change, lambda: step(ours, own, *parts), what)
        own.param_groups[0]["lr"] = 0.01
        torch.manual_seed(0)
        with torch.no_grad():
            ours.norm.weight.fill_(1.0)
        step(ours, own, *parts)


def refused(change: Callable[[], None], call: Callable[[], object], what: str) -> None:
    """Change what this rank calls with; the call is refused in a line."""
    change()
    try:
        call()
    except RankError as error:
        assert re.search(f"train_step: {what} is not the same on all ranks", error.message), error
    else:
        raise AssertionError(what)


def main() -> None:
    mw.init()
    whole_arguments()
    own_parts()
    sys.stdout.write(f"rank {mw.rank()} of {mw.size()} is done\n")


main()
