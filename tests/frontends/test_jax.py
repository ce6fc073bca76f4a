"""JAX functions compiled: their results are JAX's, sharded and not; what does not fit is named."""

import math
import re
import sys
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.errors import CompileError, LayoutError, MeshweaveError, UsageError

jax = pytest.importorskip("jax")
jnp = jax.numpy
NamedSharding, AbstractMesh = jax.sharding.NamedSharding, jax.sharding.AbstractMesh
PartitionSpec = jax.sharding.PartitionSpec
RNG = np.random.default_rng(7)


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def agree(function: Any, *args: Any, tolerance: float = 2e-5, **options: Any) -> Any:
    """Compile, call twice (the second time by the fast path), compare with JAX; the compiled function, closed."""
    wanted = function(*args)
    with mw.from_jax(function, *args, **options) as compiled:
        for _ in range(2):
            got = compiled(*args)
            assert jax.tree.structure(got) == jax.tree.structure(wanted)
            for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
                right = np.asarray(theirs)
                if right.dtype.name == "bfloat16":
                    right = right.astype(np.float32)
                assert np.asarray(ours).dtype == right.dtype
                scale = float(np.abs(right).max(initial=0)) if right.dtype.kind == "f" else 0
                np.testing.assert_allclose(
                    np.asarray(ours), right, rtol=tolerance, atol=tolerance * scale
                )
    return compiled


def mlp(params: dict[str, Any], x: Any) -> dict[str, Any]:
    hidden = jax.nn.gelu(x @ params["w1"] + params["b"])
    return {"y": hidden @ params["w2"], "norms": (jnp.linalg.norm(hidden, axis=-1), hidden.max())}


def mlp_args() -> tuple[Any, ...]:
    params = {"w1": values(16, 32), "b": values(32), "w2": values(32, 16), "unused": values(3)}
    return params, values(8, 16)


def test_pytrees_on_one_rank() -> None:
    compiled = agree(mlp, *mlp_args())
    assert compiled.mesh.nranks == 1
    assert "params['w1']: float32[16, 32]" in repr(compiled)


LAYOUTS: list[Any] = [
    ({"w1": "[_, tp]", "b": "[tp]", "w2": "[tp, _]", "unused": None}, mw.P("dp")),
    (
        {"w1": PartitionSpec(None, "tp"), "b": None, "w2": mw.P("tp", None), "unused": None},
        mw.Layout.parse("[dp, _]"),
    ),
    (None, "[dp*tp, _]"),
]


@pytest.mark.parametrize("in_shardings", LAYOUTS)
def test_shardings_of_all_kinds(in_shardings: Any) -> None:
    compiled = agree(mlp, *mlp_args(), in_shardings=in_shardings, mesh="dp=2, tp=2")
    assert str(compiled.mesh) == "dp=2, tp=2"
    assert [port.layout for port in compiled.program.inputs][-1] in ("[dp, _]", "[dp*tp, _]")
    assert "all_reduce" in compiled.explain() or "all_gather" in compiled.explain()


def test_jaxs_own_mesh_and_shardings() -> None:
    mesh = AbstractMesh((2, 2), ("dp", "tp"))
    rows, columns = (NamedSharding(mesh, PartitionSpec(*s)) for s in (("dp",), (None, "tp")))

    def product(x: Any, w: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, PartitionSpec("dp")))

    x, w = values(8, 8), values(8, 8)
    for options in ({}, {"mesh": mesh}, {"mesh": "dp=2, tp=2"}):
        with mw.from_jax(product, x, w, in_shardings=(rows, columns), **options) as compiled:
            assert [p.layout for p in compiled.program.inputs] == ["[dp, _]", "[_, tp]"]
            assert compiled.program.outputs[0].layout == "[dp, _]"
            np.testing.assert_allclose(compiled(x, w), x @ w, rtol=1e-5, atol=1e-5)


def test_a_jitted_function_keeps_its_shardings_and_drops_what_is_unread() -> None:
    @jax.jit
    def second(a: Any, b: Any, c: Any) -> Any:
        return b * 2 + c

    compiled = agree(second, values(3), values(4), values(4))
    assert len(compiled.program.inputs) == 2


class State(NamedTuple):
    value: Any
    step: Any


def test_scatters_in_bfloat16() -> None:
    places = np.array([3, 0, 3, 9, 3])
    start, more = jnp.arange(4, dtype=jnp.bfloat16), jnp.asarray(values(5), jnp.bfloat16)
    for how in ("add", "max", "min"):
        agree(lambda a, b, how=how: getattr(a.at[places], how)(b), start, more, tolerance=0)


