"""torch.compile with our backend: pieces, shapes, parameters that change, hints, and what is refused."""

import copy
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch_models as tm  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.errors import CompileError, UsageError  # noqa: E402
from meshweave.torch import backend as backends  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Kept:
    """A backend that keeps the pieces it is given."""

    def __init__(self, **options: Any) -> None:
        self.pieces: list[Any] = []
        self.compile = mw.torch_backend(**options)

    def __call__(self, graph: Any, example: Any) -> Any:
        self.pieces.append(self.compile(graph, example))
        return self.pieces[-1]

    @property
    def programs(self) -> list[Any]:
        return [program for piece in self.pieces for program in piece._programs.values()]


def near(found: Any, wanted: Any) -> None:
    assert float((found - wanted).abs().max()) <= 2e-4 * float(wanted.abs().max())


def test_a_block_on_two_ranks_with_its_placements_and_hints() -> None:
    kept = Kept(mesh="tp=2", placements={"mlp.up.weight": "[tp, _]", "x": "[_, _, _]"})
    module = tm.Block({"slice": "t=2", "order": "dfs"}).eval()
    fast, x = torch.compile(module, backend=kept), torch.randn(4, 8, tm.WIDTH)
    with torch.no_grad():
        near(fast(x), module(x))
    (program,) = kept.programs
    assert str(program.parameters["mlp.up.weight"].layout) == "[tp, _]"
    assert {row["outcome"] for row in program.ledger()} == {"honoured"}


def test_other_shapes_are_other_programs_and_known_ones_are_not_compiled_again() -> None:
    kept, module = Kept(), tm.Mlp().eval()
    fast = torch.compile(module, backend=kept)
    with torch.no_grad():
        for size in (3, 5, 3, 9, 5):
            x = torch.randn(size, tm.WIDTH)
            near(fast(x), module(x))
    assert kept.compile.cache_info() == (3, 2, 2)  # the first shape, then all sizes


