"""Lower windows that hold all elements up to each place, as cumulative sums do, to scans; leave the others alone."""

from math import prod

import numpy as np

from meshweave.frontends.stablehlo.lowerings.loops import apply_reducer
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, Values, tensor_type
from meshweave.ir.ops import body_of, replace_op
from meshweave.ir.scans import scan

_ROUNDING = {"stablehlo.add": "addf", "stablehlo.multiply": "mulf"}
"""What rounds in each step: 16-bit floats are combined in f32."""


def lower_cumulative(op: ir.Operation) -> None:
    """Lower a stablehlo.reduce_window whose windows begin at the first element, or end at the last, to an mw.scan."""
    found = _direction(op)
    if found is None:
        return
    dim, reverse = found
    b, block, count = OpBuilder.before(op), body_of(op), len(op.results)
    inputs, inits = list(op.operands)[:count], list(op.operands)[count:]
    rounding = _rounding(block)
    if rounding:
        inputs, inits = [_as(b, inputs[0], ir.F32Type.get())], [_as(b, inits[0], ir.F32Type.get())]
    shape = list(inputs[0].type.shape)
    rest = [*shape[:dim], *shape[dim + 1 :]]
    starts = [
        b.one("tensor.splat", tensor_type(rest, v.type.element_type), b.element(v)) for v in inits
    ]

    def combine(inner: OpBuilder, scalars: list[ir.Value]) -> Values:
        if rounding:
            return [inner.binary(rounding, *scalars)]
        return apply_reducer(inner, block, scalars)

    made = scan(b, inputs, starts, dim, combine, reverse)
    kinds = [r.type.element_type for r in op.results]
    replace_op(op, [_as(b, v, kind) for v, kind in zip(made, kinds, strict=True)])


def _rounding(block: ir.Block) -> str:
    """Return the op of arith on f32 that a body of 16-bit floats is; "" for any other body."""
    kind = block.arguments[0].type.element_type
    first = block.operations[0].operation
    if not isinstance(kind, ir.FloatType) or kind.width > 16 or len(block.operations) != 2:
        return ""
    of_both = set(first.operands) == set(block.arguments) and len(block.arguments) == 2
    return _ROUNDING.get(first.name, "") if of_both else ""


def _as(b: OpBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Return a tensor with elements of another type."""
    if value.type.element_type == kind:
        return value
    return b.one("stablehlo.convert", tensor_type(value.type.shape, kind), value)


def _direction(op: ir.Operation) -> tuple[int, bool] | None:
    """Return the dim that windows run along, and whether they end at its end; None where they are of another form."""
    shape = list(op.operands[0].type.shape)
    window = _numbers(op, "window_dimensions")
    steps = ("window_strides", "base_dilations", "window_dilations")
    dims = [d for d, n in enumerate(window) if n != 1]
    if len(dims) != 1 or any(prod(_numbers(op, name)) != 1 for name in steps):
        return None
    (dim,) = dims
    if window[dim] != shape[dim]:
        return None
    padding = _numbers(op, "padding")
    before, after = padding[2 * dim : 2 * dim + 2]
    if sum(map(abs, padding)) != shape[dim] - 1 or max(before, after) != shape[dim] - 1:
        return None
    return dim, after > 0


def _numbers(op: ir.Operation, name: str) -> list[int]:
    return [int(n) for n in np.array(op.attributes.get(name, [])).reshape(-1)]


LOWER = {"stablehlo.reduce_window": lower_cumulative}