def test_loops_sorting_gathers_and_random_numbers() -> None:
    def scanned(state: State, xs: Any) -> Any:
        return jax.lax.scan(lambda s, x: (State(s.value * x, s.step + 1), s.value.sum()), state, xs)

    agree(scanned, State(values(4), np.int32(0)), values(5, 4))
    agree(lambda x: (jnp.sort(x), jnp.argsort(x)), values(17))
    agree(lambda t, i: t[i], values(10, 3), np.array([3, 1, 9], np.int32))
    agree(
        lambda t, i, v: jnp.asarray(t).at[i].add(v),
        values(10),
        np.array([3, 3], np.int32),
        values(2),
    )
    agree(lambda k: jax.random.bits(k, (4,)), np.array([1, 2], np.uint32))
    agree(lambda a: a, np.array([1, 2], np.uint32))  # no op at all
    agree(
        lambda x: jax.lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, x), np.zeros(3, "f4")
    )
    agree(lambda x, i: jax.lax.dynamic_slice(x, (i, 0), (2, 3)), values(6, 3), np.int32(2))


def test_gradients() -> None:
    def loss(params: dict[str, Any], x: Any) -> Any:
        return (mlp(params, x)["y"] ** 2).mean()

    agree(
        jax.value_and_grad(loss), *mlp_args(), in_shardings=(None, "[dp, _]"), mesh="dp=2",
        tolerance=2e-4,
    )  # fmt: skip