class Sized(torch.nn.Module):  # type: ignore[misc]
    """Attention over sequences of any number and length; it returns a size too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.into = torch.nn.Embedding(30, 16), torch.nn.Linear(16, 24)
        self.out = torch.nn.Linear(8, 5)

    def forward(self, tokens: Any) -> Any:
        q, k, v = (p[:, None] for p in self.into(self.table(tokens)).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        return self.out(mixed), mixed.mean(1), tokens.shape[1]


@pytest.mark.parametrize("mesh", ["", "x=2"])
def test_sizes_that_torch_leaves_open_are_left_to_each_call(mesh: str) -> None:
    module = Sized().eval()
    compiler = mw.torch_backend(
        mesh=mesh or None, placements={"into.weight": "[x, _]"} if mesh else {}
    )
    fast = torch.compile(module, backend=compiler, dynamic=True)
    calls = ((2, 7, 1), (3, 9, 1), (5, 64, 1), (2, 65, 2), (70, 3, 3), (2, 128, 3), (4, 9, 3))
    for batch, length, programs in calls:
        tokens = torch.randint(0, 30, (batch, length))
        with torch.no_grad():
            found, wanted = fast(tokens), module(tokens)
        near(found[0], wanted[0])
        near(found[1], wanted[1])
        assert found[2] == length and compiler.cache_info().misses == programs
    assert compiler.cache_info() == (4, 3, 1)  # the smaller programs are gone


def test_a_result_of_open_size_and_its_transpose() -> None:
    def both(x: Any) -> Any:
        y = x * 2
        return y, y.t()

    fast = torch.compile(both, backend=mw.torch_backend(), dynamic=True)
    with torch.no_grad():
        for size in (7, 9, 70):
            x = torch.randn(4, size)
            for found, wanted in zip(fast(x), both(x), strict=True):
                near(found, wanted)


def test_a_bound_of_torch_is_that_of_the_program() -> None:
    compiler, module = mw.torch_backend(), tm.Mlp().eval()
    fast = torch.compile(module, backend=compiler)
    x = torch.randn(7, tm.WIDTH)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=200)
    with torch.no_grad():
        for given in (x, torch.randn(200, tm.WIDTH), torch.randn(99, tm.WIDTH)):
            near(fast(given), module(given))
    assert compiler.cache_info() == (2, 1, 1)


@pytest.mark.parametrize(("mesh", "kind"), [(None, torch.float32), ("x=2", torch.bfloat16)])
def test_floats_are_read_in_each_call(mesh: str | None, kind: Any) -> None:
    """One program serves all floats that are only added, multiplied and compared, and all sizes."""
    into = torch.nn.Linear(4, 4).to(kind)

    def scaled(x: Any, by: float) -> Any:
        y = into(x) * (2 * by - 1 / by)
        return torch.where(y > by, y - by, by / (y * y + 1)), x.clone().mul_(by)

    compiler = mw.torch_backend(mesh=mesh)
    fast = torch.compile(scaled, backend=compiler, dynamic=True)
    with torch.no_grad():
        for size, by in ((3, 2.5), (5, 2.5), (5, -0.5), (7, 1e-3), (7, 3e4)):
            x = torch.randn(size, 4).to(kind)
            for found, wanted in zip(fast(x, by), scaled(x, by), strict=True):
                assert found.dtype == wanted.dtype
                if kind == torch.float32:
                    near(found, wanted)
                else:
                    assert torch.allclose(found, wanted, rtol=0.05, atol=0.05 * max(1, abs(by)))
    assert compiler.cache_info() == (4, 1, 1)


def test_a_size_is_returned_beside_a_cache_that_is_written() -> None:
    """As a decoder whose cache holds its own places does."""

    def step(cache: Any, x: Any, places: Any) -> Any:
        cache.index_copy_(0, places, x)
        return cache.sum(0), x.shape[0], 2 * x.shape[0]

    fast = torch.compile(step, backend=mw.torch_backend(), dynamic=True)
    for size in (3, 5, 3):
        x, places = torch.randn(size, 4), torch.arange(size) + 1
        mine, own = torch.zeros(8, 4), torch.zeros(8, 4)
        found, wanted = fast(mine, x, places), step(own, x, places)
        assert found[1:] == wanted[1:] == (size, 2 * size)
        assert torch.equal(mine, own) and torch.allclose(found[0], wanted[0], atol=1e-6)


def test_a_cache_that_counts_in_python_has_one_program() -> None:
    """As transformers' caches with a window do: a number changes in each call, and no tensor needs it."""

    class Window:
        def __init__(self) -> None:
            self.held, self.count = torch.zeros(3, 4), 3

    def step(window: Window, x: Any) -> Any:
        held = window.held.roll(-1, dims=0)
        held[torch.tensor([-1])] = x
        window.held.copy_(held)
        window.count += 1
        return window.held.sum(0)

    compiler = mw.torch_backend()
    fast, mine, own = torch.compile(step, backend=compiler), Window(), Window()
    for _ in range(5):
        x = torch.randn(1, 4)
        assert torch.allclose(fast(mine, x), step(own, x), atol=1e-6)
        assert torch.equal(mine.held, own.held) and mine.count == own.count
    assert compiler.cache_info() == (3, 2, 2)  # the first count, then all
    assert copy.deepcopy({"backend": compiler})["backend"] is compiler, "options of `generate`"


def test_floats_that_change_a_dtype_are_numbers_of_a_program() -> None:
    compiler, x = mw.torch_backend(), torch.arange(6)
    fast = torch.compile(lambda x, by: x * by, backend=compiler, dynamic=True)
    for by in (0.25, 1.75, 0.25):
        assert torch.equal(fast(x, by), x * by) and fast(x, by).dtype == torch.float32
    assert compiler.cache_info() == (4, 2, 2)


