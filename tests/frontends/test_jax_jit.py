"""`mw.jax.jit` is called as `jax.jit` is, and gives what it gives: on random programs, meshes, dtypes and donations."""

import logging
import os
import subprocess
import sys
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from depth import deep, sampled, some

import meshweave as mw
from meshweave.errors import CompileError, LayoutError, MeshweaveError, UsageError
from meshweave.runtime.mpi.engine import mpiexec

jax = pytest.importorskip("jax")
jnp = jax.numpy
P = jax.sharding.PartitionSpec
DTYPES = ["float32", "bfloat16", "float16", "int32", "int8", "uint8", "bool", "complex64"]


def same(ours: Any, theirs: Any) -> None:
    """Equal structure, shapes, dtypes and weak types, and values up to the rounding of the dtype."""
    mine, tree = jax.tree.flatten(ours)
    right, wanted = jax.tree.flatten(theirs)
    assert tree == wanted
    for a, b in zip(mine, right, strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        low = b.dtype.itemsize < 4
        tolerance = 2e-2 if low else 1e-5
        wide = [np.asarray(v).astype(np.float64) if low else np.asarray(v) for v in (a, b)]
        largest = np.abs(wide[1]).max(initial=1)  # what cancels is as exact as what it is made of
        np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance * min(largest, 100))


def drawn(rng: Any, shape: Any, dtype: str) -> Any:
    value = rng.integers(-4, 5, shape) if dtype[0] in "iub" and dtype != "bfloat16" else 0
    value = value if dtype[0] in "iu" else rng.standard_normal(shape)
    return jnp.asarray(np.abs(value) if dtype == "uint8" else value).astype(dtype)


def mixed(p: Any, x: Any, s: Any = 2, *, flip: bool = False) -> Any:
    wide = x * s
    total = jnp.where(x == 0, p["w"], wide).sum(0)
    turned = wide[::-1] if flip else wide
    return {"a": turned @ p["w"].T if x.dtype != bool else turned, "b": [total, s]}, x.astype(
        "bfloat16"
    )


@pytest.mark.parametrize("results", ["mw", "jax"])
@pytest.mark.parametrize("seed", some(range(12), 12))
def test_random_calls_are_those_of_jax(seed: int, results: str) -> None:
    rng = np.random.default_rng([seed, results == "jax"])
    mesh = ["x=2", "x=2, y=2", "x=3"][seed % 3]
    axes = [a.split("=")[0] for a in mesh.split(", ")] + [None, None]
    n, m = rng.integers(1, 9, 2)
    dtype = str(rng.choice(DTYPES))
    x, w = drawn(rng, (n, m), dtype), drawn(rng, (n, m), dtype)
    spec = P(*rng.permutation(axes)[:2])
    ours = mw.jax.jit(
        mixed,
        mesh=mesh,
        in_shardings=(None, spec),
        out_shardings=(None, P(*rng.permutation(axes)[:1])),
        static_argnames="flip",
        results=results,
    )
    theirs = jax.jit(mixed, static_argnames="flip")
    for args, kwargs in (
        (({"w": w}, x), {}),
        (({"w": w}, x, 3.0 if dtype == "bfloat16" else 3), {"flip": True}),
        (({"w": np.asarray(w)}, x), {"flip": False, "s": np.int8(2)}),
    ):
        same(ours(*args, **kwargs), theirs(*args, **kwargs))
    again = ours({"w": w}, x, 3 if results == "jax" else 2)
    same(again, theirs({"w": w}, x, 3 if results == "jax" else 2))
    ours.close()


class Pair(NamedTuple):
    a: Any
    b: Any


@jax.tree_util.register_pytree_node_class
class Layer:
    """A pytree that jax.tree_util knows, with an attribute that is no array."""

    def __init__(self, w: Any, name: str) -> None:
        self.w, self.name = w, name

    def tree_flatten(self) -> Any:
        return (self.w,), self.name

    @classmethod
    def tree_unflatten(cls, name: str, children: Any) -> Any:
        return cls(*children, name)


