"""Indexing as NumPy does it, and what it refuses."""

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from traced import mw, run_all

from meshweave.errors import CompileError

X = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
KEYS = [
    0, -1, slice(1, 3), slice(None, None, -1), slice(None, None, 2), slice(3, 0, -2),
    slice(-3, None), slice(10, 20), slice(4, 1), None, Ellipsis,
    (0, 1, 2), (slice(None), 1), (Ellipsis, 1), (1, Ellipsis, slice(None, None, -2)),
    (None, 0, None, slice(1, 4), Ellipsis, None), (slice(None), None, slice(4, None, -3), -1),
    (slice(1, 2), slice(2, 3), slice(3, 4)), (Ellipsis, None), (slice(0, 0), 1), (np.int64(2),),
    ([2, 0, 1],), (slice(1, 3), [0, 0, 4]), (Ellipsis, np.array([[5, -1]])),
    (slice(None), np.array([1, 3]), slice(2, 4)),
]  # fmt: skip


def test_keys():
    cases = {str(i): (lambda x, k=key: x[k]) for i, key in enumerate(KEYS)}
    found = run_all(cases, X)
    for i, key in enumerate(KEYS):
        right = X[key]
        assert found[str(i)].shape == right.shape, key
        assert np.array_equal(found[str(i)], right), key


def entries(size):
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = st.none() | st.integers(-3, 3).filter(bool)
    return st.integers(-size, size - 1) | st.builds(slice, bound, bound, step)


@given(st.lists(st.tuples(*[entries(n) for n in X.shape]), min_size=12, max_size=12))
@settings(max_examples=examples(8))
def test_random_keys(keys):
    found = run_all({str(i): (lambda x, k=k: x[k]) for i, k in enumerate(keys)}, X)
    for i, key in enumerate(keys):
        assert np.array_equal(found[str(i)], X[key]), key


def test_a_traced_index():
    rows = run_all({"y": lambda x, i: x[i], "z": lambda x, i: x[:, i]}, X, np.array([3, -1, 0]))
    assert np.array_equal(rows["y"], X[[3, -1, 0]])
    assert np.array_equal(rows["z"], X[:, [3, -1, 0]])


ADVANCED = [
    ([0, 3], [1, -1]), ([[0], [3]], [1, -1, 2]), (slice(None), [0, 4], [1, -1]), ([0, 3], slice(1, 4), [1, 2]),
    (0, [1, 2]), ([1, 2], 0), (0, slice(None), [1, 2]), (slice(2), 3, [[0, 1]]), (..., [1, 2], 0), ([0, 1], ..., 2),
    (None, [0, 1], [2, 3]), ([0, 1], None, [2, 3]), (1, None, [2, 3]), (slice(None, None, -2), [1, 2], [0]),
    ([0, 1], [2, 3], [4, 5]), ([],), ([], [1]), (np.array(2), [1]),
    X[..., 0, 0] > 3, (X > 50,), (slice(None), X[0] > 8),
    (slice(None), [True, False, True, False, True]), (X[:, 0, 0] > 0, 1), (X > 1e9,),
]  # fmt: skip


def test_arrays_of_integers_and_known_masks():
    found = run_all({str(i): (lambda x, k=k: x[k]) for i, k in enumerate(ADVANCED)}, X)
    spread = run_all(
        {str(i): (lambda x, k=k: x[k]) for i, k in enumerate(ADVANCED)},
        X, mesh="x=2, y=2", in_layouts=("[x, _, _*y]",),
    )  # fmt: skip
    for i, key in enumerate(ADVANCED):
        assert np.array_equal(found[str(i)], X[key]), key
        assert np.array_equal(spread[str(i)], X[key]), key


def test_traced_and_known_integers_together():
    i, j = np.array([3, -1, 0]), np.array([[1], [-2]])
    cases = {
        "both": (lambda x, i, j: x[i, j], X[i, j]),
        "apart": (lambda x, i, j: x[i, :, j], X[i, :, j]),
        "with a list": (lambda x, i, j: x[:, [0, 1, 2], i], X[:, [0, 1, 2], i]),
        "with a number": (lambda x, i, j: x[i, -1], X[i, -1]),
        "a scalar": (lambda x, i, j: x[i[0], i[2]], X[3, 0]),
        "of a list": (lambda x, i, j: x[[i[0], 2]], X[[3, 2]]),
        "stops at the end": (lambda x, i, j: x[i + 9, j - 9], np.broadcast_to(X[3, 0], (2, 3, 6))),
    }
    found = run_all({name: f for name, (f, _) in cases.items()}, X, i, j)
    for name, (_, right) in cases.items():
        assert np.array_equal(found[name], right), name


WRONG = [
    (4, "index 4 is out of range: dim 0 has size 4"),
    ((0, 0, 0, 0), "4 indices for 3 dims"),
    ((Ellipsis, Ellipsis), "one ellipsis at most"),
    (1.5, "integers, slices"),
    (True, "mw.where"),
    ([4], "index 4 is out of range: dim 0 has size 4"),
    ((0, [[0, -6]]), "index -6 is out of range: dim 1 has size 5"),
    ([0.5], "integers are right"),
    (np.ones((4, 4), bool), "a mask of 4 places for dim 1 of size 5"),
    (slice(None, None, 0), "zero"),
]


@pytest.mark.parametrize(("key", "says"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_wrong_keys_are_refused_at_the_users_line(key, says):
    with pytest.raises(CompileError, match=says) as caught:
        mw.jit(lambda x: x[key])(X)
    assert caught.value.location.startswith(__file__)
