"""Let a slice or a pad that is moved to windows run on them: its operand comes in windows of its own, in one move.

before:  b = slice(redistribute(a, "[_{0,999,1}]"));  c = redistribute(b, "[x*_{250,0,250}]")
after:   c = slice(redistribute(a, "[x*_{250,999,250}]"))

Rolls and stencils put slices side by side: what lies in its place already is not moved at all. A convolution reads what
is padded through windows: these are padded.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.ir.bindings import ir
from meshweave.ir.build import DYNAMIC, static_offsets, static_sizes, static_strides
from meshweave.layout.layout import Factor, Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import REST, AxisFactor, LocalFactor
from meshweave.transforms.propagation.rules.moving import kept_dims

SLICE, PAD = "tensor.extract_slice", "tensor.pad"
Factors = tuple[Factor, ...]


@dataclass(frozen=True)
class SlicedDim:
    """Describe what a slice takes of a dim of `whole` elements: `count` from `offset` on, `stride` apart."""

    whole: int
    offset: int
    count: int
    stride: int

    def read(
        self, target: Layout, dim: int, mesh: Mesh, shape: tuple[int, ...], ends: bool
    ) -> Factors | None:
        """Return the factors of the operand's dim that give the result its dim in `target`; None for no such.

        ends: whether who reads the result is to see where it ends.
        """
        axes, window = target.axes_of(dim), target.window(dim)
        block = target.dims[dim] == (*map(AxisFactor, axes), REST)
        if (self.offset, self.count, self.stride) == (0, self.whole, 1):
            return target.dims[dim]
        if window is None and not (block and axes):
            return None
        size = target.local_shape(mesh, shape)[dim]
        step, low = window if window is not None else (size, 0)
        ranks = mesh.axis_count(axes)
        beyond = step * (ranks - 1) + low + size - self.count
        if (
            ends
            and 0 < beyond < ranks
            and self.offset + (self.count - 1) * self.stride + 1 < self.whole
        ):
            return None  # what is read instead of padding would hide from dist-verify where the result ends
        step, low = step * self.stride, low * self.stride + self.offset
        size = (size - 1) * self.stride + 1
        return (*map(AxisFactor, axes), _last(size, step, low, self.whole, axes, mesh))


def _last(size: int, step: int, low: int, whole: int, axes: tuple[str, ...], mesh: Mesh) -> Factor:
    """Return the factor of `size` elements of a rank, from `low` on, `step` from rank to rank; of blocks theirs."""
    block = bool(axes) and low == 0 and step == size == -(-whole // mesh.axis_count(axes))
    return REST if block else LocalFactor(size, (step, low))


def read_for(
    op: ir.Operation, read: Layout, target: Layout, mesh: Mesh, ends: bool = True
) -> Layout | None:
    """Return the layout in which a slice or pad reads its operand to make its result in `target`; None for no such.

    read: the layout that it is read in now. Dims that the slice drops, or takes whole on each rank, stay as they are.
    ends: whether who reads the result is to see where it ends.
    """
    if target.partial or read.partial or target.order or read.order:
        return None
    if op.name == PAD:
        return _padded(op, read, target, mesh)
    if op.name != SLICE:
        return None
    shape, whole = tuple(op.results[0].type.shape), op.operands[0].type.shape
    sizes, offsets, strides = static_sizes(op), static_offsets(op), static_strides(op)
    kept = kept_dims(sizes, list(shape))
    rows: list[Factors] = []
    for d, factors in enumerate(read.dims):
        stays = d not in kept or target.dims[kept.index(d)] == (REST,)
        if stays:
            if d in kept and read.axes_of(d):
                return None
            rows.append(factors)
            continue
        if DYNAMIC in (offsets[d], strides[d]):
            return None
        dim = SlicedDim(whole[d], offsets[d], sizes[d], strides[d])
        found = dim.read(target, kept.index(d), mesh, shape, ends)
        if found is None:
            return None
        rows.append(found)
    return Layout(tuple(rows))


def _padded(op: ir.Operation, read: Layout, target: Layout, mesh: Mesh) -> Layout | None:
    """Return the layout in which a pad reads its operand to make its result in windows; None for no such.

    Dims in windows are those that it runs on in parts already.
    """
    lows, highs = (list(op.attributes[name]) for name in ("static_low", "static_high"))
    whole = op.operands[0].type.shape
    rows: list[Factors] = []
    for d, (low, high) in enumerate(zip(lows, highs)):
        window, axes = target.window(d), target.axes_of(d)
        if window is None:
            if (low or high) and (axes or read.axes_of(d) or read.window(d) is not None):
                return None
            rows.append(read.dims[d] if low or high else target.dims[d])
            continue
        last = target.dims[d][-1]
        if not axes or read.axes_of(d) != axes or min(low, high) < 0:
            return None
        assert isinstance(last, LocalFactor) and last.extent is not None
        step, low = window[0], window[1] - low
        rows.append((*target.dims[d][:-1], _last(last.extent, step, low, whole[d], axes, mesh)))
    return Layout(tuple(rows))
