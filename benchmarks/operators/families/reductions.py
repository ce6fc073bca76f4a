"""Reductions: of rows, columns and whole arrays, sums, extremes, positions, statistics."""

from __future__ import annotations

from benchmarks.operators.case import Case, Function, Split, added, both, dp

FAMILY = "reductions"
SQUARE, TALL, WIDE, DEEP = "[1024,1024]", "[65536,32]", "[32,65536]", "[64,128,128]"


def _dp(argument: str, axis: int | None, name: str = "sum") -> Split:
    """A whole reduction leaves one number a rank, one over columns a row of them, which all ranks need of the others.

    Sums of 16-bit floats are added up in f32. A place comes with the extreme that is there, a variance with the mean.
    """
    kept = "" if axis is None else ",".join(argument[argument.index("[") + 1 : -1].split(",")[1:])
    kind = argument[: argument.index("[")]
    if name not in ("max", "min", "argmax", "argmin"):
        kind = {"bf16": "f32"}.get(kind, kind)
    kinds = {"argmax": (kind, "i32"), "argmin": (kind, "i32"), "var": (kind, kind)}.get(
        name, (kind,)
    )
    whole = added(*[f"{kind}[{kept}]" for kind in kinds])
    return dp((argument,), bound=0 if axis not in (None, 0) else whole)


def _reduction(
    name: str, what: str, argument: str, axis: int | None, written: dict[str, Function]
) -> Case:
    return Case(
        FAMILY,
        f"{name} of {what}, {argument}",
        (argument,),
        **written,
        dp=_dp(argument, axis, name),
    )


def _sum(xp: object, x: object, axis: int | None, name: str) -> object:
    found = getattr(xp, name)(x) if axis is None else getattr(xp, name)(x, axis)
    return found[0] if isinstance(found, tuple) and name in ("max", "min") else found


def _all(name: str, kinds: str, forms: tuple[tuple[str, str, int | None], ...]) -> list[Case]:
    return [
        _reduction(
            name, what, f"{kind}{shape}", axis, both(lambda xp, x, a=axis: _sum(xp, x, a, name))
        )
        for kind in kinds.split()
        for what, shape, axis in forms
    ]


FORMS = (
    ("all", SQUARE, None),
    ("rows", SQUARE, 1),
    ("columns", SQUARE, 0),
)
UNEVEN = (
    ("tall columns", TALL, 0),
    ("short rows", TALL, 1),
    ("long rows", WIDE, 1),
    ("short columns", WIDE, 0),
    ("the middle", DEEP, 1),
    ("odd rows", "[1023,517]", 1),
    ("one row", "[1,1000000]", 1),
)


def _norm(xp: object, x: object) -> object:
    return xp.sqrt((x * x).sum())


CASES = (
    *_all("sum", "f32 bf16 f64 i32", FORMS),
    *_all("sum", "f32", UNEVEN),
    *_all("sum", "bf16", UNEVEN[:3]),
    *_all("max", "f32 bf16 i32", FORMS),
    *_all("min", "f32", UNEVEN[:4]),
    *_all("mean", "f32 bf16", FORMS[1:]),
    *_all("argmax", "f32 i32", FORMS),
    *_all("argmax", "f32", UNEVEN[:4]),
    *_all("argmin", "bf16", FORMS[1:2]),
    *_all("prod", "f32", FORMS[1:2]),
    *_all("any", "bool", FORMS),
    *_all("all", "bool", FORMS[1:2]),
    *_all("var", "f32", (*FORMS[1:], UNEVEN[1])),
    Case(
        FAMILY,
        "logsumexp of rows",
        (f"f32{SQUARE}",),
        jax=lambda jax, x: jax.nn.logsumexp(x, 1),
        torch=lambda torch, x: torch.logsumexp(x, 1),
        dp=dp((f"f32{SQUARE}",)),
    ),
    Case(
        FAMILY,
        "logsumexp of rows, gradient",
        (f"f32{SQUARE}", "f32[1024]"),
        jax=lambda jax, x: jax.nn.logsumexp(x, 1),
        torch=lambda torch, x: torch.logsumexp(x, 1),
        gradient=(0,),
        dp=dp((f"f32{SQUARE}", "f32[1024]")),
    ),
    Case(
        FAMILY,
        "max of rows, gradient",
        (f"f32{SQUARE}", "f32[1024]"),
        jax=lambda jax, x: x.max(1),
        torch=lambda torch, x: x.max(1)[0],
        gradient=(0,),
        dp=dp((f"f32{SQUARE}", "f32[1024]")),
    ),
    Case(
        FAMILY,
        "var of rows, gradient",
        (f"f32{SQUARE}", "f32[1024]"),
        jax=lambda jax, x: x.var(1),
        torch=lambda torch, x: x.var(1, correction=0),
        gradient=(0,),
        dp=dp((f"f32{SQUARE}", "f32[1024]")),
    ),
    Case(
        FAMILY,
        "norm of all",
        (f"f32{SQUARE}",),
        **both(_norm),
        dp=_dp(f"f32{SQUARE}", None),
    ),
    Case(
        FAMILY,
        "dot of long vectors",
        ("f32[1000000]", "f32[1000000]"),
        **both(lambda xp, a, b: (a * b).sum()),
        dp=dp(("f32[1000000]",) * 2, bound=added("f32[]")),
    ),
    Case(
        FAMILY,
        "sum and sum of squares",
        (f"f32{SQUARE}",),
        jax=lambda jax, x: (x.sum(0), (x * x).sum(0)),
        torch=lambda torch, x: (x.sum(0), (x * x).sum(0)),
        dp=dp((f"f32{SQUARE}",), bound=added("f32[1024]", "f32[1024]")),
    ),
)