def test_numbers_that_are_a_part_of_a_program_do_not_change() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, by: float, rows: bool = True) -> Any:
            return x * by if rows else x

    x = torch.randn(3)
    with mw.from_torch(Scaled(), (x, 1.5), kwargs={"rows": True}) as program:
        assert torch.equal(program(x, 1.5, rows=True), x * 1.5)
        with pytest.raises(UsageError, match=r"argument by is 2\.5, and 1\.5 is a part"):
            program(x, 2.5, rows=True)
        with pytest.raises(UsageError, match="argument rows is False, and True is a part"):
            program(x, 1.5, rows=False)
    with mw.from_torch(Scaled(), (x, torch.tensor(1.5))) as program:
        assert torch.equal(program(x, torch.tensor(2.5)), x * 2.5)


def test_what_cannot_have_open_sizes_has_a_program_for_each() -> None:
    compiler = mw.torch_backend()
    fast = torch.compile(lambda x: torch.sort(x, 0)[0] + x, backend=compiler, dynamic=True)
    with torch.no_grad():
        for size in (5, 9, 5, 12):
            x = torch.randn(size, 3)
            assert torch.equal(fast(x), torch.sort(x, 0)[0] + x)
    assert compiler.cache_info() == (1, 3, 3)
    x = torch.randn(7, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=20)
    with torch.no_grad():
        assert torch.equal(fast(x), torch.sort(x, 0)[0] + x)


def test_parameters_that_were_written_or_replaced_count() -> None:
    module, x = tm.Mlp().eval(), torch.randn(3, tm.WIDTH)
    fast = torch.compile(module, backend=Kept())
    with torch.no_grad():
        before = fast(x)
        module.up.weight.mul_(2)
        near(fast(x), module(x))
        module.down.bias = torch.nn.Parameter(torch.ones(tm.WIDTH))
        near(fast(x), module(x))
        assert not torch.allclose(before, fast(x))
    with torch.inference_mode():
        near(fast(x), module(x))


