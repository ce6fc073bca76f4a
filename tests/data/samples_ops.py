"""Samples of single operations and control flow, without shardings. Sizes are unequal, so that a
swapped dim shows.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

OPS = {}


def sample(make):
    """Register a function that returns (function to jit, *arguments)."""

    def build():
        function, *arguments = make()
        return jax.jit(function), tuple(arguments)

    OPS[make.__name__] = build
    return make


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def ints(low, high, *shape, seed=0, dtype=np.int32):
    return np.random.default_rng(seed).integers(low, high, size=shape).astype(dtype)


@sample
def square_erf():
    return lambda x: jnp.square(x) + special.erf(x) + special.erfc(x), normal(3, 5)


@sample
def erf_inv():
    return lambda x: special.erfinv(jnp.tanh(x)), normal(3, 5)


@sample
def special_functions():
    return (
        lambda x: (
            special.gammaln(jnp.abs(x) + 0.5),
            special.digamma(jnp.abs(x) + 0.5),
            jnp.isinf(1 / x),
        ),
        normal(7),
    )


@sample
def trigonometry():
    def f(x):
        y = jnp.tanh(x) * 0.9
        return (
            jnp.arcsin(y) + jnp.arccos(y) + jnp.arctan(y),
            jnp.sinh(x) + jnp.cosh(x) + jnp.arcsinh(x) + jnp.arctanh(y),
            jnp.tan(y) + jnp.arctan2(x, y) + jnp.arccosh(1.5 + jnp.abs(x)),
            jnp.nextafter(x, y),
        )

    return f, normal(3, 5)


@sample
def elementwise():
    def f(x, y):
        return (
            jnp.exp(x) + jnp.expm1(y) + jnp.log1p(jnp.abs(x)) + jnp.log(jnp.abs(y)) + jnp.cbrt(x),
            jnp.clip(x, -0.5, 0.5)
            + jnp.sign(y)
            + jnp.floor(x)
            + jnp.ceil(y)
            + jnp.round(x)
            + lax.rsqrt(jnp.abs(y)),
            jnp.fmod(x, y)
            + jnp.mod(x, y)
            + jnp.power(jnp.abs(x), y)
            + jnp.abs(x) ** 3
            + lax.round(y, lax.RoundingMethod.AWAY_FROM_ZERO),
            jax.nn.sigmoid(x) + jnp.where(x > y, x, y) + jnp.maximum(x, 0) - jnp.minimum(y, 0),
            jnp.isfinite(x) & (x != y) | ~(x < y) ^ (x >= y),
        )

    return f, normal(3, 5), normal(3, 5, seed=1)


@sample
def integers():
    def f(x, y):
        return (
            x // y + x % y + lax.rem(x, y) + lax.div(x, y) + jnp.abs(x) + jnp.sign(x),
            lax.population_count(x) + lax.clz(y),
            (x << 2) ^ (x >> 1) & lax.shift_right_logical(x, jnp.int32(3)) | ~y,
            jnp.power(y, 3) + jnp.maximum(x, y) - jnp.minimum(x, y) + jnp.clip(x, -3, 3),
        )

    return f, ints(-50, 50, 3, 5), ints(1, 9, 3, 5, seed=1)


@sample
def unsigned():
    def f(x, y):
        return (
            x // y + x % y,
            x.astype(jnp.float32) + y.astype(jnp.float32),
            x < y,
            jnp.maximum(x, y) + (x >> 3),
            (x.astype(jnp.float32) * 0.5).astype(jnp.uint8),
            x.astype(jnp.int32) - 300,
        )

    return f, ints(0, 256, 3, 5, dtype=np.uint8), ints(1, 256, 3, 5, seed=1, dtype=np.uint8)


@sample
def bf16():
    def f(x, w):
        return jnp.maximum(x @ w, 0).astype(jnp.bfloat16), jnp.sum(x, axis=0)

    return f, jnp.asarray(normal(3, 5), jnp.bfloat16), jnp.asarray(normal(5, 7), jnp.bfloat16)


@sample
def f16_f64():
    return (
        lambda x: (jax.nn.softmax(x), x.astype(jnp.float32).sum()),
        normal(3, 5, dtype=np.float16),
    )


@sample
def top_k():
    return lambda x: lax.top_k(x, 3), normal(4, 7)


@sample
def sort():
    return (
        lambda x, k: (
            jnp.sort(x, axis=0),
            jnp.argsort(x, axis=1),
            lax.sort((k, x), dimension=1, num_keys=2),
        ),
        normal(4, 6),
        ints(0, 3, 4, 6),
    )


@sample
def arg_reductions():
    return lambda x: (
        jnp.argmax(x, axis=1),
        jnp.argmin(x),
        jnp.prod(x, axis=0),
        jnp.any(x > 1, axis=1),
        jnp.all(x > -9),
        jnp.var(x),
        jnp.max(x, axis=(0, 1)),
    ), normal(4, 6)


@sample
def cumulative():
    return lambda x: (
        jnp.cumsum(x, axis=1),
        jnp.cumprod(x, axis=0),
        lax.cummax(x, axis=0, reverse=True),
        lax.cumlogsumexp(x, axis=1),
    ), normal(4, 6)


@sample
def embedding():
    return lambda table, i: table[i] * 2.0, normal(11, 5), ints(0, 11, 3, 4)


@sample
def gathers():
    def f(x, i, j):
        return (
            x[i, :, j],
            x[:, i],
            jnp.take_along_axis(x[:, :, 0], i[None, :] % 5, axis=1),
            x[2, 1:4, i],
            jnp.take(x, i, axis=1, mode="clip"),
        )

    return f, normal(6, 5, 4), ints(0, 4, 3), ints(0, 4, 3, seed=1)


@sample
def scatters():
    def f(x, i, u):
        return (
            x.at[i].add(u),
            x.at[i].set(u),
            x.at[:, 2].max(u[0, 0]),
            x.at[1:3, 1:4].multiply(2.0),
            x.at[i, i].min(0.25),
        )

    return f, normal(6, 5), ints(0, 6, 3), normal(3, 5, seed=1)


@sample
def embedding_grad():
    def loss(table, i, w):
        logits = table[i] @ w
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(4), i])

    return jax.grad(loss, argnums=(0, 2)), normal(11, 5), ints(0, 11, 4), normal(5, 11, seed=1)


@sample
def slices():
    def f(x, i):
        return (
            x[1:5:2, ::-1],
            lax.dynamic_slice(x, (i, i - 4), (2, 3)),
            lax.dynamic_update_slice(x, x[:2, :3] * 2, (i, 1)),
            lax.pad(x, 0.5, ((1, -2, 1), (-1, 2, 0))),
            jnp.concatenate([x, x[:1]], axis=0),
            jnp.roll(x, 2, axis=1) + jnp.flip(x, 0),
            jnp.tile(x, (1, 2)).reshape(4, 3, -1).transpose(2, 0, 1),
            x[i],
        )

    return f, normal(6, 5), np.int32(3)


@sample
def masks():
    def f(x):
        return (
            jnp.where(jnp.tril(jnp.ones((4, 6), bool)), x, -1e9),
            jnp.triu(x),
            jnp.eye(4, 6) * x,
            jnp.arange(6) * 0.5 + x,
            jnp.linspace(0, 1, 6) + x,
        )

    return f, normal(4, 6)


@sample
def conv():
    def f(x, w):
        same = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        strided = lax.conv_general_dilated(
            x, w, (2, 2), "VALID", rhs_dilation=(2, 1), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return same, strided

    return f, normal(2, 8, 7, 3), normal(3, 2, 3, 4, seed=1)


@sample
def conv_kinds():
    def f(x, w, d):
        nchw = lax.conv_general_dilated(x, w, (1, 1), "SAME")
        grouped = lax.conv_general_dilated(x, d, (1, 1), "SAME", feature_group_count=4)
        transposed = lax.conv_general_dilated(x, w, (1, 1), [(2, 2), (1, 1)], lhs_dilation=(2, 2))
        return nchw, grouped, transposed

    return f, normal(2, 4, 6, 5), normal(3, 4, 3, 2, seed=1), normal(8, 1, 3, 3, seed=2)


@sample
def conv_grad():
    def loss(w, x):
        y = lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(jnp.square(jax.nn.relu(y)))

    return jax.grad(loss, argnums=(0, 1)), normal(3, 3, 2, 4), normal(2, 6, 5, 2, seed=1)


@sample
def pooling():
    def f(x):
        high = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        mean = lax.reduce_window(x, 0.0, lax.add, (1, 3, 2, 1), (1, 1, 2, 1), "VALID") / 6
        return high, mean

    return f, normal(2, 7, 6, 3)


@sample
def pooling_grad():
    def loss(x):
        high = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(high**2)

    return jax.grad(loss), normal(1, 6, 4, 2)


@sample
def pooling_grad_overlapping():
    def loss(x):
        high = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 1, 2, 1), "SAME")
        return jnp.sum(high**2)

    return jax.grad(loss), normal(1, 6, 5, 2)


@sample
def conversions():
    special = [
        0.0,
        -0.5,
        1.5,
        -2.5,
        127.0,
        128.0,
        255.9,
        256.0,
        -129.0,
        3e9,
        -3e9,
        1e30,
        np.inf,
        -np.inf,
        np.nan,
    ]
    kinds = (jnp.int32, jnp.int8, jnp.uint8, jnp.uint16, jnp.uint32)
    return lambda x: tuple(x.astype(kind) for kind in kinds), np.array(special, np.float32)


@sample
def while_flags():
    def f(x, n):
        return (
            lax.while_loop(
                lambda h: (h[0] < 9) & h[1],
                lambda h: (h[0] + 1, h[2].sum() < n, h[2] + 1),
                (0, True, x),
            )[2],
            lax.while_loop(lambda h: h[0] < n, lambda h: (h[0] + 1, h[2], h[1]), (0, x, x[::-1]))[
                1:
            ],
        )

    return f, normal(3, 5), np.int32(7)


@sample
def unsigned_unread():
    return lambda x, y: (y, x), ints(0, 99, 3, 5, dtype=np.uint32), ints(0, 99, 4, dtype=np.uint8)


@sample
def scan():
    def f(w, x):
        def step(h, row):
            h = jnp.tanh(h @ w + row)
            return h, h.sum(axis=1)

        return lax.scan(step, jnp.zeros((2, 4)), x)

    return f, normal(4, 4), normal(6, 2, 4, seed=1)


@sample
def scan_grad():
    def loss(w, x):
        def step(h, row):
            h = jnp.tanh(h @ w + row)
            return h, None

        return lax.scan(step, jnp.zeros((2, 4)), x)[0].sum()

    return jax.grad(loss), normal(4, 4), normal(5, 2, 4, seed=1)


@sample
def while_loop():
    def f(x):
        return lax.while_loop(
            lambda s: (s[0] < 20) & (jnp.max(s[1]) < 100.0),
            lambda s: (s[0] + 1, s[1] * 1.5),
            (0, x),
        )

    return f, normal(3, 5)


@sample
def cond_switch():
    def f(i, x):
        a = lax.cond(i > 1, lambda y: y * 2, lambda y: y - 1, x)
        return a + lax.switch(i, [jnp.sin, jnp.cos, lambda y: y * y], x)

    return f, np.int32(1), normal(3, 5)


@sample
def private_calls():
    @jax.jit
    def gate(x, y):
        return jax.nn.relu(x) * y

    def f(x, y):
        return gate(gate(x, y), y) + jax.nn.gelu(gate(y, x), approximate=False) + jax.nn.silu(x)

    return f, normal(3, 5), normal(3, 5, seed=1)


@sample
def fori_private():
    def f(x):
        return lax.fori_loop(2, 9, lambda i, y: jnp.where(i % 2 == 0, y * 1.1, y - i), x)

    return f, normal(3, 5)


@sample
def random_bits():
    def f(key):
        return jax.random.normal(jax.random.wrap_key_data(key), (3, 5)), jax.random.randint(
            jax.random.wrap_key_data(key), (4,), 0, 100
        )

    return f, np.array([1, 2], np.uint32)


@sample
def rng_bit_generator():
    return lambda key: lax.rng_bit_generator(key, (4, 3))[1] > 0, np.array([1, 2, 3, 4], np.uint32)


@sample
def dots():
    def f(x, y, z):
        return (
            jnp.einsum("abc,cbd->bad", x, y),
            jnp.dot(z, z),
            jnp.einsum("abc,dc->abd", x, x[0]),
            jnp.vdot(x, x),
            jnp.outer(z, z),
        )

    return f, normal(3, 4, 5), normal(5, 4, 6, seed=1), normal(7, seed=2)


@sample
def attention_bf16():
    return jax.nn.dot_product_attention, *(
        jnp.asarray(normal(2, 3, 2, 4, seed=n), jnp.bfloat16) for n in range(3)
    )


@sample
def linear_algebra():
    def f(x, y):
        positive = x @ jnp.swapaxes(x, 1, 2) + 4 * jnp.eye(4)
        return (
            jnp.linalg.cholesky(positive),
            jnp.linalg.solve(x, y),
            jnp.linalg.slogdet(x[0]),
            jax.scipy.linalg.solve_triangular(positive[1], y[1], lower=True, trans=1),
            jax.scipy.linalg.lu(y[0]),
            jnp.linalg.cholesky(x[1]),  # there is none: NaN
        )

    return f, normal(2, 4, 4), normal(2, 4, 3, seed=1)


@sample
def fft():
    return lambda x: jnp.abs(jnp.fft.fft(x)), normal(8)


@sample
def complex_numbers():
    return (
        lambda x, y: jnp.abs(lax.complex(x, y)) + jnp.real(lax.complex(x, y) * 2j),
        normal(5),
        normal(5, seed=1),
    )


@sample
def scalars_and_empty():
    return (
        lambda x, e: (x + 1, jnp.sum(e), e * 2, x == 1),
        np.float32(2),
        np.zeros((0, 3), np.float32),
    )


@sample
def training_step():
    def loss(params, x, labels):
        h = x
        for w, b in params:
            h = jax.nn.gelu(h @ w + b)
            h = (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
        logits = jax.nn.log_softmax(h)
        return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 6) * logits, axis=-1))

    def step(params, x, labels):
        value, grads = jax.value_and_grad(loss)(params, x, labels)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = [(normal(5, 8), normal(8)), (normal(8, 6, seed=1), normal(6, seed=1))]
    return step, params, normal(4, 5, seed=2), ints(0, 6, 4)
