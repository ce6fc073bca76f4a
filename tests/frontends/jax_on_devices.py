"""Arrays that JAX has laid on several devices, as arguments: run by test_jax_arrays.py where JAX sees four devices."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from frontends.test_jax_arrays import agree

import meshweave as mw
from meshweave.errors import UsageError
from meshweave.jax.arrays import from_shards

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
AxisType, NamedSharding, P = (
    jax.sharding.AxisType,
    jax.sharding.NamedSharding,
    jax.sharding.PartitionSpec,
)
AUTO, EXPLICIT = (
    jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2)
    for kind in (AxisType.Auto, AxisType.Explicit)
)  # fmt: skip
MESHES = pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])


def lay(mesh: Any, value: Any, *spec: Any) -> Any:
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def operands(mesh: Any) -> tuple[Any, Any]:
    a, b = jnp.arange(24.0).reshape(4, 6), jnp.arange(24.0).reshape(6, 4) - 7
    return lay(mesh, a, "x"), lay(mesh, b, None, "y")


def layouts(
    function: Any, *args: Any, options: Any = None, **kwargs: Any
) -> tuple[list[str], list[str]]:
    """Compare with jax.jit on the devices; return the layouts of the arguments and of the results."""
    ports = agree(function, *args, options=options, **kwargs).program
    return [port.layout for port in ports.inputs], [port.layout for port in ports.outputs]


@MESHES
def test_the_layouts_of_arrays_are_those_of_the_program(mesh: Any) -> None:
    a, b = operands(mesh)
    assert jax.device_count() == 4
    assert layouts(lambda a, b: a @ b, a, b) == (["[x, _]", "[_, y]"], ["[x, y]"])
    assert layouts(jax.jit(lambda a, b: a @ b), a, b=b) == (["[x, _]", "[_, y]"], ["[x, y]"])
    whole = lay(mesh, jnp.ones((4, 6)))
    assert layouts(lambda a, b: a + b, whole, jnp.ones((4, 6)))[0][0] == "[_, _]"
    layouts(jax.grad(lambda a, b: ((a @ b) ** 2).sum()), a, b)


@MESHES
def test_what_in_shardings_says_comes_first(mesh: Any) -> None:
    a, b = operands(mesh)
    asked = {"in_shardings": ("[_*x, _]", None), "mesh": "x=2, y=2"}
    assert layouts(lambda a, b: a @ b, a, b, options=asked)[0] == ["[_*x, _]", "[_, y]"]
    assert (
        layouts(lambda a, b: a.sum() * b, a, b, options={"in_shardings": "[_, y]"})[0]
        == ["[_, y]"] * 2
    )


@MESHES
def test_the_functions_own_shardings_come_first(mesh: Any) -> None:
    a, b = operands(mesh)
    rows, turned = NamedSharding(mesh, P("x")), NamedSharding(mesh, P("y", "x"))
    function = jax.jit(lambda a, b: a @ b, in_shardings=(rows, None), out_shardings=turned)
    assert layouts(function, a, b) == (["[x, _]", "[_, y]"], ["[y, x]"])
    if mesh is AUTO:  # explicit axes are part of a type, which in_shardings does not change
        with mw.from_jax(function, lay(mesh, jnp.ones((4, 6)), "y"), b) as compiled:
            assert compiled.program.inputs[0].layout == "[x, _]"


@MESHES
def test_keys_lie_where_jax_has_laid_them(mesh: Any) -> None:
    def draws(keys: Any) -> Any:
        return jax.vmap(partial(jax.random.normal, shape=(3,)))(keys), jax.vmap(jax.random.split)(
            keys
        )

    keys = lay(mesh, jax.random.split(jax.random.key(3), 4), "x")
    assert layouts(draws, keys) == (["[x, _]"], ["[x, _]", "[x, _, _]"])


@MESHES
def test_closures_shard_map_and_the_mesh_of_the_context(mesh: Any) -> None:
    a, b = operands(mesh)
    layouts(lambda b: a @ b, b)
    mapped = jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    assert layouts(mapped, a)[0] == ["[x, _]"]
    with jax.set_mesh(mesh):
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in (a, b)]
        specs = (P("x"), P(None, "y"))
        with mw.from_jax(lambda a, b: a @ b, *shapes, in_shardings=specs) as compiled:
            assert [port.layout for port in compiled.program.inputs] == ["[x, _]", "[_, y]"]
            np.testing.assert_allclose(compiled(a, b), a @ b, rtol=1e-5)


def test_explicit_axes_are_jaxs() -> None:
    a, _ = operands(EXPLICIT)
    turned = NamedSharding(EXPLICIT, P(None, "y"))
    assert layouts(lambda a: jax.sharding.reshard(a, turned) * 2, a) == (["[x, _]"], ["[_, y]"])
    with pytest.raises(Exception, match="consistent sharding"):  # as jax.jit has it
        mw.from_jax(lambda a, b: a.T @ b, a, lay(EXPLICIT, jnp.ones((4, 2)), "y"))


def test_shardings_that_do_not_fit_are_named() -> None:
    a, b = operands(AUTO)
    with pytest.raises(
        UsageError, match="the sharding of b is over the mesh x=2, y=2, the program's is x=4"
    ):
        mw.from_jax(lambda a, b: a @ b, np.asarray(a), b, mesh="x=4")
    other = jax.make_mesh((4,), ("z",), axis_types=(AxisType.Auto,))
    with pytest.raises(
        UsageError, match="the sharding of b is over the mesh z=4, the program's is x=2, y=2"
    ):
        mw.from_jax(lambda a, b: a @ b, a, b=lay(other, jnp.ones((6, 4)), None, "z"))
    alone = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    with mw.from_jax(lambda a: a + 1, lay(alone, jnp.ones((4, 6)), "x"), mesh="x=4") as compiled:
        assert compiled.program.inputs[0].layout == "[_, _]"  # one device says nothing


@MESHES
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "bool"])
def test_shards_go_in_without_a_copy_and_come_out_on_the_devices(
    mesh: Any, dtype: str, caplog: Any
) -> None:
    a = lay(mesh, jnp.arange(24.0).reshape(4, 6).astype(dtype), "x", "y")
    taken = from_shards(a, "a", mw.Mesh(x=2, y=2), mw.Layout.parse("[x, y]"))
    assert isinstance(taken, mw.Array)
    memory = {shard.data.unsafe_buffer_pointer() for shard in a.addressable_shards}
    assert {shard.ctypes.data for shard in taken.held} == memory
    twice = mw.jax.jit(lambda v: v | v if v.dtype == bool else v + v, results="jax", mesh=mesh)
    found, right = twice(a), a | a if dtype == "bool" else a + a
    assert found.sharding.is_equivalent_to(a.sharding, 2) and found.dtype == a.dtype
    assert (found == right).all() and (twice(found).sharding, twice.cache_info().misses) == (
        found.sharding,
        1,
    )
    assert not caplog.records


def test_what_lies_elsewhere_is_moved_and_told(caplog: Any) -> None:
    a, _ = operands(AUTO)
    rows = mw.jax.jit(lambda v: v * 2, mesh="x=2, y=2", in_shardings=P(None, "y"))
    np.testing.assert_array_equal(rows(a), 2 * a)
    assert "v lies as P('x',), the program takes [_, y]: it is moved" in caplog.text
    caplog.clear()
    other = jax.make_mesh((4,), ("z",), axis_types=(AxisType.Auto,))
    np.testing.assert_array_equal(rows(lay(other, jnp.ones((4, 8)), "z")), 2 * np.ones((4, 8)))
    assert "it is put together and cut again" in caplog.text
    turned = jax.sharding.Mesh(AUTO.devices.T, ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    caplog.clear()
    same = mw.jax.jit(lambda v: v * 2, mesh="x=2, y=2", in_shardings=P("x"))
    np.testing.assert_array_equal(same(lay(turned, a, "x")), 2 * a)
    assert not caplog.records  # each rank finds its part, on whatever device


def test_devices_are_those_of_jax() -> None:
    a, b = operands(AUTO)
    step = mw.jax.jit(lambda a, b: (a @ b, (a.sum(), a[:3])), results="jax")
    wanted = jax.jit(lambda a, b: (a @ b, (a.sum(), a[:3])))(a, b)
    found = step(a, b)
    for ours, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert isinstance(ours, jax.Array) and ours.sharding.device_set == set(jax.devices())
        np.testing.assert_allclose(ours, right)
