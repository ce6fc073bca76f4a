"""Names of NumPy's beyond the standard that loops or decompositions make: beside NumPy."""

import numpy as np
import pytest

import meshweave as mw
from meshweave.errors import MeshweaveError


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("dtype", ["i4", "u8", "i1"])
def test_integers(dtype):
    low = 0 if dtype[0] == "u" else -100
    a, b = (np.random.default_rng(k).integers(low, 100, (3, 5)).astype(dtype) for k in (0, 1))
    a[0, 0] = b[0, 0] = b[1, 1] = 0

    def several(a, b):
        return mw.gcd(a, b), mw.lcm(a, b[0]), mw.bitwise_count(a)

    wanted = np.gcd(a, b), np.lcm(a, b[0]), np.bitwise_count(a)
    for got, right in zip(mw.jit(several)(a, b), wanted, strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_array_equal(got, right)
    with pytest.raises(MeshweaveError, match="gcd"):
        mw.gcd(1.5, 2)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_parts_of_floats(dtype):
    kind = np.finfo(dtype)
    ends = [0, -0.0, 1, 0.5, 2, -3, kind.tiny, kind.smallest_subnormal]
    x = np.concatenate([numbers(40) * 10.0 ** np.arange(-20, 20), ends]).astype(dtype)
    part, power, step = mw.jit(lambda x: (*mw.frexp(x), mw.spacing(x)))(x)
    wanted = np.frexp(x)
    np.testing.assert_array_equal(part, wanted[0])
    np.testing.assert_array_equal(power, wanted[1])
    np.testing.assert_array_equal(step, np.spacing(x))
    assert part.dtype == dtype and power.dtype == np.int32
    np.testing.assert_array_equal(
        mw.frexp(np.array([np.inf, -np.inf, np.nan], dtype))[0], [np.inf, -np.inf, np.nan]
    )


def test_partitions_and_what_changes_in_place():
    x = numbers(4, 9)
    np.testing.assert_array_equal(np.asarray(mw.partition(x, 3))[:, 3], np.sort(x)[:, 3])
    places = np.asarray(mw.argpartition(x, [2, 5], axis=0 - 1))
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1)[:, 2], np.sort(x)[:, 2])
    assert np.asarray(mw.partition(x, 5, axis=None))[5] == np.sort(x, axis=None)[5]
    with pytest.raises(MeshweaveError, match="partition: kth=9 of 9 elements"):
        mw.partition(x, 9)
    own = mw.Array.from_numpy(x, mesh="x=2", layout="[x, _]")
    own.sort(axis=0)
    np.testing.assert_array_equal(own, np.sort(x, axis=0))
    own.partition(2)
    np.testing.assert_array_equal(np.asarray(own)[:, 2], np.sort(np.sort(x, axis=0))[:, 2])
    own.fill(2)
    assert (np.asarray(own) == 2).all() and str(own.layout) == "[x, _]"
    assert [n.tolist() for n in mw.asarray(np.eye(2)).nonzero()] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("rows, columns, rank", [(7, 4, 4), (4, 7, 4), (7, 4, 1)])
def test_least_squares(rows, columns, rank):
    a, b = numbers(rows, columns), numbers(rows, 2, seed=1)
    if rank == 1:
        a = np.outer(a[:, 0], a[0])
    for sides in (b, b[:, 0]):
        y, left, found, values = mw.linalg.lstsq(a, sides)
        wanted = np.linalg.lstsq(a, sides)
        np.testing.assert_allclose(y, wanted[0], atol=1e-10)
        np.testing.assert_allclose(values, wanted[3], atol=1e-10)
        rest = sides - a @ wanted[0]
        np.testing.assert_allclose(left, (rest**2).sum(0), atol=1e-10)
        assert int(found) == wanted[2] == rank


def test_conditions_and_products_of_several():
    a, t, lin = numbers(4, 4), numbers(2, 3, 6, seed=1), mw.linalg
    for p in (None, -2, 1, np.inf, "fro", "nuc"):
        np.testing.assert_allclose(lin.cond(a, p), np.linalg.cond(a, p))
    chain = [a[0], a, numbers(4, 9), numbers(9, 2), numbers(2)]
    np.testing.assert_allclose(lin.multi_dot(chain), np.linalg.multi_dot(chain))
    np.testing.assert_allclose(lin.tensorinv(t), np.linalg.tensorinv(t))
    np.testing.assert_allclose(lin.tensorsolve(t, a[:2, :3]), np.linalg.tensorsolve(t, a[:2, :3]))
    with pytest.raises(MeshweaveError, match="lstsq: shapes"):
        lin.lstsq(a, a[:3])


def test_a_name_that_is_spelt_otherwise_says_how():
    for name, said in (
        ("polyfit", "mw.linalg.lstsq"),
        ("i0", "mw.special.i0"),
        ("asanyarray", "mw.asarray"),
    ):
        with pytest.raises(AttributeError, match=said):
            getattr(mw, name)
