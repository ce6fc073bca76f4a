"""The fast path of calls gives what the checked one gives, on any block layout, padding included."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from traced import mw

from meshweave.errors import MeshweaveError
from meshweave.runtime.local.dispatch import LIMIT, Dispatch

LAYOUTS = ["[x, _]", "[_, y]", "[x, y]", "[x*y, _]", "[_, y*x]", "[_, _]"]


@given(
    rows=st.integers(1, 7),
    columns=st.integers(1, 7),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    dtype=st.sampled_from(["float32", "int64", "bool", "float16", "bfloat16"]),
)
@settings(max_examples=examples(10))
def test_both_ways_agree(rows, columns, layouts, dtype):
    rng = np.random.default_rng(0)
    a, b = ((rng.standard_normal((rows, columns)) * 4).astype(dtype) for _ in range(2))
    f = mw.jit(
        lambda x, y: (mw.maximum(x, y), mw.max(x)),
        mesh="x=2, y=2", in_layouts=layouts[:2], out_layouts=(layouts[2], None),
    )  # fmt: skip
    right = np.maximum(a, b)
    for x, y in ((a, b), (b, a), (a, b)):  # the first call is checked, the others are not
        whole, most = f(x, y)
        assert np.array_equal(np.asarray(whole), right) and str(whole.layout) == layouts[2]
        assert np.asarray(most) == x.max()
    assert f.cache_info() == (2, 1, 1)
    f.close()


def test_results_are_not_overwritten_by_the_next_call_and_arguments_may_be_strided():
    f = mw.jit(lambda x: x + 1)
    x = np.arange(24.0).reshape(4, 6)
    f(x)
    first = f(x)
    second = f(np.asfortranarray(x * 2))
    third = f((x * 3)[::-1][::-1])
    assert np.array_equal(np.asarray(first), x + 1)
    assert np.array_equal(np.asarray(second), 2 * x + 1)
    assert np.array_equal(np.asarray(third), 3 * x + 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_go_by_their_shards(dtype):
    f = mw.jit(lambda x: x * 2, mesh="x=2", in_layouts="[x, _]", out_layouts="[x, _]")
    start = mw.jit(lambda x: mw.astype(x, dtype), mesh="x=2", out_layouts="[x, _]")
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    y = start(x)
    for k in range(1, 5):
        y = f(y)
        assert np.array_equal(np.asarray(y), x * 2**k)
    assert f.cache_info() == (3, 1, 1)
    moved = mw.jit(lambda a: a, mesh="x=2", in_layouts="[_, x]", out_layouts="[_, x]")(x)
    for _ in range(2):  # in another layout: laid out anew each time
        assert np.array_equal(np.asarray(f(moved if dtype == "float32" else start(x))), x * 2)


def test_calls_from_several_threads_keep_their_arguments():
    f = mw.jit(lambda x: mw.sum(x, axis=0), mesh="x=2", in_layouts="[x, _]")
    f(np.zeros((4, 3), np.float32))

    def call(k):
        return np.asarray(f(np.full((4, 3), k, np.float32)))

    with ThreadPoolExecutor(4) as pool:
        for k, y in enumerate(pool.map(call, range(40))):
            assert np.array_equal(y, np.full(3, 4 * k))


def test_where_it_does_not_apply_the_checked_path_serves():
    large = np.ones(LIMIT // 4 + 1, np.float32)
    f = mw.jit(lambda x: x * 2)
    for _ in range(2):
        assert np.array_equal(np.asarray(f(large)), 2 * large)
    (compiled,) = f._programs.values()
    assert not Dispatch.applies(compiled.program.executable, [False])
    assert not Dispatch.applies(object(), [])


def test_large_results_are_new_memory_each_time_and_nothing_keeps_them() -> None:
    f = mw.jit(
        lambda x: (x * 2, mw.sum(x)), mesh="x=2", in_layouts="[x, _]", out_layouts=("[x, _]", None)
    )
    x = np.arange(2.0 * LIMIT // 64, dtype=np.float32).reshape(-1, 16)
    laid = mw.Array.from_numpy(x, mesh=f.mesh, layout="[x, _]")
    results = [f(laid)[0] for _ in range(4)]
    (compiled,) = f._programs.values()
    assert Dispatch.applies(compiled.program.executable, [True])
    assert all(np.array_equal(np.asarray(y), 2 * x) for y in results)
    shards = [
        weakref.ref(shard.base if shard.base is not None else shard)
        for y in results
        for shard in y.shards
    ]
    del results
    gc.collect()
    assert not any(ref() is not None for ref in shards)
    seen = weakref.ref(laid)
    del laid
    gc.collect()
    assert seen() is None


def test_a_closed_program_says_so():
    f = mw.jit(lambda x: x * 2)
    x = np.ones(3)
    f(x)
    (call,) = f._fast.values()
    f.close()
    with pytest.raises(MeshweaveError, match="closed"):
        call((x,))
    assert np.array_equal(np.asarray(f(x)), 2 * x)  # compiled again


def test_scalars_and_small_results_take_the_fast_path_too() -> None:
    scaled = mw.jit(lambda x, s: (x * s, mw.sum(x)), mesh="x=2", in_layouts=("[x]", "[]"))
    for factor in (2.0, 3.0, 4.0):  # the first call is checked in full, the later ones are not
        y, total = scaled(np.arange(4, dtype="f4"), np.array(factor, "f4"))
        assert y.numpy().tolist() == [0, factor, 2 * factor, 3 * factor] and total.numpy() == 6
    assert scaled.cache_info() == (2, 1, 1)
    scaled.close()


def test_a_result_of_the_fast_path_is_an_array_like_any_other() -> None:
    double = mw.jit(lambda x: x + x, mesh="x=2", in_layouts="[x]")
    first, second = (double(np.arange(4, dtype="f4")) for _ in range(2))
    assert vars(first).keys() == vars(second).keys()
    assert repr(first) == repr(second) and not np.shares_memory(first.shards[0], second.shards[0])
    assert double(second).numpy().tolist() == [0, 4, 8, 12]
    double.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_that_die_are_not_taken_for_others_that_get_their_ids(dtype) -> None:
    many = mw.jit(lambda *x: mw.concat(x), mesh="x=2", in_layouts=("[x]",) * 5)
    cast = mw.jit(lambda x: mw.astype(x, dtype), mesh="x=2", in_layouts="[x]", out_layouts="[x]")
    rng = np.random.default_rng(0)
    held = [cast(np.zeros(4, np.float32)) for _ in range(5)]
    seen = set()
    for _ in range(40):
        values = [np.zeros(4, np.float32)] * 5
        for place in range(5):
            if rng.integers(2):
                held[place] = None  # its memory and its ids are free
                held[place] = cast(rng.integers(0, 9, 4).astype(np.float32))
            values[place] = np.asarray(held[place]).astype(np.float32)
        seen |= {id(shard) for array in held for shard in array.shards}
        assert np.array_equal(np.asarray(many(*held)).astype(np.float32), np.concatenate(values))
    assert len(seen) < 40 * 5  # some were used again
    many.close()
    cast.close()


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_arguments_of_bf16_are_copied_as_their_bits(mesh, monkeypatch):
    """However they are given, whether strided or not; the fast path takes them, and casts no bits to numbers."""
    calls = []
    called = Dispatch.__call__
    monkeypatch.setattr(Dispatch, "__call__", lambda *a: calls.append(a) or called(*a))
    layouts = {} if mesh is None else {"mesh": mesh, "in_layouts": "[x, _]"}
    f = mw.jit(lambda x: x * 2, **layouts)
    x = np.linspace(-4, 4, 30).reshape(5, 6).astype(ml_dtypes.bfloat16)
    for given_x in (x, x, np.asfortranarray(x), x[::-1]):
        got = np.asarray(f(given_x))
        np.testing.assert_array_equal(got, given_x.astype(np.float32) * 2)
    assert len(calls) == 3  # the first call is checked
    text = "func.func @main(%a: tensor<5x6xbf16>) -> tensor<5x6xbf16> {\n return %a : tensor<5x6xbf16>\n}"
    with mw.compile(text) as program:
        for value in (x, x.astype(np.float32), x.view(np.uint16), x, x.astype(np.float32)):
            (found,) = program(value)
            np.testing.assert_array_equal(
                np.asarray(found).astype(np.float32), x.astype(np.float32)
            )