def test_a_decorator_with_and_without_arguments() -> None:
    @mw.jax.jit
    def plain(x: Any) -> Any:
        """Add one."""
        return x + 1

    @mw.jax.jit(mesh="x=2", in_shardings=P("x"))
    def halved(x: Any) -> Any:
        return x * 2

    @partial(mw.jax.jit, static_argnums=(0,), donate_argnames="x")
    def sized(n: int, x: Any) -> Any:
        return x[:n]

    x = np.arange(5, dtype=np.float32)
    assert plain.__name__ == "plain" and plain.__doc__ == "Add one."
    np.testing.assert_array_equal(plain(x), x + 1)
    assert halved(x).layout == mw.Layout.parse("[x]")
    assert sized(3, x).shape == (3,) and sized(n=2, x=x).shape == (2,)
    assert sized.cache_info() == (0, 2, 2)


def test_pytrees_and_what_is_no_array() -> None:
    @mw.jax.jit(mesh="x=2")
    def layer(pair: Pair, layer: Layer, activation: Any) -> Any:
        return Layer(activation(layer.w * pair.a), layer.name + "!"), {
            "kind": "tanh",
            "f": activation,
        }

    pair, w = Pair(np.float32(2), None), jnp.ones((3, 2))
    made, rest = layer(pair, Layer(w, "first"), jnp.tanh)
    assert made.name == "first!" and rest == {"kind": "tanh", "f": jnp.tanh}
    np.testing.assert_allclose(made.w, np.tanh(2 * w), rtol=1e-6)
    layer(pair, Layer(w + 1, "first"), jnp.tanh)
    assert layer.cache_info().misses == 1
    layer(pair, Layer(w, "second"), jnp.tanh)
    layer(pair, Layer(w, "first"), jnp.sin)
    assert layer.cache_info() == (1, 3, 3)


def test_each_kind_of_call_is_traced_once() -> None:
    count = 0

    @mw.jax.jit(mesh="x=2", static_argnames="k")
    def f(x: Any, k: Any = 1) -> Any:
        nonlocal count
        count += 1
        return x * k

    x = np.arange(4, dtype=np.float32)
    for args in (
        (x,),
        (x + 1,),
        (jnp.asarray(x),),
        (x.astype(np.float64),),
        (x, 2),
        (x[:3],),
        (2.5,),
        (3.5,),
        (2,),
    ):
        f(*args)
    f(x, k=2)
    assert f.cache_info() == (4, 6, 6) and count == 6
    with mw.kernels(only=("reference",)):
        f(x)
    assert f.cache_info().misses == 7
    with jax.enable_x64(True):
        assert f(x.astype(np.float64)).dtype == np.float64
    f.close()
    assert f.cache_info().size == 0 and np.asarray(f(x)).tolist() == x.tolist()


def test_results_stay_where_they_are_and_go_in_again() -> None:
    step = mw.jax.jit(
        lambda p, x: (p + x.sum(), p * 2),
        mesh="x=2",
        in_shardings=("[x, _]", None),
        out_shardings=("[x, _]", "[_, x]"),
    )
    p, x = jnp.ones((5, 4)), jnp.ones(3)
    for turn in range(3):
        p, other = step(p, x)
        assert isinstance(p, mw.Array) and [str(v.layout) for v in (p, other)] == [
            "[x, _]",
            "[_, x]",
        ]
        np.testing.assert_allclose(p, np.full((5, 4), 4 + 3 * turn))
    assert step.cache_info().misses == 1


