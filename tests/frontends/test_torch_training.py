"""torch.compile with gradients: losses, gradients and states beside eager PyTorch, on one rank and on meshes."""

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.errors import UsageError  # noqa: E402
from meshweave.frontends.torch.decompositions import gradients, special  # noqa: E402
from meshweave.torch import program  # noqa: E402
from meshweave.torch.scores import remake_scores  # noqa: E402
from tests.frontends.test_torch_hints import kernels_of  # noqa: E402

WIDTH, WORDS = 16, 20
MESHES: dict[str, dict[str, Any]] = {
    "one rank": {},
    "dp and tp": {
        "mesh": "dp=2, tp=2",
        "placements": {
            "words": "[dp, _]",
            "block.up.weight": "[tp, _]",
            "block.up.bias": "[tp]",
            "block.down.weight": "[_, tp]",
        },
    },
    "uneven": {"mesh": "x=3", "placements": {"words": "[x, _]"}},
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """A layer of a transformer, with dropout."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        count, length, _ = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(count, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(mixed.transpose(1, 2).reshape(count, length, WIDTH))
        return x + self.drop(self.down(F.gelu(self.up(x))))


class Language(nn.Module):
    """Words to words, with tied weights."""

    def __init__(self, recompute: bool = False, dropout: float = 0.2) -> None:
        super().__init__()
        self.table, self.block, self.recompute = (
            nn.Embedding(WORDS, WIDTH),
            Block(dropout),
            recompute,
        )

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words)
        x = checkpoint(self.block, x, use_reentrant=False) if self.recompute else self.block(x)
        return x @ self.table.weight.T


class Images(nn.Module):
    """Convolutions, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, stride=2), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.silu(self.norm(self.first(x))), 2)
        return self.last(self.second(x).mean((2, 3)))


class Kept:
    """A backend that keeps the pieces it is given."""

    def __init__(self, **options: Any) -> None:
        self.pieces: list[Any] = []
        self._compile = mw.torch_backend(**options)

    def __call__(self, graph: Any, example: Any) -> Any:
        self.pieces.append(self._compile(graph, example))
        return self.pieces[-1]

    @property
    def trained(self) -> list[Any]:
        return [one for piece in self.pieces for one in piece.trained.values()]


