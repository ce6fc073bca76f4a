"""Products of matrices: square, of few rows, batched, with what follows them, in every float and in int8."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case, Function, Split, added, both, dp

FAMILY = "products"
WIDTH, HIDDEN = 2048, 5632


def _matmul(name: str, left: str, right: str, sharing: bool = True, bound: int = 0) -> Case:
    arguments = (left, right)
    return Case(
        FAMILY,
        f"{name} {left} @ {right}",
        arguments,
        **both(lambda xp, a, b: xp.matmul(a, b)),
        dp=dp(arguments, (1,) if sharing else (), bound),
        tp=Split((None, "[_, x]")) if right.count(",") == 1 else None,
    )


def _rows(rows: int, kind: str, name: str, written: Function, weights: int = 1) -> Case:
    arguments = (f"{kind}[{rows},{WIDTH}]", *(f"{kind}[{WIDTH},{HIDDEN}]",) * weights)
    return Case(
        FAMILY,
        f"{name}, rows {rows}, {kind}",
        arguments,
        **both(written),
        tp=Split((None, *("[_, x]",) * weights)),
    )


def _silu(xp: object, x: object) -> object:
    return x / (1 + xp.exp(-x))


def _linear(
    rows: int,
    width: int,
    out: int,
    kind: str,
    after: dict[str, Function] | None,
    by: tuple[int, ...] = (),
) -> Case:
    arguments = (f"{kind}[{rows},{width}]", f"{kind}[{out},{width}]", f"{kind}[{out}]")
    if by:
        arguments = (*arguments, f"{kind}[{rows},{out}]")
    jax_after = (after or {}).get("jax", lambda jax, y: y)
    torch_after = (after or {}).get("torch", lambda torch, y: y)
    wide = "f32" if kind == "f16" or kind == "bf16" else kind  # in which products are added up
    moved = added(*[arguments[at].replace(kind, wide if at == 1 else kind, 1) for at in by if at])
    return Case(
        FAMILY,
        f"linear {rows}x{width} to {out} {kind}{' and gelu' if after else ''}"
        f"{', gradient by ' + ', '.join('xwb'[at] for at in by) if by else ''}",
        arguments,
        jax=lambda jax, x, w, b: jax_after(jax, x @ w.T + b),
        torch=lambda torch, x, w, b: torch_after(torch, torch.nn.functional.linear(x, w, b)),
        gradient=by,
        dp=dp(arguments, (1, 2), moved),
    )


GELU = {
    "jax": lambda jax, y: jax.nn.gelu(y),
    "torch": lambda torch, y: torch.nn.functional.gelu(y, approximate="tanh"),
}
INT8 = (f"f32[4,{WIDTH}]", f"i8[{HIDDEN},{WIDTH}]", f"f32[{HIDDEN}]+")


def _experts(rows: int, depth: int, columns: int, count: int, by: tuple[int, ...] = ()) -> Case:
    """Multiply rows, each by one of several matrices: `ids` says how many each has."""
    arguments = (f"f32[{rows},{depth}]", f"f32[{count},{depth},{columns}]", f"i32[{rows}]<{count}")
    if by:
        arguments = (*arguments, f"f32[{rows},{columns}]")

    def in_torch(torch: Any, x: Any, w: Any, ids: Any) -> Any:
        ends = torch.bincount(ids, minlength=count).cumsum(0).int()
        return torch.nn.functional.grouped_mm(x, w, offs=ends)

    return Case(
        FAMILY,
        f"rows of {count} experts {arguments[0]} to {columns}"
        f"{', gradient by ' + ', '.join('xw'[at] for at in by) if by else ''}",
        arguments,
        jax=lambda jax, x, w, ids: jax.lax.ragged_dot(
            x, w, jax.numpy.bincount(ids, length=count).astype("int32")
        ),
        torch=in_torch,
        gradient=by,
        dp=dp(arguments, (1, 2), added(arguments[1]) if by else 0),
        tp=None if by else Split((None, "[_, _, x]", None)),
    )


CASES = (
    *(_experts(*sizes) for sizes in ((2, 512, 1024, 8), (512, 256, 512, 8), (1024, 128, 256, 32))),
    _experts(512, 256, 512, 8, (0, 1)),
    *(_matmul("square", f"{k}[512,512]", f"{k}[512,512]") for k in ["f32", "f64", "bf16", "f16"]),
    _matmul("square", "i32[256,256]", "i32[256,256]"),
    _matmul("odd", "f32[127,129]", "f32[129,131]"),
    _matmul("odd", "f32[1001,333]", "f32[333,77]"),
    _matmul("K=1", "f32[1024,1]", "f32[1,1024]"),
    _matmul("N=1", "f32[4096,512]", "f32[512,1]"),
    _matmul("N=3", "f32[4096,512]", "f32[512,3]"),
    _matmul("deep", "f32[16,65536]", "f32[65536,16]"),
    _matmul("wide", "f32[64,64]", "f32[64,50257]"),
    _matmul("matrix and vector", "f32[4096,1024]", "f32[1024]"),
    _matmul("matrix and vector", "bf16[4096,1024]", "bf16[1024]"),
    _matmul("vector and matrix", "f32[1024]", "f32[1024,4096]", False, added("f32[4096]")),
    _matmul("batch", "f32[64,64,64]", "f32[64,64,64]", False),
    _matmul("batch", "bf16[64,64,64]", "bf16[64,64,64]", False),
    _matmul("small batch", "f32[4096,8,8]", "f32[4096,8,8]", False),
    _matmul("tiny batch", "f32[16384,4,4]", "f32[16384,4,4]", False),
    _matmul("batch of vectors", "f32[512,1,64]", "f32[512,64,64]", False),
    _matmul("batch by one", "f32[16,128,128]", "f32[128,128]"),
    *(
        _rows(rows, kind, "x @ w", lambda xp, x, w: x @ w)
        for rows in (1, 2, 4, 8, 16)
        for kind in ("f32", "bf16")
    ),
    *(_rows(rows, "f32", "(x @ w) * 2", lambda xp, x, w: (x @ w) * 2) for rows in (1, 3, 16)),
    *(
        _rows(rows, kind, "SwiGLU", lambda xp, x, a, b: _silu(xp, x @ a) * (x @ b), 2)
        for rows, kind in ((1, "f32"), (4, "f32"), (1, "bf16"))
    ),
    *(
        _rows(1, kind, "tanh(x @ w)", lambda xp, x, w: xp.tanh(x @ w))
        for kind in ("f32", "bf16", "f16")
    ),
    *(_linear(1, WIDTH, HIDDEN, kind, None) for kind in ("f32", "bf16")),
    *(_linear(128, 512, 2048, kind, None) for kind in ("f32", "bf16", "f16")),
    _linear(128, 512, 2048, "f32", GELU),
    _linear(1, 2048, 2048, "f32", GELU),
    _linear(7, 768, 3072, "f32", GELU),
    _linear(128, 512, 2048, "f32", None, (0,)),
    _linear(128, 512, 2048, "f32", None, (1, 2)),
    _linear(128, 512, 2048, "bf16", None, (0, 1, 2)),
    Case(
        FAMILY,
        "residual: x + h @ w, rows 1",
        (f"f32[1,{WIDTH}]", f"f32[1,{WIDTH}]", f"f32[{WIDTH},{WIDTH}]"),
        **both(lambda xp, x, h, w: x + h @ w),
        tp=Split((None, None, "[_, x]")),
    ),
    Case(
        FAMILY,
        "int8 weights with scales, rows 4",
        INT8,
        jax=lambda jax, x, w, s: (x @ w.astype(jax.numpy.float32).T) * s,
        torch=lambda torch, x, w, s: (x @ w.to(torch.float32).T) * s,
        tp=Split((None, "[x, _]", "[x]")),
    ),
    Case(
        FAMILY,
        "bhqd,bhkd->bhqk",
        ("f32[4,8,128,64]", "f32[4,8,128,64]"),
        **both(lambda xp, q, k: xp.einsum("bhqd,bhkd->bhqk", q, k)),
        dp=dp(("f32[4,8,128,64]",) * 2),
    ),
    Case(
        FAMILY,
        "bqhd,bkhd->bhqk",
        ("f32[4,128,8,64]", "f32[4,128,8,64]"),
        **both(lambda xp, q, k: xp.einsum("bqhd,bkhd->bhqk", q, k)),
        dp=dp(("f32[4,128,8,64]",) * 2),
    ),
    Case(
        FAMILY,
        "a.T @ a",
        ("f32[4096,128]",),
        **both(lambda xp, a: a.T @ a),
        dp=dp(("f32[4096,128]",), bound=added("f32[128,128]")),
    ),
    Case(
        FAMILY,
        "two layers cut by tp",
        ("f32[64,512]", "f32[512,2048]", "f32[2048,512]"),
        jax=lambda jax, x, a, b: jax.nn.relu(x @ a) @ b,
        torch=lambda torch, x, a, b: torch.relu(x @ a) @ b,
        dp=dp(("f32[64,512]", "f32[512,2048]", "f32[2048,512]"), (1, 2)),
        tp=Split((None, "[_, x]", "[x, _]"), added("f32[64,512]")),
    ),
)
