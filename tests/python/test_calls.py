"""What a call of a jitted function is made of: static values, trees, layouts by name, nested calls, threads."""

import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from traced import mw

from meshweave.api.lowered import Compiled
from meshweave.errors import CompileError, LayoutError, UsageError

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def here(function, offset=0):
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def test_static_values_that_python_holds_for_equal_are_told_apart():
    def f(x, how):
        if isinstance(how, tuple):
            how = how[0]
        return -x if isinstance(how, bool) else x + 1.5 if isinstance(how, float) else x * 2

    compiled = mw.jit(f, static_argnames="how")
    for how, right in ((1, 2), (True, -1), (1.0, 2.5), ((1,), 2), ((True,), -1), ((1.0,), 2.5)):
        assert compiled(X, how).numpy()[0, 1] == right, how
    assert compiled.cache_info().misses == 6
    signs = mw.jit(lambda x, zero: mw.copysign(x, mw.asarray(zero)), static_argnames="zero")
    assert [signs(X, zero).numpy()[0, 1] for zero in (0.0, -0.0, 0.0)] == [1, -1, 1]
    same = mw.jit(lambda x, n: x, static_argnames="n")
    for value in (float("nan"), float("nan"), frozenset({1, 2}), frozenset({2, 1})):
        same(X, value)
    assert same.cache_info().misses == 2


def test_defaults_names_and_layouts_by_name():
    @mw.jit(mesh="x=2", in_layouts=("[x, _]", "[_, x]", None))
    def f(x, y=X, *, scale=2.0):
        return x * scale + y

    assert np.array_equal(f(X).numpy(), 3 * X) and np.array_equal(f(X, 2 * X).numpy(), 4 * X)
    assert np.array_equal(f(y=X, x=2 * X, scale=3.0).numpy(), 7 * X)
    named = mw.jit(lambda x, y: (x, y), mesh="x=2", in_layouts={"y": "[_, x]"})
    assert str(named(X, X)[1].layout) == "[_, x]"
    static = mw.jit(lambda x, n: x * n, mesh="x=2", in_layouts="[_, x]", static_argnames="n")
    assert str(static(n=3, x=X).layout) == "[_, x]"


LAYOUTS = [
    ({"z": "[x, _]"}, UsageError, r"in_layouts: \['z'\] are no arguments: p, q are"),
    (3, UsageError, "in_layouts is 3: a layout, or one for each argument"),
    ((3, None), UsageError, r"in_layouts\[0\] \(argument p\): 3 for "),
    (("[x, _]",), UsageError, "in_layouts: 1 entries, 2 are right"),
    (({"w": "[q]"}, None), LayoutError, r"in_layouts\[0\]\['w'\] \(argument p\['w'\]\): layout \[q\] has 1 dims"),
    (({"v": None}, None), UsageError, r"in_layouts\[0\] \(argument p\): \['v'\] entries, \['w'\] are right"),
    ((None, "[z, _]"), LayoutError, r'in_layouts\[1\] \(argument q\): layout \[z, _\]: no axis "z" in mesh \(x=2\)'),
    ((None, "[x{1,2}, _]"), LayoutError, r"\(argument q\).*dim 0 needs 2 that sum to 4"),
    ((None, "[x,"), LayoutError, r"\(argument q\): layout .* at column 4"),
    ("[x]", LayoutError, r"in_layouts\[0\]\['w'\].*layout \[x\] has 1 dims, the tensor 4x6 has 2"),
]  # fmt: skip


@pytest.mark.parametrize(("layouts", "kind", "says"), LAYOUTS)
def test_wrong_layouts_name_the_argument(layouts, kind, says):
    f = lambda p, q: p["w"] + q  # noqa: E731
    for call in (lambda g: g({"w": X}, X), lambda g: g(p={"w": X}, q=X)):
        with pytest.raises(kind, match=says) as caught:
            call(mw.jit(f, mesh="x=2", in_layouts=layouts))
        assert caught.value.location == here(f)


@dataclass
class Pair:
    first: Any
    second: Any = None


def test_trees_of_dicts_in_order_and_of_subclasses():
    def f(tree):
        return OrderedDict(b=tree["p"].first, a=tree["many"]["x"]), Pair(tree["p"].second)

    many = defaultdict(list, x=2 * X)
    made, pair = mw.jit(f)({"p": Pair(X, 3.0), "many": many})
    assert list(made) == ["b", "a"] and np.array_equal(made["a"].numpy(), 2 * X)
    assert isinstance(pair, Pair) and pair.second is None and float(pair.first) == 3


