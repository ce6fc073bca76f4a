"""Large arrays that a jitted function holds: they are arguments of its program, never a part of its text."""

import threading

import numpy as np
import pytest
from depth import sampled
from traced import mw

LARGE = np.random.default_rng(5).standard_normal((200, 130)).astype(np.float32)
X = np.linspace(-1, 1, 130, dtype=np.float32)
MESHES = (None, "x=4", "x=3", "x=2, y=2")


def taken(function, *args, **options):
    """Run a jitted function; return its results, and how many arrays its program takes besides `args`."""
    jitted = mw.jit(function, **options)
    found = jitted(*args)
    inputs = jitted.lower(*args).compile().program.inputs
    return np.asarray(found), len(inputs) - len(args)


@sampled(5)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "array",
    [
        LARGE,
        np.asfortranarray(LARGE),
        np.tile(LARGE, (2, 1))[::2],
        LARGE.astype(np.float64),
        (LARGE * 50).astype(np.int64),
        np.tile(LARGE, (4, 1)) > 0,
        np.where(np.arange(130) % 7 == 3, np.nan, np.where(LARGE > 0, -0.0, LARGE)).astype("f4"),
    ],
    ids=["f32", "fortran", "strided", "f64", "i64", "bool", "nan"],
)
def test_elements_of_every_kind_keep_their_bits(array, mesh):
    for repeat in (lambda: mw.asarray(array), lambda: mw.flip(mw.flip(array, axis=0), axis=0)):
        found, count = taken(repeat, mesh=mesh)
        assert count == 1
        assert found.dtype == array.dtype and found.tobytes() == array.tobytes()


def test_bfloat16_keeps_its_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.tile(LARGE, (2, 1)).astype(ml_dtypes.bfloat16)
    found, count = taken(lambda: mw.astype(array, mw.float32), mesh="x=2")
    assert count == 1 and found.tobytes() == array.astype(np.float32).tobytes()


@sampled(1)
@pytest.mark.parametrize("mesh", MESHES)
def test_they_are_seen_in_loops_branches_hints_and_inner_functions(mesh):
    inner = mw.jit(lambda a: a + LARGE, in_layouts="[_, _]")

    def function(x):
        y = mw.cond(mw.sum(x) > -1e9, lambda: LARGE * x, lambda: LARGE - x)
        _, y = mw.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + LARGE), (0, y))
        with mw.hint(slice="t=2"):
            y = inner(y) * LARGE
        return y

    found, count = taken(function, X, mesh=mesh)
    assert count == 1  # one array, however often it is used
    np.testing.assert_allclose(found, (LARGE * X + 4 * LARGE) * LARGE, rtol=1e-5, atol=1e-5)


def test_a_program_has_what_an_array_held_when_it_was_used():
    array = LARGE.copy()

    def function(x):
        before = x + array
        array[...] = 2 * LARGE
        return before, x + array, x - array

    jitted = mw.jit(function)
    for _ in range(2):
        first, second, third = jitted(X)
        array[...] = 7 * LARGE
        assert np.array_equal(first, X + LARGE)
        assert np.array_equal(second, X + 2 * LARGE) and np.array_equal(third, X - 2 * LARGE)
    assert len(jitted.lower(X).compile().program.inputs) == 3


def test_programs_of_one_text_and_other_arrays_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHWEAVE_CACHE", str(tmp_path))
    jitted = [_adds(LARGE * factor) for factor in (1, 2, 3)]
    assert len({one.lower(X).as_text() for one in jitted}) == 1
    for _ in range(2):
        for factor, one in enumerate(jitted, 1):
            assert np.array_equal(one(X), X + LARGE * factor)


def _adds(array):
    return mw.jit(lambda x: x + array)


def test_no_text_grows_with_the_elements():
    wide = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float32)
    jitted = mw.jit(lambda x: mw.sum(x * wide))
    lowered = jitted.lower(wide)
    bundle = lowered.compile().program.bundle
    assert len(lowered.as_text()) < 4096 and len(bundle.to_bytes()) < wide.nbytes // 16
    assert "captured0" in jitted.explain(wide)


def test_small_arrays_stay_in_the_program():
    found, count = taken(lambda x: x + LARGE[0], X)
    assert count == 0 and np.array_equal(found, X + LARGE[0])


@pytest.mark.parametrize("shape", [(100, 700), (70000,), (70000, 1), (1, 1, 70000)])
def test_arrays_of_one_value_are_numbers_not_arguments(shape):
    found, count = taken(lambda: mw.asarray(np.full(shape, 2.5, np.float32)) * 1)
    assert count == 0 and found.shape == shape and (found == 2.5).all()


@pytest.mark.parametrize("mesh", [None, "x=4"])
def test_arguments_of_any_kind_meet_them(mesh):
    jitted = mw.jit(lambda x, k: x * k + LARGE, mesh=mesh, in_layouts=("[_]", None))
    for x in (X, X * 2, mw.Array.from_numpy(X, mesh=mesh or "", layout="[_]")):
        for _ in range(3):
            right = np.asarray(x) * np.float32(3) + LARGE
            np.testing.assert_array_equal(jitted(x, np.float32(3)), right)
            np.testing.assert_array_equal(jitted(x, 3.0), right)


def test_threads_share_them():
    jitted = mw.jit(lambda x: x + LARGE, mesh="x=2")
    wrong = []

    def call(k):
        for _ in range(20):
            if not np.array_equal(jitted(X * k), X * k + LARGE):
                wrong.append(k)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_processes_get_them_once_and_again_after_other_values():
    jitted = mw.jit(lambda x: x + LARGE, mesh="x=2", engine="mpi")
    for factor in range(3):
        assert np.array_equal(jitted(X * factor), X * factor + LARGE)
    program = jitted.lower(X).compile().program
    assert np.array_equal(program(X, -LARGE)[0], X - LARGE)
    executable = program.executable
    rows = [[X, LARGE], [X, LARGE]]
    for value in (LARGE, 3 * LARGE, LARGE):
        rows = [[X, value], [X, value]]
        for fixed in (1, 1, 0, 1):
            assert np.array_equal(executable.run(rows, fixed=fixed)[0][0], X + value)
    program.close()
    jitted.close()
