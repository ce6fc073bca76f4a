"""The calls of benchmarks/dispatch.py in JAX, on RANKS host devices. Microseconds as JSON.

    PYTHON -m benchmarks.peers.dispatch_jax RANKS REPEAT

PYTHON has jax; nothing of meshweave is imported.
"""

import json
import os
import sys
import time

RANKS, REPEAT = int(sys.argv[1]), int(sys.argv[2])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from benchmarks.peers.dispatch_torch import (  # noqa: E402
    BATCH,
    HIDDEN,
    LEAVES,
    WIDTH,
    decayed,
    microseconds,
)

mesh = jax.make_mesh((RANKS,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))


def over(*spec):
    return NamedSharding(mesh, P(*spec))


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def layer(x, w1, b1, w2, b2):
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def main() -> None:
    """Measure and print."""
    addmm = jax.jit(lambda b, x, w: x @ w + b)
    small = [jnp.asarray(numbers(*shape)) for shape in ((8,), (8, 8), (8, 8))]
    found = {"small op, jax.jit": microseconds(lambda: addmm(*small).block_until_ready(), REPEAT)}
    shapes = ((BATCH, WIDTH), (WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH), (WIDTH,))
    where = (over(), over(None, "x"), over("x"), over("x", None), over())
    given = [jax.device_put(numbers(*shape), place) for shape, place in zip(shapes, where)]
    forward = jax.jit(layer, in_shardings=where, out_shardings=over())
    found["layer, jax.jit"] = microseconds(lambda: forward(*given).block_until_ready(), REPEAT, 100)
    step = jax.jit(decayed, donate_argnums=0)
    x, *leaves = [jax.device_put(numbers(8, 8), over("x")) for _ in range(LEAVES + 1)]

    def call():
        leaves[:] = step(leaves, x)
        leaves[0].block_until_ready()

    found[f"state of {LEAVES} leaves, jax.jit"] = microseconds(call, REPEAT, 20)
    firsts = []
    for k in range(16, 16 + 8 * 9, 8):
        new = jax.device_put(numbers(k * RANKS, k), over("x"))
        began = time.perf_counter()
        jax.device_put(new, over(None, "x")).block_until_ready()
        firsts.append(time.perf_counter() - began)
    found["first redistribution of a shape, jax"] = sorted(firsts)[len(firsts) // 2] * 1e6
    print(json.dumps(found))


if __name__ == "__main__":
    main()
