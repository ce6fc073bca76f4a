"""Training loops of optax, flax and equinox as their READMEs write them, with `mw.jax.jit` for their jit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from depth import deep, some

import meshweave as mw

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy
P = jax.sharding.PartitionSpec
Jit = Callable[..., Any]
RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 5, 2), (3, 5, 3)))


def close(ours: Any, theirs: Any) -> None:
    """Equal trees of arrays, up to rounding."""
    mine, right = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(mine) == len(right) > 0
    for a, b in zip(mine, right, strict=True):
        if isinstance(b, jax.Array) and jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_optax() -> None:
    def trained(jit: Jit) -> Any:
        optimizer = optax.adam(1e-1)
        params = {"w": jnp.ones((8,))}
        state = optimizer.init(params)

        def loss(params: Any, x: Any, y: Any) -> Any:
            return optax.l2_loss(params["w"].dot(x), y)

        @jit
        def step(params: Any, state: Any, x: Any, y: Any) -> Any:
            updates, state = optimizer.update(jax.grad(loss)(params, x, y), state)
            return optax.apply_updates(params, updates), state

        x, y = jnp.arange(8.0) / 8, jnp.array(3.0)
        for _ in range(3):
            params, state = step(params, state, x, y)
        updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state, loss(params, x, y)

    made = []
    close(trained(lambda fn: made.append(mw.jax.jit(fn, mesh="x=2")) or made[0]), trained(jax.jit))
    assert made[0].cache_info() == (2, 1, 1)


@deep
def test_linen() -> None:
    nn = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            x = nn.relu(nn.Conv(features=4, kernel_size=(3, 3))(x))
            x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
            x = nn.BatchNorm(use_running_average=not train)(x)
            x = nn.relu(nn.Dense(features=8)(x.reshape((x.shape[0], -1))))
            return nn.Dense(features=3)(nn.Dropout(0.2, deterministic=not train)(x))

    class State(train_state.TrainState):
        batch_stats: Any

    cnn = CNN()
    variables = cnn.init(jax.random.key(0), jnp.ones((1, 4, 4, 1)))
    images = RNG.standard_normal((3, 5, 4, 4, 1)).astype(np.float32)
    labels = RNG.integers(0, 3, (3, 5))

    def trained(jit: Jit) -> Any:
        state = State.create(
            apply_fn=cnn.apply,
            params=variables["params"],
            tx=optax.sgd(0.1, 0.9),
            batch_stats=variables["batch_stats"],
        )

        @jit
        def train_step(state: Any, image: Any, label: Any, key: Any) -> Any:
            def loss_fn(params: Any) -> Any:
                logits, updates = state.apply_fn(
                    {"params": params, "batch_stats": state.batch_stats},
                    *(image, True),
                    mutable=["batch_stats"],
                    rngs={"dropout": key},
                )
                loss = optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()
                return loss, updates

            (loss, updates), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
            return state.apply_gradients(grads=grads, batch_stats=updates["batch_stats"]), loss

        losses = []
        for turn in range(3):
            state, loss = train_step(state, images[turn], labels[turn], jax.random.key(turn))
            losses.append(float(loss))
        return losses, state.params, state.step, state.batch_stats

    ours = mw.jax.jit(mesh="x=2", in_shardings=(None, P("x"), P("x"), None))
    close(trained(ours), trained(jax.jit))


def modules() -> tuple[Any, Any]:
    """A model of flax.nnx with an optimizer."""
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.linear = nnx.Linear(2, 8, rngs=rngs)
            self.bn = nnx.BatchNorm(8, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)
            self.linear_out = nnx.Linear(8, 3, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = nnx.relu(self.dropout(self.bn(self.linear(x))))
            return self.linear_out(x)

    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(1e-1, 0.9), wrt=nnx.Param)


@pytest.mark.parametrize("results", some(["jax", "mw"], 2))
def test_nnx(results: str) -> None:
    nnx = pytest.importorskip("flax.nnx")

    def trained(jit: Jit) -> Any:
        model, optimizer = modules()

        @jit
        def train_step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
            def loss_fn(model: Any) -> Any:
                return ((model(x) - y) ** 2).mean()

            loss, grads = nnx.value_and_grad(loss_fn)(model)
            optimizer.update(model, grads)
            return loss

        losses = [float(train_step(model, optimizer, x, y)) for x, y in zip(X, Y, strict=True)]
        model.eval()
        return losses, model(X[0]), nnx.state((model, optimizer))

    ours = mw.jax.jit(mesh="x=2", in_shardings=(None, None, P("x"), P("x")), results=results)
    close(trained(ours), trained(nnx.jit))


def test_nnx_in_parts_and_what_may_not_change() -> None:
    nnx = pytest.importorskip("flax.nnx")

    def trained(jit: Jit) -> Any:
        structure, state = nnx.split(modules())

        @jit
        def train_step(structure: Any, state: Any, x: Any, y: Any) -> Any:
            model, optimizer = nnx.merge(structure, state)
            loss, grads = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
            optimizer.update(model, grads)
            return loss, nnx.state((model, optimizer))

        for x, y in zip(X[:2], Y, strict=False):
            loss, state = train_step(structure, state, x, y)
        return loss, state

    static = {"static_argnums": 0}
    ours = mw.jax.jit(mesh="x=2", in_shardings=(None, P("x"), P("x")), **static)
    close(trained(ours), trained(partial(jax.jit, **static)))

    @mw.jax.jit
    def wider(model: Any) -> None:
        model.more = nnx.Param(jnp.ones(2))

    with pytest.raises(mw.MeshweaveError, match="wider changes the structure of a module"):
        wider(modules()[0])


def test_equinox() -> None:
    eqx = pytest.importorskip("equinox")

    def trained(jit: Jit) -> Any:
        model = eqx.nn.MLP(2, 3, 8, 2, key=jax.random.key(1))  # its activation is a leaf too
        optim = optax.adamw(1e-2)
        state = optim.init(eqx.filter(model, eqx.is_inexact_array))

        def loss(model: Any, x: Any, y: Any) -> Any:
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        @jit
        def make_step(model: Any, state: Any, x: Any, y: Any) -> Any:
            value, grads = eqx.filter_value_and_grad(loss)(model, x, y)
            params = eqx.filter(model, eqx.is_inexact_array)
            updates, state = optim.update(grads, state, params)
            return eqx.apply_updates(model, updates), state, value

        for x, y in zip(X, Y, strict=True):
            model, state, value = make_step(model, state, jnp.asarray(x), jnp.asarray(y))
        return value, [leaf for leaf in jax.tree.leaves(model) if hasattr(leaf, "dtype")]

    ours = mw.jax.jit(mesh="x=2", in_shardings=(None, None, P("x"), P("x")))
    close(trained(ours), trained(eqx.filter_jit))


def test_equinox_gradients() -> None:
    eqx = pytest.importorskip("equinox")

    class Linear(eqx.Module):
        weight: jax.Array
        bias: jax.Array

        def __call__(self, x: Any) -> Any:
            return self.weight @ x + self.bias

    def gradients(jit: Jit) -> Any:
        @jit
        @jax.grad
        def loss(model: Any, x: Any, y: Any) -> Any:
            return jnp.mean((y - jax.vmap(model)(x)) ** 2)

        return loss(Linear(jnp.ones((3, 2)), jnp.zeros(3)), X[0], Y[0])

    close(
        gradients(mw.jax.jit(mesh="x=2", in_shardings=(None, P("x"), P("x")))), gradients(jax.jit)
    )
