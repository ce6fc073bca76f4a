"""Run as one rank of a job: programs of JAX that call Python, beside what JAX itself calls and computes."""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.experimental import io_callback

import meshweave as mw
from meshweave.errors import RankError

SEEN = list[Any]()
SCALAR = jax.ShapeDtypeStruct((), np.float32)


def noted(value: Any) -> Any:
    SEEN.append(float(value))
    return np.float32(len(SEEN))


def step(carry: Any, k: Any) -> Any:
    drawn = io_callback(noted, SCALAR, carry.sum() + k, ordered=True)
    jax.debug.callback(lambda d: SEEN.append(-float(d)), drawn, ordered=True)
    io_callback(lambda d: SEEN.append(float(d) / 2), None, drawn)
    running = jax.pure_callback(lambda a: np.cumsum(a), carry, carry)
    return running + drawn, drawn


def called(x: Any) -> Any:
    return lax.scan(step, x, jnp.arange(3.0))


def checked(a: Any) -> Any:
    if a.min() < 0:
        raise ValueError(f"{a.min()} is below 0")
    return a


def all_of(result: Any) -> Any:
    return np.asarray(mw.redistribute(result, f"[{', '.join('_' * result.ndim)}]"))


mw.init()
x = np.arange(6, dtype=np.float32)
whole = mw.jax.jit(called)(x)
alone, SEEN = SEEN, []
assert len(alone) == 9, alone
made = mw.jax.jit(called, mesh=f"x={mw.size()}", in_shardings=("[x]",))
for _ in range(2):
    SEEN.clear()
    for ours, right in zip(made(x), whole, strict=True):
        np.testing.assert_array_equal(all_of(ours), np.asarray(right))
    wanted = alone if mw.rank() == 0 else []
    assert wanted == SEEN, SEEN
risky = mw.jax.jit(
    lambda v: io_callback(checked, v, v) + 1, mesh=f"x={mw.size()}", in_shardings=("[x]",)
)
for _ in range(2):
    assert all_of(risky(x)).tolist() == (x + 1).tolist()
    try:
        risky(x - 3)
    except RankError as error:
        assert str(error) == "io_callback of Python raised ValueError: -3.0 is below 0", error
    else:
        raise AssertionError(f"rank {mw.rank()} has raised nothing")
print(f"rank {mw.rank()} of {mw.size()} is done", flush=True)
