"""Arrays of JAX's own, PRNG keys and keyword arguments, given to `from_jax` as JAX users write them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import deep, sampled, some

import meshweave as mw
from meshweave.errors import CompileError, MeshweaveError, UsageError

jax = pytest.importorskip("jax")
jnp = jax.numpy
ON_DEVICES = Path(__file__).with_name("jax_on_devices.py")


@deep
def test_arrays_on_several_devices() -> None:
    """The number of devices is said before JAX starts: a process of its own."""
    environment = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ON_DEVICES)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]


def data(leaf: Any) -> Any:
    keys = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if keys else leaf)


def agree(function: Any, *args: Any, options: Any = None, **kwargs: Any) -> Any:
    """Compare with JAX, keys by their data; return the compiled function, closed."""
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    wanted = jitted(*args, **kwargs)
    with mw.from_jax(function, *args, **(options or {}), **kwargs) as compiled:
        for _ in range(2):
            got = compiled(*args, **kwargs)
            assert jax.tree.structure(got) == jax.tree.structure(wanted)
            for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
                assert data(ours).dtype == data(theirs).dtype
                np.testing.assert_allclose(data(ours), data(theirs), rtol=1e-5, atol=1e-6)
                if isinstance(ours, jax.Array):
                    assert ours.dtype == theirs.dtype
    return compiled


LAID: list[Any] = ["[dp, _]", "[_*dp, _]", (mw.P("dp"), None), None]


@pytest.mark.parametrize("in_shardings", LAID)
def test_arrays_of_jax_with_layouts(in_shardings: Any) -> None:
    a, b = jnp.arange(20.0).reshape(5, 4), jnp.ones((5, 4), jnp.bfloat16)
    options = {"in_shardings": in_shardings, "mesh": "dp=2"}
    compiled = agree(lambda a, b: (a * b, a.T @ b), a, b, options=options)
    assert compiled.mesh == mw.Mesh(dp=2)


def test_arrays_keep_their_weak_types() -> None:
    weak = jnp.asarray(2.0) * 1.0
    assert weak.weak_type
    agree(lambda a, s: a * s, jnp.ones(3, jnp.float16), weak)


@pytest.mark.parametrize("implementation", some(["threefry2x32", "rbg", "unsafe_rbg"], 3))
def test_keys_go_in_and_come_out(implementation: str) -> None:
    key = jax.random.key(3, impl=implementation)

    def step(state: Any, x: Any) -> Any:
        new, drawn = jax.random.split(state["key"])
        return {"key": new, "many": jax.random.split(drawn, (2, 3))}, jax.random.normal(
            drawn, x.shape
        ) + x

    state, x = {"key": key}, jnp.ones((4, 3))
    agree(step, state, x)
    with mw.from_jax(step, state, x, mesh="dp=2", in_shardings=(None, "[dp, _]")) as compiled:
        ours, theirs = state, state
        for _ in range(3):  # what has come out goes in again
            new, y = compiled({"key": ours["key"]}, x)
            right, z = jax.jit(step)({"key": theirs["key"]}, x)
            np.testing.assert_allclose(y, z, rtol=1e-5)
            ours, theirs = new, right
        assert (data(ours["many"]) == data(theirs["many"])).all()


def test_keys_alone() -> None:
    keys = jax.random.split(jax.random.key(1), 7)
    agree(lambda keys: keys, keys)
    agree(lambda keys: keys[::-1], keys, options={"in_shardings": "[x]", "mesh": "x=2"})
    compiled = agree(
        jax.vmap(lambda key: (jax.random.fold_in(key, 3), jax.random.uniform(key))), keys,
        options={"in_shardings": "[_*x]", "mesh": "x=2"},
    )  # fmt: skip
    assert [port.layout for port in compiled.program.inputs] == ["[_*x, _]"]
    agree(lambda key: jax.random.key_data(key), jax.random.key(3))
    agree(lambda bits: jax.random.wrap_key_data(bits), np.array([1, 2], np.uint32))


def test_what_is_no_key_is_named() -> None:
    key = jax.random.key(3)
    with mw.from_jax(lambda k: jax.random.uniform(k), key) as compiled:
        with pytest.raises(MeshweaveError, match=r"^k: dtype uint32, key<fry> is right"):
            compiled(jax.random.key_data(key))
        with pytest.raises(MeshweaveError, match=r"^k: dtype key<rbg>, key<fry> is right"):
            compiled(jax.random.key(3, impl="rbg"))
        with pytest.raises(MeshweaveError, match=r"^k: dim 0 has size|^k: 2 dims, 1 are right"):
            compiled(jax.random.split(key))


def test_keyword_arguments() -> None:
    def scaled(x: Any, *, scale: Any = 1.0, shift: Any = None) -> Any:
        return x * scale if shift is None else x * scale + shift["by"]

    x = jnp.arange(12.0).reshape(4, 3)
    agree(scaled, x, scale=2.0)
    agree(jax.jit(scaled), x, scale=np.float32(3), shift={"by": jnp.ones((4, 1))})
    compiled = agree(
        scaled, x, shift={"by": x}, scale=x, options={"in_shardings": "[dp, _]", "mesh": "dp=2"}
    )
    assert compiled.program.inputs[0].layout == "[dp, _]"
    rows = jax.sharding.NamedSharding(
        jax.sharding.AbstractMesh((2,), ("dp",)), jax.sharding.PartitionSpec("dp")
    )
    scale = jax.ShapeDtypeStruct((4, 3), "float32", sharding=rows)
    with mw.from_jax(scaled, x, scale=scale) as compiled:
        assert compiled.program.inputs[1].layout == "[dp, _]"
        np.testing.assert_allclose(compiled(x, scale=np.asarray(x)), x * x)
        with pytest.raises(MeshweaveError, match=r"^scale: dim 1 has size 5, 3 is right"):
            compiled(x, scale=np.ones((4, 5), np.float32))
        with pytest.raises(UsageError, match="scaled: arguments of structure"):
            compiled(x, x)
    with pytest.raises(TypeError, match="in_sharding"):
        mw.from_jax(scaled, x, in_sharding="[dp, _]")


def test_static_arguments_and_leaves_that_are_no_arrays_keep_their_values() -> None:
    def f(x: Any, n: Any, *, how: Any, act: Any = None, by: Any = 1.0) -> Any:
        y = x.reshape(n, -1) if how == "rows" else x.T
        return (y if act is None else act["f"](y)) * by

    x = jnp.arange(12.0).reshape(6, 2) - 5
    agree(jax.jit(f, static_argnames=("n", "how")), x, 4, how="rows", by=2.5)
    agree(jax.jit(f, static_argnums=1, static_argnames="how"), x, 3, how="turned")
    options: Any = {"in_shardings": ("[dp, _]", None), "mesh": "dp=2"}
    agree(jax.jit(f, static_argnames=("n", "how")), x, 4, how="rows", by=2.5, options=options)
    with mw.from_jax(f, x, np.int32(0), how="turned", act={"f": jnp.tanh}, by=x.T, **options) as c:
        assert c.program.inputs[0].layout == "[dp, _]"
        got = c(x, np.int32(7), how="turned", act={"f": jnp.tanh}, by=x.T)
        np.testing.assert_allclose(got, np.tanh(x.T) * x.T, rtol=1e-5)
        with pytest.raises(UsageError, match=r"^f: how is 'rows', the program is for 'turned'"):
            c(x, np.int32(7), how="rows", act={"f": jnp.tanh}, by=x.T)
        with pytest.raises(UsageError, match=r"^f: act\['f'\] is .*, the program is for "):
            c(x, np.int32(7), how="turned", act={"f": jnp.sin}, by=x.T)
        with pytest.raises(MeshweaveError, match=r"^by: dim 1 has size 5, 6 is right"):
            c(x, np.int32(7), how="turned", act={"f": jnp.tanh}, by=np.ones((2, 5), np.float32))
    with mw.from_jax(jax.jit(f, static_argnames=("n", "how")), x, 4, how="rows") as c:
        for n in (3, 4.0, True):
            with pytest.raises(UsageError, match=f"^f: n is {n}, the program is for 4"):
                c(x, n, how="rows")


UNEVEN = ["[x, _]", "[_*x, _]", "[_, x]", "[x{0,3,3,1}, _]", "[_, _*x*2]"]


@sampled(4)
@pytest.mark.parametrize("layout", UNEVEN)
def test_the_text_knows_the_mesh_where_jax_does_not(layout: str) -> None:
    x = jnp.arange(35.0).reshape(7, 5)
    options = {"in_shardings": layout, "mesh": "x=4"}
    compiled = agree(lambda x: (x * 2, jax.nn.softmax(x, 0) @ x.T), x, options=options)
    assert "x=4" in compiled.explain() and f"{layout}" in compiled.explain()
    with mw.from_stablehlo(compiled.text) as again:
        assert again.inputs[0].layout == compiled.program.inputs[0].layout
        np.testing.assert_allclose(again(np.asarray(x))[0], 2 * x)


def test_the_text_of_a_function_without_layouts_knows_the_mesh() -> None:
    x = np.ones((4, 3), np.float32)
    assert "x=4" in agree(lambda x: x + 1, x, options={"mesh": "x=4"}).explain()


def called(x: Any) -> Any:
    y = jax.lax.cond(x.sum() > 0, lambda: jax.pure_callback(lambda v: v, x, x), lambda: x)
    jax.debug.inspect_array_sharding(y, callback=print)
    return y


def test_what_needs_devices_is_refused_with_its_line() -> None:
    line = called.__code__.co_firstlineno + 2
    with pytest.raises(CompileError) as caught:
        mw.from_jax(called, jnp.ones((4, 3)), in_shardings="[dp, _]", mesh="dp=2")
    text = str(caught.value)
    assert "\n" not in text
    told = rf"not supported: what needs devices: inspect_sharding \(at [^)]*test_jax_arrays.py:{line}:\d+\)$"
    assert re.search(told, text)
