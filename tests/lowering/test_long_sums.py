"""Long sums keep their digits: no further from the true sum than four times NumPy's pairwise one."""

import numpy as np
import pytest
from depth import sampled

import meshweave as mw

MESH = mw.Mesh(x=1)


def run(function, *arrays):
    return np.asarray(mw.jit(function, mesh=MESH)(*arrays))


def close(got, wanted, theirs):
    scale = np.abs(wanted).max()
    ours, peer = np.abs(got - wanted).max() / scale, np.abs(theirs - wanted).max() / scale
    assert ours <= 4 * max(peer, np.finfo(got.dtype).eps), (ours, peer)


@sampled(4)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("count", [2049, 1 << 14, (1 << 20) + 3, 1 << 23])
def test_equal_addends_whose_roundings_do_not_cancel(dtype, count):
    x = np.full(count, 0.1, dtype)
    true = x.astype("longdouble").sum()
    close(run(mw.sum, x), true, x.sum())
    close(run(mw.mean, x), true / count, x.mean())
    close(run(lambda x: mw.vecdot(x, x), x), (x.astype("longdouble") ** 2).sum(), (x * x).sum())


@sampled(1)
@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 2), (2,), (0, 2)])
@pytest.mark.parametrize("shape", [(3, 5000, 41), (700, 3, 2500), (2, 3, 100_003)])
def test_runs_of_several_loops(shape, axes):
    x = np.random.default_rng(0).random(shape, "f4")
    close(run(lambda x: mw.sum(x, axis=axes), x), x.astype("f8").sum(axes), x.sum(axes))


def test_two_results_of_one_loop():
    x = np.full((4, 30_000), 0.1, "f4")
    total, largest = mw.jit(lambda x: (mw.sum(x, axis=1), mw.max(x, axis=1)), mesh=MESH)(x)
    close(np.asarray(total), x.astype("f8").sum(1), x.sum(1))
    np.testing.assert_array_equal(largest, x.max(1))


@pytest.mark.parametrize(
    "odd, wanted", [((np.inf,), np.inf), ((np.inf, -np.inf), np.nan), ((np.nan,), np.nan)]
)
def test_what_is_not_finite_stays(odd, wanted):
    x = np.ones(10_000, "f4")
    x[5000 : 5000 + len(odd)] = odd
    np.testing.assert_equal(run(mw.sum, x), np.float32(wanted))


def test_a_sum_that_overflows_is_infinite():
    assert run(mw.sum, np.full(10_000, 3e38, "f4")) == np.inf
