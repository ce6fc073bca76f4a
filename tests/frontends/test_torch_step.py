"""A whole step of training as one program: losses, parameters and state of optimizers beside eager PyTorch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.errors import CompileError, MeshweaveError, UsageError  # noqa: E402

MESHES: dict[str, dict[str, Any]] = {
    "one rank": {},
    "dp and tp": {
        "mesh": "dp=2, tp=2",
        "placements": {
            "x": "[dp, _]",
            "up.weight": "[tp, _]",
            "up.bias": "[tp]",
            "down.weight": "[_, tp]",
            "up.weight.exp_avg": "[_, dp]",
        },
    },
    "uneven": {"mesh": "x=3", "placements": {"x": "[x, _]"}},
}


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 5)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.down(self.drop(torch.tanh(self.up(x))))


def clearing_first(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
    optimizer.step()
    return loss


def clearing_last(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> dict[str, Any]:
    total: Any = 0.0
    for rows in (slice(0, 2), slice(2, 5)):  # micro-batches
        loss = F.cross_entropy(model(x[rows]), y[rows]) / 2
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": total, "kind": "mean"}


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.02),
    "adam": lambda p: torch.optim.Adam(p, 0.02, amsgrad=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.05),
}


def test_statistics_of_all_batches() -> None:
    """`momentum=None` counts the batches, in a tensor that the step keeps."""
    found = []
    for fast in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None))
        given = model, torch.optim.SGD(model.parameters(), 0.1), *data()
        step = mw.from_torch(clearing_first, given) if fast else clearing_first
        for k in range(3):
            step(*given[:2], (k + 1) * given[2], given[3])
        found.append(model.state_dict())
    for name, value in found[1].items():
        torch.testing.assert_close(found[0][name], value)


def test_a_step_of_short_floats_is_not_rounded() -> None:
    """Muon's update is bf16, its parameters f32: the update times the learning rate is f32."""
    after = []
    for fast in (True, False):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(24, 16, bias=False)), torch.randn(8, 24)
        optimizer = torch.optim.Muon(model.parameters(), 1e-2, weight_decay=0.0)

        before = model[0].weight.detach().clone()

        def step(x: Tensor, model: nn.Module = model, optimizer: Any = optimizer) -> Tensor:
            return clearing_first(model, optimizer, x, torch.arange(8))

        (mw.from_torch(step, (x,)) if fast else step)(x)
        after.append(model[0].weight.detach() - before)
    found, wanted = after
    # A gradient that differs in its last bit may change the last bit of a few elements in bf16.
    assert ((found - wanted).abs() < 1e-5 * wanted.abs().max()).double().mean() > 0.8


def data() -> tuple[Tensor, Tensor]:
    return torch.linspace(-2, 2, 30).reshape(5, 6).sin(), torch.tensor([0, 4, 2, 1, 3])


def twins(dropout: float = 0.0) -> tuple[Mlp, Mlp]:
    torch.manual_seed(0)
    one = Mlp(dropout)
    return one, copy.deepcopy(one)


def same_state(one: nn.Module, other: nn.Module) -> None:
    for name, wanted in other.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ("one rank", "sgd"),
        ("dp and tp", "adamw"),
        ("uneven", "rmsprop"),
        ("one rank", "adam"),
        ("uneven", "adafactor"),
    ],
)
def test_fifty_steps_are_those_of_eager(options: str, optimizer: str) -> None:
    """With dropout, clipping, a schedule of learning rates, and writes between steps."""
    losses: list[list[float]] = []
    modules, (x, y) = twins(0.2), data()
    optimizers = []
    for model, fast in zip(modules, (True, False), strict=True):
        made = OPTIMIZERS[optimizer](model.parameters())
        optimizers.append(made)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(made, 60)
        step: Any = clearing_first
        if fast:
            step = mw.from_torch(step, (model, made, x, y), **MESHES[options])
        torch.manual_seed(5)
        losses.append([])
        for k in range(50):
            losses[-1].append(step(model, made, x, y).item())
            schedule.step()
            if k == 20:
                with torch.no_grad():
                    model.up.weight.mul_(0.5)
            if k == 10 and fast:  # as in a process that was forked: buffers are made anew
                step._ports = None
            if k == 30:  # optimizers then hold other tensors
                made.load_state_dict(copy.deepcopy(made.state_dict()))
        if fast:
            (line,) = (row for row in step.explain().split("\n") if "donated state" in row)
            if options != "dp and tp":
                assert line.split("│")[2].strip() == "0"
            else:
                layouts = {name: str(one.layout) for name, one in step.parameters.items()}
                assert layouts["up.weight"] == layouts["up.weight.exp_avg_sq"] == "[tp, _]"
                assert layouts["up.weight.exp_avg"] == "[_, dp]"
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)
    assert losses[0][-1] < losses[0][0]
    same_state(*modules)
    found, wanted = (one.state_dict()["state"] for one in optimizers)
    for number, row in wanted.items():
        for key, value in row.items():
            torch.testing.assert_close(found[number][key], value, rtol=1e-4, atol=1e-5)