def test_the_second_step_takes_the_program_of_the_first() -> None:
    step = mw.jax.jit(
        lambda p, x: (p * 0.5 + x.sum(), p.sum()), mesh="x=2", in_shardings=(None, "[x]")
    )
    p, x = jnp.ones((3, 4)), jnp.ones(5)
    for _ in range(3):
        p, _ = step(p, x)
    assert step.cache_info() == (2, 1, 1)
    elsewhere = p.redistribute("[_, x]")
    assert str(p.layout) == "[_, _]"
    np.testing.assert_allclose(step(elsewhere, x)[0], step(p, x)[0])
    assert step.cache_info() == (3, 2, 2)


def test_where_whole_arrays_go_is_no_matter_of_the_calls_before() -> None:
    f = mw.jax.jit(lambda x: x + 1)
    x = np.arange(4, dtype=np.float32)
    assert f(mw.Array.from_numpy(x, mesh="x=2", layout="[x]")).mesh == mw.Mesh(x=2)
    assert f(x).mesh == mw.Mesh() and f.cache_info() == (0, 2, 2)


def test_python_numbers_have_shardings_too() -> None:
    x = np.arange(4, dtype=np.float32)
    scaled = mw.jax.jit(lambda x, s: x * s, mesh="x=2", in_shardings=("[x]", P()))
    outer = mw.jax.jit(lambda x: scaled(x, 2.0) + 1, mesh="x=2")
    np.testing.assert_array_equal(scaled(x, 2.0), x * 2)
    np.testing.assert_array_equal(outer(x), x * 2 + 1)
    with pytest.raises(LayoutError, match="in_shardings of s"):
        mw.jax.jit(lambda s: s, mesh="x=2", in_shardings=(P("x"),))(2.0)


def test_layouts_that_jax_does_not_have() -> None:
    f = mw.jax.jit(
        lambda x: (x + 1, x.sum(1)),
        mesh="x=2, y=2",
        in_shardings="[_*x, y]",
        out_shardings=("[y, _*x]", "[x]"),
    )
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    a, b = f(x)
    assert [str(v.layout) for v in (a, b)] == ["[y, _*x]", "[x]"]
    np.testing.assert_allclose(a, x + 1)
    np.testing.assert_allclose(b, x.sum(1), rtol=1e-6)


def test_donated_arguments_cannot_be_used_again() -> None:
    f = mw.jax.jit(lambda s, x: (s + x, x.sum()), mesh="x=2", in_shardings="[x]", donate_argnums=0)
    host, x = np.ones(6, np.float32), np.arange(6, dtype=np.float32)
    first, _ = f(host, x)
    assert host.tolist() == [1.0] * 6
    theirs = jnp.ones(6)
    second, _ = f(theirs, x)
    assert theirs.is_deleted()
    third, _ = f(second, x)
    assert second.is_donated and not first.is_donated
    with pytest.raises(UsageError, match="donated"):
        f(second, x)
    np.testing.assert_array_equal(third, 1 + 2 * x)
    keyword = mw.jax.jit(lambda s, x: s + x, donate_argnames=("s",))
    given = keyword(s=x, x=x)
    keyword(s=given, x=x)
    assert given.is_donated


def test_weak_types_are_kept_from_call_to_call() -> None:
    def step(count: Any, scale: Any, x: Any) -> Any:
        return count + 1, scale * 0.5, x * scale + count

    for results in ("mw", "jax"):
        ours, theirs = mw.jax.jit(step, results=results), jax.jit(step)
        mine: Any = (1, 2.0)
        right: Any = (1, 2.0)
        x = jnp.arange(3, dtype=jnp.bfloat16)
        for _ in range(3):
            *mine, y = ours(*mine, x)
            *right, z = theirs(*right, x)
            same([*mine, y], [*right, z])
        assert y.dtype == jnp.bfloat16 and mine[0].weak_type
    with pytest.raises(MeshweaveError, match="count: 1099511627776 is too large for int32"):
        ours(1 << 40, 2.0, x)


