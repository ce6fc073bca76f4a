"""Lower convolutions of every kind to sums of products over loops, with nothing written apart and no zeros in between.

before:  stablehlo.convolution(%image, %window), stride s, window dilation d, in groups
after:   linalg.generic over batch, group, places p, channels and window k, which reads the image at p * s + k * d

An image that is dilated itself (the gradient of a convolution with a stride, a transposed convolution) meets a part of
the window at each place, the same part at every so manieth place: there is one sum for each such part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshweave.errors import CompileError
from meshweave.frontends.windows import Phase, WindowDim, phases
from meshweave.ir.bindings import ir, stablehlo
from meshweave.ir.build import IteratorType, OpBuilder, Values, i64_array, tensor_type
from meshweave.ir.locations import location_text
from meshweave.ir.ops import replace_op

Dims = tuple[str, ...]
"""Names of a tensor's dims: "n" batch, "g" group, "o" results, "c" channels, "0", "1", ... the dims of space."""


@dataclass(frozen=True)
class Operands:
    """Hold the tensors of a convolution whose groups are dims, and the names of the dims, those of the result too."""

    image: ir.Value
    window: ir.Value
    dims: tuple[Dims, Dims, Dims]
    axes: tuple[WindowDim, ...]

    @property
    def shape(self) -> list[int]:
        """Return the shape of the result."""
        sizes = dict(zip(self.dims[0], self.image.type.shape))
        sizes |= dict(zip(self.dims[1], self.window.type.shape))
        sizes |= {str(k): axis.result for k, axis in enumerate(self.axes)}
        return [sizes[d] for d in self.dims[2]]


def _lower(op: ir.Operation) -> None:
    """Lower a convolution of floats or signless integers; the others, and empty ones, are upstream's.

    Products of 16-bit floats are added up in f32 and rounded once, as hardware does.
    """
    type_ = op.results[0].type
    shapes = [v.type.shape for v in (*op.operands, op.results[0])]
    if any(0 in shape for shape in shapes) or not all(_computes(v.type) for v in op.operands):
        return
    b = OpBuilder.before(op)
    element = type_.element_type
    if isinstance(element, ir.FloatType) and element.width < 32:
        element = ir.F32Type.get()
    made = _convolved(b, _read(b, op), element)
    made = b.one("stablehlo.reshape", tensor_type(type_.shape, element), made)
    if made.type != type_:
        made = b.one("stablehlo.convert", type_, made)
    replace_op(op, [made])


def _computes(type_: ir.Type) -> bool:
    element = type_.element_type
    if isinstance(element, ir.IntegerType):
        return bool(element.is_signless and element.width > 1)
    return isinstance(element, ir.FloatType)


def _read(b: OpBuilder, op: ir.Operation) -> Operands:
    """Return the operands of a stablehlo.convolution, its window turned where that is asked for, groups as dims."""
    hlo = stablehlo()
    if hlo is None:
        raise CompileError("stablehlo.convolution: no StableHLO bindings", location_text(op))
    numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, window = op.operands
    space = [list(found) for found in (
        numbers.input_spatial_dimensions,
        numbers.kernel_spatial_dimensions,
        numbers.output_spatial_dimensions,
    )]  # fmt: skip
    axes = _axes(op, space)
    turned = [d for d, on in zip(space[1], _numbers(op, "window_reversal", len(axes), 0)) if on]
    if turned:
        window = b.one("stablehlo.reverse", window.type, window, dimensions=i64_array(turned))
    by_channel, by_batch = (
        ir.IntegerAttr(op.attributes[f"{name}_group_count"]).value for name in ("feature", "batch")
    )
    dims = (
        _names(space[0], numbers.input_batch_dimension, "n", numbers.input_feature_dimension, "c"),
        _names(
            space[1], numbers.kernel_output_feature_dimension, "o",
            numbers.kernel_input_feature_dimension, "c",
        ),
        _names(space[2], numbers.output_batch_dimension, "n", numbers.output_feature_dimension, "o"),
    )  # fmt: skip
    groups = max(by_channel, by_batch)
    if groups == 1:
        return Operands(image, window, dims, axes)
    image = _grouped(b, image, dims[0].index("n" if by_batch > 1 else "c"), groups)
    window = _grouped(b, window, dims[1].index("o"), groups)
    names = zip(dims, ("n" if by_batch > 1 else "c", "o", "o"))
    first, second, third = (_with_group(found, name) for found, name in names)
    return Operands(image, window, (first, second, third), axes)


def _names(space: Sequence[int], one: int, name: str, other: int, called: str) -> Dims:
    """Return the names of the dims of a tensor: those of space, and two others."""
    names = {d: str(k) for k, d in enumerate(space)} | {one: name, other: called}
    return tuple(names[d] for d in range(len(names)))


def _with_group(dims: Dims, name: str) -> Dims:
    at = dims.index(name)
    return (*dims[:at], "g", *dims[at:])


def _grouped(b: OpBuilder, value: ir.Value, dim: int, groups: int) -> ir.Value:
    """Split a dim of a tensor into groups and what is in one."""
    shape = list(value.type.shape)
    split = [*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :]]
    return b.one("stablehlo.reshape", tensor_type(split, value.type.element_type), value)


def _axes(op: ir.Operation, space: Sequence[Sequence[int]]) -> tuple[WindowDim, ...]:
    count = len(space[0])
    sizes = [
        [value.type.shape[d] for d in dims]
        for value, dims in zip((*op.operands, op.results[0]), space)
    ]
    low = _numbers(op, "padding", 2 * count, 0)[::2]
    return tuple(
        WindowDim(*numbers)
        for numbers in zip(
            *sizes,
            _numbers(op, "window_strides", count, 1),
            _numbers(op, "rhs_dilation", count, 1),
            low,
            _numbers(op, "lhs_dilation", count, 1),
        )
    )


