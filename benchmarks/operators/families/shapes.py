"""Operators that move elements: transposes, joins, pads, slices, stencils."""

from __future__ import annotations

from benchmarks.operators.case import Case, Function, both, dp

FAMILY = "shapes"
SQUARE = "[1024,1024]"
ROW = 4 * 1024


def _case(name: str, given: tuple[str, ...], written: dict[str, Function], bound: int = 0) -> Case:
    return Case(FAMILY, f"{name} {given[0]}", given, **written, dp=dp(given, bound=bound))


def _pair(jax: Function, torch: Function) -> dict[str, Function]:
    return {
        "jax": lambda module, *arrays: jax(module.numpy, *arrays),
        "torch": lambda module, *tensors: torch(module, *tensors),
    }


def _stencil(xp: object, u: object) -> object:
    return u[1:-1, 1:-1] + 0.1 * (
        u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    )


def _sweeps(xp: object, u: object) -> object:
    for _ in range(4):
        u = xp.concatenate([u[:1], (u[2:] + u[1:-1] + u[:-2]) / 3, u[-1:]])
    return u


CASES = (
    *(
        _case(
            "transpose",
            (f"{kind}{SQUARE}",),
            _pair(lambda xp, x: x.T + 0, lambda t, x: x.T.contiguous()),
        )
        for kind in ("f32", "bf16", "f64", "i8")
    ),
    _case(
        "transpose odd",
        ("f32[1023,517]",),
        _pair(lambda xp, x: xp.transpose(x), lambda t, x: x.T.contiguous()),
    ),
    _case(
        "heads first",
        ("f32[4,256,8,64]",),
        _pair(
            lambda xp, x: xp.transpose(x, (0, 2, 1, 3)),
            lambda t, x: x.permute(0, 2, 1, 3).contiguous(),
        ),
    ),
    _case(
        "channels last",
        ("f32[4,64,56,56]",),
        _pair(
            lambda xp, x: xp.transpose(x, (0, 2, 3, 1)),
            lambda t, x: x.permute(0, 2, 3, 1).contiguous(),
        ),
    ),
    _case(
        "all dims turned",
        ("f32[64,32,16,32]",),
        _pair(lambda xp, x: xp.transpose(x), lambda t, x: x.permute(3, 2, 1, 0).contiguous()),
    ),
    _case(
        "concatenate columns",
        ("f32[1024,512]",) * 2,
        both(lambda xp, a, b: xp.concatenate([a, b], 1)),
    ),
    _case(
        "concatenate rows",
        ("f32[512,1024]",) * 2,
        both(lambda xp, a, b: xp.concatenate([a, b], 0)),
        256 * ROW,
    ),
    _case("stack", ("f32[1024,512]",) * 2, both(lambda xp, a, b: xp.stack([a, b], 1))),
    _case(
        "pad columns",
        (f"f32{SQUARE}",),
        _pair(
            lambda xp, x: xp.pad(x, ((0, 0), (3, 5))), lambda t, x: t.nn.functional.pad(x, (3, 5))
        ),
    ),
    _case(
        "pad rows",
        (f"f32{SQUARE}",),
        _pair(
            lambda xp, x: xp.pad(x, ((3, 5), (0, 0))),
            lambda t, x: t.nn.functional.pad(x, (0, 0, 3, 5)),
        ),
        ROW,
    ),
    _case(
        "slice of columns",
        (f"f32{SQUARE}",),
        _pair(lambda xp, x: x[:, 100:900], lambda t, x: x[:, 100:900].contiguous()),
    ),
    _case(
        "every third column",
        (f"f32{SQUARE}",),
        _pair(lambda xp, x: x[:, ::3], lambda t, x: x[:, ::3].contiguous()),
    ),
    _case(
        "rows but the first",
        (f"f32{SQUARE}",),
        _pair(lambda xp, x: x[1:] * 2, lambda t, x: x[1:] * 2),
        ROW,
    ),
    _case("differences of rows", (f"f32{SQUARE}",), both(lambda xp, x: x[1:] - x[:-1]), ROW),
    _case("differences of columns", (f"f32{SQUARE}",), both(lambda xp, x: x[:, 1:] - x[:, :-1])),
    _case(
        "flip of columns",
        (f"f32{SQUARE}",),
        _pair(lambda xp, x: xp.flip(x, 1), lambda t, x: t.flip(x, (1,))),
    ),
    _case(
        "flip of rows",
        (f"f32{SQUARE}",),
        _pair(lambda xp, x: xp.flip(x, 0), lambda t, x: t.flip(x, (0,))),
        512 * ROW,
    ),
    _case("roll of columns", (f"f32{SQUARE}",), both(lambda xp, x: xp.roll(x, 7, 1))),
    _case("roll of rows", (f"f32{SQUARE}",), both(lambda xp, x: xp.roll(x, 7, 0)), 7 * ROW),
    _case("tile", ("f32[256,256]",), both(lambda xp, x: xp.tile(x, (1, 8)))),
    _case(
        "repeat",
        ("f32[1024,128]",),
        _pair(lambda xp, x: xp.repeat(x, 4, 1), lambda t, x: x.repeat_interleave(4, 1)),
    ),
    _case("lower triangle", (f"f32{SQUARE}",), both(lambda xp, x: xp.tril(x))),
    _case(
        "diagonal",
        (f"f32{SQUARE}",),
        _pair(lambda xp, x: xp.diagonal(x) * 1, lambda t, x: t.diagonal(x) * 1),
    ),
    _case(
        "reshape and sum",
        ("f32[1024,1024]",),
        both(lambda xp, x: xp.reshape(x, (1024, 32, 32)).sum(2)),
    ),
    _case(
        "halves swapped",
        (f"f32{SQUARE}",),
        both(lambda xp, x: xp.concatenate([-x[:, 512:], x[:, :512]], 1)),
    ),
    _case("stencil of five points", (f"f32{SQUARE}",), both(_stencil), ROW),
    _case("four sweeps along rows", (f"f32{SQUARE}",), both(_sweeps), 4 * ROW),
    _case(
        "inner points set",
        (f"f32{SQUARE}",),
        {
            "jax": lambda jax, u: u.at[1:-1, 1:-1].set(_stencil(jax.numpy, u)),
            "torch": lambda torch, u: _set(u.clone(), _stencil(torch, u)),
        },
        ROW,
    ),
)


def _set(u: object, inner: object) -> object:
    u[1:-1, 1:-1] = inner
    return u
