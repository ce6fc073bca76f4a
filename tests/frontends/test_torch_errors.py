"""What from_torch refuses: one line that says what, where, and what would be right."""

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch_models as tm  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.errors import CompileError, MeshweaveError, UsageError  # noqa: E402

HERE = "test_torch_errors.py"


def refused(kind: type[MeshweaveError], module: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(kind) as raised:
        mw.from_torch(module, args, **options)
    text = str(raised.value)
    assert "\n" not in text
    return text


class Symmetric(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.ldl_factor(x)[0]


def test_an_op_that_is_not_supported_is_named_with_its_line() -> None:
    text = refused(CompileError, Symmetric(), torch.ones(4, 4))
    assert "not supported" in text and "ldl_factor" in text and HERE in text


def test_an_assertion_beside_an_op_that_is_not_supported() -> None:
    class Checked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            torch.ops.aten._assert_tensor_metadata(x, dtype=torch.float32)
            return torch.linalg.ldl_factor(x)[0]

    text = refused(CompileError, Checked(), torch.ones(4, 4))
    assert "not supported" in text and "ldl_factor" in text and HERE in text


def test_flex_attention_is_named_with_its_line() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return flex_attention(x, x, x, score_mod=lambda score, b, h, i, j: score * 0.5)

    text = refused(CompileError, Flex(), torch.ones(1, 2, 128, 16))
    assert "not supported: flex_attention" in text and HERE in text


def test_dropout_in_training_mode() -> None:
    dropout = torch.nn.Dropout(0.5).train()
    text = refused(CompileError, dropout, torch.ones(4))
    assert "dropout in training mode: call module.eval() first" in text
    with mw.from_torch(dropout.eval(), (torch.ones(4),)) as program:
        assert torch.equal(program(torch.ones(4)), torch.ones(4))


def test_attention_with_dropout() -> None:
    def attend(q: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)

    assert "dropout in training mode" in refused(
        CompileError, tm.Fn(attend), torch.ones(1, 2, 4, 4)
    )


def test_random_numbers() -> None:
    text = refused(CompileError, tm.Fn(lambda x: x + torch.rand_like(x)), torch.ones(4))
    assert "not supported" in text and "rand" in text


def test_what_torch_cannot_export() -> None:
    def branch(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    assert "torch.export refuses the module: " in refused(
        CompileError, tm.Fn(branch), torch.ones(4)
    )


def test_dynamic_shapes() -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        tm.Mlp().eval(), (torch.ones(4, tm.WIDTH),), dynamic_shapes={"x": {0: batch}}
    )
    assert "argument x: dim 0 has no bound: torch.export.Dim(" in refused(UsageError, program)


def test_complex_numbers() -> None:
    text = refused(CompileError, tm.Fn(lambda x: x * 2), torch.ones(4, dtype=torch.complex32))
    assert "complex32" in text


def test_wrong_arguments() -> None:
    mlp = tm.Mlp().eval()
    assert "Mlp.forward: missing a required argument: 'x'" in refused(UsageError, mlp)
    assert "an nn.Module or an ExportedProgram is needed, got str" in refused(
        UsageError, "mlp", torch.ones(3)
    )
    with pytest.raises(UsageError, match=r"args: a tuple is needed, got Tensor"):
        mw.from_torch(mlp, torch.ones(3, tm.WIDTH))
    x = torch.ones(3, tm.WIDTH)
    assert "mesh: " in refused(UsageError, mlp, x, mesh="tp")
    assert "mesh: text, a Mesh or a DeviceMesh is needed, got int" in refused(
        UsageError, mlp, x, mesh=4
    )


def test_calls_with_wrong_arguments() -> None:
    x = torch.ones(3, tm.WIDTH)
    with mw.from_torch(tm.Mlp().eval(), (x,)) as program:
        with pytest.raises(UsageError, match=r"Mlp: 2 arguments of another structure .* .x."):
            program(x, x)
        with pytest.raises(MeshweaveError, match=r"Mlp: x: shape \(4, 32\), \(3, 32\) is right"):
            program(torch.ones(4, tm.WIDTH))
        with pytest.raises(MeshweaveError, match=r"Mlp: x: dtype float64, float32 is right"):
            program(x.double())


def test_a_wrong_index_reads_the_nearest_row_and_no_other_memory() -> None:
    module, tokens = tm.Embedded().eval(), torch.tensor([[0, 10]])
    with mw.from_torch(module, (tokens,)) as program:
        assert torch.equal(program(torch.tensor([[-5, 10**9]])), program(tokens))


def test_without_torch_only_this_frontend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"from_torch needs PyTorch, which is not installed"):
        mw.from_torch(None, ())


def test_all_that_is_not_supported_is_in_one_error() -> None:
    def several(x: Any) -> Any:
        a = torch.linalg.ldl_factor(x)[0]
        b = torch.linalg.ldl_solve(x, torch.arange(4, dtype=torch.int32), x)
        return a, b, torch.linalg.ldl_factor(x + 1)[0] + x.sin()

    text = refused(CompileError, tm.Fn(several), torch.ones(4, 4))
    assert "ldl_factor" in text and "ldl_solve" in text and "sin" not in text

    def random(x: Any) -> Any:
        return torch.rand_like(x) + torch.nonzero(x).sum()

    text = refused(CompileError, tm.Fn(random), torch.ones(4))
    assert "rand_like" in text and "nonzero" in text
    assert "a shape that depends on data" in text and "random numbers" in text


def test_hints_inside_a_condition_are_not_dropped() -> None:
    from torch.fx import traceback

    def yes(v: Any) -> Any:
        with traceback.annotate({"meshweave": {"slice": "t=2"}}):
            return v.sin() * 2

    def either(x: Any) -> Any:
        return torch.cond(x.sum() > 0, yes, lambda v: v * 3, (x,))

    assert "hints inside cond" in refused(CompileError, tm.Fn(either), torch.ones(4, 4))


def test_what_has_a_known_shape_is_said() -> None:
    """Of ops whose shapes depend on data the first alone is named, with what is right in its place."""
    x = torch.arange(6.0).reshape(2, 3)
    for function, said in (
        (lambda x: torch.nonzero(x) * 2, r"nonzero\.default: .* data; torch\.nonzero_static"),
        (lambda x: x[x > 1] * 2, r"index\.Tensor: .* data; torch\.where\(mask, x, 0\)"),
        (lambda x: torch.unique(x) + 1, r"_unique2\.default: .* data; torch\.sort"),
        (lambda x: torch.nn.utils.rnn.pack_padded_sequence(x, [3, 2], True)[0], "packed sequences"),
    ):
        text = refused(CompileError, tm.Fn(function), x)
        assert re.search(said, text) and "aten.mul" not in text and "aten.add" not in text
