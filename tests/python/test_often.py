"""What is called often on small Arrays of one rank is computed by builtin functions, as in the first call."""

import sys
import threading

import numpy as np
import pytest
from depth import some

import meshweave as mw
from meshweave.api.callables.often import OFTEN
from meshweave.errors import UsageError
from meshweave.lowering.cpu.collectives.direct import direct_object
from meshweave.runtime.local.direct import direct_calls

X = np.arange(12, dtype=np.float32).reshape(3, 4)
KEYS = (
    0, -1, slice(1, None), slice(None, None, -1), (0, 1), None, ..., (None, ..., 0), [0, 2], X > 3, (), True,
    np.int64(1), (np.array([0, 1]), np.array([1, 2])), slice(5, 2), (slice(None), [0, 0, 1]),
)  # fmt: skip


def often(call):
    """Return the result of the first call, and that of one when it has been made often."""
    first = call()
    for _ in range(OFTEN):
        call()
    return first, call()


def is_builtin(function, *args):
    kinds = tuple([a.kind if isinstance(a, mw.Array) else type(a) for a in args])
    found = function.direct[kinds[0] if len(kinds) == 1 else kinds]
    return type(found) is type(len)


def assert_same(one, other):
    assert one.kind is other.kind
    assert one.numpy().tobytes() == other.numpy().tobytes()


SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, 2.5], np.float32)


@pytest.mark.parametrize("dtype", ("f4", "f8", "i4", "u1", "?"))
@pytest.mark.parametrize(
    "name", some(("add", "less", "divide", "negative", "sqrt", "isnan", "logical_not"), 2)
)
@pytest.mark.filterwarnings("error")
def test_loops_of_numpy_have_the_bits_of_the_first_call(name, dtype):
    with np.errstate(all="ignore"):
        values = SPECIAL.astype(dtype), SPECIAL[::-1].astype(dtype)
    for shape in ((6,), (), (0, 3)):
        args = [mw.asarray(np.resize(v, shape)) for v in values[: getattr(np, name).nin]]
        try:
            first, last = often(lambda args=args: getattr(mw, name)(*args))
        except mw.MeshweaveError:
            return  # of no such dtype
        assert_same(first, last)


def test_programs_and_numbers_are_called_from_a_builtin_function():
    a, b = mw.asarray(X), mw.asarray(X.T.copy())
    for function, args in (
        (mw.exp, (a,)), (mw.sum, (a,)), (mw.matmul, (a, b)), (mw.maximum, (a, 2.5)), (mw.multiply, (a, 2.0)),
        (mw.where, (a > 4.0, a, -a)), (mw.matrix_transpose, (a,)), (mw.add, (a, a)),
    ):  # fmt: skip
        first, last = often(lambda function=function, args=args: function(*args))
        assert is_builtin(function, *args), function
        assert_same(first, last)
    assert_same(*often(lambda: 0.5 * a))
    assert_same(*often(lambda: a[1] < a[0]))


def test_indices_choose_what_numpy_chooses():
    a = mw.asarray(X)
    often(lambda: a[0])
    for key in (
        *KEYS,
        mw.asarray(X > 3),
        mw.asarray(np.array([0, 2])),
        (mw.asarray(1), 2),
        slice(None, mw.asarray(2)),
    ):
        right = a.numpy()[np.asarray(key) if isinstance(key, mw.Array) else plain(key)]
        for _ in range(2):  # the first one of a shape tells its kind
            found = a[key]
            assert found.dtype == np.float32 and found.shape == np.shape(right)
            np.testing.assert_array_equal(found, right)
    for key in (3, (0, 9), "a", 1.5, (0, 0, 0), np.array([7])):
        with pytest.raises(IndexError):
            a[key]


def plain(key):
    if isinstance(key, slice):
        ends = (key.start, key.stop, key.step)
        return slice(*[v.item() if isinstance(v, mw.Array) else v for v in ends])
    return (
        tuple(v.item() if isinstance(v, mw.Array) else v for v in key)
        if isinstance(key, tuple)
        else key
    )


