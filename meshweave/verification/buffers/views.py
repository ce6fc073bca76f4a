"""Say what a value of a program stands for: a view of a content, or of a span of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from meshweave.verification.buffers.contents import Content, Contents
from meshweave.verification.buffers.program import Shape, Subview
from meshweave.verification.buffers.regions import ZERO, ByteRegion, Form, region
from meshweave.verification.buffers.relation import Span

Base = TypeVar("Base", Content, Span)


@dataclass(frozen=True)
class StridedView(Generic[Base]):
    """Describe elements of a content or span: offset and strides are in bytes."""

    base: Base
    offset: Form
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    width: int

    @cached_property
    def region(self) -> ByteRegion:
        """Return the bytes."""
        return region(self.offset, self.sizes, self.strides, self.width)

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
        return StridedView(self.base, offset, shape.sizes, tuple(kept), self.width)


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


def tensor(contents: Contents, content: Content, shape: Shape) -> Tensor:
    """Return all of a content as a tensor of a shape."""
    return StridedView(content, ZERO, shape.sizes, shape.strides, shape.width)


def reshaped(contents: Contents, view: Tensor, shape: Shape) -> Tensor:
    """Return the elements of a tensor, in order, as one of another shape."""
    if view.region.dims in (((view.region.nbytes, 1),), ((1, 1),)):
        return StridedView(view.base, view.offset, shape.sizes, shape.strides, view.width)
    wide = [(size, stride) for size, stride in zip(view.sizes, view.strides) if size != 1]
    if [size for size, _ in wide] == [size for size in shape.sizes if size != 1]:
        left = iter(wide)
        strides = tuple([0 if size == 1 else next(left)[1] for size in shape.sizes])
        return StridedView(view.base, view.offset, shape.sizes, strides, view.width)
    return tensor(contents, contents.slice(view.base, view.region), shape)
