"""Cumulative operators."""

from __future__ import annotations

from benchmarks.operators.case import Case, Function, both, dp, nbytes

FAMILY = "scans"


def _scan(
    name: str, given: str, axis: int, written: dict[str, Function], gradient: bool = False
) -> Case:
    arguments = (given, given) if gradient else (given,)
    return Case(
        FAMILY,
        f"{name} of {given} along {axis}{', gradient' if gradient else ''}",
        arguments,
        **written,
        gradient=(0,) if gradient else (),
        # With an axis: the sum of all rows of the other.
        dp=dp(arguments, bound=0 if axis else nbytes(_row(given))),
    )


def _row(given: str) -> str:
    """Return the form of one element along the first dim."""
    kind, sizes = given[:-1].split("[")
    return f"{kind}[{','.join(sizes.split(',')[1:])}]"


def _sum(axis: int) -> dict[str, Function]:
    return both(lambda xp, x: xp.cumsum(x, axis))


def _extreme(name: str) -> dict[str, Function]:
    return {
        "jax": lambda jax, x: getattr(jax.lax, name)(x, 1),
        "torch": lambda torch, x: getattr(torch, name)(x, 1)[0],
    }


CASES = (
    _scan("cumsum", "f32[100000]", 0, _sum(0)),
    _scan("cumsum", "i32[100000]", 0, _sum(0)),
    _scan("cumsum", "f64[100000]", 0, _sum(0)),
    _scan("cumsum", "f32[64,4096]", 1, _sum(1)),
    _scan("cumsum", "bf16[64,4096]", 1, _sum(1)),
    _scan("cumsum", "f32[4096,64]", 0, _sum(0)),
    _scan("cumsum", "f32[4096,8]", 1, _sum(1)),
    _scan("cumsum", "f32[64,4096]", 1, _sum(1), gradient=True),
    _scan("cumsum", "f32[100000]", 0, _sum(0), gradient=True),
    _scan("cumprod", "f32[64,4096]", 1, both(lambda xp, x: xp.cumprod(x, 1))),
    _scan("cummax", "f32[64,4096]", 1, _extreme("cummax")),
    _scan("cummin", "i32[64,4096]", 1, _extreme("cummin")),
    Case(
        FAMILY,
        "cumlogsumexp of f32[64,4096] along 1",
        ("f32[64,4096]",),
        jax=lambda jax, x: jax.lax.cumlogsumexp(x, 1),
        torch=lambda torch, x: torch.logcumsumexp(x, 1),
        dp=dp(("f32[64,4096]",)),
    ),
    Case(
        FAMILY,
        "associative scan of a x + b, f32[1024,64]",
        ("f32[1024,64]", "f32[1024,64]"),
        jax=lambda jax, a, b: jax.lax.associative_scan(
            lambda left, right: (left[0] * right[0], left[1] * right[0] + right[1]), (a, b)
        )[1],
    ),
)