def test_a_warm_up_begins_at_a_learning_rate_of_0() -> None:
    """Rows of an embedding that no word names have no gradient yet: 0 by 0 in a formula that divides by the rate."""
    found: list[list[float]] = []
    for fast in (True, False):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5)), torch.tensor([1, 2, 2, 5])
        optimizer, y = torch.optim.AdamW(model.parameters(), 0.1), torch.tensor([0, 4, 2, 1])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: n / 3)
        step: Any = clearing_first
        if fast:
            step = mw.from_torch(step, (model, optimizer, x, y))
        found.append([])
        for _ in range(5):
            found[-1].append(float(step(model, optimizer, x, y)))
            schedule.step()
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def closure(model: nn.Module, optimizer: Any) -> Callable[..., dict[str, Any]]:
    return lambda x, y: clearing_last(model, optimizer, x, y)


@pytest.mark.parametrize("mesh", [None, "dp=2"])
def test_a_closure_of_two_programs_and_eager_calls_between(mesh: str | None) -> None:
    """Steps for batches of two sizes share what they keep; evaluation in between reads it."""
    modules, (x, y) = twins(), data()
    found = []
    for model, fast in zip(modules, (True, False), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), 0.02)

        step, small = closure(model, optimizer), closure(model, optimizer)
        one, other = step, small
        if fast:
            one = mw.from_torch(step, (x, y), mesh=mesh)
            other = mw.from_torch(small, (x[:4], y[:4]), mesh=mesh)
        found.append([])
        for _ in range(2):
            found[-1].append(one(x, y)["loss"].item())
            found[-1].append(other(x[:4], y[:4])["loss"].item())
            with torch.no_grad():
                found[-1].append(model(x).sum().item())
            model.down.bias.data.add_(0.5)  # leaves no trace that torch keeps
        if fast:
            assert one(x, y)["kind"] == "mean"
            copied = copy.deepcopy(model)
            assert type(copied.up.weight) is nn.Parameter
            with mw.from_torch(copied.eval(), (x,)) as program:
                torch.testing.assert_close(program(x), copied(x))
            one.close(), other.close()
            assert type(model.up.weight) is nn.Parameter
        else:
            step(x, y)
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    same_state(*modules)


