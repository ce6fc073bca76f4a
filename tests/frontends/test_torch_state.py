"""PyTorch modules that write their buffers or arguments: the program's state changes as in eager PyTorch, in place."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import meshweave as mw  # noqa: E402
from meshweave.torch import ports  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def near(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


class Cache(nn.Module):
    """A cache of rows in a buffer, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("rows", torch.zeros(2, 16, 8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any, place: Any) -> Any:
        self.rows.index_copy_(1, place, self.linear(x))
        self.count.add_(1)
        return self.rows.sum(1)


class Rows(nn.Module):
    """An argument that is written by its places, and read again."""

    def forward(self, rows: Any, x: Any, place: Any) -> Any:
        rows[:, place] = x[:, None]
        return rows.sum(-1), x + 1


class Scaled(nn.Module):
    def forward(self, x: Any) -> Any:
        x.mul_(2.0)
        return x[0].sum()


MESHES = [("", {}), ("tp=2", {"rows": "[_, _, tp]"}), ("tp=2", {"rows": "[_, tp, _]"})]


@pytest.mark.parametrize(
    ("engine", "mesh", "placements"), [*(("local", *mesh) for mesh in MESHES), ("mpi", *MESHES[1])]
)
def test_buffers_are_the_state_of_a_program(engine: str, mesh: str, placements: Any) -> None:
    module = Cache().eval()
    eager, before = copy.deepcopy(module), copy.deepcopy(module.state_dict())
    like = torch.zeros(2, 1, 8), torch.tensor([0])
    with mw.from_torch(module, like, placements, mesh=mesh or None, engine=engine) as program:
        for k in range(4):
            x, place = torch.randn(2, 1, 8), torch.tensor([5 * k % 16])
            with torch.no_grad():
                near(program(x, place), eager(x, place))
        near(torch.from_numpy(program.parameters["rows"].numpy()), eager.rows)
        assert int(program.parameters["count"]) == 4
        assert "copied of donated state" in program.explain()
        program.bind({"rows": torch.ones(2, 16, 8)})
        eager.rows.fill_(1)
        with torch.no_grad():
            near(program(x, place), eager(x, place))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_batch_norm_in_training_mode_writes_its_statistics() -> None:
    module = nn.BatchNorm1d(5).train()
    eager = copy.deepcopy(module)
    with mw.from_torch(module, (torch.zeros(7, 5),)) as program:
        for _ in range(3):
            x = torch.randn(7, 5)
            with torch.no_grad():
                near(program(x), eager(x))
        for name in ("running_mean", "running_var"):
            near(torch.from_numpy(program.parameters[name].numpy()), getattr(eager, name))


@pytest.mark.parametrize("mesh", ["", "x=2"])
def test_arguments_of_every_kind_are_written(mesh: str) -> None:
    given = torch.randn(2, 6, 4)
    like = torch.zeros(2, 6, 4), torch.zeros(2, 4), torch.tensor([0])
    placements = {"rows": "[_, x, _]"} if mesh else {}
    with mw.from_torch(Rows(), like, placements, mesh=mesh or None) as program:
        port = program.program.inputs[0]
        kinds = {
            "tensor": given.clone(), "array": given.numpy().copy(),
            "Array": mw.Array.from_numpy(given.numpy(), mesh=mesh, layout=port.layout),
            "turned": given.mT.contiguous().mT,
        }  # fmt: skip
        for value in kinds.values():
            eager, x, place = given.clone(), torch.randn(2, 4), torch.tensor([3])
            right = Rows()(eager, x, place)
            found = program(value, x, place)
            for got, want in zip(found, right, strict=True):
                np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)
            np.testing.assert_array_equal(np.asarray(value), eager)


COMPILED: list[tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]], str, Any]] = [
    (lambda: nn.BatchNorm1d(5).train(), lambda k: (torch.randn(7, 5),), "", {}),
    (Cache, lambda k: (torch.randn(2, 1, 8), torch.tensor([k])), "", {}),
    (Cache, lambda k: (torch.randn(2, 1, 8), torch.tensor([k])), "tp=2", {"rows": "[_, tp, _]"}),
    (Rows, lambda k: (torch.ones(2, 64, 4), torch.randn(2, 4), torch.tensor([k])), "", {}),
    (Rows, lambda k: (torch.ones(2, 6, 4), torch.randn(2, 4), torch.tensor([k])), "x=2", {}),
]


