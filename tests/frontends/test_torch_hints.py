"""Hints in PyTorch programs: annotated regions and hints_wrapper become regions, nested, and end up in the ledger."""

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch_models as tm  # noqa: E402
from torch._higher_order_ops.hints_wrap import hints_wrapper  # noqa: E402
from torch.fx import traceback  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.errors import CompileError  # noqa: E402

TOLERANCE = 2e-4


def near(found: Any, wanted: Any) -> None:
    assert float((found - wanted).abs().max()) <= TOLERANCE * float(wanted.abs().max())


def regions(text: str) -> list[str]:
    """The hints of the regions of a program, in the order in which they end."""
    return re.findall(r"(?:hints|hint\.hints) = \{([^}]*)\}", text)


def outcomes(program: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in program.ledger():
        found.setdefault(row["hint"], set()).add(row["outcome"])
    return found


@pytest.mark.parametrize("mesh", [None, "dp=2", "tp=2", "dp=2, tp=2"])
def test_a_block_with_annotated_attention_runs_sliced_depth_first(mesh: str | None) -> None:
    torch.manual_seed(0)
    module = tm.Block({"slice": "t=2", "order": "dfs"}).eval()
    x = torch.randn(4, 8, tm.WIDTH)
    placements = dict(tm.MEGATRON) if mesh and "tp" in mesh else {}
    if mesh and "dp" in mesh:
        placements["x"] = "[dp, _, _]"
    with mw.from_torch(module, (x,), mesh=mesh, placements=placements) as program:
        near(program(x), module(x).detach())
        assert regions(program.text) == ['order = "dfs", slice = "t=2"']
        assert outcomes(program) == {"slice=t=2": {"honoured"}, "order=dfs": {"honoured"}}
        assert "honoured" in program.explain() and "attention.q.weight" in program.explain()
        rows = [row for row in program.ledger() if row["hint"] == "slice=t=2"]
        assert all("torch_models.py" in row["location"] for row in rows)
        assert len(rows) > 5


def body(x: Any, y: Any) -> Any:
    return torch.softmax(x @ y, -1)


class Wrapped(torch.nn.Module):
    """A hints_wrapper whose body captures a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Any) -> Any:
        def inner(v: Any) -> Any:
            return torch.softmax(v @ self.weight, -1)

        return hints_wrapper(inner, (x,), {}, hints={"slice": "t=4", "order": "dfs"}) * 2


def test_a_hints_wrapper_is_a_region() -> None:
    torch.manual_seed(0)
    module, x = Wrapped().eval(), torch.randn(8, 16)
    with mw.from_torch(module, (x,), mesh="x=2") as program:
        near(program(x), module(x).detach())
        assert regions(program.text) == ['order = "dfs", slice = "t=4"']
        assert outcomes(program) == {"slice=t=4": {"honoured"}, "order=dfs": {"honoured"}}


class Views(torch.nn.Module):
    """A hints_wrapper of views of one tensor, inside an annotation."""

    def forward(self, x: Any) -> Any:
        q, k = x.chunk(2, -1)
        with traceback.annotate({"meshweave": {"order": "bfs"}}):
            return hints_wrapper(body, (q, k.transpose(0, 1)), {}, hints={"slice": "t=4"})


def test_a_hints_wrapper_in_an_annotation_nests() -> None:
    module, x = Views().eval(), torch.randn(8, 16)
    with mw.from_torch(module, (x,)) as program:
        near(program(x), module(x))
        assert regions(program.text) == ['slice = "t=4"', 'order = "bfs"']
        assert outcomes(program)["slice=t=4"] == {"honoured"}


class Nested(torch.nn.Module):
    """Regions in a region; `said` gives the two annotations."""

    def __init__(self, outer: Any, inner: Any) -> None:
        super().__init__()
        self.outer, self.inner = outer, inner

    def forward(self, x: Any, w: Any) -> Any:
        with traceback.annotate(self.outer):
            y = torch.exp(x)
            with traceback.annotate(self.inner):
                z = y @ w
            return torch.tanh(z)


NESTED = [
    ({"meshweave": {"slice": "t=2"}}, {"meshweave": {"slice": "u=2"}}),
    ({"meshweave": {"slice": "t=2"}}, {"meshweave.inner": {"slice": "u=2"}}),
    ({"meshweave": {"slice": "t=2"}, "other": 1}, {"meshweave": [{"slice": "u=2"}], "other": 2}),
]


@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_annotations_nest(outer: Any, inner: Any) -> None:
    module, x, w = Nested(outer, inner), torch.randn(8, 8), torch.randn(8, 8)
    with mw.from_torch(module, (x, w), mesh="x=2", placements={"x": "[x, _]"}) as program:
        near(program(x, w), module(x, w))
        assert regions(program.text) == ['slice = "u=2"', 'slice = "t=2"']
        assert outcomes(program) == {"slice=t=2": {"honoured"}, "slice=u=2": {"honoured"}}


def test_an_exported_program_keeps_its_annotations() -> None:
    module = tm.Attention({"slice": "t=2"}).eval()
    x = torch.randn(4, 8, tm.WIDTH)
    exported = torch.export.export(module, (x,), strict=True)
    with mw.from_torch(exported) as program:
        near(program(x), module(x).detach())
        assert regions(program.text) == ['slice = "t=2"']


class Several(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        with traceback.annotate({"meshweave": {"slice": "t=2"}}):
            y = torch.exp(x)
            top = y.amax(-1)
        return y / top.unsqueeze(-1), (y > 1).sum()


def test_results_of_several_types_leave_a_region() -> None:
    module, x = Several(), torch.randn(8, 4)
    with mw.from_torch(module, (x,)) as program:
        found, wanted = program(x), module(x)
        near(found[0], wanted[0])
        assert found[1] == wanted[1]
        assert program.text.count('"hint.region"()') == 1 and "execute_region" not in program.text
        assert outcomes(program) == {"slice=t=2": {"honoured"}}


class Layers(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        for _ in range(3):
            with traceback.annotate({"meshweave": {"slice": "t=2"}}):
                x = torch.tanh(x)
            x = x + 1
        return x


def test_regions_apart_stay_apart() -> None:
    x = torch.randn(4, 4)
    with mw.from_torch(Layers(), (x,)) as program:
        near(program(x), Layers()(x))
        assert regions(program.text) == ['slice = "t=2"'] * 3


def test_hints_say_their_strength() -> None:
    hints = {"meshweave": {"order": {"value": "dfs", "strength": "required"}}}
    module = Nested(hints, {})
    with mw.from_torch(module, (torch.ones(4, 4), torch.ones(4, 4))) as program:
        assert {row["strength"] for row in program.ledger()} == {"required"}


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"slise": "t=2"}, 'unknown hint "slise"'),
        ({"slice": "t="}, 'hint slice = "t="'),
        ({"slice": 2.5}, "hint slice: its value is a text or a number, not 2.5"),
        ("slice", "annotation meshweave: 'slice' is no dictionary of hints"),
        ({"slice": "t=2", "order": "dsf"}, 'hint order = "dsf"'),
    ],
)
def test_wrong_hints_are_errors_at_the_users_line(hints: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message) as raised:
        mw.from_torch(Nested({"meshweave": hints}, {}), (torch.ones(4, 4), torch.ones(4, 4)))
    assert "\n" not in str(raised.value) and "test_torch_hints.py:" in str(raised.value)


def test_annotations_of_others_are_left_alone() -> None:
    module = Nested({"stage": 1}, {"other": {"slice": "x"}})
    with mw.from_torch(module, (torch.ones(4, 4), torch.ones(4, 4))) as program:
        assert regions(program.text) == []


class Scores(torch.nn.Module):
    """An attention whose score matrix is large enough for `flash`."""

    def forward(self, q: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def kernels_of(program: Any) -> set[str]:
    """The kernels that the compiler chose."""
    from meshweave.api import program as api
    from meshweave.hints.fast_paths import as_choice
    from meshweave.transforms.kernels.select_kernels import kernel_rows

    kernels = as_choice(program.kernels)
    with api.lowered(program.text, "test", None, kernels=kernels) as (module, _):
        return {row["kernel"] for row in kernel_rows(module)}


def test_kernels_and_sdpa_kernel_choose_the_fast_paths() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(2, 2, 256, 16)
    wanted = Scores()(q)
    with mw.from_torch(Scores(), (q,)) as program:
        near(program(q), wanted)
        assert "flash" in kernels_of(program)
    with sdpa_kernel(SDPBackend.MATH), mw.from_torch(Scores(), (q,)) as program:
        near(program(q), wanted)
        assert program.kernels.disabled == ("flash",)
        assert "flash" not in kernels_of(program)
    with mw.kernels(only=("reference",)), mw.from_torch(Scores(), (q,)) as program:
        near(program(q), wanted)
        assert "blas" in program.kernels.disabled and "flash" in program.kernels.disabled
    with (
        mw.kernels(blas=False),
        sdpa_kernel(SDPBackend.MATH),
        mw.from_torch(Scores(), (q,)) as program,
    ):
        assert set(program.kernels.disabled) == {"flash", "blas"}


class Switched(torch.nn.Module):
    def forward(self, q: Any) -> Any:
        with traceback.annotate({"meshweave": {"kernels": "-flash"}}):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)


def test_a_region_without_flash() -> None:
    q = torch.randn(2, 2, 256, 16)
    with mw.from_torch(Switched(), (q,)) as program:
        near(program(q), Switched()(q))
        assert outcomes(program) == {"kernels=-flash": {"honoured"}}


@pytest.mark.parametrize("mesh", [None, "tp=2"])
def test_a_block_in_bf16_with_annotated_attention_is_sliced_too(mesh: str | None) -> None:
    torch.manual_seed(0)
    module = tm.Block({"slice": "t=2", "order": "dfs"}).eval().bfloat16()
    x = torch.randn(4, 8, tm.WIDTH).bfloat16()
    with mw.from_torch(module, (x,), tm.MEGATRON if mesh else {}, mesh) as program:
        found, wanted = program(x), module.double()(x.double()).detach()
        assert found.dtype == torch.bfloat16
        assert float((found.double() - wanted).abs().max()) <= 2e-2 * float(wanted.abs().max())
        assert outcomes(program) == {"slice=t=2": {"honoured"}, "order=dfs": {"honoured"}}
