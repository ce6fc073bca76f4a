"""torch.compile with our backend: pieces, shapes, parameters that change, hints, and what is refused."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_models as tm  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave import torch_compile as backends  # noqa: E402
from meshweave.errors import CompileError, UsageError  # noqa: E402


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
        return [program for piece in self.pieces for program, _ in piece._programs.values()]


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
    assert len(kept.programs) <= 4  # the first shape, then each once in the piece of any size


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


def test_calls_that_record_gradients_and_writes_are_refused() -> None:
    module, x = tm.Mlp().eval(), torch.randn(3, tm.WIDTH)
    with pytest.raises(UsageError, match="for inference, and this call would record gradients"):
        torch.compile(module, backend=Kept())(x)

    class Writes(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.add_(1) * 2

    with torch.no_grad(), pytest.raises(CompileError, match="the program writes"):
        torch.compile(Writes(), backend=Kept())(torch.zeros(3))


def test_options_by_name() -> None:
    def named(graph: Any, example: Any) -> Any:
        return backends.backend(graph, example, options={"mesh": "x=2"})

    module, x = tm.Mlp().eval(), torch.randn(4, tm.WIDTH)
    with torch.no_grad():
        near(torch.compile(module, backend=named)(x), module(x))
    with pytest.raises(UsageError, match='no option "mash" of backend meshweave'):
        backends.backend(None, (), options={"mash": 1})
