"""Weights of few bits: numbers of 8 or 4 bits in blocks, each block with a scale, laid out together.

The two arrays of a `QuantizedArray` are a pytree, so that a function under `mw.jit` takes one as an argument, and
propagation lays both out. Products scale sums, not weights: `x @ q` reads the weights as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np

from meshweave.api.jit import Jitted, jit
from meshweave.errors import LayoutError, MeshweaveError, UsageError
from meshweave.frontends.python.builder import current, fail
from meshweave.frontends.python.dtypes import bfloat16, float16, float32, float64
from meshweave.frontends.python.functions.linalg import matmul
from meshweave.frontends.python.functions.logic import bitwise_left_shift, bitwise_right_shift
from meshweave.frontends.python.functions.manipulate import (
    broadcast_to,
    permute_dims,
    reshape,
    stack,
)
from meshweave.frontends.python.functions.reduce import sum as sum_of
from meshweave.frontends.python.tracer import Tracer, tensor
from meshweave.layout import AxisFactor, Layout, LocalFactor, Mesh
from meshweave.layout.digits import dim_indices, from_allocation
from meshweave.layout.notation import Factor
from meshweave.runtime.arrays.array import Array, as_numpy
from meshweave.runtime.arrays.elements import wide
from meshweave.runtime.memory import Values

Held: TypeAlias = "Array | Tracer"
BITS = {"int8": 8, "int4": 4}
_TEXT = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*")


@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """Hold a matrix as numbers of few bits and the scale of each block of them; `quantize` makes one.

    values: the numbers, as i8; of 4 bits two neighbours of the last dim in one, the first in its lower bits.
    scales: f32, one for each block: a number stands for itself times the scale of its block.

    `x @ q` is a product with what it stands for, in a function of `mw.jit` that takes `q` as an argument, and
    outside. It is a pytree of its two arrays, so that `mw.save` and `in_layouts` take it.
    """

    values: Any
    scales: Any

    __array_ufunc__ = None  # NumPy leaves `x @ q` to us

    @property
    def bits(self) -> int:
        """Return the bits of a number."""
        return 8

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of what it stands for."""
        shape: tuple[int, ...] = tuple(self.values.shape)
        return (*shape[:-1], shape[-1] * 8 // self.bits)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Return the extents of a block."""
        return tuple(n // max(1, k) for n, k in zip(self.shape, self.scales.shape))

    def dequantize(self) -> Any:
        """Return what it stands for as f32: in a traced function a value of it, else an Array in its layout."""
        if current() is not None:
            return _numbers(self)
        return _placed(self)

    def __rmatmul__(self, x: Any) -> Any:
        """Return x @ what it stands for, in the dtype of x."""
        if current() is not None:
            return _product(tensor(x), self)
        mesh = self.values.mesh
        return _compiled(mesh)(x, self)

    def __repr__(self) -> str:
        """Describe it by the number type, the blocks and the array of numbers."""
        sizes = "x".join(map(str, self.shape))
        return (
            f"{type(self).__name__}({sizes}, blocks of {list(self.blocks)}, values {self.values!r})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class PackedArray(QuantizedArray):
    """Hold numbers of 4 bits: see `QuantizedArray`."""

    @property
    def bits(self) -> int:
        """Return the bits of a number."""
        return 4


def quantize(array: Any, kind: str) -> QuantizedArray:
    """Return a matrix as numbers of few bits in blocks, each with a scale: the nearest to what it holds.

    array: an Array, or NumPy's, of f64, f32, f16 or bf16; its layout is that of the numbers.
    kind:  the number type, int8 or int4, and the extents of a block, `_` for the whole dim: "int8[_, 1]" has a scale
           for each column, "int8[32, 1]" for 32 rows of a column, "int4[32, 1]" the same with 4 bits.
    Each rank turns its own part. A number is off by at most half a scale, the largest of its block over 127 (7). Raises
    LayoutError for a layout that cuts a block, UsageError for a kind that does not fit.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> w = mw.Array.from_numpy(np.eye(64, dtype=np.float32), mesh="tp=2", layout="[_, tp]")
    >>> q = mw.quantize(w, "int8[32, 1]")
    >>> x = np.arange(64, dtype=np.float32).reshape(1, 64)
    >>> bool(np.allclose(x @ q, x)), q.scales.shape, str(q.scales.layout)
    (True, (2, 64), '[_, tp]')
    """
    source = array if isinstance(array, Array) else _one_rank(array)
    if (
        source.dtype_name not in ("f64", "f32", "f16", "bf16")
        or source.ndim != 2
        or source.layout.partial
    ):
        raise UsageError(
            f"quantize: {source.dtype_name} {list(source.shape)} {source.layout}: a matrix of floats without "
            "pending reductions is right"
        )
    number, blocks = _parsed(kind, source.shape)
    scale_shape = tuple(n // max(1, b) for n, b in zip(source.shape, blocks))
    packed = BITS[number] == 4
    of_scales = _layout_of_blocks(source, blocks, scale_shape)
    layout, shape = Layout(source.layout.dims, uneven=source.layout.uneven), source.shape
    if packed:
        shape = (shape[0], shape[1] // 2)
        layout, wanted = _layout_of_blocks(source, (1, 2), shape), layout
        if _unpacked(layout) != wanted:
            raise LayoutError(f"quantize: layout {wanted}: none of pairs of its columns is like it")
    parts = [_turned(source, rank, blocks, BITS[number]) for rank in range(source.mesh.nranks)]
    values = Array([v for v, _ in parts], source.mesh, layout, shape, "i8")
    scales = Array([s for _, s in parts], source.mesh, of_scales, scale_shape, "f32")
    return (PackedArray if packed else QuantizedArray)(values, scales)


def _one_rank(array: Any) -> Array:
    value = as_numpy(array, "quantize")
    return Array.from_numpy(value, mesh=Mesh(), layout=Layout.replicated(value.ndim))


def _parsed(kind: str, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Return the number type and the extents of a block."""
    found = _TEXT.fullmatch(kind) if isinstance(kind, str) else None
    sizes = [size.strip() for size in found[2].split(",")] if found else []
    if not found or found[1] not in BITS or not all(re.fullmatch(r"_|[1-9]\d*", s) for s in sizes):
        raise UsageError(
            f'quantize: kind {kind!r:.40}: "int8[_, 1]" or "int4[32, 1]", say, is right'
        )
    if len(sizes) != len(shape):
        raise UsageError(f"quantize: kind {kind!r}: {len(sizes)} dims, the array has {len(shape)}")
    blocks = tuple(n if size == "_" else int(size) for size, n in zip(sizes, shape))
    for dim, (size, block) in enumerate(zip(shape, blocks)):
        if size % max(1, block):
            raise UsageError(
                f"quantize: kind {kind!r}: dim {dim} has size {size}, no multiple of {block}"
            )
    if found[1] == "int4" and shape[-1] % 2:
        raise UsageError(
            f"quantize: kind {kind!r}: the last dim has odd size {shape[-1]}, and two share a byte"
        )
    return found[1], blocks


def _layout_of_blocks(array: Array, blocks: Sequence[int], shape: Sequence[int]) -> Layout:
    """Return the layout in which each rank has what belongs to its own blocks.

    Raises LayoutError where a block is cut.
    """
    cut = zip(array.layout.dims, blocks)
    dims = tuple(_scaled_dim(factors, block) for factors, block in cut)
    layout = Layout(dims, uneven=array.layout.uneven)
    for dim, block in enumerate(blocks):
        for rank in range(array.mesh.nranks):
            if not _whole_blocks(array, layout, shape, dim, block, rank):
                held = int(
                    (dim_indices(array.layout, array.mesh, array.shape, dim, rank) >= 0).sum()
                )
                raise LayoutError(
                    f"quantize: layout {array.layout} on ({array.mesh}) cuts blocks of {block} along dim {dim} of "
                    f"size {array.shape[dim]}: rank {rank} holds {held} of it; whole blocks on each rank are right"
                )
    return layout


def _scaled_dim(factors: tuple[Factor, ...], down: int, up: int = 1) -> tuple[Factor, ...]:
    """Return the factors of a dim with the extents of runs divided and multiplied; as they are where that cannot be."""
    first, last = factors[0], factors[-1]
    if isinstance(first, AxisFactor) and first.extents is not None:
        extents = [extent * up for extent in first.extents]
        whole = not any(extent % down for extent in extents)
        shrunk = replace(first, extents=tuple(extent // down for extent in extents))
        return (shrunk, *factors[1:]) if whole else factors
    if isinstance(last, LocalFactor) and last.extent is not None:
        extent = last.extent * up
        return factors if extent % down else (*factors[:-1], replace(last, extent=extent // down))
    return factors


def _whole_blocks(
    array: Array, layout: Layout, shape: Sequence[int], dim: int, block: int, rank: int
) -> bool:
    """Tell whether the places of a rank along a dim are those of its blocks, in their order."""
    try:
        layout.check(array.mesh, shape)
    except LayoutError:
        return False
    held = dim_indices(array.layout, array.mesh, array.shape, dim, rank)
    of_blocks = dim_indices(layout, array.mesh, shape, dim, rank)
    wanted = of_blocks[:, None] * block + np.arange(block)
    wanted[of_blocks < 0] = -1
    return bool(np.array_equal(wanted.reshape(-1), held))


def _turned(array: Array, rank: int, blocks: Sequence[int], bits: int) -> tuple[Values, Values]:
    """Return what a rank holds as numbers of few bits, and their scales."""
    local = from_allocation(array.shards[rank], array.layout, array.mesh, array.shape)
    value = wide(local, array.dtype_name).astype(np.float32)
    rows_in, columns_in = (
        dim_indices(array.layout, array.mesh, array.shape, dim, rank) >= 0 for dim in (0, 1)
    )
    value = np.where(rows_in[:, None] & columns_in, value, 0)  # padding is anything
    if not np.isfinite(value).all():
        raise MeshweaveError(f"quantize: rank {rank} holds numbers that are not finite")
    rows, columns = (n // max(1, b) for n, b in zip(value.shape, blocks))
    cut = value.reshape(rows, blocks[0], columns, blocks[1])
    most = 2 ** (bits - 1) - 1
    scales = np.abs(cut).max(axis=(1, 3), initial=0) / np.float32(most)
    steps = np.where(scales > 0, scales, 1)[:, None, :, None]
    numbers = np.clip(np.rint(cut / steps), -most, most).astype(np.int8).reshape(value.shape)
    if bits == 4:
        numbers = (numbers[:, 0::2] & 15) | (numbers[:, 1::2] << 4)
    return np.ascontiguousarray(numbers), scales.astype(np.float32)


def _placed(array: QuantizedArray) -> Array:
    """Return what it stands for, from each rank's own part."""
    values, blocks = cast(Array, array.values), array.blocks
    shards = []
    for numbers, scales in zip(values.shards, array.scales.shards):
        if array.bits == 4:
            both = np.stack([numbers << 4 >> 4, numbers >> 4], axis=-1)
            numbers = both.reshape(numbers.shape[0], -1)
        wide_scales = scales.repeat(blocks[0], axis=0).repeat(blocks[1], axis=1)
        shards.append(numbers * wide_scales)
    layout = values.layout
    if array.bits == 4:
        layout = _unpacked(layout)
    return Array(shards, values.mesh, layout, array.shape, "f32")


def _unpacked(layout: Layout) -> Layout:
    """Return the layout of numbers of 4 bits from that of pairs of them."""
    rows, columns = layout.dims
    return Layout((rows, _scaled_dim(columns, 1, 2)), uneven=layout.uneven)


@lru_cache(maxsize=64)
def _compiled(mesh: Mesh) -> Jitted:
    return jit(lambda x, q: x @ q, mesh=mesh)


def _halves(array: QuantizedArray) -> list[tuple[Any, Any]]:
    """Return the numbers as i8 with the scales of their columns: of 4 bits the even columns and the odd ones."""
    values, scales = tensor(array.values), tensor(array.scales)
    rows, columns = scales.shape
    scales = reshape(
        broadcast_to(reshape(scales, (rows, columns, 1)), (rows, columns, array.blocks[1])),
        (rows, array.shape[1]),
    )
    if array.bits == 8:
        return [(values, scales)]
    low = bitwise_right_shift(bitwise_left_shift(values, 4), 4)
    return [(low, scales[:, 0::2]), (bitwise_right_shift(values, 4), scales[:, 1::2])]


def _joined(halves: list[Any]) -> Any:
    """Return columns in their order again."""
    if len(halves) == 1:
        return halves[0]
    both = stack(halves, axis=-1)
    return reshape(both, (*both.shape[:-2], 2 * both.shape[-2]))


def _numbers(array: QuantizedArray) -> Any:
    block = array.blocks[0]
    found = []
    for values, scales in _halves(array):
        rows, columns = scales.shape
        cut = reshape(values.astype(float32), (rows, block, columns))
        found.append(reshape(cut * reshape(scales, (rows, 1, columns)), values.shape))
    return _joined(found)


def _product(x: Tracer, array: QuantizedArray) -> Any:
    """Return a product, put together in f32: sums of each block of rows are scaled."""
    depth = array.shape[0]
    if x.ndim == 0 or x.shape[-1] != depth:
        fail(f"matmul: {list(x.shape)} @ {list(array.shape)}: {depth} elements in a row are right")
    if x.dtype not in (float64, float32, float16, bfloat16):
        fail(f"matmul: {x.dtype} @ a QuantizedArray: floats are right")
    flat = reshape(x.astype(float32), (prod(x.shape[:-1]), depth))
    halves = [_scaled(flat, values, scales) for values, scales in _halves(array)]
    return reshape(_joined(halves), (*x.shape[:-1], array.shape[1])).astype(x.dtype)


def _scaled(x: Tracer, values: Any, scales: Any) -> Any:
    """Return the product of rows with numbers, each block of which has a scale for each column."""
    blocks, columns = scales.shape
    if blocks == 1:
        return matmul(x, values.astype(float32)) * scales
    rows, depth = x.shape
    if rows > FEW_ROWS:
        cut = reshape(values.astype(float32), (blocks, depth // blocks, columns))
        return matmul(x, reshape(cut * reshape(scales, (blocks, 1, columns)), (depth, columns)))
    parts = permute_dims(reshape(x, (rows, blocks, depth // blocks)), (1, 0, 2))
    numbers = reshape(values, (blocks, depth // blocks, columns)).astype(float32)
    return sum_of(matmul(parts, numbers) * reshape(scales, (blocks, 1, columns)), axis=0)


FEW_ROWS = 4  # for which sums of each block are scaled; for more the weights are
