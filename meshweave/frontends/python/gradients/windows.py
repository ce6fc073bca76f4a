"""Hold the rules of convolutions and pooling.

Of equal largest elements of a window the first takes what flows back, as in JAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from meshweave.frontends.python.dtypes import DType, bool_
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.create import full, zeros_like
from meshweave.frontends.python.functions.index import _extract
from meshweave.frontends.python.functions.manipulate import flip, permute_dims
from meshweave.frontends.python.functions.put import insert
from meshweave.frontends.python.nn.windows import convolved
from meshweave.frontends.python.tracer import Tracer

Steps = Sequence[Sequence[int]]


def _padded(
    g: Tracer, y: Tracer, x: Tracer, ends: Sequence[tuple[int, int]], fill: float
) -> Tracer:
    return _extract(g, [low for low, _ in ends], list(x.shape), [1] * x.ndim)


def _image(
    g: Tracer, y: Tracer, image: Tracer, window: Tracer, steps: Steps, dtype: DType
) -> Tracer:
    """Convolve the cotangent, spread by the stride, with the window turned around."""
    ndim = image.ndim - 2
    stride, dilation = steps
    reach = [(k - 1) * d for k, d in zip(window.shape, dilation)]
    shape = (g.shape[0], *(n + r for n, r in zip(image.shape[1:-1], reach)), g.shape[-1])
    spread = insert(g, shape, [0, *reach, 0], [1, *stride, 1])
    turned = permute_dims(window, (*range(ndim), ndim + 1, ndim))
    turned = flip(turned, axis=tuple(range(ndim)))
    return convolved(spread, turned, [[1] * ndim, list(dilation)], dtype)


def _window(
    g: Tracer, y: Tracer, image: Tracer, window: Tracer, steps: Steps, dtype: DType
) -> Tracer:
    """Convolve the image with the cotangent, stride and dilation swapped, batch and channels too."""
    ndim = image.ndim - 2
    space = tuple(range(1, ndim + 1))
    images = permute_dims(image, (ndim + 1, *space, 0))
    slopes = permute_dims(g, (*space, 0, ndim + 1))
    stride, dilation = steps
    found = convolved(images, slopes, [list(dilation), list(stride)], dtype)
    sizes = [found.shape[0], *window.shape[:ndim], found.shape[-1]]
    cut = _extract(found, [0] * found.ndim, sizes, [1] * found.ndim)
    return permute_dims(cut, (*space, 0, ndim + 1))


def _taps(sizes: Sequence[int], dilation: Sequence[int]) -> Iterator[list[int]]:
    """Give where each element of a window lies, first dim slowest."""
    for places in product(*[range(n) for n in sizes]):
        yield [0, *(p * d for p, d in zip(places, dilation)), 0]


def _folded(
    g: Tracer, y: Tracer, x: Tracer, sizes: Sequence[int], steps: Steps, op: str, start: float
) -> Tracer:
    """Give each element of a window its share: all of a sum, of the largest to the first that is as large."""
    stride, found = [1, *steps[0], 1], zeros_like(x)
    left = full(y.shape, True, dtype=bool_)
    for starts in _taps(sizes, steps[1]):
        share = g
        if op != "arith.addf":
            best = logic.equal(_extract(x, starts, list(y.shape), stride), y)
            share = e.where(logic.logical_and(best, left), g, 0)
            left = logic.logical_and(left, logic.logical_not(best))
        found = e.add(found, insert(share, x.shape, starts, stride))
    return found


WINDOWS: dict[str, Any] = {
    "padded": (_padded,),
    "convolved": (_image, _window),
    "folded": (_folded,),
}
"""Primitive -> for each argument what makes its cotangent."""
