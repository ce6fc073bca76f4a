"""Updates of elements, in programs and on Arrays, against NumPy, over layouts; and functions whose size is said."""

from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from traced import mw

from meshweave.errors import CompileError, UsageError

X = np.arange(35, dtype=np.float32).reshape(5, 7) - 9
LAYOUTS = ("[x, y]", "[y, _]", "[_, x*y]", "[_*x, y]", "[_, x] order(1, 0)", "[x, _] +sum(y)")
UFUNCS = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
KEYS: list[Any] = [
    slice(1, 4), 2, (slice(None), slice(0, 7, 3)), (slice(None, None, -1), slice(1, 3)), (..., -1),
    (None, slice(1, 3), 2), np.array([0, 2, 2]), (slice(None), np.array([[1, 2], [-1, 2]])), ([0, 1], slice(1, 5, 2)),
    (np.array([1, 3]), np.array([0, 6])), (slice(4, 0, -2), [3, 3]), ([1, 1], None, slice(None, None, -1)),
    (3, np.array([1, 2])), X > 5, X[:, 0] > 0, slice(2, 2), (), ([], 1),
]  # fmt: skip


def right(x: Any, key: Any, value: Any, how: str) -> Any:
    made = x.copy()
    if how == "set":
        made[key] = value
    else:
        UFUNCS[how].at(made, key, value)
    return made


def laid(value: Any, layout: str, dtype: Any = None) -> Any:
    return mw.Array.from_numpy(value, mesh="x=2, y=2", layout=layout, dtype=dtype)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Any, Any, str]:
    key = draw(st.sampled_from(KEYS))
    how = draw(st.sampled_from(["set", *UFUNCS]))
    shape = X[key].shape
    form = draw(st.sampled_from([(), shape, shape[-1:], (1,) * len(shape)]))
    value = np.random.default_rng(draw(st.integers(0, 9))).standard_normal(form)
    return key, (value.astype(np.float32) if form else 1.5), how


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(changes(), min_size=4, max_size=4), st.sampled_from(LAYOUTS[:4]))
def test_updates_in_programs_are_those_of_numpy(cases: Any, layout: str) -> None:
    values = [value for _, value, _ in cases]

    def run(x: Any, values: Any) -> Any:
        return [getattr(x.at[k], how)(v) for (k, _, how), v in zip(cases, values)] + [x]

    program = mw.jit(run, mesh="x=2, y=2", in_layouts=(layout, None))
    *found, same = program(X, values)
    program.close()
    for (key, value, how), y in zip(cases, found):
        np.testing.assert_array_equal(y, right(X, key, value, how), err_msg=f"{key} {how}")
    np.testing.assert_array_equal(same, X)


@settings(max_examples=examples(25), deadline=None)
@given(changes(), st.sampled_from([None, *LAYOUTS]))
def test_updates_of_arrays_are_those_of_numpy(case: Any, layout: str | None) -> None:
    key, value, how = case
    a = mw.asarray(X) if layout is None else laid(X, layout)
    found = getattr(a.at[key], how)(value)
    np.testing.assert_array_equal(found, right(X, key, value, how))
    assert layout == "[x, _] +sum(y)" or found.layout == a.layout
    np.testing.assert_array_equal(a, X)
    a[key] = value
    np.testing.assert_array_equal(a, right(X, key, value, "set"))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 7), (2, 1), (1, 1, 7), (2, 1, 7)])
@pytest.mark.parametrize("key", [(0,), (0, 1), (0, 1, ...), (slice(2), 1), (None, 0)])
def test_dims_in_front_are_left_out_where_numpy_leaves_them_out(key: Any, shape: Any) -> None:
    value, found = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 90, []
    for made in (X.copy(), laid(X, "[x, y]")):
        try:
            made[key] = value
            found.append(np.asarray(made))
        except ValueError:
            found.append(X)
    np.testing.assert_array_equal(*found)


def test_assignments_in_a_program_reach_no_other_name() -> None:
    @mw.jit(mesh="x=2, y=2", in_layouts=("[x, y]", None))
    def run(x: Any, i: Any) -> Any:
        others = x[:], x.reshape(5, 7), mw.asarray(x), +x, mw.broadcast_arrays(x, x)[0]
        y = x
        x[1:3] = 5
        x[i, 2] = -1.0
        x[x > 20] = 0
        x += 1
        y[0, 0] = 9
        return x, y, others, x.at[:, i].get()

    a = laid(X, "[x, y]")
    x, y, others, columns = run(a, np.array([0, 4]))
    old = X.copy()
    old[1:3], old[[0, 4], 2] = 5, -1
    old[old > 20] = 0
    np.testing.assert_array_equal(x, old + 1)
    np.testing.assert_array_equal(columns, (old + 1)[:, [0, 4]])
    old[0, 0] = 9
    np.testing.assert_array_equal(y, old)
    for other in (*others, a):
        np.testing.assert_array_equal(other, X)


