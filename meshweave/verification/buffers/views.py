"""Say what a value of a program stands for: a view of a content, or of a span of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from meshweave.verification.buffers.contents import Content, Contents
from meshweave.verification.buffers.program import Shape, Subview
from meshweave.verification.buffers.regions import ZERO, ByteRegion, Form, region
from meshweave.verification.buffers.relation import Span

Base = TypeVar("Base", Content, Span)


@dataclass(slots=True)  # frozen it would take five times as long to make, and many are made
class StridedView(Generic[Base]):
    """Describe elements of a content or span: offset and strides are in bytes.

    region: the bytes. is_all: whether these are all of the content or span, in order.
    """

    base: Base
    offset: Form
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    width: int
    region: ByteRegion
    is_all: bool

    def element(self, indices: Sequence[Form]) -> ByteRegion:
        """Return the bytes of one element."""
        offset = self.offset
        for index, stride in zip(indices, self.strides):
            offset = offset.plus(index, stride)
        return region(offset, (), (), self.width)

    def window(self, window: Subview, dynamic: Sequence[Form], shape: Shape) -> StridedView[Base]:
        """Return a box of the view, without the dims of one that `shape` does not have."""
        numbers, offset = iter(dynamic), self.offset
        for at, stride in zip(window.offsets, self.strides):
            offset = offset.plus(Form(at) if at is not None else next(numbers), stride)
        strides = [s * step for s, step in zip(self.strides, window.steps)]
        kept: list[int] = []
        for size, stride in zip(window.sizes, strides):
            if len(kept) < len(shape.sizes) and shape.sizes[len(kept)] == size:
                kept.append(stride)
        return strided(self.base, offset, shape.sizes, tuple(kept), self.width)


Tensor = StridedView[Content]
Buffer = StridedView[Span]


class EitherView(NamedTuple):
    """Stand for one of two buffers, of which a condition chooses."""

    condition: Form
    one: Buffer | EitherView
    other: Buffer | EitherView


def buffers_of(view: Buffer | EitherView) -> list[Buffer]:
    """Return the buffers that one may be."""
    return (
        [view]
        if isinstance(view, StridedView)
        else [*buffers_of(view.one), *buffers_of(view.other)]
    )


def shaped(base: Base, shape: Shape) -> StridedView[Base]:
    """Return elements of a shape that begin where a content or span does."""
    is_all = shape.dense and base.nbytes == shape.nbytes
    return StridedView(base, ZERO, shape.sizes, shape.strides, shape.width, shape.region, is_all)


def strided(
    base: Base, offset: Form, sizes: tuple[int, ...], strides: tuple[int, ...], width: int
) -> StridedView[Base]:
    """Return elements that begin anywhere in a content or span."""
    own = region(offset, sizes, strides, width)
    return StridedView(base, offset, sizes, strides, width, own, own.is_all_of(base.nbytes))


def reshaped(contents: Contents, view: Tensor, shape: Shape) -> Tensor:
    """Return the elements of a tensor, in order, as one of another shape."""
    if view.region.dims in (((view.region.nbytes, 1),), ((1, 1),)):
        return strided(view.base, view.offset, shape.sizes, shape.strides, view.width)
    wide = [(size, stride) for size, stride in zip(view.sizes, view.strides) if size != 1]
    if [size for size, _ in wide] == [size for size in shape.sizes if size != 1]:
        left = iter(wide)
        strides = tuple([0 if size == 1 else next(left)[1] for size in shape.sizes])
        return strided(view.base, view.offset, shape.sizes, strides, view.width)
    return shaped(contents.slice(view.base, view.region), shape)
