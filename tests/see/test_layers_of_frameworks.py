"""Chains of reasons name the layers of JAX's and PyTorch's models, forwards and backwards."""

from typing import Any

import numpy as np
import pytest

import meshweave as mw
from meshweave.report import Report


def chains(report: Report) -> list[str]:
    found = [report.reasons[number] for row in report.collectives for number in row.reasons]
    return [link.text for reason in found for link in (*reason.given, *reason.wanted)]


def test_scopes_of_jax_are_named_in_the_backward_pass_too() -> None:
    jax = pytest.importorskip("jax")
    from jax.sharding import PartitionSpec as P

    def loss(w: dict[str, Any], rows: Any) -> Any:
        for name in ("first", "second"):
            with jax.named_scope(name):
                rows = jax.numpy.tanh(rows @ w[name])
        return (rows**2).mean()

    step = mw.jax.jit(
        jax.grad(loss), mesh="dp=2", in_shardings=(P(), P("dp", None)), out_shardings=P()
    )
    w = {name: np.ones((16, 16), np.float32) for name in ("first", "second")}
    step(w, np.ones((4, 16), np.float32))
    found = chains(step.explain().report)
    assert any(
        t.startswith("a product in the backward pass of second adds up along") for t in found
    )
    assert 'argument rows lies in "[dp, _]", as it was said' in found
    layers = {row["layer"] for row in step.explain().rows()}
    assert {"first", "second", "the backward pass of first"} <= layers
    assert "the backward pass of second" in step.view().html


@pytest.mark.torch
def test_modules_of_pytorch_are_named() -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
    placements = {"0.weight": "[tp, _]", "0.bias": "[tp]", "2.weight": "[_, tp]"}
    rows = torch.ones(4, 16)
    with mw.from_torch(layers, (rows,), mesh="tp=2", placements=placements) as program:
        said = program.explain()
        program(rows)
        with mw.trace() as t:
            program(rows)
        assert "all_reduce over tp" in program.view(t).html
    found = chains(said.report)
    assert "a product in 2 sums over a dim that lies over tp: each rank has an addend" in found
    assert 'argument 2.weight lies in "[_, tp]", as it was said' in found
    assert ("2", "linear") in {(row["layer"], row["code"]) for row in said.rows()}