def test_results_share_no_elements_with_what_they_are_of():
    a, b = mw.asarray(X), mw.asarray(-X)
    for make in (
        lambda: a[1:], lambda: a[...], lambda: a.reshape(-1), lambda: mw.reshape(a, (4, 3)), lambda: a.T,
        lambda: mw.squeeze(a), lambda: mw.where(a > b, a, b), lambda: a + b,
    ):  # fmt: skip
        _, last = often(make)
        last[0] = 99
        np.testing.assert_array_equal(a, X)
        kept = make()
        before = kept.numpy()
        a[...] = 5
        np.testing.assert_array_equal(kept, before)
        a[...] = X
    moved = often(lambda: a[1:])[1]
    mw.jit(lambda v: v * 2, donate=("v",))(a)
    np.testing.assert_array_equal(moved, X[1:])


def test_arrays_that_cannot_be_read_where_they_lie_are_computed_as_ever():
    a = mw.Array.from_shards([X[:, ::2]], mesh="", layout="[_, _]", shape=(3, 2))
    other = mw.asarray(np.ascontiguousarray(X[:, ::2]))
    for call in (lambda v: v + v, mw.exp, lambda v: v[1:], lambda v: v.T, lambda v: v * 2.0):
        often(lambda call=call: call(other))
        assert_same(call(a), call(other))


def test_a_donated_array_is_refused():
    a, b = mw.asarray(X), mw.asarray(X)
    calls = (
        lambda: a + b, lambda: b - a, lambda: mw.exp(a), lambda: a[1:], lambda: a.T, lambda: a.reshape(-1),
        lambda: a * 2.0, lambda: mw.where(a > b, a, b),
    )  # fmt: skip
    for call in calls:
        often(call)
    mw.jit(lambda v: v * 2, donate=("v",))(a)
    for call in calls:
        with pytest.raises(UsageError, match="donated"):
            call()


def test_mistakes_are_told_as_ever():
    a = mw.asarray(X)
    often(lambda: a.reshape(-1))
    for shape in ((5, 5), "x", (2.5,), (-1, -1)):
        with pytest.raises(mw.MeshweaveError, match="reshape"):
            a.reshape(shape)


@pytest.mark.parametrize("error", (KeyboardInterrupt, SystemExit, ValueError))
def test_failures_go_the_longer_way_and_what_ends_a_program_is_raised(error):
    def raises(values):
        raise error

    a, ways = mw.asarray(X), direct_calls(direct_object())
    call = ways.of_move(raises, a.kind, lambda array: array.shape)
    if issubclass(error, Exception):
        assert call(a) == (3, 4)
    else:
        with pytest.raises(error):
            call(a)


def test_traces_and_scopes_and_watchers_see_each_call():
    a = mw.asarray(X)
    often(lambda: mw.exp(a))
    often(lambda: a + a)
    step = mw.jit(lambda v: mw.exp(v) + (v + v)[1:].sum() + v.reshape(-1)[0])
    np.testing.assert_allclose(step(a), np.exp(X) + 2 * X[1:].sum() + X[0, 0], rtol=1e-6)
    np.testing.assert_array_equal(mw.jit(lambda v: v * a)(a), X * X)
    with mw.trace() as seen:
        mw.exp(a)
    assert seen.slices
    whole = mw.asarray(np.arange(4))
    often(lambda: mw.mean(whole))
    with mw.default_float(mw.float64):
        assert mw.mean(whole).dtype == np.float64
    assert mw.mean(whole).dtype == np.float32


def test_threads_compute_at_the_same_time():
    failed = []

    def work(seed):
        x = np.random.default_rng(seed).random((8, 8), np.float32)
        a = mw.asarray(x)
        try:
            for _ in range(300):
                found, rows = mw.sum(mw.exp(a) @ a), a[1:] + a[:-1]
            np.testing.assert_allclose(found, np.sum(np.exp(x) @ x), rtol=1e-5)
            np.testing.assert_array_equal(rows, x[1:] + x[:-1])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        mw.jit(lambda v: mw.tanh(v) + v[0])(mw.asarray(X))  # this thread traces meanwhile
    for thread in threads:
        thread.join()
    assert not failed


