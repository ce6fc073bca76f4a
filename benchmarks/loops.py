"""Programs of JAX with loops whose check is measured: recurrent cells, layers and steps of training in a `lax.scan`."""

import importlib.util
from typing import Any

import meshweave as mw

TWO = "dp=2, tp=2"


def texts() -> dict[str, str]:
    """Return the programs, by name; none where JAX is not installed."""
    if importlib.util.find_spec("jax") is None:
        return {}
    import jax
    import jax.numpy as jnp

    def of(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, "float32")

    def rnn(w: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ w["x"] + h @ w["h"])
            return h, h

        return jax.lax.scan(step, jnp.zeros((xs.shape[1], w["h"].shape[0])), xs)[1]

    def lstm(w: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ w["x"] + h @ w["h"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((xs.shape[1], w["h"].shape[0]))
        return jax.lax.scan(step, (zero, zero), xs)[1]

    def layers(w: Any, x: Any) -> Any:
        def layer(h: Any, one: Any) -> Any:
            return h + jax.nn.gelu(h @ one["up"]) @ one["down"], None

        return jax.lax.scan(layer, x, w)[0]

    def attention(w: Any, x: Any) -> Any:
        def norm(a: Any) -> Any:
            return a * jax.lax.rsqrt(jnp.mean(a * a, axis=-1, keepdims=True) + 1e-6)

        b, t, d = x.shape
        q, k, v = [(norm(x) @ w[n]).reshape(b, t, 4, d // 4) for n in "qkv"]
        weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 4)
        x = x + jnp.einsum("bhts,bshd->bthd", weights, v).reshape(b, t, d) @ w["o"]
        return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]

    def trained(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean(jax.lax.scan(lambda h, one: (attention(one, h), None), x, w)[0] ** 2)

        value, slopes = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda w, g: w - 0.01 * g, w, slopes), value

    def adam(w: Any, x: Any, y: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            w, m, v = state
            g = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2))(w)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
            w = jax.tree.map(lambda w, m, v: w - 0.01 * m / (jnp.sqrt(v) + 1e-8), w, m, v)
            return (w, m, v), None

        zero = jax.tree.map(jnp.zeros_like, w)
        return jax.lax.scan(step, (w, zero, zero), jnp.arange(40))[0][0]

    def gradient(f: Any) -> Any:
        return jax.value_and_grad(lambda *given: jnp.sum(f(*given) ** 2), argnums=(0, 1))

    cell, gates = {"x": of(32, 64), "h": of(64, 64)}, {"x": of(32, 256), "h": of(64, 256)}
    columns, xs = {"x": "[_, tp]", "h": "[_, tp]"}, of(100, 8, 32)
    pair = {"up": of(96, 64, 128), "down": of(96, 128, 64)}
    halves = {"up": "[_, _, tp]", "down": "[_, tp, _]"}
    stack = {**{n: of(12, 64, 64) for n in "qkvo"}, "up": of(12, 64, 128), "down": of(12, 128, 64)}
    heads = {**halves, **dict.fromkeys("qkv", "[_, _, tp]"), "o": "[_, tp, _]"}
    both = {"a": of(32, 64), "b": of(64, 16)}, of(16, 32), of(16, 16)
    cases: dict[str, tuple[Any, tuple[Any, ...], Any, str]] = {
        "100 steps of an RNN": (rnn, (cell, xs), (None, "[_, x, _]"), "x=2"),
        "its gradient": (gradient(rnn), (cell, xs), (columns, "[_, dp, _]"), TWO),
        "100 steps of an LSTM, gradient": (
            gradient(lstm), (gates, xs), (columns, "[_, dp, _]"), TWO,
        ),
        "a scan over 96 layers, gradient": (
            gradient(layers), (pair, of(8, 64)), (halves, "[dp, _]"), TWO,
        ),
        "a scan over 12 attention layers, training": (
            trained, (stack, of(4, 64, 64)), (heads, "[dp, _, _]"), TWO,
        ),
        "40 steps of Adam": (
            adam, both, ({"a": "[_, tp]", "b": "[tp, _]"}, "[dp, _]", "[dp, _]"), TWO,
        ),
    }  # fmt: skip
    found = {}
    for name, (function, given, layouts, mesh) in cases.items():
        with mw.from_jax(function, *given, mesh=mesh, in_shardings=layouts) as program:
            found[name] = program.text
    return found