ARGUMENTS = [
    (1 << 70, "argument a: 1.1805916207e.21 is no meshweave.int64"),
    (np.ma.masked_array([1.0, 2.0], [0, 1]), "argument a: a masked array"),
    (X.astype(">f4"), r"argument a: dtype >f4: bytes in another machine's order; astype\('float32'\) is right"),
    (X.astype("longdouble"), "argument a: dtype (longdouble|float128): known are bool"),
    (np.array([None]), "argument a: dtype object"),
    ("fast", "argument a: str is no array; name it in static_argnames"),
    ({"w": [X, b""]}, r"argument a\['w'\]\[1\]: bytes is no array"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "says"), ARGUMENTS, ids=[str(i) for i in range(len(ARGUMENTS))])
def test_arguments_that_programs_do_not_take(value, says):
    f = mw.jit(lambda a: a)
    with pytest.raises(UsageError, match=says) as caught:
        f(value)
    assert caught.value.location.startswith(f"{__file__}:")


def test_wrong_options_are_refused_at_once():
    for options in ({"timeout": "long"}, {"timeout": 0}, {"mesh": {"x": 2}}, {"mesh": "x=N"}):
        with pytest.raises(UsageError, match=next(iter(options))):
            mw.jit(lambda x: x, **options)


@mw.jit
def callee(x):
    return mw.reshape(x, (5, 5))


def test_an_error_in_a_nested_call_names_callee_and_both_lines():
    def caller(x):
        return callee(x) + 1

    with pytest.raises(CompileError, match="24 elements, 5x5 has 25 ") as caught:
        mw.jit(caller)(X)
    assert caught.value.location == here(callee.__wrapped__, 2)
    assert caught.value.message.endswith(f"(in callee, called at {here(caller, 1)})")


def test_layouts_of_a_nested_call_hold_in_the_program_around():
    inner = mw.jit(
        lambda a, *, k=1.0: {"y": a * k},
        mesh="x=2, y=2", in_layouts={"a": "[y, _]"}, out_layouts={"y": "[_, x]"},
    )  # fmt: skip
    outer = mw.jit(lambda a: inner(a + 1, k=3.0)["y"], mesh="x=2, y=2", in_layouts="[x, _]")
    y = outer(X)
    assert np.allclose(y.numpy(), (X + 1) * 3) and str(y.layout) == "[_, x]"
    assert outer.lower(X).as_text().count('"dist.constrain"') == 2


def test_a_nested_call_with_layouts_is_for_the_mesh_of_the_program():
    inner = mw.jit(lambda a: a * 2, mesh="x=2", in_layouts="[x, _]")
    plain = mw.jit(lambda a: a * 2, in_layouts="[x, _]")  # no mesh of its own
    for mesh in ("x=4", None):
        with pytest.raises(CompileError, match=r"is for the mesh \(x=2\), called in a program for"):
            mw.jit(lambda a: inner(a), mesh=mesh)(X)
    y = mw.jit(lambda a: plain(a), mesh="x=4")(X)
    assert np.array_equal(y.numpy(), X * 2) and str(y.layout) == "[x, _]"
    with pytest.raises(LayoutError, match=r"no axis .x. in mesh"):
        mw.jit(lambda a: plain(a), mesh="z=4")(X)


def test_recursion_without_end_is_one_line():
    @mw.jit
    def again(x):
        return again(x) + 1

    def plain(x):
        return plain(x)

    for f in (again, mw.jit(plain)):
        with pytest.raises(
            CompileError, match=r"never stops calling itself: .*mw\.while_loop"
        ) as caught:
            f(X)
        assert caught.value.location.startswith(f"{__file__}:")

    def power(x, n):
        return mw.ones_like(x) if n == 0 else x * power(x, n - 1)

    assert np.array_equal(mw.jit(power, static_argnames="n")(X, 3).numpy(), X**3)


