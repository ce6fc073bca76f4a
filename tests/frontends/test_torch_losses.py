"""Functions of PyTorch that read numbers of tensors, which traces have not: losses, covariances, averages of models."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch_models as tm  # noqa: E402

import meshweave as mw  # noqa: E402

F = torch.nn.functional


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_the_loss_of_sequences_without_places_trains(mesh: str | None) -> None:
    torch.manual_seed(0)
    frames, wanted = torch.randn(12, 3, 4), torch.randint(1, 5, (3, 4))
    lengths, sizes = torch.tensor([12, 11, 3]), torch.tensor([4, 3, 4])

    def step(model: Any, optimizer: Any, frames: Any, wanted: Any, lengths: Any, sizes: Any) -> Any:
        optimizer.zero_grad()
        given = model(frames).log_softmax(-1)
        each = F.ctc_loss(given, wanted, lengths, sizes, reduction="none", zero_infinity=True)
        whole = torch.nn.CTCLoss(2)(given[:, :2], wanted[:2], (12, 11), (4, 3))
        loss = each.sum() + F.ctc_loss(given[:, 0], wanted[0], lengths[0], sizes[0]) + whole
        loss.backward()
        optimizer.step()
        return each, loss

    model, given = torch.nn.Linear(4, 5), (frames, wanted, lengths, sizes)
    other = copy.deepcopy(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, other))
    said = {"frames": "[_, x, _]"} if mesh else {}
    compiled = mw.from_torch(step, (model, ours, *given), said, mesh)
    for _ in range(2):
        found = compiled(model, ours, *given)
        right = step(other, theirs, *given)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, right, strict=True))
    assert right[0][2] == 0  # a target that is too long for its frames
    compiled.close()


def test_variances_and_covariances() -> None:
    torch.manual_seed(1)
    x, y, v = torch.randn(4, 6), torch.randn(4, 6), torch.rand(4, 1)
    counts, weights = torch.randint(1, 4, (6,)), torch.rand(6)

    def function(x: Any, y: Any, v: Any, counts: Any, weights: Any) -> Any:
        losses = [F.gaussian_nll_loss(x, y, v.expand(x.shape), full=full) for full in (True, False)]
        losses += [F.gaussian_nll_loss(x, y, v[:, 0] * 0, reduction="none", eps=0.1)]
        losses += [torch.nn.GaussianNLLLoss(reduction="sum")(x, y, v)]
        rows = [x.cov(), x[0].cov(), torch.cov(x, correction=0, fweights=counts)]
        rows += [torch.cov(x, fweights=counts, aweights=weights), torch.cov(x, aweights=weights)]
        return *losses, *rows, torch.corrcoef(x), x[0].corrcoef()

    given = x, y, v, counts, weights
    with mw.from_torch(tm.Fn(function), given, {"args_0": "[_, x]"}, "x=2") as program:
        for one, two in zip(program(*given), function(*given), strict=True):
            assert one.shape == two.shape and torch.allclose(one, two, atol=1e-5)


swa = torch.optim.swa_utils
KINDS = {
    "means": {},
    "exponential": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.9)},
    "buffers too": {"avg_fn": swa.get_ema_avg_fn(0.9), "use_buffers": True},
}


def test_gradients_that_are_filled_with_zeros_and_numbers_that_a_model_draws() -> None:
    torch.manual_seed(3)
    used, unused = torch.nn.Linear(5, 4), torch.nn.Linear(2, 2)

    def step(used: Any, optimizer: Any, x: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = (used(x) + 0.1 * torch.randn_like(x[:, :4])).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    model = torch.nn.ModuleList((used, unused))
    other = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), 0.1) for m in (model, other))
    x = torch.randn(6, 5)

    def whole(model: Any, optimizer: Any, x: Any) -> Any:
        return step(model[0], optimizer, x)

    compiled = mw.from_torch(whole, (model, ours, x), {"x": "[x, _]"}, "x=2")
    for one, two, call in ((model, ours, compiled), (other, theirs, whole)):
        torch.manual_seed(4)
        for _ in range(3):
            call(one, two, x)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-5)
    compiled.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_averages_models(kind: str) -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4, bias=False), torch.nn.BatchNorm1d(4))
    average = swa.AveragedModel(model, **KINDS[kind])

    def step(model: Any, average: Any, optimizer: Any, x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean() + model[1].bias.sum()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss

    other, theirs = copy.deepcopy((model, average))
    ours, right = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, other))
    x = torch.randn(6, 5)
    compiled = mw.from_torch(step, (model, average, ours, x), {"x": "[x, _]"}, "x=2")
    for _ in range(3):
        compiled(model, average, ours, x)
        step(other, theirs, right, x)
    for name, value in theirs.state_dict().items():
        assert torch.allclose(average.state_dict()[name], value, atol=1e-5), name
    compiled.close()