def test_many_donated_leaves_keep_their_buffers_and_their_kind() -> None:
    """Calls on Arrays are found by a cheap key, which weak types and closing leave alone."""
    step = mw.jax.jit(
        lambda s, x: ([v * 2 + x for v in s], s[0] * 0 + 1), mesh="x=2", donate_argnums=0
    )
    x = np.ones((5, 3), np.float32)
    state, _ = step([np.full((5, 3), n, np.float32) for n in range(20)], x)
    lie = [[shard.ctypes.data for shard in a._held] for a in state]
    for _ in range(3):
        state, _ = step(state, x)
    assert [[shard.ctypes.data for shard in a._held] for a in state] == lie
    kept = state[7].shards  # somebody sees them: the next call copies that one
    following, _ = step(state, x)
    for n, array in enumerate(following):
        np.testing.assert_array_equal(array, np.full((5, 3), (n + 1) * 32 - 1))
    np.testing.assert_array_equal(kept[0], np.full(kept[0].shape, 8 * 16 - 1))
    assert state[3].is_donated and step.cache_info().misses <= 2
    step.close()
    again, _ = step(following, x)
    np.testing.assert_array_equal(again[19], np.full((5, 3), 20 * 64 - 1))

    count = mw.jax.jit(lambda n, x: (n + 1, x * n))
    n, _ = count(1, x.astype(np.int8))
    for _ in range(2):
        n, y = count(n, x.astype(np.int8))
        assert n.weak_type and y.dtype == np.int8
    n, y = count(np.int32(1), x.astype(np.int8))
    n, y = count(n, x.astype(np.int8))
    assert not n.weak_type and y.dtype == np.int32