def twins(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """Two modules with the same parameters."""
    one, other = make(), make()
    other.load_state_dict(one.state_dict())
    return one, other


def words() -> Tensor:
    return torch.randint(WORDS, (4, 6))


def loss_of(module: Callable[..., Tensor], given: Tensor) -> Tensor:
    return F.cross_entropy(module(given).reshape(-1, WORDS).float(), given.reshape(-1))


def near(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    assert one.dtype == other.dtype
    wide, wanted = one.detach().double(), other.detach().double()
    assert float((wide - wanted).abs().max()) <= tolerance * (0.1 + float(wanted.abs().max()))


def same_gradients(one: nn.Module, other: nn.Module, tolerance: float = 1e-5) -> None:
    for found, wanted in zip(one.parameters(), other.parameters(), strict=True):
        assert (found.grad is None) == (wanted.grad is None)
        if wanted.grad is not None:
            near(found.grad, wanted.grad, tolerance)


@pytest.mark.parametrize("options", MESHES.values(), ids=MESHES)
def test_losses_of_a_language_model_are_those_of_eager(options: dict[str, Any]) -> None:
    """With dropout: torch draws the same numbers, whatever the mesh."""
    given: list[Tensor] = [words(), words()]
    losses: list[list[float]] = []
    for module, fast in zip(twins(Language), (True, False), strict=True):
        call = torch.compile(module, backend=Kept(**options)) if fast else module
        optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
        torch.manual_seed(5)
        losses.append([])
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(call, given[step % 2])
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_what_is_saved_lies_where_the_forward_program_leaves_it() -> None:
    kept, module = Kept(**MESHES["dp and tp"]), Language()
    loss_of(torch.compile(module, backend=kept), words()).backward()
    (trained,) = kept.trained
    forward, backward = trained.forward.program, trained.backward.program
    saved = [(port.layout, tuple(port.global_shape)) for port in forward.outputs[1:]]
    assert ("[dp, tp]", (24, 32)) in saved
    read = [(port.layout, tuple(port.global_shape)) for port in backward.inputs]
    assert all(one in read for one in saved)


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_running_statistics_are_updated(mesh: str | None) -> None:
    ones = twins(Images)
    for module, fast in zip(ones, (True, False), strict=True):
        options = {"mesh": mesh, "placements": {"x": "[x, _, _, _]"}} if mesh else {}
        call = torch.compile(module, backend=Kept(**options)) if fast else module
        torch.manual_seed(1)
        for _ in range(2):
            call(torch.randn(5, 2, 9, 9)).square().sum().backward()
    same_gradients(*ones)
    for found, wanted in zip(*[one.buffers() for one in ones], strict=True):
        near(found, wanted)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_what_is_computed_again_is_drawn_again(dropout: float) -> None:
    ones = twins(lambda: Language(recompute=True, dropout=dropout))
    given = words()
    for module, fast in zip(ones, (True, False), strict=True):
        torch.manual_seed(2)
        loss_of(torch.compile(module, backend="meshweave") if fast else module, given).backward()
    same_gradients(*ones)


def test_masks_of_dropout_lie_as_what_they_are_for() -> None:
    """Torch draws in the order of memory, also of a transposed tensor, and of one that repeats rows."""

    def dropped(x: Tensor) -> tuple[Tensor, ...]:
        turned, some, repeated = x.t(), x[:, ::2], x[:1].expand(4, 6)
        return tuple([F.dropout(each, 0.5) for each in (turned, some, repeated)])

    x, found = torch.randn(5, 6), list[tuple[Tensor, ...]]()
    for call in (torch.compile(dropped, backend="meshweave"), dropped):
        torch.manual_seed(3)
        found.append(call(x))
    for ours, theirs in zip(*found, strict=True):
        near(ours, theirs)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool) -> None:
    class Cast(Language):
        def forward(self, words: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                return super().forward(words)

    ones, given, losses = twins(Cast), words(), []
    for module, fast in zip(ones, (True, False), strict=True):
        torch.manual_seed(2)
        call = torch.compile(module, backend="meshweave") if fast else module
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            loss = loss_of(call, given)
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    same_gradients(*ones, 5e-2)


def test_what_autocast_leaves_in_f32_goes_back_in_f32() -> None:
    def product(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return (x @ x.mT).square()

    found, start = list[Tensor](), torch.randn(4, 6)
    for call in (torch.compile(product, backend="meshweave"), product):
        x = start.clone().requires_grad_(True)
        with torch.autocast("cpu", torch.bfloat16):
            made = call(x)
        made.sum().backward()
        assert x.grad is not None
        found.append(x.grad)
    near(*found)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def test_gradients_add_up_over_calls() -> None:
    ones = twins(mlp)
    for module, fast in zip(ones, (True, False), strict=True):
        call = torch.compile(module, backend="meshweave") if fast else module
        call(torch.ones(3, 6)).square().sum().backward()
        call(torch.full((3, 6), 0.5)).square().sum().backward()
    same_gradients(*ones)


def test_frozen_parameters_gradients_of_inputs_and_other_shapes() -> None:
    kept, ones, given = Kept(), twins(mlp), []
    for module, fast in zip(ones, (True, False), strict=True):
        module[0].weight.requires_grad_(False)
        call = torch.compile(module, backend=kept) if fast else module
        for rows in (3, 5, 3, 7):
            x = torch.linspace(-1, 1, rows * 6).reshape(rows, 6).requires_grad_(True)
            call(x).square().sum().backward()
            given.append(x.grad)
    same_gradients(*ones)
    for found, wanted in zip(given[:4], given[4:], strict=True):
        near(found, wanted)
    assert len(kept.trained) <= 4  # the first shape, then each once in the piece of any size


def test_results_that_share_memory_and_writes_in_place() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            made = self.layer(x).relu_()
            self.seen.add_(made.detach().sum(0))
            return made, made.T

    ones = twins(Writes)
    for module, fast in zip(ones, (True, False), strict=True):
        call = torch.compile(module, backend="meshweave") if fast else module
        for _ in range(2):
            made, turned = call(torch.linspace(0, 1, 18).reshape(3, 6))
            assert made.data_ptr() == turned.data_ptr()
            (made.sum() + turned[0].sum()).backward()
    same_gradients(*ones)
    near(ones[0].seen, ones[1].seen)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_step_of_an_optimizer_is_compiled(make: Callable[..., torch.optim.Optimizer]) -> None:
    ones = twins(mlp)
    for module, fast in zip(ones, (True, False), strict=True):
        optimizer = make(module.parameters())
        step = torch.compile(optimizer.step, backend="meshweave") if fast else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.ones(3, 6)).square().sum().backward()
            step()
    for found, wanted in zip(*[one.parameters() for one in ones], strict=True):
        near(found, wanted, 1e-4)


def test_kernels_around_a_call_count_for_its_gradients_too() -> None:
    kept, module = Kept(), mlp()
    call = torch.compile(module, backend=kept)
    with mw.kernels(only=("reference",)):
        loss = call(torch.ones(3, 6)).sum()
    loss.backward()
    (trained,) = kept.trained
    assert trained.forward.kernels == trained.backward.kernels
    assert "blas" in trained.backward.kernels.disabled


def test_saved_tensors_cannot_be_moved() -> None:
    call = torch.compile(mlp(), backend="meshweave")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = call(torch.ones(3, 6)).sum()
    with pytest.raises(
        UsageError, match="saved_tensors_hooks that move or copy it are not supported"
    ):
        loss.backward()


BAGS = torch.tensor([[0, 3, 3, 6], [5, 1, 0, 2]])
EDGES = {
    "activations": lambda x: [
        *(one(x) for one in (F.silu, F.mish, F.gelu, F.elu, F.softplus, F.hardswish, F.logsigmoid)),
        F.glu(x.flatten(1), 1),
        F.leaky_relu(x),
        F.log_softmax(x, -1),
        F.gelu(x, approximate="tanh"),
    ],
    "pooling": lambda x: [
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.avg_pool2d(x, 2, divisor_override=3),
        F.avg_pool1d(x[0], 2),
        F.avg_pool3d(x, 2),
        F.adaptive_avg_pool2d(x, (3, 4)),
        F.adaptive_avg_pool2d(x, 1),
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool3d(x, 2),
        F.adaptive_max_pool2d(x, (2, 3)),
        F.adaptive_max_pool3d(x, (2, 3, 4)),
        F.adaptive_avg_pool3d(x, (2, 3, 4)),
    ],
    "padding": lambda x: [
        *(F.pad(x, (1, 2, 0, 3), mode=mode) for mode in ("constant", "reflect", "replicate")),
        F.pad(x, (-1, 2, 1, -2), mode="replicate"),
    ],
    "places": lambda x: [
        x.sort(-1)[0],
        x.cumsum(-1),
        x.amax(-1),
        x[:, :, [0, 2, 2]],
        x.roll(1, -1),
        torch.einsum("abij,abkj->abik", x, x),
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.layer_norm(x, x.shape[-1:]),
        torch.linalg.inv(x[0, 0, :, :7] + 9 * torch.eye(7)),
    ],
    "special": lambda x: [
        torch.erfc(x),
        torch.lgamma(x),
        torch.digamma(x.abs() + 0.1),
        torch.fmod(x, 0.7),
        torch.take(x, torch.tensor([[0, -1], [5, 5]])),
        *(torch.cdist(x[0], x[1].flip(1)[:, :5], p=p) for p in (0.5, 1.0, 2.0, 3.0, torch.inf)),
        torch.cdist(x[0], x[0]),
        torch._weight_norm(x[0], x[1, :, :1, :1], 0),
        torch._weight_norm(x[0], x[1, :1, :1], 2),
    ],
    "places between": lambda x: [
        F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), "bilinear", padding, corners)
        for padding, corners in (("zeros", False), ("border", True))
    ],
    "a sum": lambda x: [x.sum(-1)],  # its gradient repeats elements
    "windows": lambda x: [(2 * x).unfold(-1, 3, 2), x.unfold(2, 3, 1), x.unfold(3, 2, 4)],
    "bags": lambda x: [
        *(F.embedding_bag(BAGS, x[0, 0], mode=mode) for mode in ("sum", "mean", "max")),
        F.embedding_bag(BAGS[0], x[0, 0], torch.tensor([0, 2, 2]), mode="max"),
        F.embedding_bag(BAGS, x[0, 1], mode="mean", padding_idx=3),
        F.embedding_bag(BAGS, x[0, 2], per_sample_weights=x[1, 0, :2, :4], mode="sum"),
        F.embedding_bag(
            BAGS[1], x[0, 3], torch.tensor([0, 1, 4]), mode="sum", include_last_offset=True
        ),
    ],
}


