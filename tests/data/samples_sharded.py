"""Samples with meshes and shardings: jit with in/out shardings, constraints, shard_map, loops of
constraints.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from samples_ops import ints, normal

SHARDED = {}


def mesh_of(**sizes):
    count = int(np.prod(list(sizes.values())))
    devices = np.array(jax.devices()[:count]).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


MESH = mesh_of(dp=2, tp=2)


def on(*spec, mesh=MESH):
    return NamedSharding(mesh, P(*spec))


def constrain(x, *spec, mesh=MESH):
    return lax.with_sharding_constraint(x, on(*spec, mesh=mesh))


def sample(make):
    """Register a function that returns (jitted function, *arguments)."""

    def build():
        function, *arguments = make()
        return function, tuple(arguments)

    SHARDED[make.__name__] = build
    return make


def manual(function, in_specs, out_specs, mesh=MESH, **options):
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    )


@sample
def mlp_sharded():
    f = jax.jit(
        lambda x, v, w: jax.nn.relu(x @ v) @ w,
        in_shardings=(on("dp", None), on(None, "tp"), on("tp", None)),
        out_shardings=on("dp", None),
    )
    return f, normal(8, 6), normal(6, 12, seed=1), normal(12, 4, seed=2)


@sample
def constraint():
    def f(x, w):
        h = constrain(jnp.tanh(x @ w), "dp", "tp")
        return constrain(jnp.square(h), P.UNCONSTRAINED, None).sum(axis=1)

    return jax.jit(f, in_shardings=(on("dp"), None)), normal(8, 6), normal(6, 10, seed=1)


@sample
def multi_axis():
    f = jax.jit(
        lambda x, y: x @ y,
        in_shardings=(on(("dp", "tp"), None), on(None, ("tp", "dp"))),
        out_shardings=on("tp", "dp"),
    )
    return f, normal(8, 6), normal(6, 12, seed=1)


@sample
def three_axes():
    mesh = mesh_of(x=2, y=2, z=2)
    f = jax.jit(
        lambda a: constrain(a.T + 1.0, "z", ("y", "x"), mesh=mesh) * 2.0,
        in_shardings=on(("x", "z"), "y", mesh=mesh),
    )
    return f, normal(8, 4)


@sample
def constraint_in_call():
    @jax.jit
    def layer(x, w):
        return constrain(jax.nn.gelu(x @ w), "dp", None)

    f = jax.jit(lambda x, w: layer(layer(x, w), w), in_shardings=(on("dp", None), on(None, "tp")))
    return f, normal(4, 6), normal(6, 6, seed=1)


@sample
def scan_sharded():
    def f(w, x):
        def step(h, row):
            h = constrain(jnp.tanh(h @ w + row), "dp", "tp")
            return h, h.sum(axis=1)

        return lax.scan(step, jnp.zeros((2, 4)), x)

    return (
        jax.jit(f, in_shardings=(on(None, "tp"), on(None, "dp", None))),
        normal(4, 4),
        normal(3, 2, 4, seed=1),
    )


@sample
def embedding_sharded():
    f = jax.jit(
        lambda t, i: t[i] @ t.T,
        in_shardings=(on("tp", None), on("dp", None)),
        out_shardings=on("dp", None, "tp"),
    )
    return f, normal(12, 5), ints(0, 12, 4, 3)


@sample
def psum_shard_map():
    f = manual(lambda x, w: lax.psum(x @ w, "tp"), (P("dp", "tp"), P("tp", None)), P("dp", None))
    return f, normal(8, 6), normal(6, 4, seed=1)


@sample
def collectives_shard_map():
    def f(x):
        gathered = lax.all_gather(x, "tp", axis=1, tiled=True)
        scattered = lax.psum_scatter(gathered, "tp", scatter_dimension=1, tiled=True)
        swapped = lax.all_to_all(x, "dp", split_axis=1, concat_axis=0, tiled=True)
        ring = lax.ppermute(x, "tp", [(0, 1), (1, 0)])
        return scattered, swapped, ring, lax.pmax(x, ("dp", "tp")), lax.pmean(x, "dp")

    return manual(
        f,
        P("dp", "tp"),
        (P("dp", "tp"), P("dp", "tp"), P("dp", "tp"), P(None, None), P(None, "tp")),
    ), normal(4, 8)


@sample
def untiled_shard_map():
    def f(x):
        return (
            lax.all_gather(x, "tp"),
            lax.all_to_all(x, "tp", 1, 0),
            lax.pmin(x, "tp"),
            lax.psum(jnp.float32(1.0) * x[0, 0], ("tp", "dp")),
        )

    return manual(
        f, P("dp", "tp"), (P(None, "dp", None), P("tp", "dp"), P("dp", None), P()), check_vma=False
    ), normal(4, 4)


@sample
def axis_index_shard_map():
    def f(x):
        return (
            x
            + lax.axis_index("tp").astype(jnp.float32) * 10
            + lax.axis_index(("dp", "tp")).astype(jnp.float32)
        )

    return manual(f, P("dp", "tp"), P("dp", "tp")), normal(4, 6)


@sample
def ring_shard_map():
    mesh = mesh_of(x=4)

    def f(x):
        def step(_, state):
            total, block = state
            block = lax.ppermute(block, "x", [(i, (i + 1) % 4) for i in range(4)])
            return total + block, block

        return lax.fori_loop(0, 3, step, (x, x))[0]

    return manual(f, P("x"), P("x"), mesh=mesh), normal(8, 3)


@sample
def shard_map_in_jit():
    inner = jax.shard_map(
        lambda x: lax.psum(jnp.square(x), "tp"),
        mesh=MESH,
        in_specs=P("dp", "tp"),
        out_specs=P("dp", None),
    )
    f = jax.jit(
        lambda x, w: jnp.tanh(inner(x @ w)) + 1.0, in_shardings=(on("dp", None), on(None, "tp"))
    )
    return f, normal(4, 6), normal(6, 8, seed=1)


@sample
def partial_manual():
    f = jax.shard_map(
        lambda x: lax.psum(x, "tp"),
        mesh=MESH,
        in_specs=P(None, "tp"),
        out_specs=P(None, None),
        axis_names={"tp"},
    )
    return jax.jit(f, in_shardings=on("dp", "tp")), normal(4, 6)


@sample
def uneven_constraint():
    return jax.jit(lambda x: constrain(x * 2.0, "dp", None).sum(axis=0)), normal(5, 3)


@sample
def remat_and_custom():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * jnp.cos(x),))
    layer = jax.checkpoint(lambda x, w: f(constrain(x @ w, "dp", "tp")))
    return (
        jax.jit(jax.grad(lambda x, w: layer(x, w).sum()), in_shardings=(on("dp"), on(None, "tp"))),
        normal(4, 6),
        normal(6, 8, seed=1),
    )


@sample
def tables_shard_map():
    def f(x):
        shifted = lax.ppermute(x, "tp", [(0, 1)])
        return x * jnp.array([1.0, 2.0, 3.0]) + shifted + jnp.arange(3.0)

    inner = manual(f, P("dp", "tp"), P("dp", "tp"))
    return jax.jit(lambda x: inner(x)[:, :3] * jnp.array([1.0, 2.0, 3.0])), normal(4, 6)


@sample
def pooling_sharded():
    def loss(x):
        high = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2), (1, 1, 2), "SAME")
        return jnp.sum(high**2)

    # Over dim 0 only: of a sharded window XLA makes another gradient than on one device (jax 0.10.2).
    return jax.jit(jax.grad(loss), in_shardings=on("dp")), normal(4, 6, 5)
