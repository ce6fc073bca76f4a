"""Budgets of regions that are alike are measured once, and each is told its own bytes."""

from typing import Any

import numpy as np
import pytest
from depth import deep

import meshweave as mw
from meshweave.lowering import budget

X = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)


def blocks(count: int, scale: float = 0.0) -> Any:
    """Softmaxes in a row, each in a region with a budget; the last one asks for something else if `scale` is said."""

    def f(x: Any) -> Any:
        for k in range(count):
            with mw.hint(peak_bytes=1000):
                e = mw.exp(x - mw.max(x, axis=1, keepdims=True))
                x = e / mw.sum(e, axis=1, keepdims=True)
                if scale and k == count - 1:
                    x = x * scale
        return x

    return mw.jit(f, mesh="one=1")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lowerings that were made to measure."""
    found: list[int] = []
    taken = budget.bytes_taken

    def counted(*args: Any) -> Any:
        found.append(1)
        return taken(*args)

    monkeypatch.setattr(budget, "bytes_taken", counted)
    return found


@deep
def test_regions_that_are_alike_are_measured_once(measured: list[int]) -> None:
    counts = []
    for count in (2, 4):
        measured.clear()
        blocks(count).lower(X).compile()
        counts.append(len(measured))
    assert counts[0] == counts[1] > 2
    measured.clear()
    blocks(4, 2.0).lower(X).compile()
    assert len(measured) > counts[0]


def test_each_of_them_is_cut_and_told_its_bytes() -> None:
    f = blocks(4)
    wanted = X
    for _ in range(4):
        e = np.exp(wanted - wanted.max(1, keepdims=True))
        wanted = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(f(X)), wanted, rtol=1e-5)
    told = str(f.explain(X))
    assert "(4 x)" in told and "bytes of" in told and "infeasible" not in told
