"""A ring attention written by hand for JAX's shard_map, beside the attention of whole arrays."""

import numpy as np
import pytest
from depth import sampled

import meshweave as mw

jax = pytest.importorskip("jax")
jnp = jax.numpy
P = jax.sharding.PartitionSpec

RANKS = 4
ARRAYS = [jax.ShapeDtypeStruct((8, 16), np.float32)] * 3


def text(function, *arrays) -> str:
    return jax.jit(function).trace(*arrays).lower(lowering_platforms=("cpu",)).as_text()


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T) @ v


def ring(turns=RANKS, by=1, kept=True, sums=True, values=True, shift=True):
    """The attention of a rank's rows, keys and values going round. The arguments say what is done wrong."""
    mesh = jax.sharding.AbstractMesh((RANKS,), ("x",))

    @jax.shard_map(mesh=mesh, in_specs=(P("x"), P("x"), P("x")), out_specs=P("x"))
    def local(q, k, v):
        largest = jnp.full(q.shape[0], -jnp.inf)
        total, acc = jnp.zeros(q.shape[0]), jnp.zeros_like(q)
        pairs = [(i, (i + by) % RANKS) for i in range(RANKS)]
        for _ in range(turns):
            scores = q @ k.T
            new = jnp.maximum(largest, scores.max(1))
            scale = jnp.exp(largest - new) if kept else jnp.ones_like(new)
            shares = jnp.exp(scores - (new if shift else largest)[:, None])
            total = total * (scale if sums else 1) + shares.sum(1)
            acc = acc * (scale[:, None] if values else 1) + shares @ v
            largest = new
            k, v = [jax.lax.ppermute(a, "x", pairs) for a in (k, v)]
        return acc / total[:, None]

    return local


def test_a_ring_attention_is_an_attention() -> None:
    for by in (1, 3):
        found = mw.verify(text(attention, *ARRAYS), text(ring(by=by), *ARRAYS))
        assert found.status == 0, found


@sampled(1)
@pytest.mark.parametrize(
    "wrong",
    [
        {"turns": RANKS - 1},
        {"turns": RANKS + 1},
        {"by": 2},
        {"by": 0},
        {"kept": False},
        {"sums": False},
        {"values": False},
        {"shift": False},
    ],
    ids=str,
)
def test_one_that_is_wrong_is_not_proven(wrong) -> None:
    assert mw.verify(text(attention, *ARRAYS), text(ring(**wrong), *ARRAYS)).status != 0