def test_updates_move_nothing_where_ranks_have_what_they_need() -> None:
    def run(x: Any, i: Any, mask: Any, rows: Any) -> Any:
        x = x.at[1:3, ::2].set(5.0).at[mask].multiply(2.0)
        x = x.at[i].add(rows).at[:, i].max(0.0)
        return mw.put_along_axis(x, mw.argmax(x, axis=1, keepdims=True), 0.0, axis=1)

    given_ = (X, np.array([0, 4, 0]), X > 2, np.ones((3, 7), np.float32))
    found = {}
    for layout, rows in (("[_, x]", "[_, x]"), ("[x, y]", None)):
        program = mw.jit(run, mesh="x=2, y=2", in_layouts=(layout, "[_]", layout, rows))
        y = X.copy()
        y[1:3, ::2] = 5
        y[given_[2]] *= 2
        np.add.at(y, given_[1], given_[3])
        y[:, [0, 4]] = np.maximum(y[:, [0, 4]], 0)
        np.put_along_axis(y, y.argmax(1, keepdims=True), 0, 1)
        np.testing.assert_array_equal(program(*given_), y)
        found[layout] = program.explain()
    for text in found.values():
        assert "all_gather" not in text


def test_gradients_follow_updates() -> None:
    jax = pytest.importorskip("jax")
    rows, y = np.array([0, 3, 0]), np.arange(21.0, dtype=np.float32).reshape(3, 7)

    def ours(x: Any, y: Any) -> Any:
        kept = x * 2
        x[1:3, ::2] = y[:2, :4]
        x[0] = 2.0
        x[x > 12] = 1.0
        x = x.at[rows].add(y * y).at[:, -1].multiply(y[0, 0]).at[2:, 1].max(y[1, 1])
        x = x.at[np.array([4, 4]), 2].set(y[:2, 0]).at[rows, 1:4].subtract(y[:, :3])
        return mw.sum(x * x * kept) + mw.sum(mw.pad(x, 1, "reflect") ** 2)

    def theirs(x: Any, y: Any) -> Any:
        kept = x * 2
        x = x.at[1:3, ::2].set(y[:2, :4]).at[0].set(2.0)
        x = jax.numpy.where(x > 12, 1.0, x)
        x = x.at[rows].add(y * y).at[:, -1].multiply(y[0, 0]).at[2:, 1].max(y[1, 1])
        x = x.at[4, 2].set(y[1, 0]).at[rows, 1:4].add(-y[:, :3])
        return (x * x * kept).sum() + (jax.numpy.pad(x, 1, "reflect") ** 2).sum()

    wanted = jax.jit(jax.grad(theirs, (0, 1)))(X, y)
    for options in ({}, {"mesh": "x=2, y=2", "in_layouts": ("[x, y]", "[_, x]")}):
        found = mw.jit(mw.grad(ours, (0, 1)), **options)(X, y)
        for ours_, theirs_ in zip(found, wanted):
            np.testing.assert_allclose(ours_, theirs_, rtol=1e-5, atol=1e-3)
    with pytest.raises(CompileError, match=r"x\.at\[\.\.\]\.max at index arrays has no derivative"):
        mw.jit(mw.grad(lambda x: mw.sum(x.at[rows].max(1.0))))(X)


def test_updates_are_mapped() -> None:
    x = np.arange(24.0, dtype=np.float32).reshape(3, 2, 4)
    i = np.array([[0, 1], [3, 3], [2, 0]])

    def run(x: Any, i: Any, v: Any) -> Any:
        x[0, 1:3] = v
        x[x > 20] = 0.0
        return x.at[:, i].add(1.0).at[1, i[0]].set(v), mw.pad(x, 1)

    for sizes in ((0, 0, 0), (0, None, None), (None, 0, None)):
        args = [a if s == 0 else a[0] for a, s in zip((x, i, np.arange(3.0, dtype="f4")), sizes)]
        if sizes[0] is None:  # what is one for all places stays so: updates make others
            mapped = mw.vmap(lambda x, i, v: run(x * 1, i, v), sizes)
            with pytest.raises(CompileError, match="one value for all places"):
                mw.vmap(lambda x, i: x.__setitem__((0, i), 1.0 * i) or x, (None, 0))(x[0] * 1, i)
        else:
            mapped = mw.vmap(run, sizes)
        found = mapped(*args)
        for k in range(3):
            one = [mw.asarray(a[k] if s == 0 else a) for a, s in zip(args, sizes)]
            for y, z in zip(found, mw.jit(run)(*one)):
                np.testing.assert_array_equal(y.numpy()[k], z)