@pytest.mark.parametrize("several", EDGES.values(), ids=EDGES)
def test_gradients_of_ops(several: Callable[[Tensor], list[Tensor]]) -> None:
    start, found = torch.randn(2, 4, 7, 9), []
    for fast in (True, False):
        x = start.clone().requires_grad_(True)
        made = (torch.compile(several, backend="meshweave") if fast else several)(x)
        torch.manual_seed(3)
        total = sum((one * torch.randn(one.shape)).sum() for one in made)
        found.append(torch.autograd.grad(total, x)[0])
    near(*found, 1e-4)


def test_special_functions_are_as_exact_as_those_of_torch() -> None:
    x = torch.cat([torch.linspace(-6.03, 27, 999), torch.tensor([0.0, 1, 2, 1e30, torch.inf])])
    x = x.double()
    for name, *rest in (("erfc",), ("lgamma",), ("digamma",), ("polygamma", 1)):
        op = getattr(torch.ops.aten, name).default
        found, wanted = special.decompositions()[op](*rest, x), op(*rest, x)
        within = 1e-8 if rest else 1e-11  # torch's own polygamma has no more digits
        torch.testing.assert_close(found, wanted, rtol=within, atol=1e-13)
    assert torch.isnan(special.decompositions()[torch.ops.aten.digamma.default](-x[-4:-2])).all()


