"""Ops that programs define by `torch.library`: called in Python by compiled code, on any layouts, with gradients."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import meshweave as mw  # noqa: E402
from meshweave.errors import CompileError, RankError  # noqa: E402

Tensor, custom_op = torch.Tensor, torch.library.custom_op


@custom_op("meshweave_tests::running", mutates_args=())
def running(x: Tensor, w: Tensor, by: float, said: str = "") -> Tensor:
    return torch.cumsum(x * w, 0) * by


@custom_op("meshweave_tests::running_back", mutates_args=())
def running_back(slope: Tensor, x: Tensor, w: Tensor, by: float) -> tuple[Tensor, Tensor]:
    back = slope.flip(0).cumsum(0).flip(0) * by
    return back * w, (back * x).sum(0)


@custom_op("meshweave_tests::bump", mutates_args=("x",))
def bump(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return y * 3


@custom_op("meshweave_tests::twice", mutates_args=())
def twice(values: list[Tensor]) -> list[Tensor]:
    return [v.clone() if v.dtype == torch.bool else v + v for v in values]


@custom_op("meshweave_tests::failing", mutates_args=())
def failing(x: Tensor) -> Tensor:
    raise ValueError("below 0")


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.by = inputs[2]


def back(ctx: Any, slope: Tensor) -> Any:
    return *torch.ops.meshweave_tests.running_back(slope, *ctx.saved_tensors, ctx.by), None, None


running.register_fake(lambda x, w, by, said="": torch.empty_like(x))
running_back.register_fake(lambda slope, x, w, by: (torch.empty_like(x), torch.empty_like(w)))
running.register_autograd(back, setup_context=keep)
bump.register_fake(lambda x, y: torch.empty_like(y))
twice.register_fake(lambda values: [torch.empty_like(v) for v in values])
failing.register_fake(torch.empty_like)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.w = torch.nn.Linear(5, 5), torch.nn.Parameter(torch.rand(5))

    def forward(self, x: Any) -> Any:
        return torch.tanh(torch.ops.meshweave_tests.running(self.up(x), self.w, 0.5)).sum(-1)


class Extremes(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return torch.maximum(x, y), torch.minimum(x, y), x.clamp(-0.5, 0.5), torch.clamp(x, y)


@pytest.mark.parametrize(("mesh", "layout"), [(None, None), ("x=2", "[x, _]")])
def test_an_op_with_a_gradient_of_its_own_trains(mesh: str | None, layout: str | None) -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(7, 5)
    other = copy.deepcopy(model)
    said = {} if layout is None else {"x": layout}
    fast = torch.compile(model, backend=mw.torch_backend(mesh, said), fullgraph=True)
    found, wanted = fast(x), other(x)
    assert torch.allclose(found, wanted, atol=1e-5)
    found.square().mean().backward()
    wanted.square().mean().backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, atol=1e-4)


def test_no_op_that_is_lowered_here_is_called() -> None:
    """Ops of our own, which stand for those of torch while it is traced, have kernels and are no users'."""
    from meshweave.frontends.torch import losses
    from meshweave.frontends.torch.host import is_called

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    with mw.from_torch(Extremes(), (x, y)) as program:
        assert all(map(torch.equal, program(x, y), Extremes()(x, y)))
        assert "mw.host" not in program.text
    known = (str(name).split("::") for name in torch._C._dispatch_get_all_op_names())
    ours = [
        getattr(torch.ops.meshweave, name).default for space, name in known if space == "meshweave"
    ]
    assert ours and not any(map(is_called, ours))
    assert is_called(losses._ctc_losses._opoverload)


def test_its_results_are_proven() -> None:
    model, x = Model().eval(), torch.randn(7, 5)
    with mw.from_torch(model, (x,), {"x": "[_, x]"}, "x=2") as program:
        assert torch.allclose(program(x), model(x), atol=1e-5)
        assert "1 of 1 results proven" in str(program.explain())


@pytest.mark.parametrize("of_argument", [True, False])
def test_what_writes_its_arguments_writes(of_argument: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        z = x if of_argument else x * 2
        return torch.ops.meshweave_tests.bump(z, y) + z

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    ours = x.clone()
    found = torch.compile(function, backend=mw.torch_backend("x=2"), fullgraph=True)(ours, y)
    assert torch.equal(found, function(x, y)) and torch.equal(ours, x)


def test_tensors_of_all_dtypes_go_in_and_out() -> None:
    kinds = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    kinds += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    given = [torch.ones(3, 2).to(kind) for kind in kinds]
    given += [torch.ones(0, 3), torch.tensor(2.0), torch.tensor(3, dtype=torch.bfloat16)]

    def function(*values: Any) -> Any:
        return torch.ops.meshweave_tests.twice(list(values))

    found = torch.compile(function, backend=mw.torch_backend(), fullgraph=True)(*given)
    for one, two in zip(found, function(*given), strict=True):
        assert one.dtype == two.dtype and torch.equal(one, two)


def test_kernels_of_torch_compute_what_nothing_here_lowers() -> None:
    def function(x: Any, image: Any, grid: Any) -> Any:
        special = torch.polygamma(2, x), torch.special.i1(x), torch.i0(x), torch.erfinv(x / 3)
        places = torch.nn.functional.grid_sample(image, grid, "bicubic", align_corners=False)
        small = torch.nn.functional.interpolate(image, (2, 3), mode="bilinear", antialias=True)
        return *special, torch.pdist(x), torch.special.ndtri(x[:0]), places, small

    torch.manual_seed(4)
    values = torch.rand(5, 3) + 1, torch.randn(2, 3, 4, 5), torch.rand(2, 3, 3, 2)
    ours, theirs = ([v.clone().requires_grad_() for v in values] for _ in range(2))
    said = {"x": "[x, _]", "image": "[_, x, _, _]"}
    fast = torch.compile(function, backend=mw.torch_backend("x=2", said), fullgraph=True)
    found, wanted = fast(*ours), function(*theirs)
    for one, two in zip(found, wanted, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)
    for each in (found, wanted):
        torch.stack([one.sin().sum() for one in each]).sum().backward()
    for one, two in zip(ours, theirs, strict=True):
        assert torch.allclose(one.grad, two.grad, rtol=1e-4, atol=1e-4)


def test_what_it_raises_and_what_is_refused_is_said_in_a_line() -> None:
    fast = torch.compile(lambda x: torch.ops.meshweave_tests.failing(x), backend="meshweave")
    with pytest.raises(RankError, match=r"meshweave_tests::failing of Python raised .*: below 0$"):
        fast(torch.ones(3))
    with pytest.raises(
        CompileError, match=r"not supported: meshweave_tests::failing with .*complex64"
    ):
        fast(torch.ones(3, dtype=torch.complex64))
