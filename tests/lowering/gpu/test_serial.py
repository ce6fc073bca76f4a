"""Loops over single elements are one kernel on a device, and every element has the bits that the loops give it."""

import numpy as np
import pytest
from depth import sampled

import meshweave as mw

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")
_RNG = np.random.default_rng(7)
X = _RNG.standard_normal((50, 33)).astype(np.float32)
ROWS = _RNG.integers(-60, 60, 77).astype(np.int32)  # some are outside
COLUMNS = _RNG.integers(0, 33, 77).astype(np.int32)
U = _RNG.standard_normal((77, 33)).astype(np.float32)


def pooled(x):
    """The gradient of a pooling, by hand: each window gives to its largest element."""
    n, size = x.shape[0], x.shape[1] // 2
    windows = mw.reshape(x, (n, size, 2))
    at = mw.argmax(windows, axis=2) + 2 * mw.reshape(mw.arange(size), (1, size))
    lines = mw.broadcast_to(mw.reshape(mw.arange(n), (n, 1)), (n, size))
    return mw.zeros((n, 2 * size)).at[lines, at].add(mw.max(windows, axis=2))


FUNCTIONS = {
    "add": (lambda x, i, u: x.at[i].add(u), (X, ROWS, U)),
    "set": (lambda x, i, u: x.at[i].set(u), (X, ROWS, U)),
    "max": (lambda x, i, u: x.at[i].max(u), (X, ROWS, U)),
    "element": (lambda x, i, j, u: x.at[i, j].add(u), (X, ROWS, COLUMNS, U[:, 0].copy())),
    "column": (lambda x, j, u: x.at[:, j].add(u), (X, COLUMNS, _RNG.standard_normal((50, 77)).astype(np.float32))),
    "flags": (lambda x, i, u: x.at[i].set(u), (X > 0, ROWS, U > 0)),
    "whole": (lambda x, i, u: x.at[i].add(u), (X.astype(np.int64), ROWS, U.astype(np.int64))),
    "line": (lambda x, i, u: x.at[i].add(u), (X[:, 0].copy(), ROWS, U[:, 0].copy())),
    "one": (lambda x, i, u: x.at[i].add(u), (X[:1].copy(), ROWS % 2, U)),
    "pooled": (pooled, (X[:, :32].copy(),)),
}  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_updates_at_computed_places_are_kernels(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    results = []
    for engine in ("local", "emulate"):
        compiled = mw.jit(function, mesh=mw.Mesh(x=1), engine=engine).lower(*arguments).compile()
        with compiled.program as program:
            results.append(np.asarray(compiled(*arguments)))
            graph = program.bundle.manifest.graph
    assert graph, "no element crosses to the host"
    assert results[0].tobytes() == results[1].tobytes()