def _numbers(op: ir.Operation, name: str, count: int, default: int) -> list[int]:
    """Return an attribute of numbers."""
    attr = op.attributes.get(name)
    return [default] * count if attr is None else [int(n) for n in attr]


def _convolved(b: OpBuilder, given: Operands, element: ir.Type) -> ir.Value:
    """Make the sums of all phases, and put them side by side: the result."""
    by_axis = [phases(axis) for axis in given.axes]
    apart = _shape_apart(given, [len(found) for found in by_axis])
    type_ = tensor_type([n for sizes in apart for n in sizes], element)
    parts = list(itertools.product(*by_axis))
    met = [part for part in parts if all(phase.axis is not None for phase in part)]
    if len(parts) == len(met) == 1:
        return _sum(b, _part(b, given, parts[0]), element)
    zero = b.constant(zero_of(element))
    total = b.empty(type_) if len(parts) == len(met) else b.fill(zero, type_)
    for part in met:
        made = _sum(b, _part(b, given, part), element)
        numbers = {str(k): phase.number for k, phase in enumerate(part)}
        names = zip(given.dims[2], apart)
        offsets = [n for d, sizes in names for n in (0, numbers.get(d, 0))[: len(sizes)]]
        sizes = [n for sizes in apart for n in (sizes[0], 1)[: len(sizes)]]
        total = b.insert_slice(made, total, offsets, sizes)
    whole = tensor_type([prod(sizes) for sizes in apart], element)
    total = b.one("stablehlo.reshape", whole, total)
    return b.extract_slice(total, tensor_type(given.shape, element), [0] * len(apart))


def _shape_apart(given: Operands, counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the sizes that each dim of the result is made of: (places of a phase, phases) where it has several."""
    several = {str(k): n for k, n in enumerate(counts) if n > 1}
    return [
        (-(-size // several[d]), several[d]) if d in several else (size,)
        for d, size in zip(given.dims[2], given.shape)
    ]


def zero_of(element: ir.Type) -> ir.Attribute:
    """Return the number 0 of a type."""
    if isinstance(element, ir.IntegerType):
        return ir.IntegerAttr.get(element, 0)
    return ir.FloatAttr.get(element, 0.0)


def _part(b: OpBuilder, given: Operands, part: Sequence[Phase]) -> Operands:
    """Return the operands of one phase: its part of the window, and the image with the zeros around it."""
    axes = tuple([phase.axis for phase in part if phase.axis is not None])
    window = given.window
    for phase, name in zip(part, map(str, range(len(part)))):
        window = _every(b, window, given.dims[1].index(name), *phase.window)
    image, rank = given.image, len(given.dims[0])
    low, high = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        at = given.dims[0].index(str(k))
        low[at], high[at] = axis.low, axis.high
    if any(low) or any(high):
        shape = [n + x + y for n, x, y in zip(image.type.shape, low, high)]
        element = image.type.element_type
        zero = b.scalar_tensor(b.constant(zero_of(element)))
        image = b.one(
            "stablehlo.pad", tensor_type(shape, element), image, zero,
            edge_padding_low=i64_array(low), edge_padding_high=i64_array(high),
            interior_padding=i64_array([0] * rank),
        )  # fmt: skip
    return Operands(image, window, given.dims, axes)


def _every(b: OpBuilder, value: ir.Value, dim: int, first: int, step: int) -> ir.Value:
    """Return what stands at first, first + step, ... of a dim."""
    shape = list(value.type.shape)
    size = shape[dim]
    starts, limits, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[dim], steps[dim], shape[dim] = first, step, -(-(size - first) // step)
    if shape == limits:
        return value
    type_ = tensor_type(shape, value.type.element_type)
    return b.one(
        "stablehlo.slice", type_, value,
        start_indices=i64_array(starts), limit_indices=i64_array(limits), strides=i64_array(steps),
    )  # fmt: skip


def _sum(b: OpBuilder, given: Operands, element: ir.Type) -> ir.Value:
    """Make the sum over channels and window. The batch of a result in groups of the batch is what one group has."""
    space = [str(k) for k in range(len(given.axes))]
    loops = [*given.dims[2], *(f"k{d}" if d in space else d for d in given.dims[1])]
    loops = list(dict.fromkeys(loops))
    index = {name: ir.AffineDimExpr.get(k) for k, name in enumerate(loops)}
    met = {
        d: index[d] * axis.stride + index[f"k{d}"] * axis.dilation
        for d, axis in zip(space, given.axes)
    }
    taps = {d: index[f"k{d}"] for d in space}
    maps = [
        ir.AffineMap.get(len(loops), 0, [{**index, **found}[d] for d in dims])
        for dims, found in zip(given.dims, (met, taps, {}))
    ]
    kinds = [IteratorType.PARALLEL if d in given.dims[2] else IteratorType.REDUCTION for d in loops]
    total = b.fill(b.constant(zero_of(element)), tensor_type(given.shape, element))

    def add_product(inner: OpBuilder, values: Values) -> Values:
        x, y = (_widened(inner, value, element) for value in values[:2])
        suffix = "i" if isinstance(element, ir.IntegerType) else "f"
        return [inner.binary(f"add{suffix}", values[2], inner.binary(f"mul{suffix}", x, y))]

    return b.generic([given.image, given.window], [total], maps, kinds, add_product).result


def _widened(b: OpBuilder, value: ir.Value, element: ir.Type) -> ir.Value:
    if value.type == element:
        return value
    op = "arith.extsi" if isinstance(element, ir.IntegerType) else "arith.extf"
    return b.one(op, element, value)


LOWER = {"stablehlo.convolution": _lower}
