"""Manipulation, reductions, creation, linear algebra and searching against NumPy."""

import numpy as np
import pytest
from depth import sampled
from traced import check, mw, run_all

from meshweave.errors import CompileError, MeshweaveError

RNG = np.random.default_rng(3)
A = RNG.standard_normal((4, 1, 6)).astype(np.float32)
M = RNG.standard_normal((5, 6)).astype(np.float32)


def compare(cases, *arrays, tolerance=1e-6):
    found = run_all({name: f for name, (f, _) in cases.items()}, *arrays)
    check(found, {name: right for name, (_, right) in cases.items()}, tolerance)
    for name, (_, right) in cases.items():
        if found[name].dtype.kind != np.asarray(right).dtype.kind:
            raise AssertionError(f"{name}: {found[name].dtype}, {np.asarray(right).dtype} is right")


def test_manipulation():
    cases = {
        "reshape": (lambda a: mw.reshape(a, (2, -1)), A.reshape(2, -1)),
        "reshape method": (lambda a: a.reshape(6, 4), A.reshape(6, 4)),
        "reshape to ones": (lambda a: a.reshape((1, 2, 1, 12, 1)), A.reshape(1, 2, 1, 12, 1)),
        "reshape split": (lambda a: a.reshape((2, 2, 3, 2)), A.reshape(2, 2, 3, 2)),
        "reshape flat": (lambda a: a.reshape(-1), A.reshape(-1)),
        "scalar": (lambda a: mw.reshape(a[:1, :, :1], ()), A[:1, :, :1].reshape(())),
        "from scalar": (lambda a: mw.reshape(a[0, 0, 0], (1, 1)), A[0, 0, 0].reshape(1, 1)),
        "permute": (lambda a: mw.permute_dims(a, (2, 0, 1)), A.transpose(2, 0, 1)),
        "permute same": (lambda a: mw.permute_dims(a, (0, -2, 2)), A),
        "moveaxis": (lambda a: mw.moveaxis(a, 0, -1), np.moveaxis(A, 0, -1)),
        "moveaxis two": (lambda a: mw.moveaxis(a, (0, 2), (1, 0)), np.moveaxis(A, (0, 2), (1, 0))),
        "mT": (lambda a: a.mT, A.swapaxes(1, 2)),
        "expand": (lambda a: mw.expand_dims(a, 1), np.expand_dims(A, 1)),
        "expand two": (lambda a: mw.expand_dims(a, (0, -1)), np.expand_dims(A, (0, -1))),
        "squeeze": (lambda a: mw.squeeze(a, 1), A.squeeze(1)),
        "squeeze end": (lambda a: mw.squeeze(a[..., :1], (1, -1)), A[..., :1].squeeze((1, 2))),
        "broadcast": (lambda a: mw.broadcast_to(a, (3, 4, 2, 6)), np.broadcast_to(A, (3, 4, 2, 6))),
        "concat": (lambda a: mw.concat([a, a[:2], 2 * a]), np.concatenate([A, A[:2], 2 * A])),
        "concat last": (lambda a: mw.concat([a, a], axis=-1), np.concatenate([A, A], -1)),
        "concat flat": (lambda a: mw.concat([a, a[0]], axis=None), np.concatenate([A, A[0]], None)),
        "concat empty": (lambda a: mw.concat([a, a[:0]]), A),
        "concat types": (lambda a: mw.concat([a > 0, mw.ones((1, 1, 6), dtype="i32")]),
                         np.concatenate([A > 0, np.ones((1, 1, 6), np.int32)])),
        "stack": (lambda a: mw.stack([a, -a], axis=1), np.stack([A, -A], 1)),
        "stack last": (lambda a: mw.stack([a, -a, a], axis=-1), np.stack([A, -A, A], -1)),
        "unstack": (lambda a: mw.unstack(a, axis=2)[3], A[:, :, 3]),
        "flip": (lambda a: mw.flip(a), np.flip(A)),
        "flip one": (lambda a: mw.flip(a, axis=-1), np.flip(A, -1)),
        "roll": (lambda a: mw.roll(a, 5), np.roll(A, 5)),
        "roll one": (lambda a: mw.roll(a, -2, axis=2), np.roll(A, -2, 2)),
        "roll two": (lambda a: mw.roll(a, (1, 8), axis=(0, 2)), np.roll(A, (1, 8), (0, 2))),
        "tile": (lambda a: mw.tile(a, (2, 3)), np.tile(A, (2, 3))),
        "tile more": (lambda a: mw.tile(a, (2, 1, 3, 2)), np.tile(A, (2, 1, 3, 2))),
        "tile none": (lambda a: mw.tile(a, (0, 1, 1)), np.tile(A, (0, 1, 1))),
        "repeat": (lambda a: mw.repeat(a, 3, axis=0), np.repeat(A, 3, 0)),
        "repeat last": (lambda a: mw.repeat(a, 2, axis=-1), np.repeat(A, 2, -1)),
        "repeat flat": (lambda a: mw.repeat(a, 2), np.repeat(A, 2)),
        "broadcast_arrays": (lambda a: mw.broadcast_arrays(a, a[0, 0])[1], np.broadcast_to(A[0, 0], A.shape)),
        "iterated": (lambda a: sum(row for row in a), A.sum(0)),
        "empty": (lambda a: mw.reshape(a[:0], (3, 0, 2)), np.zeros((3, 0, 2), np.float32)),
    }  # fmt: skip
    compare(cases, A)


@sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool"])
def test_reductions(dtype):
    x = (RNG.standard_normal((3, 4, 5)) * 3).astype(dtype)
    x[0, 0, 0] = x[2, 1, 3] = x[1, 1, 1]
    cases = {}
    for axis in (None, 0, -1, (0, 2), (1, -1, 0), ()):
        for keep in (False, True):
            for name in ("sum", "prod", "max", "min", "any", "all"):
                key = f"{name} {axis} {keep}"
                call = lambda a, n=name, d=axis, k=keep: getattr(mw, n)(a, axis=d, keepdims=k)  # noqa: E731
                cases[key] = (call, getattr(np, name)(x, axis=axis, keepdims=keep))
        if axis != ():
            mean = x.astype(np.float64).mean(axis)
            cases[f"mean {axis}"] = (lambda a, d=axis: mw.mean(a, axis=d), mean)
            cases[f"var {axis}"] = (
                lambda a, d=axis: mw.var(a, axis=d, correction=1.0),
                x.astype(np.float64).var(axis, ddof=1),
            )
            cases[f"std {axis}"] = (
                lambda a, d=axis: mw.std(a, axis=d, keepdims=True),
                x.astype(np.float64).std(axis, keepdims=True),
            )
    for axis in (None, 0, 2, -2):
        for name in ("argmax", "argmin"):
            call = lambda a, n=name, d=axis: getattr(mw, n)(a, axis=d)  # noqa: E731
            cases[f"{name} {axis}"] = (call, getattr(np, name)(x, axis=axis))
        cases[f"nonzero {axis}"] = (
            lambda a, d=axis: mw.count_nonzero(a, axis=d),
            np.count_nonzero(x, axis=axis),
        )
    for axis in (0, 1, 2):
        right = np.cumsum(x, axis)
        cases[f"cumsum {axis}"] = (lambda a, d=axis: mw.cumulative_sum(a, axis=d), right)
    rest = np.concatenate([np.zeros_like(right[..., :1]), right], -1)
    cases["cumsum initial"] = (
        lambda a: mw.cumulative_sum(a, axis=2, include_initial=True),
        rest,
    )
    cases["cumprod"] = (lambda a: mw.cumulative_prod(a, axis=0), np.cumprod(x, 0))
    cases["argmax kept"] = (
        lambda a: mw.argmax(a, keepdims=True),
        np.argmax(x, keepdims=True),
    )
    compare(cases, x, tolerance=3e-6 if dtype != "float64" else 1e-12)


