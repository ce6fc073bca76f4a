"""Say what a value of a program stands for: a view of a content, or of a span of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from meshweave.verification.buffers.contents import Content, Contents
from meshweave.verification.buffers.program import Shape, Window
from meshweave.verification.buffers.regions import ZERO, Form, Region, region
from meshweave.verification.buffers.relation import Span

Base = TypeVar("Base", Content, Span)


@dataclass(frozen=True)
class View(Generic[Base]):
    """Describe elements of a content or span: offset and strides are in bytes."""

    base: Base
    offset: Form
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    width: int

    @cached_property
    def region(self) -> Region:
        """Return the bytes."""
        return region(self.offset, self.sizes, self.strides, self.width)

    def element(self, indices: Sequence[Form]) -> Region:
        """Return the bytes of one element."""
        offset = self.offset
        for index, stride in zip(indices, self.strides):
            offset = offset.plus(index, stride)
        return region(offset, (), (), self.width)

    def window(self, window: Window, dynamic: Sequence[Form], shape: Shape) -> View[Base]:
        """Return a box of the view, without the dims of one that `shape` does not have."""
        numbers, offset = iter(dynamic), self.offset
        for at, stride in zip(window.offsets, self.strides):
            offset = offset.plus(Form(at) if at is not None else next(numbers), stride)
        strides = [s * step for s, step in zip(self.strides, window.steps)]
        kept: list[int] = []
        for size, stride in zip(window.sizes, strides):
            if len(kept) < len(shape.sizes) and shape.sizes[len(kept)] == size:
                kept.append(stride)
        return View(self.base, offset, shape.sizes, tuple(kept), self.width)


Tensor = View[Content]
Buffer = View[Span]


class Choice(NamedTuple):
    """Stand for one of two buffers, of which a condition chooses."""

    condition: Form
    one: Buffer | Choice
    other: Buffer | Choice


def buffers_of(view: Buffer | Choice) -> list[Buffer]:
    """Return the buffers that one may be."""
    return [view] if isinstance(view, View) else [*buffers_of(view.one), *buffers_of(view.other)]


def tensor(contents: Contents, content: Content, shape: Shape) -> Tensor:
    """Return all of a content as a tensor of a shape."""
    return View(content, ZERO, shape.sizes, shape.strides, shape.width)


def reshaped(contents: Contents, view: Tensor, shape: Shape) -> Tensor:
    """Return the elements of a tensor, in order, as one of another shape."""
    if view.region.dims in (((view.region.nbytes, 1),), ((1, 1),)):
        return View(view.base, view.offset, shape.sizes, shape.strides, view.width)
    wide = [(size, stride) for size, stride in zip(view.sizes, view.strides) if size != 1]
    if [size for size, _ in wide] == [size for size in shape.sizes if size != 1]:
        left = iter(wide)
        strides = tuple([0 if size == 1 else next(left)[1] for size in shape.sizes])
        return View(view.base, view.offset, shape.sizes, strides, view.width)
    return tensor(contents, contents.slice(view.base, view.region), shape)
