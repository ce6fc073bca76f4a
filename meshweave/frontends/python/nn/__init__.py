"""Define `mw.nn`, the functions that networks are made of: activations, layers, and windows over images."""

from meshweave.frontends.python.functions.elementwise import relu, sigmoid, tanh
from meshweave.frontends.python.functions.reduce import log_softmax, logsumexp, softmax
from meshweave.frontends.python.nn.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    mish,
    relu6,
    selu,
    silu,
    soft_sign,
    softplus,
    squareplus,
)
from meshweave.frontends.python.nn.layers import (
    batch_norm,
    batch_statistics,
    dot_product_attention,
    dropout,
    layer_norm,
    one_hot,
    rms_norm,
    standardize,
)
from meshweave.frontends.python.nn.windows import avg_pool, conv, max_pool

__all__ = [
    "avg_pool", "batch_norm", "batch_statistics", "celu", "conv", "dot_product_attention", "dropout", "elu", "gelu",
    "glu", "hard_sigmoid", "hard_silu", "hard_tanh", "layer_norm", "leaky_relu", "log_sigmoid", "log_softmax",
    "logsumexp", "max_pool", "mish", "one_hot", "relu", "relu6", "rms_norm", "selu", "sigmoid", "silu", "soft_sign",
    "softmax", "softplus", "squareplus", "standardize", "tanh",
]  # fmt: skip