def test_reductions_with_nans_and_infinities_and_narrow_types():
    x = np.array([[1, np.nan, 3], [np.inf, 2, -np.inf], [4, 5, 4]], np.float32)
    h = (RNG.standard_normal((64, 8)) * 30).astype(np.float16)
    cases = {
        "max": (lambda a, h: mw.max(a, axis=1), x.max(1)),
        "min": (lambda a, h: mw.min(a, axis=0), x.min(0)),
        "argmax": (lambda a, h: mw.argmax(a, axis=1), x.argmax(1)),
        "argmin": (lambda a, h: mw.argmin(a, axis=1), x.argmin(1)),
        "argmax all": (lambda a, h: mw.argmax(a), x.argmax()),
        "half sum": (
            lambda a, h: mw.sum(h, axis=0),
            h.astype(np.float32).sum(0).astype(np.float16),
        ),
        "half mean": (lambda a, h: mw.mean(h), h.astype(np.float32).mean().astype(np.float16)),
        "wide": (lambda a, h: mw.sum(h, dtype="f64"), h.astype(np.float64).sum()),
        "no rows": (lambda a, h: mw.sum(a[:0], axis=0), np.zeros(3, np.float32)),
        "none at all": (lambda a, h: mw.all(a[:0] > 0), np.True_),
    }
    found = run_all({n: f for n, (f, _) in cases.items()}, x, h)
    check(found, {n: r for n, (_, r) in cases.items()}, 1e-3)
    assert found["half sum"].dtype == np.float16 and found["wide"].dtype == np.float64


def test_differences():
    cases = {
        "diff": (lambda a: mw.diff(a), np.diff(M)),
        "diff twice": (lambda a: mw.diff(a, axis=0, n=2), np.diff(M, 2, 0)),
        "diff bool": (lambda a: mw.diff(a > 0), np.diff(M > 0)),
    }
    compare(cases, M)


