"""Pooling and resizing."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case, Function, dp

FAMILY = "pooling"
IMAGES = "f32[4,64,56,56]"


def _window(jax: Any, x: Any, size: int, stride: int, pad: int, largest: bool) -> Any:
    dims = x.ndim - 2
    lax, windows, strides = jax.lax, (1, 1, *(size,) * dims), (1, 1, *(stride,) * dims)
    padding = ((0, 0), (0, 0), *((pad, pad),) * dims)
    if largest:
        return lax.reduce_window(x, -jax.numpy.inf, lax.max, windows, strides, padding)
    return lax.reduce_window(x, 0.0, lax.add, windows, strides, padding) / size**dims


def _pool(
    name: str, given: str, size: int, stride: int, pad: int, largest: bool
) -> tuple[Case, Case]:
    sizes = [int(n) for n in given[4:-1].split(",")]
    out = [*sizes[:2], *((n + 2 * pad - size) // stride + 1 for n in sizes[2:])]
    function = f"{'max' if largest else 'avg'}_pool{len(sizes) - 2}d"
    arguments = (given, f"f32[{','.join(map(str, out))}]")
    written: dict[str, Function] = {
        "jax": lambda jax, x: _window(jax, x, size, stride, pad, largest),
        "torch": lambda torch, x: getattr(torch.nn.functional, function)(x, size, stride, pad),
    }
    return (
        Case(FAMILY, f"{name} {given}", (given,), **written, dp=dp((given,))),
        Case(
            FAMILY,
            f"{name} {given}, gradient",
            arguments,
            **written,
            gradient=(0,),
            dp=dp(arguments),
        ),
    )


def _resize(method: str, mode: str) -> Case:
    given = "f32[1,64,28,28]"
    return Case(
        FAMILY,
        f"resize {mode} {given} by 2",
        (given,),
        jax=lambda jax, x: jax.image.resize(x, (1, 64, 56, 56), method),
        torch=lambda torch, x: torch.nn.functional.interpolate(x, scale_factor=2, mode=mode),
    )


CASES = (
    *_pool("max 2x2", IMAGES, 2, 2, 0, True),
    *_pool("max 3x3 stride 2", IMAGES, 3, 2, 1, True),
    *_pool("average 2x2", IMAGES, 2, 2, 0, False),
    *_pool("average 3x3 stride 1", IMAGES, 3, 1, 1, False),
    *_pool("max of 4", "f32[16,64,1024]", 4, 4, 0, True),
    *_pool("average 2x2x2", "f32[1,32,16,28,28]", 2, 2, 0, False),
    Case(
        FAMILY,
        f"global average {IMAGES}",
        (IMAGES,),
        jax=lambda jax, x: x.mean((2, 3)),
        torch=lambda torch, x: x.mean((2, 3)),
        dp=dp((IMAGES,)),
    ),
    _resize("nearest", "nearest"),
    _resize("linear", "bilinear"),
)
