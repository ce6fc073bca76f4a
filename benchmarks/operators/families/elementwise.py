"""Elementwise operators: mathematical functions, arithmetic, logic, conversions, broadcasts."""

from __future__ import annotations

from benchmarks.operators.case import Case, Function, both, dp

FAMILY = "elementwise"
SHAPE = "[512,1024]"


def _case(
    name: str, arguments: tuple[str, ...], written: dict[str, Function], by: tuple[int, ...] = (),
    bound: int = 0,
) -> Case:  # fmt: skip
    shared = tuple(i for i, text in enumerate(arguments) if text[text.index("[") :] in _SHARED)
    return Case(FAMILY, name, arguments, **written, gradient=by, dp=dp(arguments, shared, bound))


_SHARED = ("[1024]", "[]", "[1,1024]", "[]+")


def _unary(name: str, kinds: str = "f32", sign: str = "") -> list[Case]:
    written = both(lambda xp, x: getattr(xp, name)(x))
    return [_case(f"{name} {kind}", (f"{kind}{SHAPE}{sign}",), written) for kind in kinds.split()]


def _binary(name: str, written: Function, kinds: str, sign: str = "") -> list[Case]:
    fields = both(written)
    return [
        _case(f"{name} {kind}", (f"{kind}{SHAPE}", f"{kind}{SHAPE}{sign}"), fields)
        for kind in kinds.split()
    ]


def _activation(name: str, kinds: str, **options: object) -> list[Case]:
    written = {
        "jax": lambda jax, x: getattr(jax.nn, name)(x),
        "torch": lambda torch, x: getattr(torch.nn.functional, name)(x, **options),
    }
    forward = [_case(f"{name} {kind}", (f"{kind}{SHAPE}",), written) for kind in kinds.split()]
    backward = [
        _case(f"{name} {kind}, gradient", (f"{kind}{SHAPE}",) * 2, written, (0,))
        for kind in kinds.split()[:2]
    ]
    return forward + backward


def _cast(source: str, target: str) -> Case:
    names = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "i32": "int32", "i8": "int8"}
    into = names[target]
    written = {
        "jax": lambda jax, x: x.astype(getattr(jax.numpy, into)),
        "torch": lambda torch, x: x.to(getattr(torch, into)),
    }
    return _case(f"{source} to {target}", (f"{source}{SHAPE}",), written)


def _broadcast(name: str, left: str, right: str, written: Function, bound: int = 0) -> Case:
    return _case(name, (f"f32{left}", f"f32{right}"), both(written), bound=bound)


CASES = (
    *_unary("exp", "f32 f64 bf16 f16"),
    *_unary("log", "f32 bf16", "+"),
    *_unary("sqrt", "f32 f64", "+"),
    *(case for name in ["sin", "cos", "tan", "tanh", "atan", "expm1"] for case in _unary(name)),
    *_unary("tanh", "bf16 f64"),
    *(case for name in ("log1p", "log2") for case in _unary(name, sign="+")),
    *(case for name in ["abs", "sign", "floor", "round"] for case in _unary(name)),
    *_unary("abs", "i32 bf16"),
    *_unary("isfinite", "f32 bf16"),
    _case(
        "erf f32",
        (f"f32{SHAPE}",),
        {"jax": lambda jax, x: jax.scipy.special.erf(x), "torch": lambda torch, x: torch.erf(x)},
    ),
    *_activation("relu", "f32 bf16"),
    *_activation("gelu", "f32 bf16", approximate="tanh"),
    *_activation("silu", "f32 bf16 f16"),
    *_activation("softplus", "f32"),
    *_activation("sigmoid", "f32"),
    *_binary("add", lambda xp, a, b: a + b, "f32 f64 bf16 f16 i32 i8"),
    *_binary("multiply", lambda xp, a, b: a * b, "f32 bf16 i32"),
    *_binary("divide", lambda xp, a, b: a / b, "f32 f64 bf16", "+"),
    *_binary("power", lambda xp, a, b: xp.abs(a) ** b, "f32"),
    *_binary("atan2", lambda xp, a, b: xp.atan2(a, b), "f32"),
    *_binary("remainder", lambda xp, a, b: xp.remainder(a, b), "f32", "+"),
    *_binary("maximum", lambda xp, a, b: xp.maximum(a, b), "f32 bf16 i32"),
    *_binary("less", lambda xp, a, b: a < b, "f32 i32"),
    *_binary("where", lambda xp, a, b: xp.where(a < b, a, b), "f32 bf16"),
    *_binary("and", lambda xp, a, b: a & b, "bool i32"),
    *_binary("exclusive or", lambda xp, a, b: a ^ b, "i32"),
    *_binary("shift left", lambda xp, a, b: a << (b & 7), "i32"),
    _case(
        "floor_divide i32",
        (f"i32{SHAPE}",) * 2,
        both(lambda xp, a, b: xp.floor_divide(a, b + 1)),
    ),
    _case("not bool", (f"bool{SHAPE}",), both(lambda xp, a: xp.logical_not(a))),
    _case("clip f32", (f"f32{SHAPE}",), both(lambda xp, a: xp.clip(a, -1.0, 1.0))),
    *(
        _cast(*pair.split("-"))
        for pair in ["f32-bf16", "bf16-f32", "f32-f16", "i32-f32", "f32-i8", "bool-f32"]
    ),
    _broadcast("row to matrix", SHAPE, "[1024]", lambda xp, a, b: a + b),
    _broadcast("column to matrix", SHAPE, "[512,1]", lambda xp, a, b: a * b),
    _broadcast("outer sum", "[512,1]", "[1,1024]", lambda xp, a, b: a + b),
    _broadcast("scalar", SHAPE, "[]", lambda xp, a, b: a * b),
    # Of each quadrant off the diagonal, `a` lies on one rank and `b.T` on the other.
    _broadcast(
        "transposed operand", "[768,768]", "[768,768]", lambda xp, a, b: a + b.T, 384 * 384 * 4
    ),
    _broadcast("odd sizes", "[1023,517]", "[1023,517]", lambda xp, a, b: xp.exp(a) * b),
    _broadcast("one row", "[1,500000]", "[1,500000]", lambda xp, a, b: xp.exp(a) * b),
    _broadcast("one column", "[500000,1]", "[500000,1]", lambda xp, a, b: xp.exp(a) * b),
    _broadcast("rows of three", "[200000,3]", "[200000,1]", lambda xp, a, b: a * b),
    _case(
        "chain of ten",
        (f"f32{SHAPE}", f"f32{SHAPE}"),
        both(lambda xp, a, b: xp.tanh(xp.exp(-(a * a)) * b + 2 * a) / (1 + b * b) - xp.abs(a - b)),
    ),
)
