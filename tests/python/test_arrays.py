"""Arrays compute outside of traced functions, as arrays of the standard, on the ranks that hold them."""

import operator
import pickle

import numpy as np
import pytest
from depth import examples, some
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave as mw
from meshweave.api.alike import _UFUNCS
from meshweave.errors import UsageError
from meshweave.runtime.arrays.array import own

LAYOUTS = ("[_, _]", "[x, _]", "[_, y]", "[x, y]", "[x*y, _]", "[_*x, y]", "[_, x] order(1, 0)")
X = np.arange(15, dtype=np.float32).reshape(3, 5) - 7


def laid(value, layout="[x, y]", dtype=None):
    return mw.Array.from_numpy(value, mesh="x=2, y=2", layout=layout, dtype=dtype)


BINARY = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
)  # fmt: skip


@pytest.mark.parametrize("function", some(BINARY, 3), ids=lambda f: f.__name__)
def test_operators_compute_at_once_and_stay_where_they_are(function):
    for a in (mw.asarray(X), laid(X)):
        for b in (a, X[0] + 0.5, 2.0):
            other = b.numpy() if b is a else b
            found = function(a, b)
            assert isinstance(found, mw.Array) and found.mesh == a.mesh
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found.numpy(), function(X, other))
                np.testing.assert_array_equal(function(b, a).numpy(), function(other, X))
        assert function(a, a).layout == a.layout


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_what_numpy_computes_has_the_bits_of_a_program(data):
    name = data.draw(st.sampled_from(sorted(_UFUNCS)))
    ufunc, elements, _ = _UFUNCS[name]
    element = data.draw(st.sampled_from(elements))
    dtype = mw.as_dtype(element).numpy
    bits = st.integers(0, (1 << (8 * dtype.itemsize)) - 1) if element != "i1" else st.booleans()
    near = st.integers(-3, 3) if element != "i1" else st.booleans()

    def value():
        if data.draw(st.booleans()):
            some = np.array(data.draw(st.lists(near, min_size=6, max_size=6)))
            return some.astype(dtype).reshape(2, 3)
        raw = np.array(data.draw(st.lists(bits, min_size=6, max_size=6)))
        return (
            raw.astype(f"u{dtype.itemsize}").view(dtype).reshape(2, 3)
            if element != "i1"
            else raw.reshape(2, 3)
        )

    given_ = [value() for _ in range(ufunc.nin)]
    layout = data.draw(st.sampled_from(LAYOUTS))
    found = getattr(mw, name)(*[laid(v, layout) for v in given_]).numpy()
    right = mw.jit(lambda *args: getattr(mw, name)(*args))(*given_).numpy()
    assert found.dtype == right.dtype
    same = found.view(f"u{found.itemsize}") == right.view(f"u{right.itemsize}")
    same |= (found != found) & (right != right)  # NaNs
    assert np.all(same)


def moves(x, y):
    """Return what each function gives that NumPy computes for arrays of one rank."""
    return (
        mw.reshape(x, (-1, 2)), mw.reshape(x, (3, 4), copy=True), mw.concat((x, y)), mw.concat([y, x], axis=None),
        mw.concat((x, mw.astype(y, mw.float32)), axis=1), mw.stack([x, y], axis=-1), mw.permute_dims(x, (1, 0)),
        mw.matrix_transpose(x), mw.transpose(x), mw.swapaxes(x, 0, 1), mw.moveaxis(x, 0, -1), mw.flip(x),
        mw.flip(x, axis=[0]), mw.roll(x, 1), mw.roll(x, (1, 2), axis=(0, 1)), mw.expand_dims(x, (0, 2)),
        mw.squeeze(mw.expand_dims(x, 0), 0), mw.broadcast_to(x, (2, 3, 4)), mw.tile(x, (2, 1)), mw.tril(x),
        mw.triu(x, k=1), mw.where(x > y, x, y), mw.where(x > y, x, 0.5), mw.where(x > y, x, 3), mw.zeros((2,)),
        mw.ones((2,), dtype=mw.int8), mw.zeros_like(x, dtype=bool), mw.ones_like(x), mw.astype(x, mw.float64),
        mw.astype(x > y, mw.int16), mw.astype(x, mw.int32), mw.astype(mw.astype(x, mw.int8), mw.float32),
    )  # fmt: skip