def test_softmax():
    x = np.array([[1000.0, 1000, -1000], [0, 1, 2]], np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    cases = {
        "rows": (lambda a: mw.softmax(a), e / e.sum(1, keepdims=True)),
        "logs": (lambda a: mw.log_softmax(a[1:]), np.log((e / e.sum(1, keepdims=True))[1:])),
        "columns": (lambda a: mw.sum(mw.softmax(a, axis=0), axis=0), np.ones(3, np.float32)),
        "logsumexp": (lambda a: mw.logsumexp(a, axis=1), np.log(e.sum(1)) + x.max(1)),
    }
    compare(cases, x, tolerance=1e-5)


def test_creation():
    like = np.ones((2, 3), np.int32)
    cases = {
        "zeros": (lambda x: mw.zeros((2, 3)), np.zeros((2, 3), np.float32)),
        "ones": (lambda x: mw.ones(4, dtype=mw.int64), np.ones(4, np.int64)),
        "full": (lambda x: mw.full((2,), 2.5), np.full(2, 2.5, np.float32)),
        "full int": (lambda x: mw.full((2,), 7), np.full(2, 7)),
        "full bool": (lambda x: mw.full((), True), np.True_),
        "full nan": (lambda x: mw.full((2,), float("nan"), dtype="f16"), np.full(2, np.nan, np.float16)),
        "full inf": (lambda x: mw.full((2,), -np.inf), np.full(2, -np.inf, np.float32)),
        "full big": (lambda x: mw.full((2,), 1e39), np.full(2, np.inf, np.float32)),
        "full traced": (lambda x: mw.full((2, 2), mw.sum(x)), np.full((2, 2), 6)),
        "like": (lambda x: mw.full_like(x, 3), np.full_like(like, 3)),
        "zeros like": (lambda x: mw.zeros_like(x, dtype="f64"), np.zeros((2, 3))),
        "ones like": (lambda x: mw.ones_like(x), like),
        "arange": (lambda x: mw.arange(5), np.arange(5)),
        "arange two": (lambda x: mw.arange(2, 7), np.arange(2, 7)),
        "arange back": (lambda x: mw.arange(7, -4, -3), np.arange(7, -4, -3)),
        "arange float": (lambda x: mw.arange(0.5, 3, 0.25), np.arange(0.5, 3, 0.25, np.float32)),
        "arange none": (lambda x: mw.arange(3, 1), np.arange(3, 1)),
        "linspace": (lambda x: mw.linspace(-1, 2, 7), np.linspace(-1, 2, 7, dtype=np.float32)),
        "linspace open": (lambda x: mw.linspace(0, 1, 4, endpoint=False, dtype="f64"), np.linspace(0, 1, 4, False)),
        "linspace ints": (lambda x: mw.linspace(-2, 5, 4, dtype="i32"), np.linspace(-2, 5, 4, dtype=np.int32)),
        "linspace one": (lambda x: mw.linspace(3, 5, 1), np.linspace(3, 5, 1, dtype=np.float32)),
        "eye": (lambda x: mw.eye(3), np.eye(3, dtype=np.float32)),
        "eye above": (lambda x: mw.eye(3, 5, k=1, dtype="i32"), np.eye(3, 5, 1, np.int32)),
        "tril": (lambda x: mw.tril(x), np.tril(like)),
        "tril k": (lambda x: mw.tril(mw.ones((2, 4, 3)), k=-1), np.tril(np.ones((2, 4, 3), np.float32), -1)),
        "triu": (lambda x: mw.triu(x, k=1), np.triu(like, 1)),
        "asarray": (lambda x: mw.asarray([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]])),
        "asarray float": (lambda x: mw.asarray([1, 2.5]), np.array([1, 2.5], np.float32)),
        "asarray array": (lambda x: mw.asarray(np.arange(6.0).reshape(2, 3)), np.arange(6.0).reshape(2, 3)),
        "asarray bool": (lambda x: mw.asarray([True, False, True]), np.array([True, False, True])),
        "asarray traced": (lambda x: mw.asarray([x[0, 0], 5]), np.array([1, 5])),
        "constant": (lambda x: x + np.array([[1], [2]], np.int32), like + np.array([[1], [2]], np.int32)),
        "meshgrid": (lambda x: mw.meshgrid(mw.arange(3), mw.arange(2))[1], np.meshgrid(np.arange(3), np.arange(2))[1]),
    }  # fmt: skip
    found = run_all({n: f for n, (f, _) in cases.items()}, like)
    for name, (_, right) in cases.items():
        right = np.asarray(right)
        assert found[name].dtype == right.dtype, name
        assert found[name].shape == right.shape, name
        assert np.array_equal(found[name], right, equal_nan=right.dtype.kind == "f"), name


@sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_linear_algebra(dtype):
    def values(*shape):
        return (RNG.standard_normal(shape) * 2).astype(dtype)

    m, n, batch, v, w = values(5, 6), values(6, 7), values(2, 1, 5, 6), values(6), values(3, 6, 4)
    wide = [x.astype(np.float64) for x in (m, n, batch, v, w)]
    wm, wn, wb, wv, ww = wide
    cases = {
        "matmul": (lambda m, n, b, v, w: m @ n, wm @ wn),
        "matvec": (lambda m, n, b, v, w: m @ v, wm @ wv),
        "vecmat": (lambda m, n, b, v, w: v @ n, wv @ wn),
        "dot": (lambda m, n, b, v, w: v @ v, wv @ wv),
        "batched": (lambda m, n, b, v, w: b @ w, wb @ ww),
        "batched vector": (lambda m, n, b, v, w: b @ v, wb @ wv),
        "vector batched": (lambda m, n, b, v, w: v @ w, wv @ ww),
        "transposed": (lambda m, n, b, v, w: m @ m.T, wm @ wm.T),
        "tensordot": (lambda m, n, b, v, w: mw.tensordot(b, w, axes=([3], [1])), np.tensordot(wb, ww, ([3], [1]))),
        "tensordot 1": (lambda m, n, b, v, w: mw.tensordot(m, n, axes=1), wm @ wn),
        "tensordot 2": (lambda m, n, b, v, w: mw.tensordot(m, m), np.tensordot(wm, wm)),
        "tensordot 0": (lambda m, n, b, v, w: mw.tensordot(v, v, axes=0), np.outer(wv, wv)),
        "vecdot": (lambda m, n, b, v, w: mw.vecdot(m, v), (wm * wv).sum(-1)),
        "vecdot first": (lambda m, n, b, v, w: mw.vecdot(n, n, axis=-2), (wn * wn).sum(-2)),
        "outer": (lambda m, n, b, v, w: mw.outer(v, v[:2]), np.outer(wv, wv[:2])),
        "einsum": (lambda m, n, b, v, w: mw.einsum("ij,jk->ik", m, n), wm @ wn),
        "heads": (lambda m, n, b, v, w: mw.einsum("abid,cdk->abcik", b, w), np.einsum("abid,cdk->abcik", wb, ww)),
        "einsum three": (lambda m, n, b, v, w: mw.einsum("ij,jk,j->ik", m, n, v), np.einsum("ij,jk,j->ik", wm, wn, wv)),
        "einsum implied": (lambda m, n, b, v, w: mw.einsum("ij,kj", m, m), np.einsum("ij,kj", wm, wm)),
        "einsum dots": (lambda m, n, b, v, w: mw.einsum("...ij,...jk->...ik", b, w), wb @ ww),
        "einsum sum": (lambda m, n, b, v, w: mw.einsum("ij->j", m), wm.sum(0)),
        "einsum swap": (lambda m, n, b, v, w: mw.einsum("ij->ji", m), wm.T),
        "einsum dead": (lambda m, n, b, v, w: mw.einsum("ij,kl->ik", m, n), np.outer(wm.sum(1), wn.sum(1))),
        "no columns": (lambda m, n, b, v, w: m[:, :0] @ n[:0], np.zeros((5, 7))),
    }  # fmt: skip
    found = run_all({k: f for k, (f, _) in cases.items()}, m, n, batch, v, w)
    tolerance = {"float16": 3e-2, "float32": 2e-5}.get(dtype, 1e-12)
    check(found, {k: r for k, (_, r) in cases.items()}, tolerance)
    assert all(y.dtype == np.dtype(dtype) for y in found.values())


def test_searching():
    x = RNG.integers(0, 50, (4, 9)).astype(np.int32)
    f = RNG.standard_normal((3, 7)).astype(np.float32)
    i = np.array([[2, 0], [-1, 3]])
    along = np.argsort(x, axis=1, kind="stable")
    row = np.sort(f[0])
    cases = {
        "take": (lambda x, f, i: mw.take(x, i, axis=0), np.take(x, i, 0)),
        "take last": (lambda x, f, i: mw.take(x, i, axis=-1), np.take(x, i, -1)),
        "take list": (lambda x, f, i: mw.take(x, [3, 1], axis=1), np.take(x, [3, 1], 1)),
        "take row": (lambda x, f, i: mw.take(x[0], i), np.take(x[0], i)),
        "along": (lambda x, f, i: mw.take_along_axis(x, along, axis=1), np.take_along_axis(x, along, 1)),
        "along first": (lambda x, f, i: mw.take_along_axis(x, i[:1, :1], axis=0), x[2:3]),
        "searchsorted": (lambda x, f, i: mw.searchsorted(row, f), np.searchsorted(row, f)),
        "behind": (lambda x, f, i: mw.searchsorted(row, row, side="right"), np.arange(1, 8)),
        "sort": (lambda x, f, i: mw.sort(f), np.sort(f)),
        "sort first": (lambda x, f, i: mw.sort(x, axis=0), np.sort(x, 0)),
        "sort down": (lambda x, f, i: mw.sort(x, descending=True), -np.sort(-x)),
        "argsort": (lambda x, f, i: mw.argsort(x), along),
        "argsort down": (lambda x, f, i: mw.argsort(x, descending=True, axis=0), np.argsort(-x, 0, kind="stable")),
        "sort one": (lambda x, f, i: mw.sort(f[:, :1]), f[:, :1]),
    }  # fmt: skip
    compare(cases, x, f, i)


