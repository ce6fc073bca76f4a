"""Count which results of programs of JAX are proven: attentions, blocks, loops, sorts, experts, steps of training.

python -m tests.verify.of_jax                          a line for each program, and what is open of it
python -m tests.verify.of_jax --only attention bf16    the programs whose names have these words
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp

import meshweave as mw
from meshweave.api.program import lowered
from meshweave.certificate import Certificate

HEADS = "[_, _, x, _]"
BATCH = "[x, _, _, _]"
TWO = "dp=2, tp=2"


def of(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclass(frozen=True)
class Case:
    """A function, its arguments, the mesh and the layouts of the arguments."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    layouts: Any = BATCH
    mesh: str = "x=2"

    def certificate(self) -> Certificate:
        """Compile it; return what the compile has proven."""
        made = mw.from_jax(self.function, *self.given, mesh=self.mesh, in_shardings=self.layouts)
        try:
            with lowered(made.text, "-", None) as (_, program):
                return program.certificate  # type: ignore[no-any-return]
        finally:
            made.close()


def attention(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)


def trained(function: Callable[..., Any], arguments: int = 3) -> Callable[..., Any]:
    """The loss of a function, and its gradients."""

    def loss(*given: Any) -> Any:
        return jnp.sum(function(*given).astype("float32") ** 2)

    return jax.value_and_grad(loss, argnums=tuple(range(arguments)))


def attentions() -> Iterator[tuple[str, Case]]:
    """Attentions of sizes that are computed in slices, and their gradients."""
    q, few = of(4, 256, 4, 16), of(4, 256, 2, 16)
    half = of(4, 256, 4, 16, dtype="bfloat16")
    forms: dict[str, tuple[dict[str, Any], tuple[Any, ...], str]] = {
        "plain": ({}, (q, q, q), BATCH),
        "heads cut": ({}, (q, q, q), HEADS),
        "queries cut": ({}, (q, q, q), "[_, x, _, _]"),
        "scaled": ({"scale": 0.3}, (q, q, q), BATCH),
        "causal": ({"is_causal": True}, (q, q, q), BATCH),
        "causal, heads cut": ({"is_causal": True}, (q, q, q), HEADS),
        "causal, uneven": (
            {"is_causal": True},
            (of(4, 257, 4, 16), of(4, 385, 4, 16), of(4, 385, 4, 16)),
            BATCH,
        ),
        "keys shared by two": ({}, (q, few, few), BATCH),
        "keys shared by two, causal": ({"is_causal": True}, (q, few, few), BATCH),
        "keys shared by two, heads cut": ({"is_causal": True}, (q, few, few), HEADS),
        "keys shared by all": (
            {"is_causal": True},
            (q, of(4, 256, 1, 16), of(4, 256, 1, 16)),
            BATCH,
        ),
        "window": ({"local_window_size": (32, 0)}, (q, q, q), BATCH),
        "window, both sides": ({"local_window_size": (16, 16)}, (q, q, q), BATCH),
        "window, causal": ({"local_window_size": (64, 0), "is_causal": True}, (q, q, q), BATCH),
        "bf16": ({}, (half, half, half), BATCH),
        "bf16, causal": ({"is_causal": True}, (half, half, half), BATCH),
        "bf16, heads cut": ({}, (half, half, half), HEADS),
    }
    for name, (options, given, layout) in forms.items():
        yield f"attention, {name}", Case(attention(**options), given, layout)
        yield f"attention, {name}, trained", Case(trained(attention(**options)), given, layout)


def block(w: Any, x: Any) -> Any:
    """A layer of a transformer: a norm, an attention, a norm, two products."""

    def norm(a: Any) -> Any:
        return a * jax.lax.rsqrt(jnp.mean(a * a, axis=-1, keepdims=True) + 1e-6)

    b, t, d = x.shape
    q, k, v = [(norm(x) @ w[n]).reshape(b, t, 4, d // 4) for n in "qkv"]
    x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, d) @ w["o"]
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


def weights(d: int = 16) -> tuple[dict[str, Any], dict[str, str]]:
    """Weights of a block, and their layouts."""
    shapes = {**dict.fromkeys("qkvo", (d, d)), "up": (d, 4 * d), "down": (4 * d, d)}
    layouts = {
        **dict.fromkeys("qkv", "[_, tp]"),
        "o": "[tp, _]",
        "up": "[_, tp]",
        "down": "[tp, _]",
    }
    return {n: of(*s) for n, s in shapes.items()}, layouts


def adamw(w: Any, m: Any, v: Any, x: Any) -> Any:
    """A step of AdamW on a block."""
    value, slopes = jax.value_and_grad(lambda w: jnp.mean(block(w, x) ** 2))(w)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, slopes)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, slopes)
    moved = jax.tree.map(lambda w, m, v: w - 0.01 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w), w, m, v)
    return moved, m, v, value