@pytest.mark.parametrize("wide", [False, True])
def test_what_numpy_moves_is_what_a_program_moves(wide):
    x = np.linspace(-9, 9, 12).astype(np.float64 if wide else np.float32).reshape(3, 4)
    y = np.where(x > 2, -0.0, x[::-1]).astype(x.dtype)
    given = mw.asarray(x), mw.asarray(y)
    for found, right in zip(moves(*given), mw.jit(moves)(x, y), strict=True):
        assert found.dtype == right.dtype and found.shape == right.shape
        assert found.tobytes() == right.tobytes() and found.held[0].flags.c_contiguous
        found[...] = found.dtype.type(1)  # in memory of its own
    assert given[0].tobytes() == x.tobytes() and given[1].tobytes() == y.tobytes()
    assert (
        not mw.eye(2, k=2**70).numpy().any() and mw.tril(given[0], k=2**70).tolist() == x.tolist()
    )
    mesh = mw.Mesh(x=2)
    for found in (mw.zeros((4,), device=mesh), mw.ones_like(given[0], device=mesh)):
        assert found.mesh == mesh
    for wrong in (lambda v: mw.reshape(v, (5, 5)), lambda v: mw.concat((v, v[0]))):
        with pytest.raises(mw.MeshweaveError):
            wrong(given[0])


def test_functions_compile_once_for_each_kind_of_call():
    a, b = laid(X), laid(X * 2)
    assert mw.exp(a).layout == a.layout
    np.testing.assert_allclose(mw.exp(b).numpy(), np.exp(X * 2), rtol=1e-6)
    np.testing.assert_allclose(mw.sum(a, axis=0).numpy(), X.sum(0))
    assert mw.sum(a, axis=0, keepdims=True).shape == (1, 5)
    np.testing.assert_allclose((a @ b.T).numpy(), X @ (X * 2).T)
    assert mw.concat([a, b], axis=1).shape == (3, 10)
    low, high = mw.clip(a, 0.0, 3.0), mw.clip(a, max=-1.0)
    np.testing.assert_array_equal(low.numpy(), X.clip(0, 3))
    np.testing.assert_array_equal(high.numpy(), X.clip(None, -1))
    np.testing.assert_array_equal(mw.where(a > 0, a, 0.0).numpy(), np.where(X > 0, X, 0))
    assert [v.shape for v in mw.unstack(a)] == [(5,)] * 3 and mw.unstack(a[:0]) == ()
    assert mw.repeat(a[:0], mw.asarray(np.zeros(0, np.int64)), axis=0).shape == (0, 5)
    with pytest.raises(ValueError, match="squeeze: dim 1 has size 5"):
        mw.squeeze(a, 1)
    times = mw.asarray([2, 0, 1])
    np.testing.assert_array_equal(mw.repeat(a, times, axis=0).numpy(), X.repeat([2, 0, 1], 0))
    for wrong in (lambda: mw.expand_dims(a, axis=3), lambda: mw.sum(a, axis=2)):
        with pytest.raises(IndexError, match="there is no dim"):
            wrong()
    assert mw.linalg.eigh(mw.asarray(np.eye(2))).eigenvalues.tolist() == [1.0, 1.0]


def test_numbers_beside_arrays_are_weak_and_must_fit():
    whole = mw.asarray(np.arange(3, dtype=np.int8))
    assert (whole + 1).dtype == np.int8 and (whole + 0.5).dtype == np.float32
    assert (mw.asarray(np.ones(2)) * 0.1).tolist() == [0.1, 0.1]
    for value in (300, 1 << 70):
        with pytest.raises(UsageError, match=r"argument 1: .* is no"):
            whole + value