def test_what_is_computed_again_draws_the_same() -> None:
    class Twice(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False) + self.drop(x[:, :5])

    torch.manual_seed(0)
    one = Twice(0.4)
    losses, (x, y) = [], data()
    for model, fast in zip((one, copy.deepcopy(one)), (True, False), strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.manual_seed(3)
        step: Any = clearing_first
        if fast:
            step = mw.from_torch(step, (model, optimizer, x, y))
        torch.manual_seed(3)
        losses.append([step(model, optimizer, x, y).item() for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_gradients_and_parameters_of_other_strides() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 2, stride=2), nn.Flatten(2), nn.Linear(4, 3)
    one = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    losses, x = [], torch.linspace(-2, 2, 64).sin().reshape(2, 2, 4, 4)
    for model, fast in zip((one, copy.deepcopy(one)), (True, False), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def step(x: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        call: Any = mw.from_torch(step, (x, model, optimizer)) if fast else step
        losses.append([call(x, model, optimizer).item() for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def exchange(model: Any) -> None:
    first, last = model.first.weight, model.last.weight
    first.data, last.data = last.data, first.data


def turn(model: Any) -> None:
    model.first.weight.data = model.first.weight.data.t()


@pytest.mark.parametrize("between", [exchange, turn])
def test_memory_of_parameters_that_is_exchanged_or_turned_between_steps(between: Any) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(x)))

    torch.manual_seed(0)
    one, losses, (x, _) = Pair(), [], data()
    for model, fast in zip((one, copy.deepcopy(one)), (True, False), strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.5)

        def step(x: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        call: Any = mw.from_torch(step, (x[:, :3], model, optimizer)) if fast else step
        losses.append([])
        for _ in range(4):
            losses[-1].append(call(x[:, :3], model, optimizer).item())
            between(model)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_an_argument_may_be_what_a_step_keeps_on_its_ranks() -> None:
    modules, y, losses = twins(), torch.arange(8) % 5, []
    for model, fast in zip(modules, (True, False), strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step: Any = clearing_first
        if fast:
            step = mw.from_torch(step, (model, optimizer, torch.zeros(8, 6), y), mesh="dp=2")
        losses.append([])
        for _ in range(3):
            given = model.up.weight if fast else model.up.weight.detach().clone()
            losses[-1].append(step(model, optimizer, given, y).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_changes_between_steps_is_refused_where_it_is_compiled_in() -> None:
    (model, _), (x, y) = twins(), data()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def writes(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = clearing_first(model, optimizer, x, y)
        x.add_(1)
        return loss

    said = refused(writes, model, optimizer, x, y)
    assert "writes tensor 0 of its arguments, (5, 6): return the new value" in said

    def scaled(x: Tensor, y: Tensor, factor: float) -> Tensor:
        clearing_first(model, optimizer, x, y)
        return y * factor

    step = mw.from_torch(scaled, (x, y, 1))
    for factor in (1.0, True):
        with pytest.raises(UsageError, match=f"argument 2: {factor}, it was compiled for 1"):
            step(x, y, factor)
    with pytest.raises(UsageError, match="bind: a step keeps the tensors of modules"):
        step.bind({"up.bias": torch.zeros(8)})
    weight = model.up.weight
    model.up.weight = nn.Parameter(torch.zeros(8, 6))
    with pytest.raises(UsageError, match=r"up.weight is not the parameter of the optimizer any mo"):
        step(x, y, 1)
    model.up.weight = weight
    optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
    with pytest.raises(UsageError, match="optimizers have 2 groups of parameters, not 1"):
        step(x, y, 1)


def test_tied_tensors_are_one_and_memory_is_shared_by_none() -> None:
    layers = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    layers[0].weight = layers[1].weight
    optimizer, (x, y) = torch.optim.SGD(layers.parameters(), 0.1), data()
    step = mw.from_torch(clearing_first, (layers, optimizer, x, y))
    step(layers, optimizer, x, y)
    layers[0].bias.data = layers[1].bias.data
    with pytest.raises(UsageError, match=r"first: 0.bias and 1.bias share memory"):
        step(layers, optimizer, x, y)
    assert "share memory: one tensor in both places" in refused(
        clearing_first, layers, optimizer, x, y
    )
    layers[1].bias.data = torch.zeros(6)
    layers[0].weight = nn.Parameter(torch.zeros(6, 6))
    with pytest.raises(UsageError, match=r"0.weight is not in all the places any more"):
        step(layers, optimizer, x, y)


def refused(step: Any, *args: Any, **options: Any) -> str:
    with pytest.raises((UsageError, CompileError)) as error:
        mw.from_torch(step, args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_refusals() -> None:
    (model, _), (x, y) = twins(), data()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def adds(x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    def leaves(x: Tensor) -> None:
        model(x).sum().backward()

    assert "leaves gradients, and calls no optimizer: return them" in refused(leaves, x)
    assert "adds to the gradient of up.weight that an earlier call has left" in refused(adds, x)
    assert "of no module that the step is called with" in refused(
        lambda o, x: x, torch.optim.SGD([torch.ones(3, requires_grad=True)], 0.1), x
    )
    assert "is called with no nn.Module that has parameters" in refused(lambda x: x, x)

    def reads(x: Tensor) -> float:
        return model(x).sum().item()

    line = reads.__code__.co_firstlineno + 1
    said = refused(reads, x)
    assert f"test_torch_step.py:{line}: from_torch: reads reads a number of a tensor" in said

    def masks(x: Tensor) -> Tensor:
        loss: Tensor = x[x > 0].sum() + model(x).sum()
        return loss

    line = masks.__code__.co_firstlineno + 1
    said = refused(masks, x)
    assert f"test_torch_step.py:{line}: from_torch: masks makes a tensor whose shape" in said
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def sets(x: Tensor, y: Tensor) -> Tensor:
        optimizer.param_groups[0]["lr"] = 0.5
        return clearing_first(model, optimizer, x, y)

    assert "changes lr of SGD: change it outside of the step, or by a scheduler" in refused(
        sets, x, y
    )
    assert optimizer.param_groups[0]["lr"] == 0.1

    def scales_rate(x: Tensor, y: Tensor) -> Tensor:
        optimizer.param_groups[0]["lr"] *= 0.5
        return clearing_first(model, optimizer, x, y)

    assert "changes lr of SGD" in refused(scales_rate, x, y) or "changes optimizer.lr" in refused(
        scales_rate, x, y
    )
    assert optimizer.param_groups[0]["lr"] == 0.1

    def early(x: Tensor, y: Tensor) -> Tensor:
        schedule.step()
        return clearing_first(model, optimizer, x, y)

    assert "calls ExponentialLR.step before a step of SGD: behind all" in refused(early, x, y)

    def asks(x: Tensor, y: Tensor) -> tuple[Tensor, list[Any]]:
        return clearing_first(model, optimizer, x, y), schedule.get_last_lr()

    assert "reads ExponentialLR.get_last_lr: call it outside of the step" in refused(asks, x, y)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def waits(x: Tensor, y: Tensor) -> None:
        plateau.step(clearing_first(model, optimizer, x, y))

    assert "calls ReduceLROnPlateau.step with a tensor" in refused(waits, x, y)
    assert schedule.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 0.1
    damped = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, dampening=0.5)
    assert "makes its state in its first step" in refused(clearing_first, model, damped, x, y)
    assert not any(damped.state.values())
    assert 'no tensor "up"' in refused(
        clearing_first, model, optimizer, x, y, placements={"up": "[_]"}
    )
    step = mw.from_torch(clearing_first, (model, optimizer, x, y))
    with pytest.raises(UsageError, match="argument 0: a Mlp, it was compiled for a Mlp"):
        step(twins()[0], optimizer, x, y)
    with pytest.raises(UsageError, match="of another structure"):
        step(model, optimizer, x)
    with pytest.raises(
        MeshweaveError, match=r"clearing_first: x: shape \(4, 6\), \(5, 6\) is right"
    ):
        step(model, optimizer, x[:4], y)
    optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(UsageError, match=r"momentum of SGD is 0.5, it was compiled for 0"):
        step(model, optimizer, x, y)
    optimizer.param_groups[0]["momentum"] = 0
    model.up.weight.requires_grad_(False)
    with pytest.raises(UsageError, match=r"up.weight has another requires_grad"):
        step(model, optimizer, x, y)


def test_a_learning_rate_that_a_step_reads_is_that_of_the_call() -> None:
    (x, y), found = data(), []
    for model, compiled in zip(twins(), (False, True)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x: Tensor, y: Tensor, m: Any = model, o: Any = optimizer) -> tuple[Tensor, Any]:
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            rate = o.param_groups[0]["lr"]
            with torch.no_grad():
                for p in m.parameters():
                    p.mul_(1 - 0.5 * rate)
            o.step()
            return loss, rate

        run = mw.from_torch(step, (x, y, model, optimizer)) if compiled else step
        for rate in (0.1, 0.7, 0.2):
            optimizer.param_groups[0]["lr"] = rate
            assert float(run(x, y, model, optimizer)[1]) == rate
        found.append(model)
    same_state(found[1], found[0])


def scheduled(optimizer: Any, kind: str) -> Any:
    made = torch.optim.lr_scheduler
    return {
        # Nothing happens in the call that is traced.
        "StepLR": lambda: made.StepLR(optimizer, 2, 0.1),
        "CosineAnnealingWarmRestarts": lambda: made.CosineAnnealingWarmRestarts(optimizer, 2),
        "SequentialLR": lambda: made.SequentialLR(
            optimizer, [made.ConstantLR(optimizer), made.ExponentialLR(optimizer, 0.5)], [2]
        ),
        "ChainedScheduler": lambda: made.ChainedScheduler(
            [made.ConstantLR(optimizer, 0.5, 2), made.ExponentialLR(optimizer, 0.5)]
        ),
    }[kind]()


@pytest.mark.parametrize(
    "kind", ["StepLR", "CosineAnnealingWarmRestarts", "SequentialLR", "ChainedScheduler"]
)
def test_schedulers_in_a_step_run_behind_each_call(kind: str) -> None:
    (x, y), scaler, found = data(), torch.amp.GradScaler("cpu", enabled=False), []
    for model, compiled in zip(twins(), (False, True)):
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        schedule = scheduled(optimizer, kind)

        def step(
            x: Tensor, y: Tensor, m: Any = model, o: Any = optimizer, s: Any = schedule
        ) -> Tensor:
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            scaler.scale(loss).backward()  # which does nothing
            scaler.step(o)
            s.step()
            return loss

        run = mw.from_torch(step, (x, y, model, optimizer)) if compiled else step
        given = (x, y, model, optimizer)
        losses = [float(run(*given).detach()) for _ in range(5)]
        found.append((losses, schedule.get_last_lr(), model))
    (wanted, rates, eager), (losses, own, model) = found
    assert losses == pytest.approx(wanted, rel=1e-5) and own == rates
    same_state(model, eager)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def steps_within(peak_bytes: Any, mesh: str | None) -> tuple[list[Any], int]:
    torch.manual_seed(0)
    model, x, y = Deep(), torch.randn(256, 32), torch.randn(256, 32)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    placements = {"x": "[dp, _]", "y": "[dp, _]"} if mesh else {}
    step = mw.from_torch(train, (x, y), placements, mesh, peak_bytes=peak_bytes)
    losses = [float(step(x, y)) for _ in range(2)]
    return [losses, *model.state_dict().values()], step.program.executable.manifest.arena_bytes


def test_a_step_within_a_budget_has_the_same_bits_in_fewer_bytes() -> None:
    wanted, plain = steps_within(None, "dp=2")
    limit = int(plain * 0.9)
    found, small = steps_within(limit, "dp=2")
    assert found[0] == wanted[0]
    assert all(torch.equal(a, b) for a, b in zip(wanted[1:], found[1:], strict=True))
    assert small <= limit


def test_a_budget_that_a_step_cannot_keep_is_refused_in_a_line() -> None:
    with pytest.raises(
        CompileError, match=r"the least possible is [\d,]+ bytes.*; allow \d+ bytes"
    ) as e:
        steps_within("4KiB", None)
    assert "\n" not in str(e.value)
    with pytest.raises(MeshweaveError, match='peak_bytes = "lots": a number of B, KiB'):
        steps_within("lots", None)
    with pytest.raises(MeshweaveError, match='peak_bytes = "lots": a number of B, KiB'):
        mw.torch_backend(peak_bytes="lots")
    with pytest.raises(UsageError, match="peak_bytes: of programs whose sizes are known"):
        n = mw.Dim("n", max=8)
        mw.from_torch(nn.Linear(4, 4).eval(), (mw.ShapeDtype((n, 4), "f32"),), peak_bytes="1MiB")


def test_the_programs_of_a_backend_keep_a_budget() -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x.transpose(1, 2), -1) @ x

    model, x = Attention(), torch.randn(8, 32, 16)
    backend = mw.torch_backend(peak_bytes="12KiB")  # the scores of all are 32 KiB
    with torch.no_grad():
        assert torch.allclose(torch.compile(model, backend=backend)(x), model(x), atol=1e-5)
    too_small = torch.compile(model, backend="meshweave", options={"peak_bytes": "64B"})
    with torch.no_grad(), pytest.raises(Exception, match=r"peak_bytes = .64B"):
        too_small(x)