def lstm(w: Any, x: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ w["x"] + h @ w["h"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], w["h"].shape[0]))
    return jax.lax.scan(step, (zero, zero), x)[1]


def experts(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """Each token goes through two of four experts."""
    scores = jax.nn.softmax(x @ gate)
    best, which = jax.lax.top_k(scores, 2)
    shares = jnp.sum(jax.nn.one_hot(which, gate.shape[1]) * best[..., None], axis=1)
    return jnp.einsum(
        "te,ted->td",
        shares,
        jnp.einsum("tef,efd->ted", jax.nn.relu(jnp.einsum("td,edf->tef", x, up)), down),
    )


def nearest(x: Any, centres: Any) -> Any:
    """A step of k-means."""
    far = jnp.sum((x[:, None] - centres) ** 2, axis=-1)
    mine = jax.nn.one_hot(jnp.argmin(far, axis=1), centres.shape[0])
    return (mine.T @ x) / jnp.maximum(jnp.sum(mine, axis=0)[:, None], 1.0)


def conjugate(a: Any, b: Any) -> Any:
    """Four rounds of conjugate gradients."""

    def step(_: Any, state: Any) -> Any:
        x, r, p, rr = state
        ap = a @ p
        by = rr / (p @ ap)
        r = r - by * ap
        new = r @ r
        return x + by * p, r, r + new / rr * p, new

    return jax.lax.fori_loop(0, 4, step, (jnp.zeros_like(b), b, b, b @ b))[0]


def halved(x: Any) -> Any:
    """A loop whose number of rounds depends on the data."""
    return jax.lax.while_loop(lambda s: jnp.sum(s * s) > 1.0, lambda s: s * 0.5, x)


def others() -> Iterator[tuple[str, Case]]:
    w, cut = weights()
    x, rows = of(4, 32, 16), "[dp, _, _]"
    yield "block", Case(block, (w, x), (cut, rows), TWO)
    yield "block, trained", Case(trained(block, 2), (w, x), (cut, rows), TWO)
    yield "step of AdamW", Case(adamw, (w, w, w, x), (cut, cut, cut, rows), TWO)
    deep = jax.tree.map(lambda a: of(3, *a.shape), w)
    stacked = {n: text.replace("[", "[_, ") for n, text in cut.items()}

    def layers(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (block(w, x), None), x, w)[0]

    yield "scan of blocks", Case(layers, (deep, x), (stacked, rows), TWO)
    yield "scan of blocks, trained", Case(trained(layers, 2), (deep, x), (stacked, rows), TWO)
    cell = {"x": of(6, 32), "h": of(8, 32)}
    yield "LSTM", Case(lstm, (cell, of(5, 4, 6)), (None, "[_, x, _]"))
    yield "LSTM, trained", Case(trained(lstm, 2), (cell, of(5, 4, 6)), (None, "[_, x, _]"))
    moe = (of(8, 6), of(6, 4), of(4, 6, 8), of(4, 8, 6))
    by_expert = ("[x, _]", None, None, None)
    yield "experts", Case(experts, moe, by_expert)
    yield "experts, trained", Case(trained(experts, 4), moe, by_expert)
    yield "k-means", Case(nearest, (of(12, 3), of(4, 3)), ("[x, _]", None))
    yield "conjugate gradients", Case(conjugate, (of(8, 8), of(8)), ("[x, _]", None))
    yield "while", Case(halved, (of(8, 6),), ("[x, _]",))
    yield "sort", Case(lambda x: jnp.sort(x, axis=1), (of(8, 6),), ("[x, _]",))
    yield "argsort", Case(lambda x: jnp.argsort(x, axis=1), (of(8, 6),), ("[x, _]",))
    yield (
        "running sums",
        Case(trained(lambda x: jnp.cumsum(x, axis=0), 1), (of(8, 6),), ("[x, _]",)),
    )


def programs() -> dict[str, Case]:
    """Programs by name."""
    return {**dict(attentions()), **dict(others())}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    words = parser.parse_args(arguments).only
    os.environ["MESHWEAVE_CACHE"] = "off"
    chosen = {n: c for n, c in programs().items() if all(w in n for w in words)}
    proven, total, whole = 0, 0, 0
    for name, case in chosen.items():
        began = time.process_time()
        found = case.certificate()
        results = len(found.proven) + len(found.unproven)
        took = time.process_time() - began
        print(f"{len(found.proven):3} of {results:2} proven  {name}  ({took:.1f} s)", flush=True)
        for reason in found.unproven[:1]:
            print(f"                 {reason:.200}")
        proven, total, whole = (
            proven + len(found.proven),
            total + results,
            whole + (not found.unproven),
        )
    print(
        f"{proven} of {total} results of {len(chosen)} programs are proven; {whole} programs are proven whole"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
