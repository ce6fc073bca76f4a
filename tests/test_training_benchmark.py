"""The benchmark of training: its models are the same in JAX and PyTorch, and a contestant takes turns."""

import math
from typing import Any

import numpy as np
import pytest

import meshweave as mw
from benchmarks.training_models import SIZES, adam, jax_model, torch_model

QUICK = [case for case in SIZES if case.endswith(":quick")]


def test_a_step_is_that_of_jax() -> None:
    jax = pytest.importorskip("jax")
    model = jax_model("MLP:quick")
    step, zeros = adam(model.loss), jax.tree.map(np.zeros_like, model.params)
    given = (model.params, zeros, zeros, np.float32(0), *model.batch)
    found, expected = mw.jax.jit(step, mesh="dp=2")(*given), jax.jit(step)(*given)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("case", QUICK)
def test_a_model_is_as_large_in_pytorch_as_in_jax(case: str) -> None:
    jax = pytest.importorskip("jax")
    module, loss, batch = torch_model(case)
    sizes: list[Any] = sorted(math.prod(p.shape) for p in jax.tree.leaves(jax_model(case).params))
    assert sum(sizes) == sum(p.numel() for p in module.parameters())
    assert math.isfinite(float(loss(module, *batch)))