def test_keys_in_and_out() -> None:
    def split(key: Any, x: Any) -> Any:
        key, drawn = jax.random.split(key)
        return key, x + jax.random.normal(drawn, x.shape)

    ours = mw.jax.jit(split, mesh="x=2", in_shardings=(None, "[x]"))
    key, x = jax.random.key(5), np.zeros(6, np.float32)
    right = key
    for _ in range(2):
        key, found = ours(key, x)
        right, wanted = split(right, x)
        assert (
            key.dtype == right.dtype
            and (jax.random.key_data(key) == jax.random.key_data(right)).all()
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(MeshweaveError, match=r"key: dtype float32, key<fry> is right"):
        ours.lower(key, x)(x, x)


def test_a_call_in_another_one_is_a_part_of_it() -> None:
    inner = mw.jax.jit(
        lambda x: jnp.tanh(x), mesh="x=2", in_shardings=P("x"), out_shardings=P(None)
    )
    outer = mw.jax.jit(lambda x: inner(x) * 2, mesh="x=2")
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(outer(x), 2 * np.tanh(x), rtol=1e-6)
    assert inner.cache_info().misses == 0
    with mw.from_jax(lambda x: inner(x) + 1, x, mesh="x=2") as compiled:
        np.testing.assert_allclose(compiled(x), np.tanh(x) + 1, rtol=1e-6)
        assert compiled.program.inputs[0].layout == "[x]"
    with pytest.raises(
        UsageError, match=r"in_shardings, leaf 0 is \[_\*x\], which JAX does not have"
    ):
        cyclic = mw.jax.jit(lambda x: x, mesh="x=2", in_shardings="[_*x]")
        mw.jax.jit(lambda x: cyclic(x), mesh="x=2")(x)


def test_methods_and_programs_without_a_call() -> None:
    class Model:
        def __init__(self, k: int) -> None:
            self.k = k

        @partial(mw.jax.jit, static_argnums=0)
        def scaled(self, x: Any) -> Any:
            return x * self.k

    x = np.arange(3, dtype=np.float32)
    assert np.asarray(Model(3).scaled(x)).tolist() == [0, 3, 6]
    f = mw.jax.jit(lambda x: x + 1, mesh="x=2")
    program = f.lower(jax.ShapeDtypeStruct((3,), np.float32)).compile()
    with pytest.raises(UsageError, match="x: a ShapeDtypeStruct has no values"):
        f(jax.ShapeDtypeStruct((3,), np.float32))
    assert np.asarray(program(x)).tolist() == np.asarray(f(x)).tolist() == [1, 2, 3]
    assert f.cache_info().misses == 1 and "result" in f.explain()


def test_static_arguments_of_a_jitted_function_are_values() -> None:
    f = mw.jax.jit(jax.jit(lambda x, n: x * n if n > 1 else -x, static_argnums=1))
    x = np.ones(2, np.float32)
    assert [float(f(x, n)[0]) for n in (3, 1, 3, 2)] == [3, -1, 3, 2]
    assert f.cache_info() == (1, 3, 3)


WRONG: list[Any] = [
    (lambda: mw.jax.jit(3), UsageError, "jax.jit: a function is needed, got int"),
    (
        lambda: mw.jax.jit(jnp.sin, results="numpy"),
        UsageError,
        'jax.jit: results=\'numpy\': "mw" or "jax" is right',
    ),
    (
        lambda: mw.jax.jit(lambda a: a, static_argnums=2),
        UsageError,
        "static_argnums has 2, the function has 1 arguments by position",
    ),
    (
        lambda: mw.jax.jit(lambda a: a, donate_argnames="b"),
        UsageError,
        "donate_argnames has 'b', the function's arguments are a",
    ),
    (
        lambda: mw.jax.jit(lambda a: a, static_argnums=1.5),
        UsageError,
        "static_argnums is 1.5: a number or several is right",
    ),
    (
        lambda: mw.jax.jit(lambda a: a, static_argnums="a"),
        UsageError,
        "static_argnums is 'a': a number or several is right",
    ),
    (
        lambda: mw.jax.jit(lambda a: 1, static_argnums=0)([1]),
        UsageError,
        "the static argument 0 is a list, which has no hash",
    ),
    (
        lambda: mw.jax.jit(lambda a: a)({1: bytearray()}),
        UsageError,
        "an argument has a bytearray, which is no array and has no hash",
    ),
    (
        lambda: mw.jax.jit(lambda a: a, in_shardings=P("x"))(np.ones(2)),
        UsageError,
        "jax.jit: in_shardings of a is .*, but no mesh is given",
    ),
    (
        lambda: mw.jax.jit(lambda a: a, mesh="x=2", out_shardings=P("z"))(np.ones(2)),
        LayoutError,
        "jax.jit: out_shardings of result: .*z",
    ),
    (
        lambda: mw.jax.jit(lambda a: a, mesh="x=2", out_shardings=(None, None))(np.ones(2)),
        UsageError,
        "out_shardings does not fit the results",
    ),
    (
        lambda: mw.jax.jit(lambda a: jax.ffi.ffi_call("of_a_library", a)(a))(np.ones(3)),
        CompileError,
        "not supported",
    ),
    (lambda: mw.jax.jit(jnp.sin).explain(), UsageError, "no call has compiled yet"),
]


@pytest.mark.parametrize(("work", "kind", "message"), WRONG)
def test_wrong_calls_are_refused_in_a_line(work: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message) as found:
        work()
    assert "\n" not in str(found.value)


def test_the_logger_is_told_of_compiles(caplog: Any) -> None:
    f = mw.jax.jit(lambda x: x + 1)
    with caplog.at_level(logging.INFO, "meshweave"):
        f(np.ones(2, np.float32))
        f(np.ones(2, np.float32))
    assert len([r for r in caplog.records if "compiled in" in r.getMessage()]) == 1


ARRAY = mw.Array.from_numpy(
    np.arange(1, 7, dtype=np.float32).reshape(2, 3), mesh="x=2", layout="[x, _]", dtype="bf16"
)
TAKEN: dict[str, Any] = {
    "asarray": jnp.asarray,
    "sin": jnp.sin,
    "matmul": lambda a: jnp.matmul(a, a.mT),
    "where": lambda a: jnp.where(True, a, 0),
    "einsum": lambda a: jnp.einsum("ij->j", a),
    "stack": lambda a: jnp.stack([a, a]),
    "jit": jax.jit(lambda a: a * 2),
    "grad": jax.grad(lambda a: (a * a).sum()),
    "vmap": jax.vmap(jnp.sum),
    "softmax": jax.nn.softmax,
    "device_put": jax.device_put,
    "scan": lambda a: jax.lax.scan(lambda c, x: (c + x.sum(), x * 2), jnp.bfloat16(0), a)[1],
    "added": lambda a: jnp.ones((2, 3), jnp.bfloat16) + a,
    "mapped": lambda a: jax.tree.map(jnp.add, {"a": a}, {"a": a})["a"],
}


@sampled(1)
@pytest.mark.parametrize("name", TAKEN)
def test_jax_takes_arrays_in_their_dtype(name: str) -> None:
    mw.jax.jit(jnp.sin).lower(ARRAY)
    found, right = TAKEN[name](ARRAY), TAKEN[name](jnp.asarray(ARRAY.numpy()).astype(jnp.bfloat16))
    assert isinstance(found, jax.Array) and found.dtype == right.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(right, np.float32))


