"""The peer: the same models in JAX on as many host devices, compiled and timed in a process of its own.

    python -m benchmarks.peers.jax_models NAME --mesh dp=2,tp=2 [--size layers,batch,seq,width,heads,ffn]

Prints one JSON line, {"lower", "compile", "propagate", "run"}: seconds or null. Runs in its own process,
because the number of host devices is fixed when JAX starts.
"""

import argparse
import json
import os
import re
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("name", choices=("mlp", "attention", "block", "gpt2l", "transformer"))
parser.add_argument("--mesh", default="dp=2,tp=2")
parser.add_argument("--size", default="12,2,512,768,12,3072")
parser.add_argument("--repeat", type=int, default=5)
parser.add_argument("--no-run", action="store_true")
parser.add_argument(
    "--train-text", metavar="FILE", help="write a training step as StableHLO, no more"
)
options = parser.parse_args()
AXES = {name: int(size) for name, size in re.findall(r"(\w+)\s*=\s*(\d+)", options.mesh)}
RANKS = AXES.get("dp", 1) * AXES.get("tp", 1)
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={RANKS}"
).strip()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from benchmarks.transformer_text import Size, weights  # noqa: E402

auto = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((AXES.get("dp", 1), AXES.get("tp", 1)), ("dp", "tp"), axis_types=(auto, auto))


def mlp(x, w1, b1, w2, b2):
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def attention(q, k, v):
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores, -1), v)


def norm(x, gain, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * gain + bias


def causal(q, k, v):
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones((q.shape[2], q.shape[2]), bool))
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(jnp.where(seen, scores, -1e9), -1), v)


def block(x, b1, b2, g1, g2, w2, w1, wo, wqkv, heads=8):
    b, s, e = x.shape
    qkv = (norm(x, g1, b1) @ wqkv).reshape(b, s, 3, heads, e // heads).transpose(2, 0, 3, 1, 4)
    x = x + causal(*qkv).transpose(0, 2, 1, 3).reshape(b, s, e) @ wo
    return x + jax.nn.gelu(norm(x, g2, b2) @ w1) @ w2


def gpt2l(tokens, embedding, position, *blocks):
    x = embedding[tokens] + position
    for first in (0, 8):
        x = block(x, *blocks[first : first + 8])
    return x @ embedding.T


def transformer(x, *parameters):
    per_layer = 12
    for first in range(0, len(parameters), per_layer):
        g1, b1, wq, wk, wv, wo, g2, b2, w1, c1, w2, c2 = parameters[first : first + per_layer]
        y = norm(x, g1, b1)
        q, k, v = (jnp.einsum("bse,ehd->bhsd", y, w) for w in (wq, wk, wv))
        x = x + jnp.einsum("bhsd,hde->bse", causal(q, k, v), wo)
        x = x + (jax.nn.gelu(norm(x, g2, b2) @ w1 + c1) @ w2 + c2)
    return x


def train_step(x, *parameters):
    """The loss of the transformer, and its parameters after a step of gradient descent."""
    loss, gradients = jax.value_and_grad(lambda given: (transformer(x, *given) ** 2).mean())(
        parameters
    )
    return loss, *[p - 0.01 * g for p, g in zip(parameters, gradients)]


BLOCK = [((128,), P())] * 4 + [
    ((512, 128), P("tp", None)), ((128, 512), P(None, "tp")), ((128, 128), P("tp", None)), ((128, 384), P(None, "tp")),
]  # fmt: skip
HEADS = P("dp", "tp", None, None)


def arguments():
    """(shape, sharding) of each argument, the sharding of the result."""
    if options.name == "mlp":
        rows = [((64, 128), P("dp", None)), ((128, 256), P(None, "tp")), ((256,), P("tp"))]
        return [*rows, ((256, 96), P("tp", None)), ((96,), P())], P("dp", None)
    if options.name == "attention":
        return [((4, 8, 128, 32), HEADS)] * 3, HEADS
    if options.name == "block":
        return [((4, 64, 128), P("dp", None, None)), *BLOCK], P("dp", None, None)
    if options.name == "gpt2l":
        rows = [((4, 64), P("dp", None)), ((256, 128), P()), ((64, 128), P())]
        return [*rows, *BLOCK, *BLOCK], P("dp", None, "tp")
    size = Size(*map(int, options.size.split(",")))
    rows = [((size.batch, size.seq, size.width), P("dp", None, None))]
    for _ in range(size.layers):
        for shape, axes in weights(size):
            parts = [name or None for name in re.findall(r'\{"?(\w*)"?\}', axes)]
            rows.append((shape, P(*parts)))
    return rows, P("dp", None, None)


def main():
    rows, out = arguments()
    if options.train_text:
        placed = [NamedSharding(mesh, spec) for _, spec in rows]
        given = [
            jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)
            for (shape, _), sharding in zip(rows, placed)
        ]
        Path(options.train_text).write_text(jax.jit(train_step).lower(*given).as_text())
        return
    rng = np.random.default_rng(0)
    values = []
    for i, (shape, spec) in enumerate(rows):
        if options.name == "gpt2l" and i == 0:
            value = rng.integers(0, 256, shape).astype(np.int32)
        else:
            value = (rng.standard_normal(shape) * 0.02).astype(np.float32)
        values.append(jax.device_put(value, NamedSharding(mesh, spec)))
    function = jax.jit(
        globals()[options.name],
        in_shardings=tuple(NamedSharding(mesh, spec) for _, spec in rows),
        out_shardings=NamedSharding(mesh, out),
    )
    jax.jit(lambda x: x + 1).lower(1.0).compile()  # what a first compile starts is not counted
    began = time.perf_counter()
    lowered = function.lower(*values)
    lower = time.perf_counter() - began
    propagate = shardy_seconds(lowered)
    began = time.perf_counter()
    compiled = lowered.compile()
    compile_ = time.perf_counter() - began
    seconds = {"lower": lower, "compile": compile_, "propagate": propagate, "run": None}
    if not options.no_run:
        compiled(*values).block_until_ready()
        times = []
        for _ in range(options.repeat):
            began = time.perf_counter()
            compiled(*values).block_until_ready()
            times.append(time.perf_counter() - began)
        seconds["run"] = min(times)
    print(json.dumps(seconds))


def shardy_seconds(lowered):
    """What Shardy's own propagation takes on the lowered module; None when this JAX does not have it."""
    try:
        from jax._src.interpreters import mlir as jax_mlir
        from jaxlib.mlir import ir, passmanager

        text = lowered.as_text()
        with jax_mlir.make_ir_context() as context, ir.Location.unknown(context):
            module = ir.Module.parse(text)
            passes = passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)")
            began = time.perf_counter()
            passes.run(module.operation)
            return time.perf_counter() - began
    except Exception:
        return None


main()