@pytest.mark.parametrize(("make", "arguments", "mesh", "placements"), COMPILED)
def test_compiled_modules_write_what_eager_ones_write(
    make: Any, arguments: Any, mesh: str, placements: Any
) -> None:
    module = make()
    eager = copy.deepcopy(module)
    fast = torch.compile(module, backend=mw.torch_backend(mesh=mesh or None, placements=placements))
    first = arguments(0)
    theirs = copy.deepcopy(first)
    with torch.no_grad():
        for k in range(3):
            rest = arguments(k)[1:] if len(first) == 3 else ()
            if len(first) == 3:  # the first argument is the state
                first, theirs = (first[0], *rest), (theirs[0], *rest)
            near(fast(*first), eager(*theirs))
            for ours, right in zip(first, theirs, strict=True):
                near(ours, right)
    for name, value in eager.state_dict().items():
        near(module.state_dict()[name], value)


def test_a_compiled_program_works_in_the_memory_of_a_tensor() -> None:
    """Aligned tensors are written where they lie; others are copied, in turns with them."""
    with mw.from_torch(Scaled(), (torch.ones(4, 8),)) as program:
        whole = torch.ones(5, 8)
        odd = torch.ones(33)[1:].view(4, 8)  # not aligned
        for value in (whole[:4].clone(), odd, whole[:4].clone(), odd):
            before = value.clone()
            assert program(value) == 2 * before[0].sum()
            assert torch.equal(value, 2 * before)
        ports = program._ports
        assert ports is not None and len(ports.call.inputs) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.add_(1),
        lambda x: (x.add_(1), x[0]),
        lambda x: (x.add_(1)[1], x * 2),
        lambda x: x[0].mul_(2),
        lambda x: (x.t(), x[1:].mul_(3)),
    ],
)
def test_results_that_lie_in_a_written_argument(function: Any) -> None:
    ours, theirs = (torch.arange(12.0).reshape(4, 3) for _ in range(2))
    with torch.no_grad():
        found, right = torch.compile(function, backend="meshweave")(ours), function(theirs)
        assert torch.equal(ours, theirs)
        ours.add_(1)
        theirs.add_(1)
    pairs = zip(found, right, strict=True) if isinstance(right, tuple) else [(found, right)]
    for got, want in pairs:
        assert torch.equal(got, want)


class StaticLayer(nn.Module):
    """A cache of keys and values as that of transformers: how long it is, is a tensor that is written too."""

    def __init__(self, sizes: tuple[int, ...] = (), form: str = "index_copy_") -> None:
        super().__init__()
        self.form = form
        self.keys = self.values = torch.zeros(0)
        self.length = torch.tensor(0)
        if sizes:
            self.keys, self.values = torch.zeros(sizes), torch.zeros(sizes)

    def update(self, k: Any, v: Any) -> tuple[Any, Any]:
        place = torch.arange(k.shape[-2]) + self.length
        self.length.add_(k.shape[-2])
        for whole, new in ((self.keys, k), (self.values, v)):
            if self.form == "setitem":
                whole[:, :, place] = new
            else:
                whole.index_copy_(2, place, new)
        return self.keys, self.values


