"""Sorting and selection."""

from __future__ import annotations

from benchmarks.operators.case import RANKS, Case, Function, dp, nbytes

FAMILY = "selection"


def _case(
    name: str,
    given: tuple[str, ...],
    jax: Function,
    torch: Function | None = None,
    shared: tuple[int, ...] = (),
    bound: int = 0,
) -> Case:
    split = dp(given, shared, bound) if given[0].count(",") > 0 or bound else None
    return Case(FAMILY, f"{name} of {given[0]}", given, jax, torch, dp=split)


def _top(given: str, k: int) -> Case:
    return _case(
        f"top {k}", (given,), lambda jax, x: jax.lax.top_k(x, k), lambda torch, x: torch.topk(x, k)
    )


def _sort(given: str, axis: int = -1) -> Case:
    # Along the dim that is cut: of each column that a rank sorts it lacks half.
    bound = nbytes(given) // RANKS**2 if axis == 0 and "," in given else 0
    if "," not in given:
        bound = nbytes(given) // RANKS  # a rank may lack all of its part of the result
    return _case(
        f"sort along {axis}",
        (given,),
        lambda jax, x: jax.numpy.sort(x, axis),
        lambda torch, x: torch.sort(x, axis)[0],
        bound=bound,
    )


def _argsort(given: str) -> Case:
    return _case(
        "argsort",
        (given,),
        lambda jax, x: jax.numpy.argsort(x, -1),
        lambda torch, x: torch.argsort(x, -1),
        bound=0 if "," in given else 2 * nbytes(given) // RANKS,  # keys, and where they were
    )


CASES = (
    _top("f32[8,32000]", 50),
    _top("f32[64,16384]", 8),
    _top("f32[1,32000]", 1),
    _top("bf16[8,32000]", 50),
    _top("f32[4096,64]", 2),
    _top("i32[64,4096]", 16),
    _sort("f32[64,1024]"),
    _sort("f32[100000]"),
    _sort("i32[64,1024]"),
    _sort("bf16[64,1024]"),
    _sort("f32[1024,64]", 0),
    _sort("f32[8192,8]"),
    _argsort("f32[64,1024]"),
    _argsort("i32[100000]"),
    _case(
        "sort by keys",
        ("f32[64,1024]", "f32[64,1024]"),
        lambda jax, k, v: jax.lax.sort((k, v), num_keys=1),
    ),
    Case(
        FAMILY,
        "sort of f32[64,1024], gradient",
        ("f32[64,1024]",) * 2,
        jax=lambda jax, x: jax.numpy.sort(x, -1),
        torch=lambda torch, x: torch.sort(x, -1)[0],
        gradient=(0,),
        dp=dp(("f32[64,1024]",) * 2),
    ),
    _case(
        "median of rows",
        ("f32[64,1025]",),
        lambda jax, x: jax.numpy.median(x, 1),
        lambda torch, x: torch.median(x, 1)[0],
    ),
    _case(
        "searchsorted",
        ("f32[100000]",),
        lambda jax, x: jax.numpy.searchsorted(jax.numpy.arange(-512.0, 512.0) / 128, x),
        lambda torch, x: torch.searchsorted(torch.arange(-512.0, 512.0) / 128, x),
    ),
    _case(
        "histogram of 64 bins",
        ("f32[100000]",),
        lambda jax, x: jax.numpy.histogram(x, 64, (-3.0, 3.0))[0],
        lambda torch, x: torch.histc(x, 64, -3.0, 3.0),
    ),
    _case(
        "bincount",
        ("i32[100000]<512",),
        lambda jax, x: jax.numpy.bincount(x, length=512),
        lambda torch, x: torch.bincount(x, minlength=512),
    ),
    _case(
        "unique values, at most 512",
        ("i32[10000]<512",),
        lambda jax, x: jax.numpy.unique(x, size=512, fill_value=-1),
        bound=nbytes("i32[10000]") // RANKS + nbytes("i32[512]"),  # a sort, and what each rank adds
    ),
    _case(
        "unique values, at most 512, and which each is",
        ("i32[10000]<512",),
        lambda jax, x: jax.numpy.unique(x, size=512, fill_value=-1, return_inverse=True),
        bound=2 * 2 * nbytes("i32[10000]") // RANKS + nbytes("i32[512]"),
    ),
)
