"""Memory that no array sees any more is what the next array of its size lies in, and no other memory is."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import meshweave as mw
from meshweave.runtime import memory
from meshweave.runtime.memory import LEAST, aligned_array

KIND = np.dtype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """Keep the collector away from what there is, which takes it half a second in a process of many tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    gc.collect()
    monkeypatch.setattr(memory, "_left", {})


def made(nbytes=LEAST):
    return aligned_array((nbytes // 4,), KIND)


def left():
    return [len(piece) for pieces in memory._left.values() for piece in pieces]


def place(array):
    return array.__array_interface__["data"][0]


def test_the_memory_that_was_left_last_is_taken_first():
    first, second, other = made(), made(), made(2 * LEAST)
    places = [place(first), place(second)]
    del first
    del second, other
    again = [made(), made(), made()]
    assert [place(array) for array in again[:2]] == places[::-1]
    assert place(again[2]) not in places
    assert all(place(array) % 64 == 0 and array.flags.writeable for array in again)


@pytest.mark.parametrize("view", [
    lambda a: a[3:5], lambda a: a.view(np.int32).reshape(2, -1)[1], memoryview, lambda a: np.asarray(memoryview(a)),
    lambda a: np.from_dlpack(a), lambda a: a.ctypes, lambda a: a.base, lambda a: a[2:].base[1:],
])  # fmt: skip
def test_memory_that_a_view_sees_is_not_taken(view):
    array = made()
    where = place(array)
    seen = view(array)
    del array
    assert place(other := made()) != where
    del seen
    assert place(made()) == where
    assert place(other) != where


def test_little_memory_and_too_much_is_not_kept(monkeypatch):
    monkeypatch.setattr(memory, "LIMIT", 5 * LEAST)
    made(LEAST // 2), made(6 * LEAST)
    assert not memory._left
    arrays = [made((k + 1) * LEAST) for k in range(3)]
    while arrays:
        arrays.pop(0)
    assert left() == [2 * LEAST, 3 * LEAST]
    made(2 * LEAST)
    made(), made()
    assert left() == [2 * LEAST, LEAST, LEAST]


def test_threads_never_share_memory():
    def work(number):
        for _ in range(300):
            one, other = made((1 + number % 2) * LEAST), made()
            one[:], other[:] = number, -number
            if not ((one == number).all() and (other == -number).all()):
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(1, 9)))


def test_sizes_of_which_nothing_is_left_are_forgotten():
    for number in range(40):
        made(LEAST + 4 * number)  # and nobody keeps it
    assert len(memory._left) == 40
    taken = [made(LEAST + 4 * number) for number in range(40)]
    assert len(taken) == 40 and not memory._left


def test_results_of_calls_lie_in_what_earlier_ones_left():
    f = mw.jit(lambda x: x + 1)
    x = mw.asarray(np.zeros((256, 128), np.float32))
    y = f(x)
    view = np.asarray(y)[:2]
    places = {place(f(x).held[0]) for _ in range(5)}
    assert len(places) == 1 and place(y.held[0]) not in places
    del y
    assert not np.shares_memory(f(x).held[0], view) and (view == 1).all()
    z = f(f(f(x)))
    assert (np.asarray(z) == 3).all() and (view == 1).all()
