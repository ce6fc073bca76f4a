"""Functions of `mw.nn` against JAX's, on one rank and cut over four."""

import numpy as np
import pytest
from depth import deep
from traced import check, mw, run_all

from meshweave.errors import CompileError

jax = pytest.importorskip("jax")
jnn, lax, jnp = jax.nn, jax.lax, jax.numpy

RNG = np.random.default_rng(8)
X = (RNG.standard_normal((5, 6)) * 4).astype(np.float32)
X[0, :3] = 0, 30, -30
I = RNG.integers(-1, 5, (5, 3))  # noqa: E741
W = RNG.standard_normal(6).astype(np.float32)
IMAGE = RNG.standard_normal((2, 9, 8, 4)).astype(np.float32)
KERNEL = RNG.standard_normal((3, 2, 4, 6)).astype(np.float32)
Q = RNG.standard_normal((2, 7, 4, 3)).astype(np.float32)
K = RNG.standard_normal((2, 7, 2, 3)).astype(np.float32)
MASK = RNG.random((2, 1, 7, 7)) < 0.8
MASK[..., 0] = True

PLAIN = {
    "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "log_sigmoid", "log_softmax",
    "logsumexp", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softmax", "softplus", "squareplus",
    "tanh",
}  # fmt: skip


def theirs_conv(x, w, stride, padding, dilation=(1, 1), groups=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, stride, padding, rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=groups
    )  # fmt: skip


def window(x, op, start, sizes, stride, padding):
    return lax.reduce_window(x, start, op, (1, *sizes, 1), (1, *stride, 1), padding)


def normed(x, axis):
    mean, var = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5)


PAIRS = {
    **{
        n: (lambda x, n=n: getattr(mw.nn, n)(x.X), lambda x, n=n: getattr(jnn, n)(x.X))
        for n in PLAIN
    },
    "gelu exact": (
        lambda x: mw.nn.gelu(x.X, approximate=False),
        lambda x: jnn.gelu(x.X, approximate=False),
    ),
    "softmax rows": (lambda x: mw.nn.softmax(x.X, axis=0), lambda x: jnn.softmax(x.X, axis=0)),
    "glu rows": (lambda x: mw.nn.glu(x.X[:4], axis=0), lambda x: jnn.glu(x.X[:4], axis=0)),
    "elu of": (lambda x: mw.nn.elu(x.X, 0.3), lambda x: jnn.elu(x.X, 0.3)),
    "celu of": (lambda x: mw.nn.celu(x.X, 2.0), lambda x: jnn.celu(x.X, 2.0)),
    "one_hot": (lambda x: mw.nn.one_hot(x.I, 4), lambda x: jnn.one_hot(x.I, 4)),
    "one_hot front": (
        lambda x: mw.nn.one_hot(x.I, 5, dtype="i32", axis=0),
        lambda x: jnn.one_hot(x.I, 5, dtype="int32", axis=0),
    ),
    "standardize": (lambda x: mw.nn.standardize(x.X, 0), lambda x: jnn.standardize(x.X, axis=0)),
    "layer_norm": (
        lambda x: mw.nn.layer_norm(x.X, x.W, x.W[::-1]),
        lambda x: normed(x.X, -1) * x.W + x.W[::-1],
    ),
    "rms_norm": (
        lambda x: mw.nn.rms_norm(x.X, x.W),
        lambda x: x.X / jnp.sqrt((x.X**2).mean(-1, keepdims=True) + 1e-6) * x.W,
    ),
    "batch_norm": (
        lambda x: mw.nn.batch_norm(x.X, *mw.nn.batch_statistics(x.X), x.W, x.W),
        lambda x: normed(x.X, 0) * x.W + x.W,
    ),
    "batch_norm channels": (
        lambda x: mw.nn.batch_norm(x.IMAGE, *mw.nn.batch_statistics(x.IMAGE, axis=1), axis=1),
        lambda x: normed(x.IMAGE, (0, 2, 3)),
    ),
    "dropout": (
        lambda x: mw.nn.dropout(x.X, x.X > 0, 0.25),
        lambda x: jnp.where(x.X > 0, x.X / 0.75, 0),
    ),
    "attention": (
        lambda x: mw.nn.dot_product_attention(x.Q, x.K, x.K * 2),
        lambda x: jnn.dot_product_attention(x.Q, x.K, x.K * 2),
    ),
    "attention causal": (
        lambda x: mw.nn.dot_product_attention(x.Q, x.K, x.K, is_causal=True, scale=0.3),
        lambda x: jnn.dot_product_attention(x.Q, x.K, x.K, is_causal=True, scale=0.3),
    ),
    "attention masked": (
        lambda x: mw.nn.dot_product_attention(
            x.Q, x.K, x.K, x.W[0] * x.Q[:, 0, None, :1, :1], x.MASK
        ),
        lambda x: jnn.dot_product_attention(
            x.Q, x.K, x.K, x.W[0] * x.Q[:, 0, None, :1, :1], x.MASK
        ),
    ),
    "conv": (
        lambda x: mw.nn.conv(x.IMAGE, x.KERNEL),
        lambda x: theirs_conv(x.IMAGE, x.KERNEL, (1, 1), "VALID"),
    ),
    "conv same": (
        lambda x: mw.nn.conv(x.IMAGE, x.KERNEL, stride=2, padding="SAME"),
        lambda x: theirs_conv(x.IMAGE, x.KERNEL, (2, 2), "SAME"),
    ),
    "conv dilated": (
        lambda x: mw.nn.conv(
            x.IMAGE, x.KERNEL, stride=(2, 1), padding=((1, 2), (0, 1)), dilation=(2, 1)
        ),
        lambda x: theirs_conv(x.IMAGE, x.KERNEL, (2, 1), ((1, 2), (0, 1)), (2, 1)),
    ),
    "conv grouped": (
        lambda x: mw.nn.conv(x.IMAGE, x.KERNEL[:, :, :2], groups=2, padding=1),
        lambda x: theirs_conv(x.IMAGE, x.KERNEL[:, :, :2], (1, 1), ((1, 1), (1, 1)), groups=2),
    ),
    "max_pool": (
        lambda x: mw.nn.max_pool(x.IMAGE, (3, 2), padding="SAME"),
        lambda x: window(x.IMAGE, lax.max, -np.inf, (3, 2), (3, 2), "SAME"),
    ),
    "avg_pool": (
        lambda x: mw.nn.avg_pool(x.IMAGE, 3, stride=2, padding=1),
        lambda x: (
            window(x.IMAGE, lax.add, 0.0, (3, 3), (2, 2), ((0, 0), (1, 1), (1, 1), (0, 0))) / 9
        ),
    ),
    "avg_pool of what is there": (
        lambda x: mw.nn.avg_pool(x.IMAGE, 3, stride=2, padding="SAME", count_include_pad=False),
        lambda x: (
            window(x.IMAGE, lax.add, 0.0, (3, 3), (2, 2), "SAME")
            / window(jnp.ones_like(x.IMAGE), lax.add, 0.0, (3, 3), (2, 2), "SAME")
        ),
    ),
}
"""What is written with `mw.nn`, and what JAX or NumPy has for it."""
NAMES = ("X", "I", "W", "IMAGE", "KERNEL", "Q", "K", "MASK")
ARRAYS = [globals()[name] for name in NAMES]


