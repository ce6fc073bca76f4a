"""stablehlo.select_and_scatter, the gradient of a pooling by maximum, as loops: windows may overlap and be padded."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.bindings import ir
from meshweave.frontends.build import Builder


def lower_select_and_scatter(op: Any) -> None:
    """For each element of the source, the place in its window that `select` prefers gets it, by `scatter`."""
    operand, source, start = op.operands
    b = Builder(ir.InsertionPoint(op), op.location)
    select, scatter = (region.blocks[0] for region in op.regions)
    windows = _Windows(op, list(operand.type.shape))
    result = b.one("tensor.splat", operand.type, b.element(start))

    def update(inner: Builder, at: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        found, place = windows.selected(inner, at, operand, select)

        def write(w: Builder) -> list[Any]:
            old = w.element(values[0], place)
            (new,) = w.apply(scatter, [old, w.element(source, at)])
            return [w.put(new, values[0], place)]

        return inner.choose(found, [operand.type], write, lambda _: list(values))

    (result,) = b.loops(list(source.type.shape), [result], update)
    op.results[0].replace_all_uses_with(result)
    op.erase()


class _Windows:
    """Where the windows of an op lie in a tensor of this shape."""

    def __init__(self, op: Any, shape: Sequence[int]) -> None:
        def numbers(name: str, otherwise: int) -> list[int]:
            if name not in op.attributes:
                return [otherwise] * len(shape)
            return [int(n) for n in np.array(op.attributes[name]).reshape(-1)]

        self.shape = shape
        self.sizes, self.strides = numbers("window_dimensions", 1), numbers("window_strides", 1)
        padding = numbers("padding", 0) if "padding" in op.attributes else [0] * (2 * len(shape))
        self.low = padding[::2]

    def selected(
        self, b: Builder, at: Sequence[Any], operand: Any, select: Any
    ) -> tuple[Any, list[Any]]:
        """Whether window `at` has an element inside the tensor, and where the preferred one is; the first of equals."""
        kind = operand.type.element_type
        attr = ir.FloatAttr if isinstance(kind, ir.FloatType) else ir.IntegerAttr
        nothing = b.one("arith.constant", kind, value=attr.get(kind, 0))
        no = b.number(0, ir.IntegerType.get_signless(1))
        start = [no, nothing, *[b.number(0)] * len(self.shape)]

        def look(inner: Builder, offset: Sequence[Any], state: Sequence[Any]) -> list[Any]:
            place = self._place(inner, at, offset)

            def compare(c: Builder) -> list[Any]:
                found, best, *where = state
                value = c.element(operand, place)
                (holds,) = c.apply(select, [best, value])
                stays = c.binary("andi", found, holds)
                kept = [
                    c.select(stays, o, n)
                    for o, n in zip((best, *where), (value, *place), strict=True)
                ]
                return [c.number(1, found.type), *kept]

            types = [value.type for value in state]
            return inner.choose(self._inside(inner, place), types, compare, lambda _: list(state))

        found, _, *where = b.loops(self.sizes, start, look)
        return found, where

    def _place(self, b: Builder, at: Sequence[Any], offset: Sequence[Any]) -> list[Any]:
        starts = [b.binary("muli", i, b.number(n)) for i, n in zip(at, self.strides, strict=True)]
        inside = [b.binary("addi", s, o) for s, o in zip(starts, offset, strict=True)]
        return [b.binary("subi", i, b.number(n)) for i, n in zip(inside, self.low, strict=True)]

    def _inside(self, b: Builder, place: Sequence[Any]) -> Any:
        """Inside the tensor; an index before it is a large unsigned one."""
        held = b.number(1, ir.IntegerType.get_signless(1))
        for i, n in zip(place, self.shape, strict=True):
            held = b.binary("andi", held, b.compare("ult", i, b.number(n)))
        return held
