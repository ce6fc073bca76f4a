"""Say where the window of a convolution meets an image that is dilated itself: without the zeros in between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple


@dataclass(frozen=True)
class WindowDim:
    """Describe a dim of space. Place p of the result meets place (p * stride + k * dilation - low) / base of the image.

    image, window, result: its sizes; k runs over the window. Where base, the step between the image's own places, does
    not divide that, and outside the image, there are zeros.
    """

    image: int
    window: int
    result: int
    stride: int
    dilation: int
    low: int
    base: int

    @property
    def high(self) -> int:
        """Return how many zeros are needed behind the image, negative where its end is not met; base is 1."""
        last = (self.result - 1) * self.stride + (self.window - 1) * self.dilation - self.low
        return last + 1 - self.image

    @property
    def period(self) -> int:
        """Return after how many places of the result the same part of the window is met."""
        return self.base // gcd(self.base, self.stride)


class Phase(NamedTuple):
    """Describe every so manieth place of the result, which meets one part of the window.

    number: of the first place. window: the first place in the window, and the step to the next. axis: what they are
    with base 1; None where they meet zeros.
    """

    number: int
    window: tuple[int, int]
    axis: WindowDim | None


def phases(axis: WindowDim) -> list[Phase]:
    """Return the phases of a dim, all of one size: together they are the result, or reach a little beyond it."""
    step = axis.base // gcd(axis.base, axis.dilation)
    found = []
    for number in range(min(axis.period, axis.result)):
        start = number * axis.stride - axis.low
        taps = range(min(step, axis.window))
        tap = next((k for k in taps if (start + k * axis.dilation) % axis.base == 0), None)
        if tap is None:
            found.append(Phase(number, (0, step), None))
            continue
        made = replace(
            axis,
            window=-(-(axis.window - tap) // step),
            result=-(-axis.result // axis.period),
            stride=axis.period * axis.stride // axis.base,
            dilation=step * axis.dilation // axis.base,
            low=-(start + tap * axis.dilation) // axis.base,
            base=1,
        )
        found.append(Phase(number, (tap, step), made))
    return found
