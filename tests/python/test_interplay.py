"""Libraries that ask arrays for their namespace compute with Arrays, on one rank and laid out, as with NumPy's."""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from depth import deep

import meshweave as mw

X = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
FRONT = """
import os, numpy as np, meshweave as mw
X = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
def arrays():
    if os.environ.get("MESHWEAVE_TESTS") == "deep":
        yield mw.asarray(X)
    yield mw.Array.from_numpy(X, mesh="x=2, y=2", layout="[x, y]")
def check(cases):
    for z in arrays():
        for name, f in cases.items():
            found = f(z)
            assert isinstance(found, mw.Array | float), name
            np.testing.assert_allclose(np.asarray(found), np.asarray(f(X)), atol=1e-4, err_msg=name)
"""
SCIPY = """
import scipy.fft, scipy.special, scipy.stats, scipy.integrate
check({
    "zscore": lambda z: scipy.stats.zscore(z, axis=0),
    "pearsonr": lambda z: scipy.stats.pearsonr(z[:, 0], z[:, 1]).statistic,
    "softmax": lambda z: scipy.special.softmax(z, axis=1),
    "logsumexp": lambda z: scipy.special.logsumexp(z, axis=0),
    "trapezoid": lambda z: scipy.integrate.trapezoid(z, axis=0),
    "rfft": lambda z: abs(scipy.fft.rfft(z[:, 0])),
})
"""
SKLEARN = """
import sklearn
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import StandardScaler
def told(z):
    own = isinstance(z, mw.Array)
    labels = (X[:, 0] > 0).astype(np.int64)
    with sklearn.config_context(array_api_dispatch=own):
        fitted = LinearDiscriminantAnalysis().fit(z, mw.asarray(labels, device=z.device) if own else labels)
        return fitted.decision_function(z)
def within(f):
    def call(z):
        with sklearn.config_context(array_api_dispatch=isinstance(z, mw.Array)):
            return f(z)
    return call
check({
    "scaled": within(lambda z: StandardScaler().fit_transform(z)),
    "components": within(lambda z: PCA(2, svd_solver="full").fit(z).explained_variance_),
    "lda": told,
})
"""


def arrays() -> list[Any]:
    return [mw.asarray(X), mw.Array.from_numpy(X, mesh="x=2, y=2", layout="[x, y]")]


@pytest.mark.parametrize(
    ("name", "text"),
    [pytest.param("scipy", SCIPY, marks=deep), pytest.param("sklearn", SKLEARN, marks=deep)],
)
def test_dispatch_by_namespace(name: str, text: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    env = os.environ | {"SCIPY_ARRAY_API": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FRONT + text],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_einops() -> None:
    einops = pytest.importorskip("einops.array_api")
    for a in arrays():
        found = einops.rearrange(a, "a (b c) -> b a c", c=5)
        assert isinstance(found, mw.Array) and found.mesh == a.mesh
        np.testing.assert_array_equal(found, X.reshape(12, 1, 5).transpose(1, 0, 2))
        mean = einops.reduce(a, "(a b) c -> a c", "mean", b=2)
        np.testing.assert_allclose(mean, X.reshape(6, 2, 5).mean(1), atol=1e-6)


def test_einops_by_its_own_functions() -> None:
    einops = pytest.importorskip("einops")
    for a in arrays():
        found = einops.rearrange(a, "a (b c) -> b a c", c=5)
        assert isinstance(found, mw.Array) and found.mesh == a.mesh
        np.testing.assert_array_equal(found, X.reshape(12, 1, 5).transpose(1, 0, 2))
        np.testing.assert_allclose(einops.reduce(a, "a c -> c", "mean"), X.mean(0), atol=1e-6)
        again = einops.repeat(a, "a c -> (a r) c", r=2)
        np.testing.assert_array_equal(again, X.repeat(2, axis=0))
        stacked = einops.rearrange([a, a], "n a c -> a (n c)")
        np.testing.assert_array_equal(stacked, np.concatenate([X, X], axis=1))
        np.testing.assert_allclose(einops.einsum(a, a, "a c, a d -> c d"), X.T @ X, rtol=1e-4)
    program = mw.jit(lambda x: einops.rearrange(x, "a c -> c a"))
    np.testing.assert_array_equal(program(X), X.T)


def test_array_api_extra() -> None:
    xpx = pytest.importorskip("array_api_extra")
    for a in arrays():
        np.testing.assert_allclose(xpx.cov(a.T), np.cov(X.T), atol=1e-5)
        np.testing.assert_array_equal(xpx.pad(a, 1), np.pad(X, 1))
        changed = xpx.at(a, 0).set(1.0, copy=True)
        assert changed[0].tolist() == [1.0] * 5 and a.tolist() == X.tolist()


def test_xarray() -> None:
    xarray = pytest.importorskip("xarray")
    for a in arrays():
        d = xarray.DataArray(a, dims=("t", "f"))
        found = ((d - d.mean("t")) ** 2).isel(t=slice(2, 5))
        assert isinstance(found.data, mw.Array)
        np.testing.assert_allclose(found.data, ((X - X.mean(0)) ** 2)[2:5], atol=1e-5)
        np.testing.assert_array_equal(d.where(d > 0, 0.0).data, np.where(X > 0, X, 0))


def test_unique_values_come_in_order() -> None:
    assert mw.unique_values(mw.asarray([3, 1, 2, 1])).tolist() == [1, 2, 3]


def test_arrays_of_numpy_are_taken_beside_arrays() -> None:
    for a in arrays():
        for found in (a + X, X + a, mw.maximum(a, X), mw.where(X > 0, a, X)):
            assert isinstance(found, mw.Array) and found.mesh == a.mesh
        value = X.copy()
        kept = mw.add(a, value)
        value[:] = 0
        np.testing.assert_array_equal(kept, X + X)
        np.testing.assert_array_equal(a + np.float64(1), X + 1)


def test_dask() -> None:
    dask = pytest.importorskip("dask.array")
    for a in arrays():
        parts = dask.from_array(a, chunks=(6, 5), asarray=False)
        found = (parts + 1).sum(axis=0).compute(scheduler="sync")
        assert isinstance(found, mw.Array)
        np.testing.assert_allclose(found, (X + 1).sum(0), atol=1e-4)