def test_sort_puts_nans_last():
    x = np.array([np.nan, 3, -np.inf, np.inf, np.nan, -0.0, 0.0, 1], np.float32)
    found = run_all(
        {"up": mw.sort, "order": mw.argsort, "long": lambda a: mw.sort(mw.tile(a, (40,)))}, x
    )
    assert np.array_equal(found["up"], np.sort(x), equal_nan=True)
    assert np.array_equal(found["order"], np.argsort(x, kind="stable"))
    assert np.array_equal(found["long"], np.sort(np.tile(x, 40)), equal_nan=True)


HUGE = {
    "more than can be addressed": lambda x: mw.zeros((1 << 70,)),
    "can be addressed": lambda x: mw.tile(x, (1 << 40, 1 << 40)),
    "is no int64": lambda x: mw.full((3,), 1 << 80),
    "on this machine": lambda x: mw.linspace(0, 1, 1 << 42),
}


@pytest.mark.parametrize("says", HUGE)
def test_what_no_machine_holds_is_an_error(says):
    with pytest.raises(MeshweaveError, match=says):
        mw.jit(HUGE[says])(A)


WRONG = {
    "reshape: 4x1x6 has 24 elements, 5 has 5": lambda x: mw.reshape(x, 5),
    "do not divide": lambda x: mw.reshape(x, (5, -1)),
    "there is no dim 3 of 3": lambda x: mw.sum(x, axis=3),
    "a dim is named twice": lambda x: mw.max(x, axis=(0, -3)),
    "only dim 0 may differ": lambda x: mw.concat([x, x[:, :, 1:]]),
    "dim 0 has size 4, 1 is right": lambda x: mw.squeeze(x, 0),
    "does not broadcast|do not broadcast": lambda x: mw.broadcast_to(x, (4, 1, 5)),
    "there are no elements": lambda x: mw.max(x[:0]),
    "say along which axis": lambda x: mw.cumulative_sum(x),
    "integers are right": lambda x: mw.take(x, x, axis=0),
    "diagonals": lambda x: mw.einsum("iji->j", x),
    "3 operands, 1 are given": lambda x: mw.einsum("a,b,c", x),
    "6 columns meet 4 rows": lambda x: x[:, 0] @ x[:, 0],
    "at least 1 is right": lambda x: x @ 2,
    "bool is right": lambda x: mw.where(x, x, x),
    "an integer is right": lambda x: x << 1,
    "known are bool": lambda x: mw.astype(x, "f8x"),
    "a number is right": lambda x: (x > 0) - (x < 0),
    "no integer": lambda x: mw.flip(x, axis="rows"),
    "got a list": lambda x: mw.exp([1, 2]),
}


@pytest.mark.parametrize("says", WRONG)
def test_mistakes_are_said_at_the_users_line(says):
    with pytest.raises(CompileError, match=says) as caught:
        mw.jit(WRONG[says])(A)
    line = WRONG[says].__code__.co_firstlineno
    assert caught.value.location == f"{__file__}:{line}"


@sampled(1)
@pytest.mark.parametrize("given, made", [("f2", "f4"), ("i4", "i8"), ("f4", "f8"), ("f8", "f4")])
@pytest.mark.parametrize("n", [6, 33])
def test_a_conversion_overwrites_nothing_that_it_still_has_to_read(given, made, n):
    """Half of a buffer of small elements takes as many bytes in large ones: not the same buffer for that."""
    x = np.arange(n).astype(given)
    width = np.dtype(made).itemsize

    def f(x):
        both = mw.concat([x * 2, x * 3])
        return mw.astype(both[:n], f"{made[0]}{8 * width}")

    for choice in ({"only": ("reference",)}, {"blas": True}):
        with mw.kernels(**choice):
            np.testing.assert_array_equal(np.asarray(mw.jit(f)(x)), (x * 2).astype(made))


@sampled(1)
@pytest.mark.parametrize("name", ["sum", "max", "all", "argmax", "argmin", "count_nonzero"])
def test_kept_dims_are_those_of_the_argument(name):
    for x in (np.float32(3), np.ones(2, np.float32), np.ones((2, 3), np.float32)):
        y = mw.jit(lambda x: getattr(mw, name)(x, keepdims=True))(x)
        assert y.shape == (1,) * np.ndim(x)