def test_arrays_of_one_rank_go_to_the_mesh_of_others():
    a = laid(X)
    assert (a + mw.asarray(X)).mesh == a.mesh
    with pytest.raises(UsageError, match=r"mw\.add: arrays on the meshes \(x=2, y=2\) and \(z=2\)"):
        a + mw.asarray(X, device="z=2")
    assert a.to_device(mw.Mesh(z=2)).mesh == mw.Mesh(z=2) and a.to_device(a.device) is a


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_indices_are_those_of_numpy(data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    part = st.one_of(
        st.integers(-2, 1), st.slices(3), st.just(None), st.just([0, 2]), st.just(np.array([1, -1]))
    )
    key = tuple(data.draw(st.lists(part, max_size=2)))
    for a in (laid(X, layout), mw.asarray(X)):
        np.testing.assert_array_equal(a[key].numpy(), X[key])
        changed, right = a.copy(), X.copy()
        changed[key], right[key] = 9.0, 9.0
        np.testing.assert_array_equal(changed.numpy(), right)
        np.testing.assert_array_equal(a.numpy(), X)
    assert changed.layout == a.layout


def test_masks_choose_and_set():
    for a in (mw.asarray(X), laid(X)):
        np.testing.assert_array_equal(a[a > 2].numpy(), X[X > 2])
        np.testing.assert_array_equal(a[np.array([True, False, True])].numpy(), X[[0, 2]])
        for key in (True, np.bool_(False), (True, 1)):
            np.testing.assert_array_equal(a[key].numpy(), X[key])
        np.testing.assert_array_equal(a[a[0, 0] < 0].numpy(), X[None])
        a[a > 2] = 0
        np.testing.assert_array_equal(a.numpy(), np.where(X > 2, 0, X))
        for key in (3, (slice(None), -6), ([5],)):
            with pytest.raises(IndexError):
                a[key]


def test_what_does_not_fit_into_an_array_is_refused():
    whole = mw.asarray(np.arange(4))
    for value in (1.5, np.ones(1), mw.asarray([1.5])):
        with pytest.raises(UsageError, match=r"x\[\.\.\.\] = y: x is meshweave.int64, y float"):
            whole[0] = value
    with pytest.raises(UsageError, match="divide in place: the result is f32"):
        whole /= 2
    with pytest.raises(
        UsageError, match=r"x \+= y: an Array from outside does not change in a traced"
    ):
        mw.jit(lambda x: whole.__iadd__(x))(whole)
    same = other = mw.asarray(np.arange(3.0))
    same += 1
    assert same is other and other.tolist() == [1.0, 2.0, 3.0]


def test_an_array_that_changed_is_read_again():
    for a in (mw.asarray(X), laid(X)):
        double = mw.jit(lambda x: x * 2, mesh=a.mesh)
        for number in (1.0, 2.0, 3.0):
            a[0, 0] = number
            # As compiled code reads in place.
            a.become(a.holding([own(shard) for shard in a.shards]))
            assert [float(double(a)[0, 0]) for _ in range(2)] == [2 * number] * 2


def test_protocols_of_python():
    a = laid(X)
    assert len(a) == 3 and [row.tolist() for row in a] == X.tolist()
    assert f"{a[0, 0]:.2f}" == "-7.00" and float(a[0, 1]) == -6.0 and -7 in a and 99 not in a
    assert list(range(5))[mw.asarray(2)] == 2 and complex(mw.asarray(1j)) == 1j
    assert (a.T.shape, a.mT.shape, a.ndim, a.size, a.nbytes) == ((5, 3), (5, 3), 2, 15, 60)
    assert a.mean(axis=1).tolist() == X.mean(1).tolist() and a.reshape(5, 3).shape == (5, 3)
    assert a.__array_namespace__() is mw and a.device == mw.Mesh(x=2, y=2)
    for wrong in (lambda: len(a[0, 0]), lambda: iter(a[0, 0]), lambda: operator.index(a[0, 0])):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(UsageError, match="the truth of an array"):
        bool(a)
    with pytest.raises(TypeError):
        a + "text"
    assert pickle.loads(pickle.dumps(mw.add)) is mw.add


def test_functions_of_numpy_compute_on_the_ranks():
    a = laid(X)
    for found, right in (
        (np.exp(a), np.exp(X)),
        (np.add(X, a), X + X),
        (np.arctan2(a, 2.0), np.arctan2(X, np.float32(2))),
        (np.sum(a, axis=1), X.sum(1)),
        (np.add.reduce(a), X.sum(0)),
        (mw.diff(a, 2), np.diff(X, 2)),
        (np.add(a, a, dtype=np.float64), np.add(X, X, dtype=np.float64)),
        (np.full_like(a, 3, shape=(2, 2)), np.full_like(X, 3, shape=(2, 2))),
        (np.trace(a, dtype=np.float64), np.trace(X, dtype=np.float64)),
        (np.mean(a, axis=0, dtype=np.float64), X.mean(0, dtype=np.float64)),
        (np.concatenate([a, a]), np.concatenate([X, X])),
        *[
            (np.pad(a, 1, constant_values=v), np.pad(X, 1, constant_values=v))
            for v in ((1, 2), ((1, 2), (3, 4)))
        ],
    ):
        assert isinstance(found, mw.Array) and found.mesh == a.mesh
        np.testing.assert_allclose(found.numpy(), right, rtol=1e-5)
    out = a.copy()
    assert np.add(a, 10, out=out, where=X > 2) is out and out.layout == a.layout
    np.testing.assert_array_equal(out, np.where(X > 2, X + 10, X))
    sums = mw.zeros((5,))
    assert np.sum(a, axis=0, out=sums) is sums and np.array_equal(sums, X.sum(0))
    whole, left = np.divmod(a, 2.0, out=(mw.zeros(X.shape), np.zeros(X.shape, np.float32)))
    assert isinstance(left, np.ndarray) and np.array_equal(whole, X // 2) and (left == X % 2).all()
    values, counts = np.unique(a - X % 2, return_counts=True)
    assert (
        values.mesh == a.mesh
        and np.array_equal(values, np.unique(X - X % 2))
        and np.sum(counts) == 15
    )
    assert np.sqrt(abs(a), dtype=np.float64).dtype == np.float64
    np.testing.assert_array_equal(np.multiply.outer(a[0], a[1]), np.multiply.outer(X[0], X[1]))
    np.testing.assert_array_equal(np.isin(a, [1.0, 2.0]), np.isin(X, [1.0, 2.0]))
    assert np.array_equal(np.argwhere(a > 3), np.argwhere(X > 3))
    assert np.array_equal(np.add.accumulate(a), np.add.accumulate(X))
    for wrong in (lambda: np.divide(a, 2, dtype=int), lambda: np.less(a, a, dtype=bool)):
        with pytest.raises(UsageError, match="with dtype"):
            wrong()
    assert np.array_equal(a, X) and (np.shape(a), np.ndim(a), np.size(a, 1)) == ((3, 5), 2, 5)
    np.testing.assert_array_equal(np.frexp(a)[1], np.frexp(X)[1])
    b = X.copy()
    b += a
    np.testing.assert_array_equal(b, X + X)
    for wrong in (
        *(lambda: np.isnat(a), lambda: np.packbits(a), lambda: np.add(a, a, where=X > 0)),
        *(lambda: np.sum(a, where=X > 0), lambda: np.clip(a, a_min=None, a_max=3)),
    ):
        with pytest.raises(
            UsageError, match=r"does not work on Arrays: np.asarray\(a\) is the value"
        ):
            wrong()


def test_integers_beyond_63_bits_keep_their_digits():
    large = (1 << 63) + 1
    assert mw.asarray([large, 0], dtype=mw.uint64).tolist() == [large, 0]
    with pytest.raises(UsageError, match="is no meshweave"):
        mw.asarray([large, -1], dtype=mw.uint64)


def test_sizes_that_the_elements_decide():
    value = np.array([[3, 1, 3], [0, 1, 3]])
    a = laid(value, "[x, _]")
    assert [v.tolist() for v in mw.nonzero(a)] == [v.tolist() for v in np.nonzero(value)]
    assert [v.tolist() for v in mw.where(a > 1)] == [v.tolist() for v in np.where(value > 1)]
    assert mw.unique_values(a).tolist() == [0, 1, 3]
    found = mw.unique_all(a)
    assert found.counts.tolist() == [1, 2, 3] and found.values.dtype == a.dtype
    assert mw.asarray([1.0, 2.0]).dtype == np.float32 and mw.asarray(np.ones(2)).dtype == np.float64
    with pytest.raises(UsageError, match=r"asarray: 300 is no meshweave\.int8"):
        mw.asarray(300, dtype=mw.int8)


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from(LAYOUTS), st.integers(1, 3), st.booleans())
def test_a_large_array_shows_its_edges(layout, edge, partial):
    value = np.arange(77, dtype=np.float32).reshape(7, 11)
    if partial:
        layout = "[x, _] +sum(y)"
    array = laid(value, layout)
    with np.printoptions(threshold=20, edgeitems=edge):
        right = np.array2string(value, separator=", ")
        assert str(array) == right
        assert repr(array).startswith("Array([[") and "7x11xf32" in repr(array)
    assert "<pre>" in array._repr_html_() and "<table" in array._repr_html_()


def test_dtypes_are_those_of_numpy():
    for name in ("float32", "int8", "bool", "complex64"):
        ours = getattr(mw, name)
        assert (
            ours == np.dtype(name) and np.dtype(name) == ours and hash(ours) == hash(np.dtype(name))
        )
        assert mw.zeros(2, dtype=ours).dtype == ours and np.zeros(2, ours).dtype == ours
    half = mw.asarray([1.5, 2.5], dtype=mw.bfloat16, device="x=2")
    assert half.dtype == mw.bfloat16 and half.dtype.name == "bfloat16" and half.dtype_name == "bf16"
    assert (half * 2).tolist() == [3.0, 5.0] and half[1:].tolist() == [2.5]


def test_a_name_of_numpys_says_how_it_is_spelt():
    for name, ours in (("concatenate", "concat"), ("power", "pow"), ("unique", "unique_values")):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': mw\.{ours} "):
            getattr(mw, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        mw.nothing  # noqa: B018


def test_the_logger_is_told_of_programs(caplog):
    double = mw.jit(lambda x: x * 2)
    with caplog.at_level("INFO", logger="meshweave"):
        for size in range(1, 17):
            double(np.ones(size, np.float32))
        mw.cosh(laid(X, "[_, y]"))
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("<lambda> compiled in ") and said[0].endswith("ms: the first call")
    assert said[1].endswith("ms: x is 2xf32, was 1xf32")
    assert [r.levelname for r in caplog.records].count("WARNING") == 1
    assert "has compiled 16 times, last: x is 16xf32" in said[16]
    assert said[-1].startswith("mw.cosh(3x5xf32 [_, y]) compiled in ")


def test_one_program_serves_all_integers_of_an_index():
    x = np.arange(36, dtype=np.float32).reshape(9, 4)
    a = laid(x)
    a[0], a[:, 1], a[2, 1:]
    with mw.expect(compiles=0):
        rows = list(a)
        np.testing.assert_array_equal(a[np.int32(-2)], x[-2])
        np.testing.assert_array_equal(a[:, -1], x[:, -1])
        np.testing.assert_array_equal(a[-3, 1:], x[-3, 1:])
    np.testing.assert_array_equal(np.stack(rows), x)
    np.testing.assert_array_equal(a[None, 3, ..., 2], x[None, 3, ..., 2])
    assert rows[0].layout == a[0].layout and laid(x[:, :0])[1].shape == (0,)
    for key in (9, (0, -5), (0, 0, 0)):
        with pytest.raises(IndexError):
            a[key]


def test_iteration_computes_nothing_before_an_element_is_asked_for():
    a = laid(np.zeros((1 << 20, 2), np.float32))
    with mw.expect(compiles=0):
        assert np.iterable(a)