WRITES = {
    "optimizer": lambda p: torch.optim.SGD([p], lr=0.5).step(),
    "copy_": lambda p: p.copy_(torch.full_like(p, 0.25)),
    "data": lambda p: p.data.mul_(3),
    "other data": lambda p: setattr(p, "data", torch.full_like(p, 0.5)),
    "numpy": lambda p: p.detach().numpy().__imul__(-1),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("mesh", [None, "tp=2"])
def test_no_write_of_a_parameter_goes_unseen(name: str, mesh: str | None) -> None:
    """Not those that torch does not count, through `.data` and NumPy, either."""
    module, x = torch.nn.Linear(4, 6), torch.randn(3, 4)
    module.weight.grad = torch.ones_like(module.weight)
    fast = torch.compile(module, backend=Kept(mesh=mesh))
    with torch.no_grad():
        before = fast(x)
        for _ in range(2):
            WRITES[name](module.weight)
            near(fast(x), module(x))
    assert not torch.allclose(before, module(x)) or name == "numpy"


def test_frozen_parameters_are_not_compared_but_writes_that_torch_counts_are_seen() -> None:
    module, x = torch.nn.Linear(4, 6), torch.randn(3, 4)
    kept = Kept(frozen=True)
    fast = torch.compile(module, backend=kept)
    with torch.no_grad():
        fast(x)
        module.weight.mul_(2)
        near(fast(x), module(x))
        module.weight.data = module.weight.data * 2
        near(fast(x), module(x))


def test_a_buffer_that_changes_between_calls() -> None:
    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            return x + self.shift

    module, x = Shifted().eval(), torch.ones(3, 4)
    fast = torch.compile(module, backend=Kept())
    with torch.no_grad():
        near(fast(x), x)
        module.shift += 2
        near(fast(x), x + 2)
        module.load_state_dict({"shift": torch.full((4,), 5.0)})
        near(fast(x), x + 5)


def test_numbers_drawn_by_chances_that_are_computed_are_refused() -> None:
    x = torch.randn(3, 4)
    with torch.no_grad(), pytest.raises(CompileError, match="random numbers"):
        torch.compile(lambda x: torch.bernoulli(x.sigmoid()), backend=Kept())(x)


def test_arguments_that_lie_otherwise_or_overlap() -> None:
    def both(a: Any, b: Any) -> Any:
        return a * 2 + b

    fast, base = torch.compile(both, backend=Kept()), torch.randn(6, 6)
    pairs = [(base, base), (base.T, base), (base[:3, ::2], base[3:, 1::2]), (base[0:1], base)]
    with torch.no_grad():
        for a, b in pairs:
            near(fast(a, b), both(a, b))


def test_results_that_are_arguments_or_views_of_them() -> None:
    fast, x = torch.compile(lambda v: (v, v[1:], v.T, v + 1), backend=Kept()), torch.randn(4, 4)
    with torch.no_grad():
        same, rows, turned, more = fast(x)
    near(same, x)
    near(rows, x[1:])
    near(turned, x.T)
    near(more, x + 1)


def test_bf16() -> None:
    module, x = tm.Mlp().eval().bfloat16(), torch.randn(3, tm.WIDTH).bfloat16()
    fast = torch.compile(module, backend=Kept(mesh="tp=2", placements={"up.weight": "[tp, _]"}))
    with torch.inference_mode():
        found, wanted = fast(x), module(x)
        assert found.dtype == torch.bfloat16
        assert float((found - wanted).abs().max()) <= 2e-2 * float(wanted.abs().max())


def test_threads_share_a_piece() -> None:
    from concurrent.futures import ThreadPoolExecutor

    module = tm.Mlp().eval()
    fast, xs = torch.compile(module, backend=Kept()), [torch.randn(3, tm.WIDTH) for _ in range(24)]

    def run(x: Any) -> Any:
        with torch.no_grad():
            return fast(x)

    wanted = [module(x).detach() for x in xs]
    run(xs[0])
    with ThreadPoolExecutor(4) as pool:
        for found, right in zip(pool.map(run, xs), wanted, strict=True):
            near(found, right)


def test_a_condition_in_the_graph() -> None:
    def either(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v * 2, (x,))

    fast = torch.compile(either, backend=Kept())
    with torch.no_grad():
        for x in (torch.ones(3, 4), -torch.ones(3, 4)):
            near(fast(x), either(x))


def test_a_break_in_the_graph_gives_pieces_and_unknown_names_a_warning() -> None:
    kept = Kept(placements={"up.weight": "[_, _]"})
    up, down = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = up, down

        def forward(self, x: Any) -> Any:
            y = self.up(x)
            torch._dynamo.graph_break()
            return self.down(y)

    module, x = Broken().eval(), torch.randn(4, 8)
    fast = torch.compile(module, backend=kept)
    with torch.no_grad(), pytest.warns(UserWarning, match='"up.weight" is not in the piece'):
        near(fast(x), module(x))
    assert len(kept.pieces) == 2


def test_arguments_that_decorators_hand_on_are_placed_by_their_names() -> None:
    class Wrapped(torch.nn.Linear):
        def forward(self, **options: Any) -> Any:
            return super().forward(options["rows"]) + options["more"]

    kept = Kept(mesh="x=2", placements={"rows": "[x, _]", "more": "[_, x]"})
    module, rows, more = Wrapped(8, 6), torch.randn(4, 8), torch.randn(4, 6)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "torch.compile: placements")
        near(
            torch.compile(module, backend=kept)(rows=rows, more=more), module(rows=rows, more=more)
        )