class Given:
    """The arrays by their names."""

    def __init__(self, *values):
        self.__dict__ |= dict(zip(NAMES, values, strict=True))


LAYOUTS = (
    "[x, y]", "[y, _]", "[_]", "[x, y, _, _]", "[_, _, _, y]", "[x, _, y, _]", "[x, _, y, _]", "[x, _, y, _]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "layouts"),
    [pytest.param("", None, marks=deep), ("x=2, y=2", LAYOUTS)],
    ids=["one", "four"],
)
def test_functions_of_networks_are_those_of_jax(mesh, layouts):
    theirs = jax.jit(lambda *xs: {name: f(Given(*xs)) for name, (_, f) in PAIRS.items()})
    right = theirs(*ARRAYS)
    own = {name: (lambda *xs, f=f: f(Given(*xs))) for name, (f, _) in PAIRS.items()}
    found = run_all(own, *ARRAYS, mesh=mesh, in_layouts=layouts)
    check(found, right, 3e-5)


def test_every_function_of_networks_is_compared():
    used = "".join(
        f.__code__.co_consts.__repr__() + repr(f.__code__.co_names) for f, _ in PAIRS.values()
    )
    assert {n for n in mw.nn.__all__ if n not in used and n not in PLAIN} == set()


MISTAKES = {
    "conv: x has 2 dims and weight 4": lambda x: mw.nn.conv(x.X, x.KERNEL),
    "conv: 4 channels in 3 groups": lambda x: mw.nn.conv(x.IMAGE, x.KERNEL, groups=3),
    "max_pool: window: 0, a number from 1": lambda x: mw.nn.max_pool(x.IMAGE, 0),
    "conv: padding=(1,)": lambda x: mw.nn.conv(x.IMAGE, x.KERNEL, padding=(1,)),
    "dropout: a mask of meshweave.float32": lambda x: mw.nn.dropout(x.X, x.X, 0.5),
    "dropout: rate=1": lambda x: mw.nn.dropout(x.X, x.X > 0, 1),
    "glu: dim 0 has size 5": lambda x: mw.nn.glu(x.X, axis=0),
    "batch_norm: a vector of shape (5,)": lambda x: mw.nn.batch_norm(x.X, x.X[:, 0], x.X[0]),
    "dot_product_attention: 3 heads of query, 2 of key": lambda x: mw.nn.dot_product_attention(
        x.Q[..., :3, :], x.K, x.K
    ),
    "no attribute 'sparse_plus'": lambda x: mw.nn.sparse_plus(x.X),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_said_in_a_line(said):
    with pytest.raises((CompileError, AttributeError)) as caught:
        mw.jit(lambda *xs: MISTAKES[said](Given(*xs)))(*ARRAYS)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_dropout_draws_its_mask_by_a_key():
    key, x = mw.random.key(5), np.ones((40, 6), np.float32)
    kept = np.asarray(mw.random.bernoulli(key, 0.75, x.shape))
    assert 0.6 < kept.mean() < 0.9
    np.testing.assert_array_equal(
        mw.nn.dropout(x, key, 0.25), np.where(kept, x / np.float32(0.75), 0)
    )
    laid = mw.Array.from_numpy(x, mesh="x=2", layout="[x, _]")
    np.testing.assert_array_equal(mw.nn.dropout(laid, key, 0.25), mw.nn.dropout(x, key, 0.25))