def test_parameters_are_copied_as_plain_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call lays them out, so it must not take the long way that Arrays of any layout need."""
    module, kept, taken = mlp(), Kept(), []
    call = torch.compile(module, backend=kept)
    call(torch.ones(3, 6)).sum().backward()
    whole = program.placed
    monkeypatch.setattr(program, "placed", lambda *a: taken.append(type(a[0])) or whole(*a))
    call(torch.ones(3, 6)).sum().backward()
    assert taken
    assert set(taken) == {mw.Array}


def test_three_dims_of_maxima_and_their_places() -> None:
    class Largest(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return F.max_pool3d(x, (2, 3, 2), 2, (1, 0, 1), (1, 2, 1), True, return_indices=True)

    module, x = Largest().eval(), torch.randn(2, 2, 6, 7, 8)
    x[0, :, :4] = -torch.inf  # windows of nothing else, where padding is no place
    with mw.from_torch(module, (x,)) as program:
        for made, wanted in zip(program(x), module(x), strict=True):
            assert torch.equal(made, wanted)


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_what_is_saved_may_be_a_gradient_itself(mesh: str | None) -> None:
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            slope = x * x + 1
            ctx.save_for_backward(slope)
            return x.sum()

        @staticmethod
        def backward(ctx: Any, *slopes: Tensor) -> Tensor:
            (slope,) = ctx.saved_tensors
            return slope

    x = torch.randn(4, 6, requires_grad=True)
    options = {"mesh": mesh, "placements": {"x": "[x, _]"}} if mesh else {}
    torch.compile(lambda x: Linear.apply(x), backend=Kept(**options))(x).backward()
    near(x.grad, x.detach() * x.detach() + 1)


def test_the_arguments_of_the_first_call_are_not_kept() -> None:
    module, kept = mlp(), Kept()
    call, x = torch.compile(module, backend=kept), torch.randn(3, 6)
    gone = weakref.ref(x)
    call(x).sum().backward()
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("padded", [True, False])
def test_means_of_many_windows_in_bf16(padded: bool) -> None:
    """Places beyond 256 are no numbers of bf16: what a window counts is computed in integers."""
    x = torch.randn(1, 1, 3, 700, dtype=torch.bfloat16, requires_grad=True)
    slope = torch.ones_like(made := F.avg_pool2d(x, 3, 2, 1, count_include_pad=padded))
    settings = ([3, 3], [2, 2], [1, 1], False, padded, None)
    found = gradients.decompositions()[torch.ops.aten.avg_pool2d_backward.default](
        slope, x.detach(), *settings
    )
    assert torch.equal(found, torch.autograd.grad(made, x, slope)[0])


class Heads(nn.Module):
    """PyTorch's attention of the parts of one product."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv, self.causal = nn.Linear(WIDTH, 3 * WIDTH), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