def scored(p: Any, x: Any, n: Any = 2) -> Any:
    hidden = jnp.tanh(x @ p["w"])
    return {"loss": (hidden**2).sum() * n, "rows": hidden.sum(1), "count": x.shape[0] + n}


FOREIGN: dict[str, Any] = {
    "jit": lambda f, p, x: jax.jit(lambda p, x: f(p, 2 * x)["rows"] + 1)(p, x),
    "numbers": lambda f, p, x: jax.jit(lambda p, n: f(p, x, n))(p, 3),
    "grad": lambda f, p, x: jax.jit(jax.value_and_grad(lambda p, x: f(p, x)["loss"], (0, 1)))(p, x),
    "vmap": lambda f, p, x: jax.vmap(f, (None, 0, None))(p, jnp.stack([x, 2 * x, x + 1]), 2),
    "vmap of grad": lambda f, p, x: jax.jit(
        jax.vmap(jax.grad(lambda p, x: f(p, x)["loss"]), (None, 0))
    )(p, jnp.stack([x, 2 * x])),
    "grad of vmap": lambda f, p, x: jax.grad(
        lambda p: jax.vmap(lambda x: f(p, x)["rows"])(jnp.stack([x, 2 * x])).sum()
    )(p),
    "vmap of vmap": lambda f, p, x: jax.vmap(
        jax.vmap(lambda x, n: f(p, x, n)["loss"], (None, 0)), (0, None)
    )(jnp.stack([x, 2 * x]), jnp.arange(3.0)),
    "jacrev": lambda f, p, x: jax.jacrev(lambda x: f(p, x)["rows"])(x),
    "grad of grad": lambda f, p, x: jax.grad(
        lambda x: (jax.grad(lambda x: f(p, x)["loss"])(x) ** 2).sum()
    )(x),
    "scan": lambda f, p, x: jax.lax.scan(
        lambda c, s: (c + f(p, s * x)["loss"], f(p, x)["rows"]), 0.0, jnp.arange(3.0)
    ),
}


@pytest.mark.parametrize("name", some(FOREIGN, 3))
def test_jax_calls_it_where_it_traces(name: str) -> None:
    rng = np.random.default_rng(3)
    p = {"w": jnp.asarray(rng.standard_normal((3, 4)), jnp.float32)}
    x = jnp.asarray(rng.standard_normal((5, 3)), jnp.float32)
    ours = mw.jax.jit(scored, mesh="x=2", in_shardings=(None, P("x"), None))
    found, right = FOREIGN[name](ours, p, x), FOREIGN[name](scored, p, x)
    assert ours.cache_info().size > 0
    same(found, jax.tree.map(jnp.asarray, right))
    ours.close()