@sampled(1)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "i8", "ui32", "complex<f32>", "i1"])
def test_updates_of_other_dtypes(dtype: str) -> None:
    value = (np.arange(12).reshape(3, 4) % 5).astype(
        np.float32 if dtype == "bf16" else mw.as_dtype(dtype).numpy
    )
    for layout in ("[x, y]", "[_, _]"):
        a = laid(value, layout, dtype)
        a[1, ::2] = dtype == "i1" or 1
        b = a.at[mw.asarray([0, 2]), 1].add(a[0, 0])
        wide = a.numpy().astype(value.dtype)
        old = value.copy()
        old[1, ::2] = 1
        np.testing.assert_array_equal(wide, old)
        old[[0, 2], 1] += old[0, 0]
        np.testing.assert_array_equal(b.numpy().astype(value.dtype), old)
        assert b.dtype_name == dtype


def test_what_does_not_fit_is_refused() -> None:
    whole = mw.asarray(np.arange(4))
    for wrong in (lambda a: a.at[0].set(1.5), lambda a: a.at[:2].divide(2)):
        with pytest.raises((UsageError, CompileError), match="int64"):
            mw.jit(wrong)(whole)
        with pytest.raises((UsageError, CompileError), match="int64"):
            wrong(whole)
    cases = {
        "a mask of shape": lambda a: a.at[a[:2] > 0].set(1),
        "y of shape": lambda a: a.at[1:3].set(mw.ones(3, dtype=mw.int64)),
        "is out of range": lambda a: a.at[np.array([7])].set(1),
        "integers of 1 dims": lambda a: mw.put_along_axis(a, a > 1, 0, axis=0),
        "pad: mode": lambda a: mw.pad(a, 1, "mirror"),
        "pad: pad_width": lambda a: mw.pad(a, [(1, 2), (3, 4)]),
        "nonzero: size=-1": lambda a: mw.nonzero(a, size=-1),
    }
    for said, wrong in cases.items():
        with pytest.raises(CompileError, match=said):
            mw.jit(wrong)(whole)


@sampled(2)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
def test_padding_is_that_of_numpy(mode: str) -> None:
    widths: list[Any] = [1, (2, 1), [(1, 2), (0, 3)], [(12, 11), (9, 20)]]
    program = mw.jit(
        lambda a: [mw.pad(a, w, mode) for w in widths], mesh="x=2, y=2", in_layouts="[x, y]"
    )
    for width, found in zip(widths, program(X)):
        np.testing.assert_array_equal(found, np.pad(X, width, mode))
    assert mw.pad(mw.asarray(X), 1, constant_values=2).numpy()[0, 0] == 2
    one = np.pad(X[:1], 2, mode)
    np.testing.assert_array_equal(mw.pad(mw.asarray(X[:1]), 2, mode), one)


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=6, max_size=6), st.integers(0, 8), st.booleans())
def test_as_many_as_size_says(elements: Any, size: int, sharded: bool) -> None:
    value = np.array(elements).reshape(2, 3)
    options = {"mesh": "x=2", "in_layouts": "[_, x]"} if sharded else {}
    program = mw.jit(
        lambda a: (
            mw.nonzero(a, size=size, fill_value=-1),
            tuple(mw.unique_all(a, size=size, fill_value=99)),
        ),
        **options,
    )
    places, unique = program(value)
    program.close()

    def cut(row: Any, fill: Any) -> Any:
        return np.concatenate([row, np.full(max(size - len(row), 0), fill)])[:size]

    for found, row in zip(places, value.nonzero()):
        np.testing.assert_array_equal(found, cut(row, -1))
    wanted = np.unique(value, return_index=True, return_inverse=True, return_counts=True)
    for found, row, fill in zip(unique, wanted, (99, 0, None, 0)):
        np.testing.assert_array_equal(found, row if fill is None else cut(row, fill))


def test_a_size_works_outside_of_programs_too() -> None:
    a = laid(np.array([[3.0, 0.0], [np.nan, 3.0]]), "[x, y]")
    assert mw.nonzero(a, size=2)[1].tolist() == [0, 0]
    assert mw.unique_values(a, size=3).tolist()[:2] == [0.0, 3.0]
    assert [v.tolist() for v in mw.unique_counts(a[0], size=3)] == [[0.0, 3.0, 0.0], [1, 1, 0]]
    assert mw.unique_inverse(a[0]).inverse_indices.tolist() == [1, 0]


def test_put_along_axis_changes_its_argument() -> None:
    for a in (mw.asarray(X.copy()), laid(X, "[x, y]")):
        places = mw.argmax(a, axis=1, keepdims=True)
        assert mw.put_along_axis(a, places, -1.0, axis=1) is a
        y = X.copy()
        np.put_along_axis(y, y.argmax(1, keepdims=True), -1, 1)
        np.testing.assert_array_equal(a, y)