@pytest.mark.parametrize("causal", [True, False])
def test_an_attention_saves_no_scores(causal: bool) -> None:
    module, x = Heads(causal), torch.randn(2, 160, WIDTH)
    (module(x) ** 2).sum().backward()
    wanted = [p.grad for p in module.parameters()]
    module.zero_grad()
    backend = Kept()
    (torch.compile(module, backend=backend)(x) ** 2).sum().backward()
    for parameter, right in zip(module.parameters(), wanted):
        torch.testing.assert_close(parameter.grad, right, rtol=1e-4, atol=1e-4)
    (graph,) = backend.trained
    forward, backward = graph.forward, graph.backward
    assert forward is not None and backward is not None
    assert "flash" in kernels_of(forward) and "flash" in kernels_of(backward)
    saved = [port.global_shape for port in forward.program.outputs[1:]]
    assert not any(math.prod(shape) >= 160 * 160 * 4 for shape in saved)


def test_what_scores_are_made_of_is_walked_once() -> None:
    aten, graph = torch.ops.aten, torch.fx.Graph()
    x = graph.placeholder("x")
    product = graph.call_function(aten.bmm.default, (x, x))
    bias = x
    for _ in range(60):  # each step reads the one before twice
        bias = graph.call_function(aten.mul.Tensor, (bias, bias))
    scores = graph.call_function(aten.add.Tensor, (product, bias))
    weights = graph.call_function(aten._softmax.default, (scores, -1, False))
    weights.meta["val"] = torch.empty(2, 160, 160, device="meta")
    graph.output(graph.call_function(aten.bmm.default, (weights, x)))
    remake_scores(graph, None)
    assert [node for node in graph.nodes if node.meta.get("recompute")] == [
        product,
        scores,
        weights,
    ]


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((4, 6), (6, 1), 0),
        ((2, 3), (7, 2), 1),
        ((3, 2), (1, 12), 2),
        ((2, 12), (12, 1), 0),
        ((24,), (1,), 0),
    ],
)
def test_a_part_that_strides_choose_is_written_and_has_gradients(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    def write(whole: Tensor, part: Tensor) -> Tensor:
        return torch.as_strided_scatter(whole * 2, part.sin(), size, stride, offset).square().sum()

    found = []
    for run in (write, torch.compile(write, backend=mw.torch_backend())):
        whole = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
        part = torch.linspace(0, 3, math.prod(size)).reshape(size).requires_grad_()
        loss = run(whole, part)
        loss.backward()
        found.append((loss.detach(), whole.grad, part.grad))
    for wanted, own in zip(*found, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-5, atol=1e-6)