def test_keys_and_large_arrays_where_jax_traces() -> None:
    def draw(key: Any, x: Any) -> Any:
        return jax.random.split(key)[0], x + jax.random.normal(key, x.shape, x.dtype)

    ours = mw.jax.jit(draw, mesh="x=2", in_shardings=(None, P("x")))
    key, x = jax.random.key(1), jnp.ones((1024, 512), jnp.bfloat16)
    following, y = jax.jit(ours)(key, x * 2)
    right, z = jax.jit(draw)(key, x * 2)
    assert (jax.random.key_data(following) == jax.random.key_data(right)).all()
    same(y, z)


def test_what_jax_does_not_permit_is_a_line() -> None:
    f, x = mw.jax.jit(jnp.sin), jnp.ones(3)
    with pytest.raises(TypeError, match=r"^can't apply forward-mode .* to a custom_vjp function\."):
        jax.jvp(f, (x,), (x,))
    with (
        mw.from_jax(jnp.sin, x) as program,
        pytest.raises(UsageError, match=r"JAX traces this call .* what mw.jax.jit makes can"),
    ):
        jax.jit(program)(x)


def test_arrays_compute_with_what_jax_traces() -> None:
    a = mw.Array.from_numpy(np.ones((2, 3), np.float32), mesh="x=2", layout="[x, _]")
    found = jax.jit(lambda x: (a * x, x - a, a @ x.T))(jnp.full((2, 3), 2.0))
    assert [float(v[0, 0]) for v in found] == [2, 1, 6]


def test_layouts_may_be_chosen_for_it() -> None:
    f = mw.jax.jit(lambda x, w: jnp.tanh(x @ w), mesh="x=2", layouts="auto")
    x, w = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)
    np.testing.assert_allclose(f(x, w), np.tanh(x @ w), rtol=1e-6)
    with pytest.raises(UsageError, match="layouts"):
        mw.jax.jit(jnp.sin, mesh="x=2", layouts="best")(x)


RANK = """
import numpy as np
import jax
import jax.numpy as jnp
import meshweave as mw

mw.init()
P = jax.sharding.PartitionSpec


def step(p, x):
    value, g = jax.value_and_grad(lambda p: ((x @ p) ** 2).mean())(p)
    return p - 0.1 * g, value


p, right = jnp.ones((3, 2)), jnp.ones((3, 2))
x = np.arange(15, dtype=np.float32).reshape(5, 3) / 10
ours = mw.jax.jit(step, mesh="x=2", in_shardings=(None, P("x")), donate_argnums=0)
for _ in range(3):
    p, value = ours(p, x)
    right, wanted = step(right, x)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
np.testing.assert_allclose(jnp.asarray(p), right, rtol=1e-5)
assert ours.cache_info() == (2, 1, 1)
tanh = mw.jax.jit(jnp.tanh, mesh="x=2", in_shardings=P("x"), results="jax")
np.testing.assert_allclose(tanh(x), jnp.tanh(x), rtol=1e-5)
np.testing.assert_allclose(jax.grad(lambda x: tanh(x).sum())(x), 1 - jnp.tanh(x) ** 2, rtol=1e-4, atol=1e-5)
print("rank", mw.rank(), "agrees")
"""


@deep
def test_each_process_is_a_rank_under_a_launcher() -> None:
    command = [mpiexec(), "-n", "2", sys.executable, "-c", RANK]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PMI")}
    ran = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert sorted(line for line in ran.stdout.splitlines() if line) == [
        "rank 0 agrees",
        "rank 1 agrees",
    ]


def test_every_call_by_name_gives_each_argument_its_own_value() -> None:
    f = mw.jax.jit(lambda b, a: b - 2 * a, mesh="x=2", in_shardings=(P("x"), P()))
    b, a = np.arange(4, dtype="f4"), np.ones(4, "f4")
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(f(b=b, a=a)), b - 2 * a)
    f.close()
