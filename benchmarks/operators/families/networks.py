"""What networks are made of: norms, softmax, attention, losses, cells, optimisers."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case, Function, Split, added, dp

FAMILY = "networks"


def _case(
    name: str, given: tuple[str, ...], jax: Function, torch: Function | None, by: tuple[int, ...] = (),
    shared: tuple[int, ...] = (), bound: int = 0, seed: str | None = None,
) -> Case:  # fmt: skip
    arguments = (*given, seed or given[0]) if by else given
    title = f"{name} {given[0]}{', gradient' if by else ''}"
    return Case(FAMILY, title, arguments, jax, torch, by, dp(arguments, shared, bound))


def _softmax(given: str, axis: int = -1, bound: int = 0) -> list[Case]:
    written = (
        lambda jax, x: jax.nn.softmax(x, axis),
        lambda torch, x: torch.softmax(x, axis),
    )
    return [_case("softmax", (given,), *written, by, bound=bound) for by in ((), (0,))]


def _norm_jax(jax: Any, x: Any, g: Any, b: Any) -> Any:
    wide = x.astype(jax.numpy.float32)
    mean, var = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(var + 1e-5)).astype(x.dtype) * g + b


def _norm_torch(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)


def _layer_norm(kind: str, rows: int, width: int, gradient: bool = False) -> Case:
    given = (f"{kind}[{rows},{width}]", f"{kind}[{width}]", f"{kind}[{width}]")
    by = (0, 1, 2) if gradient else ()
    return _case(
        "layer norm",
        given,
        _norm_jax,
        _norm_torch,
        by,
        (1, 2),
        added(*given[1:]) if by else 0,
    )


def _rms(jax: Any, x: Any, g: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g


def _batch_norm(jax: Any, x: Any, g: Any, b: Any) -> Any:
    mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    scale, shift = (p[None, :, None, None] for p in (g, b))
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def _batch_norm_torch(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.batch_norm(x, None, None, g, b, training=True)


def _group_norm(jax: Any, x: Any) -> Any:
    n, c, h, w = x.shape
    parts = x.reshape(n, 8, c // 8, h, w)
    mean, var = (f((2, 3, 4), keepdims=True) for f in (parts.mean, parts.var))
    return ((parts - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape)


def _attend(jax: Any, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    scores = jax.numpy.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        seen = jax.numpy.tril(jax.numpy.ones(scores.shape[-2:], bool))
        scores = jax.numpy.where(seen, scores, -1e30)
    return jax.numpy.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


def _attention(name: str, q: str, k: str, causal: bool = False, by: tuple[int, ...] = ()) -> Case:
    return _case(
        f"attention{' causal' if causal else ''}{name}",
        (q, k, k),
        lambda jax, a, b, c: _attend(jax, a, b, c, causal),
        lambda torch, a, b, c: torch.nn.functional.scaled_dot_product_attention(
            a, b, c, is_causal=causal
        ),
        by,
    )


def _grouped(jax: Any, q: Any, k: Any, v: Any) -> Any:
    k, v = (jax.numpy.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    return _attend(jax, q, k, v)


def _cross_entropy(jax: Any, x: Any, y: Any) -> Any:
    rows = jax.numpy.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1)
    return -rows.mean()


def _loss(name: str, rows: int, classes: int, gradient: bool) -> Case:
    given = (f"f32[{rows},{classes}]", f"i64[{rows}]<{classes}")
    return Case(
        FAMILY,
        f"cross entropy {given[0]}{', gradient' if gradient else ''}",
        (*given, "f32[]") if gradient else given,
        _cross_entropy,
        lambda torch, x, y: torch.nn.functional.cross_entropy(x, y),
        (0,) if gradient else (),
        dp((*given, "f32[]") if gradient else given, (2,), 0 if gradient else added("f32[]")),
    )


def _gates(jax: Any, x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> Any:
    gates = x @ w.T + h @ u.T + b
    i, f, g, o = jax.numpy.split(gates, 4, -1)
    sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh
    new = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(new), new


def _lstm_torch(torch: Any, x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> Any:
    return torch.lstm_cell(x, (h, c), w, u, b, torch.zeros_like(b))


def _gru(jax: Any, x: Any, h: Any, w: Any, u: Any) -> Any:
    a, b = jax.numpy.split(x @ w.T, 3, -1), jax.numpy.split(h @ u.T, 3, -1)
    r, z = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
    return (1 - z) * jax.numpy.tanh(a[2] + r * b[2]) + z * h


def _gru_torch(torch: Any, x: Any, h: Any, w: Any, u: Any) -> Any:
    return torch.gru_cell(x, h, w, u)


def _rope(xp: Any, x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    turned = xp.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


def _adam(xp: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (xp.sqrt(v) + 1e-8), m, v


def _perceptron(jax: Any, x: Any, a: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ a) @ b


def _perceptron_torch(torch: Any, x: Any, a: Any, b: Any) -> Any:
    return torch.nn.functional.gelu(x @ a, approximate="tanh") @ b


LSTM = ("f32[32,256]", "f32[32,256]", "f32[32,256]", "f32[1024,256]", "f32[1024,256]", "f32[1024]")
GRU = ("f32[32,256]", "f32[32,256]", "f32[768,256]", "f32[768,256]")
MLP = ("f32[128,512]", "f32[512,2048]", "f32[2048,512]")
HEADS, BF16_HEADS = "f32[1,8,512,64]", "bf16[1,8,512,64]"
IMAGES = ("f32[8,64,28,28]", "f32[64]", "f32[64]")

CASES = (
    *_softmax("f32[1024,1024]"),
    *_softmax("bf16[1024,1024]"),
    *_softmax("f32[32,50257]"),
    *_softmax("f32[16384,64]"),
    *_softmax("f32[1,100000]")[:1],
    # The largest of each column, and its sum.
    *_softmax("f32[1024,512]", 0, 2 * added("f32[512]"))[:1],
    _case(
        "log softmax",
        ("f32[512,1000]",),
        lambda jax, x: jax.nn.log_softmax(x),
        lambda torch, x: torch.log_softmax(x, -1),
    ),
    *(_layer_norm(kind, 1024, 768) for kind in ("f32", "bf16", "f16")),
    _layer_norm("f32", 1024, 768, True),
    _layer_norm("f32", 1, 4096),
    _layer_norm("f32", 513, 127),
    _case(
        "rms norm",
        ("f32[1024,1024]", "f32[1024]"),
        _rms,
        lambda torch, x, g: torch.rms_norm(x, (1024,), g, 1e-6),
        shared=(1,),
    ),
    _case(
        "rms norm",
        ("f32[1024,1024]", "f32[1024]"),
        _rms,
        lambda torch, x, g: torch.rms_norm(x, (1024,), g, 1e-6),
        (0, 1),
        (1,),
        added("f32[1024]"),
    ),
    _case(
        "rms norm",
        ("bf16[1,4096]", "bf16[4096]"),
        _rms,
        lambda torch, x, g: torch.rms_norm(x, (4096,), g, 1e-6),
        shared=(1,),
    ),
    _case(
        "batch norm",
        IMAGES,
        _batch_norm,
        _batch_norm_torch,
        shared=(1, 2),
        bound=2 * added("f32[64]"),
    ),
    _case(
        "batch norm",
        IMAGES,
        _batch_norm,
        _batch_norm_torch,
        (0, 1, 2),
        (1, 2),
        4 * added("f32[64]"),
    ),
    _case(
        "group norm", IMAGES[:1], _group_norm, lambda torch, x: torch.nn.functional.group_norm(x, 8)
    ),
    _attention("", HEADS, HEADS),
    _attention("", BF16_HEADS, BF16_HEADS),
    _attention("", HEADS, HEADS, causal=True),
    _attention("", HEADS, HEADS, by=(0, 1, 2)),
    _attention(" of one row", "f32[8,16,1,64]", "f32[8,16,1024,64]"),
    _attention(" of one row", "bf16[8,16,1,64]", "bf16[8,16,1024,64]"),
    _attention(" short", "f32[64,8,49,32]", "f32[64,8,49,32]"),
    _case(
        "attention of grouped heads",
        (HEADS, "f32[1,2,512,64]", "f32[1,2,512,64]"),
        _grouped,
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, enable_gqa=True
        ),
    ),
    _loss("cross entropy", 512, 1000, False),
    _loss("cross entropy", 512, 1000, True),
    _loss("cross entropy", 64, 32000, True),
    Case(FAMILY, "LSTM cell", LSTM, _gates, _lstm_torch, dp=dp(LSTM, (3, 4, 5))),
    Case(FAMILY, "GRU cell", GRU, _gru, _gru_torch, dp=dp(GRU, (2, 3))),
    Case(
        FAMILY,
        "rotary embedding f32",
        ("f32[4,8,256,64]", "f32[256,64]", "f32[256,64]"),
        lambda jax, *a: _rope(jax.numpy, *a),
        _rope,
        dp=dp(("f32[4,8,256,64]", "f32[256,64]", "f32[256,64]"), (1, 2)),
    ),
    Case(
        FAMILY,
        "rotary embedding bf16",
        ("bf16[4,8,256,64]", "bf16[256,64]", "bf16[256,64]"),
        lambda jax, *a: _rope(jax.numpy, *a),
        _rope,
        dp=dp(("bf16[4,8,256,64]", "bf16[256,64]", "bf16[256,64]"), (1, 2)),
    ),
    Case(
        FAMILY,
        "adam",
        ("f32[1024,1024]", "f32[1024,1024]", "f32[1024,1024]", "f32[1024,1024]+"),
        lambda jax, *a: _adam(jax.numpy, *a),
        _adam,
        dp=dp(("f32[1024,1024]", "f32[1024,1024]", "f32[1024,1024]", "f32[1024,1024]+")),
    ),
    Case(
        FAMILY,
        "perceptron",
        MLP,
        _perceptron,
        _perceptron_torch,
        dp=dp(MLP, (1, 2)),
        tp=Split((None, "[_, x]", "[x, _]"), added(MLP[0])),
    ),
    Case(
        FAMILY,
        "perceptron, gradient",
        (*MLP, MLP[0]),
        _perceptron,
        _perceptron_torch,
        gradient=(0, 1, 2),
        dp=dp((*MLP, MLP[0]), (1, 2), added(*MLP[1:])),
        tp=Split((None, "[_, x]", "[x, _]", None), added(MLP[0])),
    ),
)
