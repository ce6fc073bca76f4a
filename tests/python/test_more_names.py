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


@pytest.mark.parametrize("layout", ["[_, _]", "[x, y]"])
def test_bits_places_in_a_row_and_quotients_with_remainders_are_members(layout):
    x = numbers(3, 4).astype("f4")

    def laid(value):
        return mw.Array.from_numpy(value, mesh="x=2, y=2", layout=layout)

    a = laid(x)
    for dtype in ("i4", "u4"):
        bits = a.view(np.dtype(dtype))
        assert bits.dtype == dtype
        np.testing.assert_array_equal(bits, x.view(dtype))
        np.testing.assert_array_equal(mw.view(bits, mw.float32), x)
    np.testing.assert_array_equal(a.view(np.int32).view(mw.uint32), x.view("u4"))
    with pytest.raises(MeshweaveError, match=r"view: .*float32 of 32 bits as .*int16 of 16"):
        a.view(mw.int16)
    np.testing.assert_array_equal(np.stack(divmod(a, 0.5)), np.stack(np.divmod(x, np.float32(0.5))))
    np.testing.assert_array_equal(np.stack(divmod(2.0, a)), np.stack(np.divmod(np.float32(2), x)))
    np.testing.assert_array_equal(round(a, 1), np.round(x, 1))
    own, right = laid(x), x.copy()
    for places, values in (
        ([0, 5], [9, 8]),
        ([-1], 7.0),
        ([1, 2, 3], [5, 6]),
        ([[0, 1], [2, 3]], [1, 2, 3, 4]),
        ([], []),
    ):
        own.put(places, values)
        np.put(right, np.asarray(places, int), values)
        np.testing.assert_array_equal(own, right)
    for array in (own, right):
        array.flat[3] = 1
        array.flat[2:7] = [1, 2, 3, 4, 5]
        array.flat[[0, 1]] = 3
    np.testing.assert_array_equal(own, right)
    assert own.flat[3].item() == right.flat[3] and [*map(float, own.flat)] == [*right.flat]
    with pytest.raises(IndexError, match="put: places 12 to 12 of 12 elements"):
        own.put([12], 0)
    with pytest.raises(MeshweaveError, match="put: places of dtype float64, integers are right"):
        own.put([0.5], 0)
    own.flat = 2
    assert (own == 2).all() and len(own.flat) == 12 and own.block_until_ready() is own


def test_members_of_traced_values():
    @mw.jit(mesh="x=2", in_layouts=("[x, _]", None))
    def step(v, places):
        v.put(places, [1.0, 2.0])
        v.put([0], 9.0)
        v.flat[2] = 5.0
        v.flat[places] = v.flat[places] + 1
        return v, v.view(mw.int32), divmod(v, 2), round(v)

    x = numbers(3, 4).astype("f4")
    right = x.copy()
    np.put(right, [3, 7], [2, 3])
    np.put(right, [0, 2], [9, 5])
    found, bits, (quotient, rest), near = step(x, np.array([3, 7]))
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(bits, right.view("i4"))
    np.testing.assert_array_equal(quotient, right // 2)
    np.testing.assert_array_equal(rest, right % 2)
    np.testing.assert_array_equal(near, np.round(right))


def test_names_that_others_have_say_what_is_right_here():
    a = mw.asarray(numbers(2, 2))
    for where, name, hint in (
        (mw, "half", "mw.float16"), (mw, "bool_", "mw.bool"), (mw, "mgrid", "mw.indices"), (mw, "put", "x.put"),
        (mw, "floating", "mw.isdtype"), (mw, "euler_gamma", "np.euler_gamma"), (mw.nn, "swish", "mw.nn.silu"),
        (a, "strides", "np.asarray"), (a, "sharding", "x.layout"), (a, "is_deleted", "x.is_donated"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=f"{name}'.*{hint}"):
            getattr(where, name)


@pytest.mark.parametrize(
    ("one", "other"), [("f4", "f8"), ("f8", "f4"), ("f4", "c16"), ("c8", "f8")]
)
def test_systems_are_solved_in_the_dtype_of_both_sides(one, other):
    a, b = (numbers(3, 3) + 3 * np.eye(3)).astype(one), numbers(3, 2, seed=1).astype(other)
    for found, right in (
        (mw.linalg.solve(a, b), np.linalg.solve(a, b)),
        (mw.linalg.lstsq(a, b).solution, np.linalg.lstsq(a, b)[0]),
        (mw.linalg.solve(a[:0, :0], b[:0, 0]), np.linalg.solve(a[:0, :0], b[:0, 0])),
    ):
        assert found.dtype == right.dtype
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
