"""Define `meshweave.random`: numbers that depend on a key alone, not on mesh, layouts, slices or engine.

Keys are those of JAX (threefry2x32, partitionable): two numbers of uint32. The bits of an element are a hash of the key
and of the element's place in the whole tensor, so each rank computes its own with no communication.
"""

from meshweave.frontends.python.random.bits import bits, fold_in, key, split
from meshweave.frontends.python.random.distributions import (
    bernoulli,
    categorical,
    choice,
    exponential,
    gumbel,
    normal,
    permutation,
    randint,
    truncated_normal,
    uniform,
)

__all__ = [
    "bernoulli", "bits", "categorical", "choice", "exponential", "fold_in", "gumbel", "key", "normal", "permutation",
    "randint", "split", "truncated_normal", "uniform",
]  # fmt: skip