def test_nothing_is_kept_and_nothing_freed_too_often():
    a = mw.asarray(X)
    for call in (
        lambda: mw.exp(a),
        lambda: a + a,
        lambda: a[1:],
        lambda: a[0, 0],
        lambda: a.T,
        lambda: a * 2.0,
    ):
        often(call)
        held = a.held[0]
        before = [sys.getrefcount(v) for v in (a.kind, a, a.held, held)]
        for _ in range(1000):
            call()
        after = [sys.getrefcount(v) for v in (a.kind, a, a.held, held)]
        assert before == after


def results_with(array, number):
    """Return the first bytes of the results of two operators, and the types of errors."""
    found = []
    for call in (lambda v: v + number, lambda v: number - v):
        try:
            found.append(call(array).numpy().reshape(-1)[:12].tobytes())
        except mw.MeshweaveError as error:
            found.append(type(error))
    return found


@pytest.mark.parametrize("dtype", ("f4", "f8", "i1", "u2"))
def test_integers_of_python_are_taken_as_ever(dtype):
    a = mw.asarray(X.astype(dtype))
    often(lambda: a + 1)
    often(lambda: 7 - a)
    often(lambda: mw.where(a > 3, a, 2))
    other = mw.asarray(
        np.append(X, 1).astype(dtype)
    )  # of a shape that is called for the first time
    for number in (0, -1, 2**24 + 1, 127, 128, 65535, 65536, 2**53 + 1, -(2**62), 2**63, 10**400):
        assert results_with(a, number) == results_with(other, number), number
    with pytest.raises(UsageError, match="an integer of 1329 bits is no"):
        mw.asarray(X[:1]) + 10**400
    assert_same(*often(lambda: a**2))
    np.testing.assert_array_equal(a**2, mw.pow(a, 2))


def test_axes_dtypes_and_lists_tell_calls_apart():
    a, b = mw.asarray(X), mw.asarray(-X)
    calls = [
        lambda: a.sum(axis=0), lambda: a.sum(axis=1), lambda: mw.sum(a, axis=(0, 1)), lambda: mw.flip(a, axis=0),
        lambda: a.sum(axis=0, keepdims=True), lambda: a.sum(keepdims=True, axis=-1), lambda: mw.argmax(a, axis=1),
        lambda: a.astype(mw.float64), lambda: a.astype(mw.int32), lambda: mw.astype(a, bool), lambda: mw.flip(a),
        lambda: mw.concat([a, b]), lambda: mw.concat((a, b), axis=1), lambda: mw.concat([b, a]),
        lambda: mw.stack([a, b], axis=-1),
    ]  # fmt: skip
    firsts = [often(call)[0] for call in calls]
    for call, first in zip(calls, firsts):
        assert_same(call(), first)
    for wrong in (2, 1.0, "0", [0.5], (0.0, 1.0)):
        with pytest.raises((mw.MeshweaveError, TypeError)):
            a.sum(axis=wrong)


def test_elements_are_set_where_they_are_unless_others_see_them():
    a = mw.asarray(X)
    place = a.held[0]
    a[0], a[1, 1], a[2, 2:] = 5.0, 3, [1, 2]
    assert a.held[0] is place and a.numpy()[:, 1].tolist() == [5, 3, 9]
    seen = a.shards[0]
    before = seen.copy()
    a[0] = 7.0
    np.testing.assert_array_equal(seen, before)
    b, whole = mw.from_dlpack(before), before.copy()
    b[0] = 9.0
    np.testing.assert_array_equal(before, whole)
    a += 1
    assert a[0, 0].item() == 8
    with pytest.raises(UsageError, match="in place"):
        mw.asarray(X.astype("i4")).__iadd__(0.5)


def test_without_one_lock_for_objects_nothing_is_offered(monkeypatch):
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: name == "Py_GIL_DISABLED")
    assert direct_calls.__wrapped__(b"") is None
