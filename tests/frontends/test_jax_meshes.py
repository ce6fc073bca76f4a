"""Meshes and shardings in every form that JAX has: of jit, inside the function, in shard_map."""

from typing import Any

import numpy as np
import pytest
from depth import sampled

import meshweave as mw

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
P, NamedSharding = jax.sharding.PartitionSpec, jax.sharding.NamedSharding
RNG = np.random.default_rng(4)
A, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 6), (6, 4)))
MESH = jax.sharding.AbstractMesh((2, 2), ("x", "y"))
EXPLICIT = jax.sharding.AbstractMesh(
    (2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2
)
HALVES = A[:2] + A[2:]


def on(*spec: Any, mesh: Any = MESH) -> Any:
    return NamedSharding(mesh, P(*spec))


def agree(function: Any, args: Any, wanted: Any, **options: Any) -> Any:
    """The ports' layouts, results first."""
    with mw.from_jax(function, *args, **options) as compiled:
        got = compiled(*args)
    for ours, right in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(ours), right, rtol=1e-5, atol=1e-5)
    program = compiled.program
    return [port.layout for port in (*program.outputs, *program.inputs)]


def product(a: Any, b: Any) -> Any:
    return a @ b


FORMS: list[Any] = [
    (jax.jit(product, out_shardings=on("x", "y")), {"mesh": MESH}, "[x, y]"),
    (jax.jit(product, in_shardings=(on("x"), None), out_shardings=on(None, "y")), {}, "[_, y]"),
    (jax.jit(product, in_shardings=(on("x"), None)), {"mesh": "x=2, y=2"}, "[x, _]"),
    (product, {"in_shardings": (on("x"), on(None, "y"))}, "[x, y]"),
    (product, {"in_shardings": (on("x", mesh=EXPLICIT), on(None, "y", mesh=EXPLICIT))}, "[x, y]"),
    (product, {"in_shardings": (P("x"), P(None, "y")), "mesh": EXPLICIT}, "[x, y]"),
    (lambda a, b: lax.with_sharding_constraint(a @ b, P(None, "x")), {"mesh": MESH}, "[_, x]"),
    (product, {"in_shardings": jax.sharding.SingleDeviceSharding(jax.devices()[0])}, "[_, _]"),
]


@sampled(1)
@pytest.mark.parametrize(("function", "options", "layout"), FORMS)
def test_forms_of_jit(function: Any, options: Any, layout: str) -> None:
    assert agree(function, (A, B), A @ B, **options)[0] == layout


def mapped(body: Any, ins: Any, outs: Any, **options: Any) -> Any:
    return jax.shard_map(body, mesh=MESH, in_specs=ins, out_specs=outs, **options)


def table(a: Any) -> Any:
    return a * jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) + jnp.arange(6.0)


def ring(a: Any) -> Any:
    def turn(carried: Any, _: Any) -> Any:
        part, total = carried
        return (lax.ppermute(part, "x", [(0, 1), (1, 0)]), total + part), None

    return lax.scan(turn, (a, a * 0), None, length=2)[0][1]


MAPPED: dict[str, Any] = {
    "psum": (mapped(lambda a, b: lax.psum(a @ b, "y"), (P("x", "y"), P("y")), P("x")), (A, B), A @ B),
    "all_gather": (mapped(lambda a: lax.all_gather(a, "x", tiled=True), P("x"), P(), check_vma=False), (A,), A),
    "ppermute": (mapped(lambda a: lax.ppermute(a, "x", [(0, 1), (1, 0)]), P("x"), P("x")), (A,), np.roll(A, 2, 0)),
    "ppermute_from_one": (
        mapped(lambda a: lax.ppermute(a, "x", [(0, 1)]), P("x"), P("x")), (A,), np.concatenate([A[:2] * 0, A[:2]]),
    ),
    "all_to_all": (mapped(lambda a: lax.all_to_all(a, "x", 1, 0, tiled=True), P("x"), P(None, "x")), (A,), A),
    "axis_index": (
        mapped(lambda a: a * 0 + lax.axis_index("x") + 10 * lax.axis_index("y"), P("x", "y"), P("x", "y")), (A,),
        np.kron(np.array([[0, 10], [1, 11]]), np.ones((2, 3))),
    ),
    "psum_scatter": (
        mapped(lambda a: lax.psum_scatter(a, "x", scatter_dimension=0, tiled=True), P(None, "y"), P("x", "y")),
        (A,), A * 2,
    ),
    "pmax_pmean": (
        mapped(lambda a: (lax.pmax(a, "x"), lax.pmean(a, "x")), P("x"), (P(), P())), (A,),
        (np.maximum(A[:2], A[2:]), HALVES / 2),
    ),
    "gradient": (
        jax.grad(
            lambda a, b: (mapped(lambda a, b: lax.psum(a @ b, "y"), (P("x", "y"), P("y")), P("x"))(a, b) ** 2).sum()
        ), (A, B), 2 * (A @ B) @ B.T,
    ),
    "ring": (mapped(ring, P("x"), P("x")), (A,), np.tile(HALVES, (2, 1))),
    "some_axes": (mapped(lambda a: lax.psum(a, "x"), P("x"), P(), axis_names={"x"}), (A,), HALVES),
    "tables_inside_and_out": (
        lambda a: table(mapped(table, P("x"), P("x"))(a)), (A,),
        (A * np.arange(1, 7) + np.arange(6)) * np.arange(1, 7) + np.arange(6),
    ),
}  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("name", MAPPED)
def test_shard_map(name: str) -> None:
    function, args, wanted = MAPPED[name]
    agree(function, args, wanted, mesh=MESH)


def test_the_mesh_of_shard_map_may_be_the_programs() -> None:
    def halves(a: Any) -> Any:
        return jax.shard_map(lambda a: lax.psum(a, "x"), in_specs=P("x"), out_specs=P())(a)

    agree(halves, (A,), HALVES, mesh="x=2, y=2", in_shardings=("[x, _]",))


def test_axes_that_are_not_manual_are_the_compilers() -> None:
    """Each rank computes the whole along them; constraints over them inside say nothing."""

    def body(a: Any, b: Any) -> Any:
        total = lax.psum(a * 2, "x") + lax.axis_index("x")
        return lax.with_sharding_constraint(total @ b, P(None, "y"))

    partly = jax.shard_map(
        body, mesh=MESH, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"}
    )
    wanted = np.concatenate([(2 * HALVES) @ B, (2 * HALVES + 1) @ B])
    for shardings in (None, (P("x", "y"), P(None, "y")), (P("y"), P("y", "x"))):
        agree(partly, (A, B), wanted, mesh=MESH, in_shardings=shardings)


def test_a_shard_map_over_other_axes_inside_another() -> None:
    def inner(b: Any) -> Any:
        return b * 2 + lax.psum(b.sum(), "y") * lax.axis_index("y")

    def outer(a: Any) -> Any:
        return (
            jax.shard_map(inner, in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"})(a)
            + 1
        )

    both = jax.shard_map(outer, mesh=MESH, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    sums = np.repeat(A.reshape(2, -1).sum(1), 2)[:, None] * np.repeat([0, 1], 3)
    agree(both, (A,), 2 * A + sums + 1, mesh=MESH)
    again = jax.shard_map(outer, mesh=MESH, in_specs=P("x", "y"), out_specs=P("x"))
    with pytest.raises(ValueError, match="y"):  # JAX refuses it before us
        mw.from_jax(again, A)