def test_values_that_leave_their_function_are_refused():
    kept = []
    mw.jit(lambda x: (kept.append(x * 2), x)[1])(X)
    for use, says in (
        (lambda: kept[0] + 1, "used after it"),
        (lambda: np.asarray(kept[0]), "no elements before the program runs"),
        (lambda: mw.jit(lambda y: y + kept[0])(X), "another traced call"),
        (lambda: mw.jit(lambda y: mw.exp(kept[0]))(X), "another traced call"),
        (lambda: bool(kept[0]), "known only when the program runs"),
    ):
        with pytest.raises(CompileError, match=says) as caught:
            use()
        assert caught.value.location.startswith(f"{__file__}:")


def test_results_are_memory_of_their_own():
    given = X.copy()
    same = mw.jit(lambda x: x)
    kept = same(given)
    given[:] = -1
    assert np.array_equal(kept.numpy(), X)
    a, b = mw.jit(lambda x: (x, x))(X)
    a.shards[0][:] = 5
    assert np.array_equal(b.numpy(), X)
    array = mw.Array.from_numpy(X, mesh="x=2", layout="[x, _]")
    moved = mw.jit(lambda x: x, mesh="x=2")
    for _ in range(2):  # compiled, then the fast path
        moved(array).shards[0][:] = 7
    assert np.array_equal(array.numpy(), X)
    twice = mw.jit(lambda a, b: a + b)
    assert np.array_equal(twice(X, X).numpy(), twice(X, X).numpy())


def test_threads_call_one_function_at_once():
    f = mw.jit(lambda a, b: a @ b + 1, mesh="x=2, y=2", in_layouts=("[x, _]", "[_, y]"))
    wrong = []

    def calls(seed):
        rng = np.random.default_rng(seed)
        for _ in range(12):
            a = rng.standard_normal((4 + seed % 3, 6)).astype(np.float32)
            b = rng.standard_normal((6, 5)).astype(np.float32)
            if not np.allclose(f(a, b).numpy(), a @ b + 1, 1e-5, 1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and f.cache_info() == (69, 3, 3)
    f.close()


def test_ten_thousand_ops_trace_and_lower_without_recursion():
    def f(x):
        for i in range(5000):
            x = x * 1.0001 + (1e-6 if i % 2 else -1e-6)
        return x

    text = mw.jit(f).lower(X).as_text()
    assert text.count("linalg.generic") == 10000


def test_empty_arrays_scalars_and_functions_without_arguments():
    empty = mw.jit(
        lambda a: (a @ mw.ones((0, 3)), mw.sum(a, axis=0), mw.sort(a, axis=0)),
        mesh="x=2",
        in_layouts="[x, _]",
    )
    product, total, ordered = empty(np.zeros((4, 0), np.float32))
    assert np.array_equal(product.numpy(), np.zeros((4, 3)))
    assert total.shape == (0,) and ordered.shape == (4, 0)
    assert empty(np.zeros((0, 0), np.float32))[0].shape == (0, 3)
    assert float(mw.jit(lambda a: a + 1, mesh="x=2")(np.float64(3))) == 4
    assert mw.jit(lambda: mw.ones((3,)))().numpy().tolist() == [1, 1, 1]
    assert mw.jit(lambda a: (2.5, np.arange(2)))(X)[1].numpy().tolist() == [0, 1]


def test_arrays_in_any_memory_order_go_the_fast_path_too():
    f = mw.jit(lambda a: a * 2, mesh="x=2", in_layouts="[_, x]")
    wide = np.arange(48, dtype=np.float32).reshape(8, 6)
    wide.flags.writeable = False
    for view in (X, wide[::2], wide[::-2], np.asfortranarray(X), wide.reshape(6, 8).T[::2], X):
        assert np.array_equal(f(view).numpy(), 2 * view)
    assert f.cache_info().misses == 1


def test_trees_of_arrays_go_the_fast_path_too(monkeypatch):
    f = mw.jit(lambda p, q: sum(p) - sum(q))
    a, b, c = (mw.Array.from_numpy(X + k, mesh="", layout="[_, _]") for k in range(3))
    calls = [(((a, b), (c,)), X - 1), (((a,), (b, c)), -X - 3), (([a, b], [c]), X - 1)]
    for given, right in calls:
        assert np.array_equal(f(*given).numpy(), right)
    monkeypatch.setattr(Compiled, "call", None)
    for given, right in calls:
        assert np.array_equal(f(*given).numpy(), right)
    assert f.cache_info() == (3, 3, 3)
