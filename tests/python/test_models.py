"""The four models of examples/, written natively, against what JAX computed; and the example of the design."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from traced import mw

EXAMPLES = Path(__file__).parents[2] / "examples"
TOLERANCE = 2e-4  # relative to the largest element


@pytest.fixture
def native(monkeypatch):
    """Import a model of examples/native."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "native"))
    names = ("mlp", "attention", "block", "gpt2l")
    yield importlib.import_module
    for name in names:
        if name in sys.modules:
            getattr(sys.modules.pop(name), name).close()


def data(name):
    """Arguments and expected result."""
    folder = EXAMPLES / name
    count = len(list(folder.glob("in*.npy")))
    return [np.load(folder / f"in{i}.npy") for i in range(count)], np.load(folder / "out0.npy")


def close(y, right):
    return np.abs(np.asarray(y) - right).max() <= TOLERANCE * np.abs(right).max()


@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_models_of_plain_arguments(native, name):
    arguments, right = data(name)
    y = getattr(native(name), name)(*arguments)
    assert close(y, right) and y.layout.block_axes()[0] == ("dp",)


def test_block(native):
    module, ((x, *parameters), right) = native("block"), data("block")
    assert close(module.block(x, module.Block(*parameters)), right)
    info = module.block.explain()
    assert info.count("all_reduce") == 2  # one after attention, one after the perceptron


def test_gpt2l(native):
    module, ((tokens, words, places, *rest), right) = native("gpt2l"), data("gpt2l")
    block = sys.modules["block"]
    blocks = [block.Block(*rest[:8]), block.Block(*rest[8:])]
    y = module.gpt2l(tokens, words, places, blocks)
    assert close(y, right) and str(y.layout) == "[dp, _, tp]"


def test_the_example_of_the_design():
    rng = np.random.default_rng(0)
    x, w1, w2 = (
        rng.standard_normal(s).astype(np.float32) for s in ((64, 128), (128, 256), (256, 96))
    )
    # fmt: off
    mesh = mw.Mesh(dp=2, tp=2)
    @mw.jit(mesh=mesh, in_layouts=("[dp, _]", "[_, tp]", "[tp, _]"), out_layouts="[dp, _]")    # text, mw.P(...) or Layout; a pytree like the arguments  # noqa: E501
    def mlp(x, w1, w2):
        with mw.hint(slice="t=4", order="dfs"):
            return mw.maximum(x @ w1, 0.0) @ w2
    y = mlp(x, w1, w2)                        # NumPy arrays or mw.Array in, mw.Array out; np.asarray(y) is the global value  # noqa: E501
    with mw.kernels(only=("reference",)):     # or mw.kernels(flash=False)
        z = mlp(x, w1, w2)
    a = mw.Array.from_numpy(x, mesh=mesh, layout="[dp, _]"); b = mw.redistribute(a, "[_, tp]"); mlp.cache_info(); print(mlp.explain())  # noqa: E501, E702
    # fmt: on
    right = np.maximum(x @ w1, 0) @ w2
    assert close(y, right) and close(z, right)
    assert np.array_equal(np.asarray(b), x) and str(b.layout) == "[_, tp]"
    assert mlp.cache_info().misses == 2