class Named(torch.nn.Module):
    """A module whose argument is called like its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4))

    def forward(self, weight: Any) -> Any:
        return self.weight * weight - weight


class Hidden(torch.nn.Module):
    """A module with others behind it that are no modules of its own, and names that are none in its state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Named()
        self.aside = {"inner": Named()}

    def forward(self, x: Any) -> Any:
        return self.inner(x) + 2 * self.aside["inner"](x)


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_tensors_that_have_one_name_are_not_taken_for_each_other(mesh: str | None) -> None:
    here: dict[str, Any] = {"mesh": mesh, "placements": {"weight": "[x, _]"} if mesh else {}}
    one, other, x = Named(), Named(), torch.randn(3, 4)
    with torch.no_grad():
        near(torch.compile(one, backend=mw.torch_backend(**here))(x), one(x))
        with mw.from_torch(one, (x,), **here) as program:
            near(program(x), one(x))
            assert list(program.parameters) == ["weight"]
        kept = Kept(mesh=mesh, placements={"p.weight": "[x, _]"} if mesh else {})
        both = torch.compile(lambda p, q, x: p(x) - 2 * q(x), backend=kept)
        near(both(one, other, x), one(x) - 2 * other(x))
        assert list(kept.programs[0].parameters) == ["p.weight", "q.weight"]
        if mesh:
            assert str(kept.programs[0].parameters["p.weight"].layout) == "[x, _]"
        module = Hidden()
        near(torch.compile(module, backend=mw.torch_backend(mesh=mesh))(x), module(x))


def noisy(x: Any) -> Any:
    dropped = torch.nn.functional.dropout(x, 0.5, True)
    return dropped + torch.randn_like(x) + torch.rand(4, 1) + torch.normal(1.0, 2.0, (6,))


def mapped(x: Any) -> Any:
    w = torch.linspace(-1, 1, 18).reshape(6, 3)
    slope = torch.func.grad(lambda x: torch.sin(x @ w).sum())(x)
    return torch.vmap(lambda r: torch.sin(r) @ w)(x), slope, torch.vmap(torch.t)(x[None])


@pytest.mark.parametrize("function", [noisy, mapped])
@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_without_gradients_torch_draws_and_maps(function: Any, mesh: str | None) -> None:
    x = torch.randn(4, 6)
    backend = mw.torch_backend(mesh=mesh, placements={"x": "[x, _]"} if mesh else {})
    fast = torch.compile(function, backend=backend)
    for _ in range(2):
        torch.manual_seed(3)
        found = fast(x)
        torch.manual_seed(3)
        torch.testing.assert_close(found, function(x))
    assert backend.cache_info()[:3] == (1, 1, 1)


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_one_op_of_an_encoder_layer_at_inference(norm_first: bool) -> None:
    how: dict[str, Any] = {"batch_first": True, "norm_first": norm_first}
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", **how).eval()
    x, absent = torch.randn(3, 4, 8), torch.arange(4) >= torch.tensor([[4], [2], [3]])
    with torch.no_grad():
        for backend in (mw.torch_backend(), mw.torch_backend(mesh="x=2")):
            fast = torch.compile(layer, backend=backend)
            near(fast(x), layer(x))
            near(fast(x, src_key_padding_mask=absent), layer(x, src_key_padding_mask=absent))
    heads = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad():
        fast = torch.compile(heads, backend=mw.torch_backend())
        for average in (True, False):
            found = fast(x, x, x, average_attn_weights=average)
            for one, other in zip(found, heads(x, x, x, average_attn_weights=average), strict=True):
                near(one, other)


def test_statistics_of_a_layer_that_has_a_number_for_a_name() -> None:
    def made() -> Any:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6)).train()

    ours, theirs, x = made(), made(), torch.randn(5, 6)
    with torch.no_grad():
        near(torch.compile(ours, backend=mw.torch_backend())(x), theirs(x))
    near(ours[1].running_var, theirs[1].running_var)


def test_options_by_name() -> None:
    def named(graph: Any, example: Any) -> Any:
        return backends.backend(graph, example, options={"mesh": "x=2"})

    module, x = tm.Mlp().eval(), torch.randn(4, tm.WIDTH)
    with torch.no_grad():
        near(torch.compile(module, backend=named)(x), module(x))
    with pytest.raises(UsageError, match='no option "mash" of backend meshweave'):
        backends.backend(None, (), options={"mash": 1})
