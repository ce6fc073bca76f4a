"""`torch.amp.GradScaler` in a step that is one program, and around a compiled model, beside eager PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.errors import UsageError  # noqa: E402

Result = tuple[list[list[float]], dict[str, Tensor], dict[Any, Any], dict[str, Any]]
OVERFLOWS = (2, 5, 6)  # steps whose gradients are not finite


def subjects(make: Callable[..., Any], init_scale: float) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    factors = {"growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2}
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, **factors)
    return model, make(model.parameters()), scaler


def data(number: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, 30).reshape(5, 6).sin()
    return x * float("inf") if number in OVERFLOWS else x, torch.tensor([0, 4, 2, 1, 3])


def short(model: Any, optimizer: Any, scaler: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


def clipped(model: Any, optimizer: Any, scaler: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    return loss


def trained(step: Any, model: nn.Module, optimizer: Any, scaler: Any) -> Result:
    """Take nine steps, three of which overflow."""
    rows = []
    for number in range(9):
        loss = step(model, optimizer, scaler, *data(number))
        rows.append([float(loss.detach()), scaler.get_scale(), scaler._get_growth_tracker()])
    return rows, model.state_dict(), optimizer.state_dict()["state"], scaler.state_dict()


def same(found: Result, wanted: Result, rtol: float) -> None:
    torch.testing.assert_close(
        torch.tensor(found[0]), torch.tensor(wanted[0]), rtol=rtol, atol=0.0, equal_nan=True
    )
    assert found[3] == wanted[3]
    for name, value in wanted[1].items():
        torch.testing.assert_close(found[1][name], value, rtol=rtol, atol=1e-5)
    for number, row in wanted[2].items():
        for key, value in row.items():
            torch.testing.assert_close(found[2][number][key], value, rtol=rtol, atol=1e-5)


TENSOR_PARALLEL = {"0.weight": "[tp, _]", "2.weight": "[_, tp]"}


@pytest.mark.parametrize(
    ("step", "make", "options", "init_scale"),
    [
        (short, lambda p: torch.optim.Adam(p, 0.02, fused=True), {}, 2.0**10),
        (
            clipped,
            lambda p: torch.optim.AdamW(p, 0.02),
            {"mesh": "dp=2", "placements": {"x": "[dp, _]", "y": "[dp]"}},
            2.0**10,
        ),
        (
            clipped,  # gradients overflow of themselves until the scale is low
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
            {"mesh": "tp=2", "placements": TENSOR_PARALLEL},
            1e38,
        ),
    ],
)
def test_a_step_is_left_out_where_a_gradient_is_not_finite(
    step: Any, make: Any, options: dict[str, Any], init_scale: float
) -> None:
    """Losses, scales, counts, parameters and state are those of eager PyTorch."""
    wanted = trained(step, *subjects(make, init_scale))
    ours = subjects(make, init_scale)
    with mw.from_torch(step, (*ours, *data()), **options) as compiled:
        found = trained(compiled, *ours)
    assert min(row[1] for row in wanted[0]) < init_scale  # it was left out
    same(found, wanted, 2e-3 if step is short else 1e-5)


def test_a_scaler_around_a_compiled_model() -> None:
    found = []
    for fast in (True, False):
        model, optimizer, scaler = subjects(lambda p: torch.optim.AdamW(p, 0.02), 2.0**10)
        called = torch.compile(model, backend="meshweave") if fast else model
        rows, state, rest, scale = trained(
            lambda m, *given, own=called: short(own, *given), model, optimizer, scaler
        )
        found.append((rows, state, rest, scale))
    same(*found, rtol=2e-3)


def test_what_a_scaler_cannot_do_in_a_step_is_refused() -> None:
    model, optimizer, scaler = subjects(lambda p: torch.optim.SGD(p, 0.1), 8.0)
    (x, y), hidden = data(), [torch.amp.GradScaler("cpu")]

    def forgets(x: Tensor, y: Tensor) -> None:
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)

    with pytest.raises(UsageError, match=r"forgets unscales .* by scaler: call scaler.update\(\)"):
        mw.from_torch(forgets, (x, y))
    assert not scaler._per_optimizer_states and scaler.get_scale() == 8.0

    def hides(x: Tensor, y: Tensor) -> None:
        hidden[0].scale(F.cross_entropy(model(x), y)).backward()
        optimizer.step()

    with pytest.raises(UsageError, match="hides scales by a GradScaler that it is not called with"):
        mw.from_torch(hides, (x, y))

    def asks(x: Tensor, y: Tensor) -> None:
        clipped(model, optimizer, scaler, x * scaler.get_scale(), y)

    with pytest.raises(mw.errors.CompileError, match="asks reads a number of a tensor"):
        mw.from_torch(asks, (x, y))

    with mw.from_torch(clipped, (model, optimizer, scaler, x, y)) as step:
        step(model, optimizer, scaler, x, y)
        scaler.set_growth_factor(3.0)
        with pytest.raises(UsageError, match=r"growth_factor of scaler is 3.0, not 1.7: compile"):
            step(model, optimizer, scaler, x, y)
