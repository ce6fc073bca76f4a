"""Convolutions: forward and by input and weight, strided, dilated, transposed, grouped, in one to three dims."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from benchmarks.operators.case import RANKS, Case, added, dp, nbytes

FAMILY = "convolutions"


@dataclass(frozen=True)
class Conv:
    """A convolution of `size` windows over `batch` images, NCHW as torch has it, or NHWC as flax has it."""

    batch: int
    channels: int
    out: int
    image: tuple[int, ...]
    size: int = 3
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    kind: str = "f32"
    last: bool = False
    transposed: bool = False

    @property
    def padding(self) -> int:
        return self.dilation * (self.size // 2)

    @property
    def given(self) -> str:
        shape = (*self.image, self.channels) if self.last else (self.channels, *self.image)
        return f"{self.kind}[{','.join(map(str, (self.batch, *shape)))}]"

    @property
    def weight(self) -> str:
        windows, share = (self.size,) * len(self.image), self.channels // self.groups
        pair = (self.channels, self.out) if self.transposed else (self.out, share)
        shape = (*windows, *reversed(pair)) if self.last else (*pair, *windows)
        return f"{self.kind}[{','.join(map(str, shape))}]"

    @property
    def result(self) -> str:
        def along(n: int) -> int:
            if self.transposed:
                return (n - 1) * self.stride - 2 * self.padding + self.size + self.stride - 1
            return (n + 2 * self.padding - self.dilation * (self.size - 1) - 1) // self.stride + 1

        image = tuple(map(along, self.image))
        shape = (*image, self.out) if self.last else (self.out, *image)
        return f"{self.kind}[{','.join(map(str, (self.batch, *shape)))}]"

    def jax(self, jax: ModuleType, x: Any, w: Any) -> Any:
        dims = "DHW"[3 - len(self.image) :]
        x_dims, w_dims = (f"N{dims}C", f"{dims}IO") if self.last else (f"NC{dims}", f"OI{dims}")
        if not self.transposed:
            return jax.lax.conv_general_dilated(
                x,
                w,
                (self.stride,) * len(dims),
                [(self.padding, self.padding)] * len(dims),
                rhs_dilation=(self.dilation,) * len(dims),
                dimension_numbers=(x_dims, w_dims, x_dims),
                feature_group_count=self.groups,
            )
        low = self.size - 1 - self.padding
        return jax.lax.conv_general_dilated(
            x,
            jax.numpy.flip(w, tuple(range(2, w.ndim))),
            (1,) * len(dims),
            [(low, low + self.stride - 1)] * len(dims),
            lhs_dilation=(self.stride,) * len(dims),
            dimension_numbers=(x_dims, f"IO{dims}", x_dims),
        )

    def torch(self, torch: ModuleType, x: Any, w: Any) -> Any:
        rank = len(self.image)
        if self.last:  # one memory order, seen as torch names its dims
            x = x.movedim(-1, 1)
            w = w.movedim(-1, 0).movedim(-1, 1)
        if self.transposed:
            function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
            return function(x, w, None, self.stride, self.padding, self.stride - 1)
        function = getattr(torch.nn.functional, f"conv{rank}d")
        y = function(x, w, None, self.stride, self.padding, self.dilation, self.groups)
        return y.movedim(1, -1) if self.last else y

    def bound(self) -> int:
        """Return the bytes of the gradient by weight: the sums of all ranks, or the images of the other one."""
        images = nbytes(self.given, self.result)
        return min(added(self.weight), images if self.batch == 1 else images // RANKS)

    def case(self, name: str, gradient: tuple[int, ...] = ()) -> Case:
        arguments = (self.given, self.weight)
        by = {(): "", (0,): ", by input", (1,): ", by weight", (0, 1): ", by both"}[gradient]
        if gradient:
            arguments = (*arguments, self.result)
        shape = f"{self.given} {self.out} channels{' NHWC' if self.last else ''}"
        return Case(
            FAMILY,
            f"{name} {shape}{by}",
            arguments,
            self.jax,
            self.torch,
            gradient,
            dp=dp(arguments, (1,), self.bound() if 1 in gradient else 0),
        )


BASE = Conv(4, 64, 64, (56, 56))
FLAX = Conv(8, 32, 64, (28, 28), last=True)
DEEP = Conv(1, 256, 256, (14, 14))
FIRST = Conv(1, 3, 64, (128, 128), size=7, stride=2)


def _all(conv: Conv, name: str) -> list[Case]:
    return [conv.case(name), conv.case(name, (0,)), conv.case(name, (1,))]


CASES = (
    *_all(replace(BASE, batch=1), "3x3"),
    *_all(FLAX, "3x3"),
    *_all(DEEP, "3x3"),
    *_all(FIRST, "7x7 stride 2"),
    replace(FIRST, last=True).case("7x7 stride 2"),
    *_all(replace(DEEP, stride=2), "3x3 stride 2"),
    replace(DEEP, image=(15, 13)).case("3x3"),
    *_all(replace(DEEP, dilation=2), "3x3 dilated"),
    *_all(replace(BASE, batch=1, groups=4), "3x3 in 4 groups"),
    replace(BASE, batch=1, groups=32, channels=128, out=128, image=(28, 28)).case(
        "3x3 in 32 groups"
    ),
    *_all(Conv(1, 128, 128, (28, 28), groups=128), "depthwise 3x3"),
    Conv(1, 96, 96, (56, 56), size=7, groups=96).case("depthwise 7x7"),
    Conv(1, 96, 96, (56, 56), size=7, groups=96, last=True).case("depthwise 7x7"),
    Conv(1, 120, 120, (28, 28), size=5, stride=2, groups=120).case("depthwise 5x5 stride 2"),
    Conv(1, 64, 32, (28, 28), size=5, stride=2, transposed=True).case("transposed 5x5 stride 2"),
    Conv(1, 64, 32, (28, 28), size=3, stride=2, transposed=True).case("transposed 3x3 stride 2"),
    *_all(Conv(4, 256, 512, (14, 14), size=1), "1x1"),
    Conv(1, 256, 512, (28, 28), size=1, stride=2).case("1x1 stride 2"),
    Conv(4, 256, 512, (14, 14), size=1, last=True).case("1x1"),
    *_all(Conv(8, 64, 64, (512,), size=5), "1-D of 5"),
    Conv(8, 64, 64, (512,), size=9, last=True).case("1-D of 9"),
    Conv(8, 256, 256, (512,), size=4, groups=256).case("1-D depthwise of 4"),
    *_all(Conv(1, 16, 32, (16, 28, 28)), "3-D of 3"),
    *(replace(BASE, batch=1, kind=kind).case("3x3") for kind in ("bf16", "f16", "f64")),
    replace(FLAX, kind="bf16").case("3x3"),
    Conv(32, 1, 32, (28, 28)).case("3x3 of one channel"),
    Conv(1, 512, 512, (7, 7)).case("3x3"),
)