@sampled(4)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("bfloat16", 1e-2), ("float16", 2e-3), ("int8", 0), ("uint8", 0), ("uint32", 0), ("bool", 0)],
)
def test_dtypes(dtype: str, tolerance: float) -> None:
    x = jnp.asarray(np.array([0, 1, 100, 200, 3, 77]) % (128 if dtype == "int8" else 256), dtype)
    agree(lambda a, b: jnp.maximum(a, b[::-1]), x, x, tolerance=tolerance, mesh="x=2")
    if dtype.startswith("u"):
        agree(lambda a: a // 3 + (a > 150).astype(a.dtype), x)


def test_results_go_back_in_and_move() -> None:
    def double(x: Any) -> Any:
        return x + x

    x = np.arange(8, dtype=np.uint32)
    with mw.from_jax(double, x, in_shardings=("[x]",), mesh="x=2") as compiled:
        once = compiled(x)
        assert isinstance(once, mw.Array) and once.dtype == np.uint32
        assert (compiled(once).numpy() == 4 * x).all()
        assert (compiled(once).numpy() == 4 * x).all()
    with mw.from_jax(double, jax.ShapeDtypeStruct((8,), "float32"), mesh="x=2",
                     in_shardings=("[x]",)) as compiled:  # fmt: skip
        whole = mw.Array.from_numpy(x.astype("f4"), mesh="x=2", layout="[_]")
        assert (compiled(whole).numpy() == 2 * x).all()
        assert (compiled(jnp.asarray(x, "f4")).numpy() == 2 * x).all()


def test_jaxs_conversions_are_made_and_no_others() -> None:
    with mw.from_jax(lambda x, s: x * s, values(3), 2.0) as compiled:
        got = compiled(np.ones(3), 3)  # float64 is float32 to JAX, and 3 a number like 2.0
        assert np.asarray(got).tolist() == [3, 3, 3] and np.asarray(got).dtype == np.float32
        with pytest.raises(MeshweaveError, match=r"^x: dtype int64, float32 is right"):
            compiled(np.ones(3, np.int64), 2.0)
    with (
        mw.from_jax(lambda n: n + 1, 2) as compiled,
        pytest.raises(MeshweaveError, match=r"^n: dtype float64, int32 is right"),
    ):
        compiled(2.5)


def test_what_does_not_fit_is_named() -> None:
    params, x = mlp_args()
    with mw.from_jax(mlp, params, x) as compiled:
        with pytest.raises(MeshweaveError, match=r"^params\['w1'\]: dim 1 has size 5, 32 is right"):
            compiled({**params, "w1": values(16, 5)}, x)
        with pytest.raises(MeshweaveError, match=r"^x: 1 dims, 2 are right"):
            compiled(params, x[0])
        with pytest.raises(UsageError, match="mlp: arguments of structure"):
            compiled(params)
    with pytest.raises(UsageError, match=r"in_shardings of x is P\('dp'\), but no mesh is given"):
        mw.from_jax(mlp, params, x, in_shardings=(None, mw.P("dp")))
    with pytest.raises(UsageError, match="a function is needed, got int"):
        mw.from_jax(3)
    agree(partial(lambda n, x: x * n, 2), x)


WRONG_SHARDINGS = [
    ((None, 3), UsageError, "in_shardings of x is 3: a layout, a PartitionSpec, a NamedSharding or None is right"),
    ((None, "[dp]"), LayoutError, r"in_shardings of x: .*1 dims?.* 2"),
    ((None, "[_, tp]"), LayoutError, r'in_shardings of x: .*"tp"'),
    ((None, "[dp{3,3}, _]"), LayoutError, r"in_shardings of x: .*dim 0"),
    ((None, PartitionSpec(PartitionSpec.UNCONSTRAINED)), LayoutError, "in_shardings of x: .*entry 0 is UNCON"),
    ((None, mw.P("dp", "dp")), LayoutError, r"in_shardings of x: .*dp"),
    ((None, mw.P(None, None, "dp")), LayoutError, "in_shardings of x: .*3 entries, the tensor 2 dims"),
    (({"w1": mw.P("dp", 5), "b": None, "w2": None, "unused": None}, None), LayoutError,
     r"in_shardings of params\['w1'\]: .*entry 1 is 5"),
    ((None,), UsageError, "in_shardings does not fit the arguments"),
    (({"w1": None}, None), UsageError, "in_shardings does not fit the arguments"),
    ((None, NamedSharding(AbstractMesh((4,), ("dp",)), PartitionSpec("dp"))), UsageError,
     r"in_shardings of x is over the mesh dp=4, the program's is dp=2"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "says"), WRONG_SHARDINGS)
def test_wrong_shardings_name_the_argument(given: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        mw.from_jax(mlp, *mlp_args(), in_shardings=given, mesh="dp=2")
    assert "\n" not in str(caught.value)


UNEVEN = ["[x, _]", "[_, x]", "[x*y, _]", "[y, x]", "[_*x, _]", "[x{1,2}, _]", "[_, x] order(1, 0)"]


@sampled(4)
@pytest.mark.parametrize("layout", UNEVEN)
def test_layouts_that_jax_has_no_words_for(layout: str) -> None:
    a, b = values(3, 5), values(3, 5)
    compiled = agree(
        lambda a, b: (a @ b.T, a + b, b.sum(0)), a, b, in_shardings=(layout, None), mesh="x=2, y=2"
    )
    assert mw.Layout.parse(compiled.program.inputs[0].layout) == mw.Layout.parse(layout)


def test_uneven_shardings_of_jaxs_own_mesh() -> None:
    mesh = AbstractMesh((2, 2), ("x", "y"))
    rows = NamedSharding(mesh, PartitionSpec(("x", "y")))
    compiled = agree(lambda a, b: a * b, values(5, 4), values(5, 4), in_shardings=(rows, None))
    assert str(compiled.mesh) == "x=2, y=2"
    assert compiled.program.inputs[0].layout == "[x*y, _]"


def test_what_is_not_supported_is_in_one_error_with_the_lines() -> None:
    def bad(x: Any) -> Any:
        y = jax.ffi.ffi_call("of_another", x)(x)
        return y, jax.ffi.ffi_call("of_a_library", x)(x)

    with pytest.raises(CompileError, match="not supported: ") as caught:
        mw.from_jax(bad, np.eye(4, dtype=np.float32))
    first, text = bad.__code__.co_firstlineno, str(caught.value)
    assert "\n" not in text
    for line, what in (
        (1, "stablehlo.custom_call @of_another"),
        (2, "stablehlo.custom_call @of_a_library"),
    ):
        assert re.search(rf"{what} \(\d+, first at [^)]*test_jax.py:{first + line}:\d+\)", text)


def test_errors_are_at_the_line_of_the_function() -> None:
    def called(x: Any) -> Any:
        return jax.ffi.ffi_call("of_a_library", x)(x)

    line = called.__code__.co_firstlineno + 1
    with pytest.raises(CompileError, match=rf"test_jax.py:{line}:\d+: .*not supported"):
        mw.from_jax(called, np.eye(4, dtype=np.float32))


def test_errors_of_the_function_are_jaxs() -> None:
    with pytest.raises(TypeError, match="dot_general"):
        mw.from_jax(lambda a, b: a @ b, values(2, 3), values(2, 3))


def test_without_jax_only_this_frontend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UsageError, match=r"^from_jax needs jax, which is not installed"):
        mw.from_jax(mlp)


def test_kernels_around_from_jax_choose() -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    with mw.from_jax(lambda a: a @ a, x) as program:
        assert "│ blas " in program.explain()
    with mw.kernels(blas=False), mw.from_jax(lambda a: a @ a, x) as program:
        assert "│ blas " not in program.explain()
        np.testing.assert_allclose(program(x), x @ x, rtol=1e-6)


@pytest.mark.parametrize("dtype, near", [("f4", 1e-6), ("f2", 1e-3), ("bf16", 8e-3)])
def test_erfc_is_right_to_its_end(dtype: str, near: float) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.dtype(dtype)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 3e4, -3e4, 10.3]
    x = np.concatenate([np.linspace(-6, 9, 4001), ends]).astype(kind)
    with mw.from_jax(jax.scipy.special.erfc, x) as program:
        found = np.asarray(program(x)).astype(np.float64)
    right = np.array([math.erfc(float(v)) for v in x])
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - right)
    first = x.astype(np.float64) < 3
    assert np.nanmax((apart / right)[first]) < near
    # The rounding of x^2, and f16's denormals.
    assert np.nanmax(apart - (5e-6 + near) * right) < 1e-7
    assert found[4003:4006].tolist()[:2] == [0.0, 2.0] and np.isnan(found[4005])
    assert not np.signbit(found[np.isfinite(found)]).any()
