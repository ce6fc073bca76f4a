"""jit: pytrees, layouts, the cache and what it says, stages, hints and kernels, places of errors."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from traced import mw

from meshweave.errors import CompileError, LayoutError, MeshweaveError, UsageError
from meshweave.frontends.python import PUBLIC, RENAMED

RNG = np.random.default_rng(8)
X = RNG.standard_normal((8, 6)).astype(np.float32)
W = RNG.standard_normal((6, 12)).astype(np.float32)
V = RNG.standard_normal((12, 10)).astype(np.float32)


def line_of(function: Any, offset: int) -> str:
    """`file:line` of the line `offset` behind the one where a function starts."""
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Layer:
    w: Any
    bias: Any = None


def test_pytrees_in_and_out():
    @mw.jit
    def f(params, pair, *rest, scale=None):
        layer = params["layers"][0]
        y = pair.a @ layer.w
        out = {"y": y, "none": None, "pair": Pair(pair.b, [pair.a, (y,)])}
        return out, Layer(y * scale if scale is not None else y, rest)

    out, layer = f({"layers": [Layer(W)]}, Pair(X, X[0]), X, scale=2.0)
    assert np.allclose(np.asarray(out["y"]), X @ W, atol=1e-5) and out["none"] is None
    assert isinstance(out["pair"], Pair) and np.array_equal(np.asarray(out["pair"].a), X[0])
    assert np.allclose(np.asarray(layer.w), 2 * (X @ W), atol=1e-5)
    assert isinstance(layer, Layer) and len(layer.bias) == 1
    assert np.array_equal(np.asarray(out["pair"].b[0]), X)


def test_results_that_are_no_traced_values():
    y, number, array = mw.jit(lambda x: (x, 3, np.arange(4.0)))(X)
    assert np.array_equal(np.asarray(y), X) and np.asarray(number) == 3
    assert np.array_equal(np.asarray(array), np.arange(4.0))


LAYOUTS = [
    (None, None), (("[dp, _]", "[_, tp]", "[tp, _]"), "[dp, _]"),
    (("[dp, _]", None, "[_, dp*tp]"), None), ("[_, _]", "[dp, tp]"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), LAYOUTS)
def test_four_ranks_agree_with_numpy(given, wanted):
    mlp = mw.jit(
        lambda x, w, v: mw.maximum(x @ w, 0.0) @ v,
        mesh=mw.Mesh(dp=2, tp=2),
        in_layouts=given,
        out_layouts=wanted,
    )
    y = mlp(X, W, V)
    assert np.allclose(np.asarray(y), np.maximum(X @ W, 0) @ V, atol=1e-4)
    if wanted is not None:
        assert str(y.layout) == wanted
    mlp.close()


def test_layouts_are_text_specs_layouts_and_prefixes():
    mesh = mw.Mesh(x=2)
    for one in ("[x, _]", mw.P("x", None), mw.Layout.parse("[x, _]")):
        f = mw.jit(
            lambda p, y: {"s": p["a"] + p["b"], "y": y},
            mesh=mesh,
            in_layouts=({"a": one, "b": None}, one),
            out_layouts=one,
        )
        out = f({"a": X, "b": X}, X)
        assert str(out["s"].layout) == str(out["y"].layout) == "[x, _]"
        assert np.allclose(np.asarray(out["s"]), 2 * X)


def test_arrays_go_from_call_to_call():
    mesh = mw.Mesh(x=2)
    double = mw.jit(lambda a: a * 2, mesh=mesh, in_layouts="[x, _]", out_layouts="[x, _]")
    y = double(double(X))
    assert np.allclose(np.asarray(y), 4 * X)
    kept = mw.jit(lambda a: a + 1, mesh=mesh)(y)
    assert str(kept.layout) == "[x, _]"  # the layout that the Array has is the argument's


def test_an_array_in_another_layout_is_laid_out_anew():
    columns = mw.jit(lambda a: a, mesh="x=2", in_layouts="[_, x]", out_layouts="[_, x]")
    rows = mw.jit(lambda a: a + 1, mesh="x=2", in_layouts="[x, _]")
    other = mw.jit(lambda a: a * 3, mesh="z=3")
    y = columns(X)
    assert np.array_equal(np.asarray(rows(y)), X + 1)
    with pytest.raises(MeshweaveError, match="x"):
        other(y)  # [_, x] is no layout on a mesh without x


def test_a_jitted_function_inside_another_is_part_of_it():
    inner = mw.jit(lambda a: mw.exp(a))
    outer = mw.jit(lambda a: inner(a) + 1)
    assert np.allclose(np.asarray(outer(X)), np.exp(X) + 1, rtol=1e-5)
    assert inner.cache_info() == (0, 0, 0)


def test_constrain_and_redistribute_inside():
    @mw.jit(mesh="x=2, y=2")
    def f(a, b):
        h = mw.constrain(a @ b, "[x, y]")
        return mw.redistribute(mw.exp(h), mw.P("y")), h

    e, h = f(X, W)
    assert np.allclose(np.asarray(e), np.exp(X @ W), rtol=1e-4)
    assert np.allclose(np.asarray(h), X @ W, atol=1e-4)
    text = f.lower(X, W).as_text()
    assert text.count("dist.constrain") == 2 and '"[y, _]"' in text


def test_what_layouts_and_arguments_are_wrong_is_said_at_the_line():
    f = lambda a: mw.constrain(a, "[z, _]")  # noqa: E731
    with pytest.raises(CompileError, match=r"constrain.*z") as caught:
        mw.jit(f, mesh="x=2")(X)
    assert caught.value.location == line_of(f, 0)
    with pytest.raises(LayoutError, match=r"in_layouts\[1\].*\bq\b"):
        mw.jit(lambda a, b: a, mesh="x=2", in_layouts=("[x, _]", "[q]"))(X, X)
    with pytest.raises(LayoutError, match=r"out_layouts\[0\]"):
        mw.jit(lambda a: (a, a), mesh="x=2", out_layouts=("[x]", None))(X)
    with pytest.raises(UsageError, match="in_layouts: 1 entries, 2 are right"):
        mw.jit(lambda a, b: a, mesh="x=2", in_layouts=("[x, _]",))(X, X)
    with pytest.raises(UsageError, match=r"argument p\['mode'\]: str is no array"):
        mw.jit(lambda p: p)({"mode": "fast"})
    with pytest.raises(CompileError, match=r"result.*: no array"):
        mw.jit(lambda a: {"f": len})(X)
    with pytest.raises(CompileError, match="returns no array"):
        mw.jit(lambda a: None)(X)
    with pytest.raises(UsageError, match="static_argnames"):
        mw.jit(lambda a: a, static_argnames="b")
    with pytest.raises(UsageError, match=r"inside a function under @mw\.jit"):
        mw.constrain(X, "[_, _]")


def bad_shapes(x, w):
    y = x * 2
    return y @ w.T


def test_errors_point_at_the_users_line():
    with pytest.raises(CompileError, match=r"matmul: shapes 8x6 and 12x6 do not fit") as caught:
        mw.jit(bad_shapes)(X, W)
    assert caught.value.location == line_of(bad_shapes, 2)
    with pytest.raises(CompileError, match="do not broadcast"):
        mw.jit(lambda x, w: x + w)(X, W)


def test_ops_carry_the_users_line_into_the_compiler():
    def f(x):
        y = x + 1
        return mw.sum(y * 2)

    text = mw.jit(f).lower(X)
    lines = [line for line in text.program.text.split("\n") if line.startswith("#l")]
    places = [line_of(f, n).rpartition(":") for n in (1, 2)]
    for file, _, number in places:
        assert any(f'"{file}":{number}:' in line for line in lines)


def test_wrong_hints_are_refused_at_the_users_line():
    def f(x):
        with mw.hint(nonsense="1"):
            return x * 2

    with pytest.raises(MeshweaveError, match="nonsense") as caught:
        mw.jit(f)(X)
    assert caught.value.location == line_of(f, 1)
    for wrong in ({}, {"slice": object()}, {"slice": 'a"b'}, {"order": "dfs", "strength": "much"}):
        with pytest.raises(MeshweaveError, match="hint"):
            mw.hint(**wrong)


def test_the_cache_says_what_it_did():
    @mw.jit(static_argnames="power")
    def f(x, y, power=2):
        return x**power + y

    one = np.float32(1)
    for _ in range(3):
        f(X, one)
    f(X, one, power=3)
    f(X[:4], one)
    f(X.astype(np.float64), one)
    f(y=one, x=X)
    assert f.cache_info() == (3, 4, 4)
    lines = f.explain_misses().split("\n")
    assert "the first call" in lines[0] and "static" in lines[1]
    assert "x is 4x6xf32, was 8x6xf32" in lines[2] and "x is 8x6xf64" in lines[3]
    with pytest.raises(UsageError, match="hashable"):
        f(X, one, power=[2])


def test_a_new_shape_takes_the_plans_of_another():
    from meshweave.plan import cache_clear

    cache_clear()
    f = mw.jit(lambda x: x * 2, mesh="x=2", in_layouts="[x, _]", out_layouts="[_, x]")
    for columns in (6, 10, 7):
        x = RNG.standard_normal((8, columns)).astype(np.float32)
        assert np.array_equal(np.asarray(f(x)), x * 2)
    lines = f.explain_misses().split("\n")
    assert [line.rpartition("; ")[2] for line in lines] == [
        "plans: 0 from other shapes, 1 searched)",
        "plans: 1 from other shapes, 0 searched)",
        "plans: 0 from other shapes, 1 searched)",
    ]


def test_kernels_are_part_of_the_key_and_are_restored():
    from meshweave.frontends.python.place import chosen_kernels
    from meshweave.hints.fast_paths import Choice

    f = mw.jit(lambda x: x + 1)
    f(X)
    with mw.kernels(only=("reference",)):
        f(X)
        with mw.kernels(flash=False):
            assert chosen_kernels() == Choice(("reference",), (("flash", False),))
            f(X)
        assert chosen_kernels() == Choice(("reference",))
    with pytest.raises(ZeroDivisionError), mw.kernels(flash=True):
        raise ZeroDivisionError
    assert chosen_kernels() is None
    f(X)
    assert f.cache_info() == (1, 3, 3)
    assert "other kernels" in f.explain_misses()
    for wrong in ({"only": "reference"}, {"flash": 1}, {}):
        with pytest.raises(UsageError, match="kernels"):
            mw.kernels(**wrong)


def test_stages_and_explain():
    f = mw.jit(
        lambda x, w: x @ w, mesh="x=2", in_layouts=("[_, x]", "[x, _]"), out_layouts="[_, _]"
    )
    wide = X.reshape(2, 24), np.ones((24, 3), np.float32)
    lowered = f.lower(*wide)
    assert "linalg.generic" in lowered.as_text() and "dist.layouts" in lowered.as_text("propagated")
    assert "dist.all_reduce" in lowered.as_text("local")
    assert f.cache_info().misses == 0
    with pytest.raises(UsageError, match="known are traced"):
        lowered.as_text("optimised")
    with pytest.raises(UsageError, match="no call has compiled"):
        f.explain()
    f(*wide)
    text = f.explain()
    assert "all_reduce" in text and "[_, x]" in text and "2x3xf32" in text and "peak" in text


def test_explain_is_text_in_a_notebook_too(monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)

    @mw.jit(mesh="x=2", in_layouts=("[x, _]",), out_layouts="[_, _]")
    def f(rows):
        return rows + 1

    f(np.zeros((4, 2), "f4"))
    assert "all_gather" in f.explain()


def test_explain_takes_no_name_for_markup():
    @mw.jit
    def f(tree):
        return tree["[bold]x"] + 1

    assert "[bold]x" in f.explain({"[bold]x": np.zeros(2, "f4")})


def test_explain_says_what_became_of_each_hint():
    @mw.jit
    def f(x):
        with mw.hint(slice="t=2", order="dfs", stream=1):
            return mw.exp(x) * 2

    f(X)
    text = f.explain()
    ledger = [line for line in text.splitlines() if "honoured" in line or "unsupported" in line]
    said = {tuple(cell.strip() for cell in line.split("│")[1:5:3]) for line in ledger}
    assert {
        ("slice=t=2", "honoured"),
        ("order=dfs", "honoured"),
        ("stream=1", "unsupported"),
    } == said
    assert "regions" in text and "codegen" in text


def test_hint_regions_have_the_values_used_after_them_as_results():
    @mw.jit
    def f(x):
        with mw.hint(slice="t=2", order="dfs"):
            a = x + 1
            with mw.hint(peak_bytes=1000):
                b = a * 2
            unused = b - 1
            assert unused.shape == b.shape
            c = b * a
        return c + b

    text = f.lower(X).as_text()
    assert text.count('"hint.region"()') == 2
    assert 'hints = {order = "dfs", slice = "t=2"}' in text and 'peak_bytes = "1000"' in text
    outer = next(line for line in text.split("\n") if '"hint.region"()' in line)
    assert ":2 =" in outer


def test_hint_regions_with_results_of_several_types():
    @mw.jit
    def f(x):
        with mw.hint(order="dfs", strength="advisory"):
            y, total = x * 2, mw.sum(x)
        return y, total

    text = f.lower(X).as_text()
    region = next(line for line in text.split("\n") if '"hint.region"()' in line)
    assert (
        ":2 =" in region and "() -> (tensor<8x6xf32>, tensor<f32>)" in text and "advisory" in text
    )


def test_constraints_under_a_hint_may_name_its_time_axis():
    def f(x):
        with mw.hint(slice="t=4, u:2"):
            return mw.constrain(x * 2, "[t*a, u]")

    text = mw.jit(f, mesh="a=2").lower(X).program.text
    assert 'layout = #dist.layout<"[t*a, u]">' in text
    with pytest.raises(CompileError, match=r"constrain.*t"):
        mw.jit(lambda x: mw.constrain(x, "[t*a, _]"), mesh="a=2")(X)


@pytest.mark.parametrize("mesh", [None, "x=1"])
def test_one_rank_takes_and_gives_any_layout(mesh):
    x = np.arange(6, dtype=np.float32)
    layout = "[2*_] order(0.1, 0.0)"
    y = mw.jit(lambda x: x + 1, mesh=mesh, in_layouts=layout, out_layouts=layout)(x)
    np.testing.assert_array_equal(y.shards[0].ravel(), [1, 4, 2, 5, 3, 6])
    np.testing.assert_array_equal(y.numpy(), x + 1)


@pytest.mark.parametrize("hints", [{"order": "strict"}, {"order": "dfs"}, {"width": 2}])
def test_nested_hints_of_which_no_slice_can_be_had_are_all_answered(hints):
    def f(x):
        inner = mw.hint(strength="preferred", slice="u:2")
        with mw.hint(strength="preferred", slice="t=5", **hints), inner:
            return -x

    def two_say(x):
        order, width = mw.hint(strength="preferred", slice="t=5", **hints), mw.hint(width=3)
        with order, width:
            return mw.max(x, axis=0)

    compiled = mw.jit(f)
    assert float(compiled(np.float32(3))) == -3
    assert "infeasible" in compiled.explain()
    assert float(mw.jit(two_say)(np.ones(4, np.float32))) == 1


@pytest.mark.parametrize("shape", [(4, 0), (5, 0), (0, 4)])
@pytest.mark.parametrize("slices", ["t=2", "t:2"])
def test_slices_of_arrays_without_elements(shape, slices):
    def f(x):
        with mw.hint(slice=slices):
            return mw.sum(mw.exp(x), axis=-1), mw.exp(x)

    sums, each = mw.jit(f)(np.ones(shape, np.float32))
    np.testing.assert_array_equal(np.asarray(sums), np.zeros(shape[0]))
    assert np.asarray(each).shape == shape


def test_ranks_that_are_processes_give_the_same():
    f = mw.jit(
        lambda x, w: mw.softmax(x @ w), mesh="x=2", engine="mpi",
        in_layouts=("[_, x]", "[x, _]"), out_layouts="[x, _]",
    )  # fmt: skip
    e = np.exp(X @ W)
    for _ in range(2):
        assert np.allclose(np.asarray(f(X, W)), e / e.sum(1, keepdims=True), atol=1e-5)
    assert f.cache_info() == (1, 1, 1)
    f.close()


def test_names_that_look_like_other_dialects_do_no_harm(tmp_path):
    import importlib.util

    path = tmp_path / "sdy.py"
    path.write_text("def stablehlo_add(x):\n    return x + x\n")
    spec = importlib.util.spec_from_file_location("other", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert np.allclose(np.asarray(mw.jit(module.stablehlo_add)(X)), 2 * X)


def test_every_public_name_is_there_and_has_a_docstring():
    for name in [*PUBLIC, *RENAMED]:
        value = getattr(mw, name)
        assert value is None or value.__doc__, name


def expressions():
    """Programs of a few array functions, as functions of a module (`np` or ours) and three arrays of one shape."""
    leaf = st.sampled_from(["a", "b", "c", "1.5", "0.25"])
    unary = st.sampled_from(
        ["{m}.exp(-{m}.abs({0}))", "{m}.tanh({0})", "({0})[::-1]", "{m}.sqrt({m}.abs({0}) + 1)",
         "{m}.where(({0}) > 0, {0}, 0.1)", "({0}) - {m}.mean({0}, axis=0)",
         "{m}.max({0}, axis=1, keepdims=True) + a", "{m}.roll({0}, 1, axis=1)",
         "{m}.sum({0}, axis=1, keepdims=True) * b", "{m}.reshape({m}.reshape({0}, (-1,)), ({0}).shape).T"]
    )  # fmt: skip
    binary = st.sampled_from(
        ["({0}) + ({1})", "({0}) * ({1})", "({0}) - ({1})", "{m}.maximum({0}, {1})",
         "0.2 * (({0}) @ ({1}))", "({0}) / ({m}.abs({1}) + 1)"]
    )  # fmt: skip

    def whole(text):
        """A number becomes an array, so that every expression has the shape of the arguments."""
        return f"(a * 0 + {text})" if text[0].isdigit() else text

    def extended(children):
        one = st.tuples(unary, children).map(lambda t: t[0].replace("{0}", whole(t[1])))
        two = st.tuples(binary, children, children)
        return one | two.map(lambda t: t[0].replace("{0}", whole(t[1])).replace("{1}", whole(t[2])))

    return st.recursive(leaf, extended, max_leaves=6).map(whole)


@given(
    texts=st.lists(expressions(), min_size=4, max_size=4),
    size=st.sampled_from([4, 5]),  # 5 leaves padding on the last ranks
    layouts=st.tuples(*[st.sampled_from(["[x, _]", "[_, y]", "[x, y]", "[y*x, _]", "[_, _]"])] * 3),
)
@settings(max_examples=examples(12))
def test_random_expressions_on_four_ranks_agree_with_numpy(texts, size, layouts):
    rng = np.random.default_rng(9)
    arrays = [rng.standard_normal((size, size)).astype(np.float32) for _ in range(3)]

    def values(m, a, b, c):
        return [eval(t.replace("{m}", "m"), {"m": m, "a": a, "b": b, "c": c}) for t in texts]

    f = mw.jit(lambda *v: values(mw, *v), mesh="x=2, y=2", in_layouts=layouts)
    for text, y, right in zip(texts, f(*arrays), values(np, *arrays), strict=True):
        assert np.allclose(np.asarray(y), right, 1e-4, 1e-4), text
    f.close()


def test_a_python_float_keeps_its_digits_beside_float64():
    scaled = mw.jit(lambda x, s: x * s)
    assert scaled(np.ones(2), 0.1).numpy().tolist() == [0.1, 0.1]
    assert scaled(np.ones(2, np.float32), 0.1).dtype == np.float32
    inside = mw.jit(lambda s: (mw.full((2,), 2.0, dtype="f64") * s, mw.exp(s)))
    double, plain = inside(0.1)
    assert double.numpy().tolist() == [0.2, 0.2] and plain.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_a_python_int_has_to_fit_the_integers_that_it_meets(dtype):
    added = mw.jit(lambda x, s: (x + s, x - s))
    x, most = np.zeros(2, dtype), np.iinfo(dtype).max
    for right in (most, -most - 1):
        assert added(x, right)[0].numpy().tolist() == [right, right]
    for wrong in (most + 1, -most - 2):
        with pytest.raises(mw.MeshweaveError, match=rf"test_jit.py:\d+: argument s: {wrong} is no"):
            added(x, wrong)
    assert added(x.astype(np.int64), most + 1)[0].numpy().tolist() == [most + 1] * 2


def test_a_layout_inside_names_a_time_axis_around_that_could_not_be_had(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # so that no cell is broken

    @mw.jit(mesh="x=4", in_layouts="[2*_, _*x] order(1, 0.1, 0.0)")
    def f(a):
        with mw.hint(strength="preferred", slice="t=3"):
            b = a @ mw.matrix_transpose(a)
            with mw.hint(strength="preferred", slice="v=3"):
                return mw.redistribute(mw.sin(b), "[t, v]")

    a = RNG.standard_normal((3, 6)).astype(np.float32)
    assert np.allclose(f(a), np.sin(a @ a.T), atol=1e-5)
    said = f.explain()
    assert "3 slices along v" in said and "infeasible" in said


@pytest.mark.parametrize("shape", [(3, 0, 1), (0, 3, 1), (3, 2, 1)])
def test_slices_of_sharded_arrays_without_elements(shape):
    @mw.jit(mesh="x=2", in_layouts="[_, x, _]" if shape[0] == 0 else "[x{0,3}, _, _]")
    def f(a):
        with mw.hint(strength="preferred", slice="t=2"):
            mw.softmax(a, axis=0 if shape[0] else 2)
            doubled = a + a
        with mw.hint(strength="preferred", slice="u=1, v", peak_bytes="64B"):
            return -doubled

    x = RNG.standard_normal(shape).astype(np.float32)
    assert np.array_equal(f(x), -(x + x))