class Attending(nn.Module):
    """Two layers of attention over such caches, and the logits of the next token."""

    def __init__(self, form: str, buffers: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.mix = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.form, self.caches = form, nn.ModuleList()
        for _ in range(2 if buffers else 0):
            cache = StaticLayer((2, 2, 12, 8), form)
            for name in ("keys", "values", "length"):
                value = getattr(cache, name)
                delattr(cache, name)
                cache.register_buffer(name, value)
            self.caches.append(cache)

    def forward(self, tokens: Any, caches: Any = None) -> Any:
        x = self.words(tokens)
        for mix, cache in zip(self.mix, caches or self.caches):
            heads = mix(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
            place = torch.arange(x.shape[1]) + cache.length
            keys, values = cache.update(heads[1], heads[2])
            seen = torch.arange(12) <= place[:, None]
            weights = (heads[0] @ keys.mT).masked_fill(~seen, -1e9).softmax(-1)
            x = x + (weights @ values).transpose(1, 2).reshape(x.shape)
        return self.head(x[:, -1])


def decoded(module: Any, step: Any, caches: Any, count: int = 5) -> Any:
    """Greedy tokens behind a prompt, which is read by eager torch; then `step` decodes."""
    tokens, made = torch.arange(6).view(2, 3), []
    with torch.no_grad():
        logits = module(tokens, caches)
        for _ in range(count):
            made.append(logits.argmax(-1, keepdim=True))
            logits = step(made[-1], caches)
    return torch.cat(made, 1)


@pytest.mark.parametrize(
    ("form", "buffers", "mesh"),
    [
        ("index_copy_", False, ""),
        ("setitem", True, ""),
        ("index_copy_", True, "tp=2"),
        ("setitem", False, "tp=2"),
    ],
)
def test_a_static_cache_is_decoded_in_place(
    form: str, buffers: bool, mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens and caches as eager, nothing copied in a step, and, on one rank, in the memory of the tensors."""
    module = Attending(form, buffers).eval()
    eager = copy.deepcopy(module)
    ours, theirs = (
        None if buffers else [StaticLayer((2, 2, 12, 8), form) for _ in range(2)] for _ in range(2)
    )
    programs: list[Any] = []
    from_torch = mw.from_torch

    def noted(*args: Any, **kwargs: Any) -> Any:
        programs.append(from_torch(*args, **kwargs))
        return programs[-1]

    placements = {"*keys*": "[_, tp, _, _]"} if buffers and mesh else {}
    monkeypatch.setattr("meshweave.torch.backend.from_torch", noted)
    backend = mw.torch_backend(mesh=mesh or None, placements=placements)
    fast = torch.compile(module, backend=backend)
    assert torch.equal(decoded(module, fast, ours), decoded(eager, eager, theirs))
    held = [module.caches if buffers else ours, eager.caches if buffers else theirs]
    for mine, right in zip(*held, strict=True):
        near(mine.keys, right.keys)
        near(mine.values, right.values)
        assert int(mine.length) == int(right.length) == 8
    (program,) = programs
    written = program.program.bundle.manifest.donated
    assert len(written) == 6 and len(program.written) == 6
    (line,) = (t for t in program.explain().splitlines() if "copied of donated state" in t)
    assert line.split("│")[2].strip() == "0"
    direct = program._ports._direct
    assert mesh or [memory is not None for memory in direct.values()] == [True] * 6


def test_pieces_of_a_module_see_what_the_others_write() -> None:
    """A buffer that a program writes where it lies counts as written, also where buffers are frozen to others."""

    class Pieces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(64))

        def forward(self, x: Any) -> Any:
            self.state.add_(x)
            torch._dynamo.graph_break()
            return self.state * 2

    for frozen in (False, True):
        torch._dynamo.reset()
        module = Pieces().eval()
        fast = torch.compile(module, backend=mw.torch_backend(frozen=frozen))
        with torch.no_grad():
            for k in range(3):
                near(fast(torch.ones(64)), torch.full((64,), 2.0 * (k + 1)))


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_state_is_written_by_calls_of_any_size(mesh: str | None) -> None:
    """As many rows as a call has go into a buffer where it lies; an argument is what is written to it."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(16, 4))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Any, places: Any, total: Any) -> Any:
            self.cache.index_copy_(0, places, x)
            self.calls.add_(1)
            total.add_(x.sum(0))
            return (x @ self.cache.T).softmax(-1) @ self.cache

    n, module, mine, own = mw.Dim("n", max=8), Kept(), torch.zeros(4), torch.zeros(4)
    kinds = mw.ShapeDtype((n, 4), "f32"), mw.ShapeDtype((n,), "i64"), mine
    placements = {"cache": "[x, _]"} if mesh else None
    with mw.from_torch(Kept(), kinds, placements, mesh) as program:
        for size, first in ((8, 0), (3, 2), (1, 15)):
            x, places = torch.randn(size, 4), torch.arange(size) + first
            near(program(x, places, mine), module(x, places, own))
            near(mine, own)
        near(torch.from_numpy(program.parameters["cache"].numpy()), module.cache)
        assert program.parameters["calls"].numpy() == 3
        assert set(program.program.bundle.manifest.donated.values()) == {0, 1, 2}


def test_rows_of_every_head_are_written_by_calls_of_any_size() -> None:
    """What a call has of each head lies apart where the bound puts it, and goes where the call says."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(2, 3, 16, 4))

        def forward(self, x: Any, first: Any) -> Any:
            rows = x.view(2, x.shape[1], 3, 4).transpose(1, 2)
            self.cache.index_copy_(2, torch.arange(x.shape[1]) + first, rows)
            return self.cache.sum(-1)

    n, module, first = mw.Dim("n", max=8), Heads(), torch.zeros((), dtype=torch.int64)
    with mw.from_torch(Heads(), (mw.ShapeDtype((2, n, 12), "f32"), first)) as program:
        for size, begin in ((8, 0), (3, 5), (1, 15)):
            x = torch.randn(2, size, 12)
            near(program(x, first + begin), module(x, first + begin))
        (line,) = (t for t in program.explain().splitlines() if "copied of donated state" in t)
        assert line.split("│")[2].strip() == "0"


@pytest.mark.parametrize("marked", [True, False])
def test_one_program_reads_prompts_of_any_length_into_a_cache(marked: bool) -> None:
    """Also where torch leaves all sizes open, those of the cache too, which is written where it lies."""
    module = Attending("index_copy_", False).eval()
    backend = mw.torch_backend()
    fast = torch.compile(module, backend=backend, dynamic=None if marked else True)
    for length in (6, 2, 8):
        tokens = torch.arange(2 * length).view(2, length) % 20
        ours, theirs = ([StaticLayer((2, 2, 12, 8), "index_copy_") for _ in range(2)] for _ in "ab")
        if marked:
            torch._dynamo.mark_dynamic(tokens, 1, min=2, max=8)
        with torch.no_grad():
            near(fast(tokens, ours), module(tokens, theirs))
        for mine, right in zip(ours, theirs, strict=True):
            near(mine.keys, right.keys)
            near(mine.values, right.values)
    assert backend.cache_info().misses == 1


class Expert(nn.Module):
    """A layer that torch hands over by itself, so that all experts have one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6)

    def forward(self, x: Any) -> Any:
        torch._dynamo.graph_break()
        return self.up(x).relu()


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList([Expert() for _ in range(3)])

    def forward(self, x: Any, sizes: Any) -> Any:
        return torch.cat([own(rows) for own, rows in zip(self.each, x.split(sizes))])


@pytest.mark.parametrize("mesh", [None, "tp=2"])
@pytest.mark.parametrize("frozen", [False, True])
def test_modules_that_share_a_piece_are_each_laid_out_once(
    mesh: str | None, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid, lay_out = [], ports.laid_out_whole
    monkeypatch.setattr(
        ports, "laid_out_whole", lambda *given: laid.append(given[0].shape) or lay_out(*given)
    )
    module, x, kept = Experts().eval(), torch.randn(12, 4), mw.torch_backend(mesh, frozen=frozen)
    fast = torch.compile(module, backend=kept)
    with torch.no_grad():
        for sizes in ([4, 4, 4], [3, 7, 2]):  # a program for four rows, and one for any number
            near(fast(x, sizes), module(x, sizes))
        laid.clear()
        near(fast(x, [5, 2, 5]), module(x, [5, 2, 5]))
        module.each[1].up.weight.mul_(2)
        for sizes in ([5, 2, 5], [4, 4, 4]):
            near(fast(x, sizes), module(x, sizes))
        assert laid == [(6, 4)]
        assert kept.cache_info().misses == 2
        module.each[1] = Expert()
        near(fast(x, [5, 2, 5]), module(x, [5, 2, 5]))


def test_what_is_laid_out_of_a_tensor_ends_with_it() -> None:
    kept = mw.torch_backend(frozen=True)
    fast, x = torch.compile(lambda own, x: own.up(x), backend=kept), torch.ones(2, 4)
    with torch.no_grad():
        for _ in range(3):
            expert = Expert()
            near(fast(expert, x), expert.up(x))
    del expert
    gc.collect()
    assert len(kept._laid._kept) == 2  # of the first, which the graph of torch keeps
