"""Gathers, scatters and slices at places that are known when they run."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import RANKS, Case, Function, Split, added, both, dp, nbytes

FAMILY = "indexing"
TABLE, TOKENS = "f32[32000,512]", "i32[4,128]<32000"


def _embedding(kind: str, gradient: bool = False) -> Case:
    table = f"{kind}[32000,512]"
    arguments = (table, TOKENS, f"{kind}[4,128,512]") if gradient else (table, TOKENS)
    return Case(
        FAMILY,
        f"embedding {kind}{', gradient' if gradient else ''}",
        arguments,
        jax=lambda jax, t, i: t[i],
        torch=lambda torch, t, i: torch.nn.functional.embedding(i, t),
        gradient=(0,) if gradient else (),
        dp=dp(arguments, (0,), nbytes(*arguments[1:]) // RANKS if gradient else 0),
        tp=Split(("[_, x]", *(None,) * (len(arguments) - 1))),
    )


def _along(name: str, gradient: bool = False) -> Case:
    given, places = "f32[512,1024]", "i64[512,64]<1024"
    arguments = (given, places, "f32[512,64]") if gradient else (given, places)
    return Case(
        FAMILY,
        name,
        arguments,
        jax=lambda jax, x, i: jax.numpy.take_along_axis(x, i, 1),
        torch=lambda torch, x, i: torch.take_along_dim(x, i, 1),
        gradient=(0,) if gradient else (),
        dp=dp(arguments),
    )


def _at(name: str, jax: Function, torch: Function, *given: str, bound: int = 0) -> Case:
    return Case(
        FAMILY, name, given, jax, torch, tp=Split(("[_, x]", *(None,) * (len(given) - 1)), bound)
    )


def _updated(torch: Any, x: Any, i: Any, v: Any, reduce: str) -> Any:
    i = i.long()[:, None].expand_as(v)
    return x.scatter_reduce(0, i, v, reduce)


CASES = (
    _embedding("f32"),
    _embedding("bf16"),
    _embedding("f32", True),
    _embedding("bf16", True),
    _along("take_along_axis"),
    _along("take_along_axis, gradient", True),
    _at(
        "rows at places",
        lambda jax, x, i: x[i],
        lambda torch, x, i: x[i],
        "f32[4096,256]",
        "i32[1024]<4096",
    ),
    Case(
        FAMILY,
        "columns at places",
        ("f32[1024,1024]", "i32[512]<1024"),
        **both(lambda xp, x, i: x[:, i]),
        dp=dp(("f32[1024,1024]", "i32[512]<1024"), (1,)),
    ),
    Case(
        FAMILY,
        "elements at pairs of places",
        ("f32[1024,1024]", "i32[100000]<1024", "i32[100000]<1024"),
        **both(lambda xp, x, i, j: x[i, j]),
    ),
    _at(
        "rows set",
        lambda jax, x, i, v: x.at[i].set(v),
        lambda torch, x, i, v: torch.index_put(x, (i,), v),
        "f32[4096,256]",
        "i32[64]<4096",
        "f32[64,256]",
    ),
    _at(
        "rows added",
        lambda jax, x, i, v: x.at[i].add(v),
        lambda torch, x, i, v: torch.index_add(x, 0, i, v),
        "f32[4096,256]",
        "i32[1024]<4096",
        "f32[1024,256]",
    ),
    _at(
        "largest of rows",
        lambda jax, x, i, v: x.at[i].max(v),
        lambda torch, x, i, v: _updated(torch, x, i, v, "amax"),
        "f32[4096,256]",
        "i32[1024]<4096",
        "f32[1024,256]",
    ),
    Case(
        FAMILY,
        "segment sum",
        ("f32[65536,32]", "i32[65536]<256"),
        jax=lambda jax, x, i: jax.ops.segment_sum(x, i, 256),
        torch=lambda torch, x, i: torch.zeros(256, 32).index_add(0, i, x),
        dp=dp(("f32[65536,32]", "i32[65536]<256"), bound=added("f32[256,32]")),
    ),
    Case(
        FAMILY,
        "one hot",
        ("i64[512]<1000",),
        jax=lambda jax, i: jax.nn.one_hot(i, 1000, dtype="float32"),
        torch=lambda torch, i: torch.nn.functional.one_hot(i, 1000).float(),
        dp=dp(("i64[512]<1000",)),
    ),
    Case(
        FAMILY,
        "dynamic slice",
        ("f32[4096,512]", "i32[]<3000"),
        jax=lambda jax, x, i: jax.lax.dynamic_slice(x, (i, 0), (1024, 512)),
        torch=lambda torch, x, i: x.narrow(0, int(i), 1024).clone(),
        tp=Split(("[_, x]", None)),
    ),
    Case(
        FAMILY,
        "dynamic update of a row",
        ("f32[4096,512]", "f32[1,512]", "i32[]<3000"),
        jax=lambda jax, x, v, i: jax.lax.dynamic_update_slice(x, v, (i, 0)),
        torch=lambda torch, x, v, i: x.slice_scatter(v, 0, int(i), int(i) + 1),
        tp=Split(("[_, x]", "[_, x]", None)),
    ),
    Case(
        FAMILY,
        "mask by where",
        ("f32[1024,1024]", "bool[1024,1024]"),
        **both(lambda xp, x, m: xp.where(m, x, 0.0)),
        dp=dp(("f32[1024,1024]", "bool[1024,1024]")),
    ),
    Case(
        FAMILY,
        "batched gather of rows",
        ("f32[16,512,64]", "i64[16,128]<512"),
        jax=lambda jax, x, i: jax.vmap(lambda a, b: a[b])(x, i),
        torch=lambda torch, x, i: x.gather(1, i[:, :, None].expand(-1, -1, 64)),
        dp=dp(("f32[16,512,64]", "i64[16,128]<512")),
    ),
)
