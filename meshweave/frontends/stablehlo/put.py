"""Lower a scatter of one window whose place is known, `x.at[1:-1, 3].set(v)` say.

The window is taken out, updated and put back: slices have rules of their own, which bring a rank only what it lacks.
"""

import math
from typing import Any

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, Values, tensor_type
from meshweave.ir.ops import body_of, producer, replace_op, terminator


def lower_known_window(op: ir.Operation, numbers: Any, reducer: Any) -> bool:
    """Lower a stablehlo.scatter of one window that lies inside of one tensor; return whether it is one.

    reducer: reducer(builder, scalars) builds the new element from the old one and the update.
    """
    if len(op.operands) != 3 or list(numbers.input_batching_dims):
        return False
    value, indices, update = op.operands
    shape, sizes = list(value.type.shape), _window(value, update, numbers)
    starts = _numbers(indices)
    if sizes is None or starts is None or 0 in shape:
        return False
    offsets = [0] * len(shape)
    for dim, start in zip(numbers.scattered_dims_to_operand_dims, starts, strict=True):
        offsets[dim] = start
    if any(not 0 <= at <= n - size for at, n, size in zip(offsets, shape, sizes, strict=True)):
        return False
    body = body_of(op)
    replaces = terminator(body).operands[0] == body.arguments[1]
    if not replaces and 2 * math.prod(sizes) < math.prod(shape):
        return False  # a few elements are brought to where they belong, instead of there and back
    b, type_ = OpBuilder.before(op), tensor_type(sizes, value.type.element_type)
    new = b.one("stablehlo.reshape", type_, update)
    if not replaces:
        old = b.extract_slice(value, type_, offsets)

        def updated(inner: OpBuilder, elements: Values) -> ir.Value:
            return reducer(inner, elements[:2])

        new = b.elementwise([old, new], b.empty(type_), updated)
    replace_op(op, [b.insert_slice(new, value, offsets, sizes)])
    return True


def _window(value: ir.Value, update: ir.Value, numbers: Any) -> list[int] | None:
    """Return the extents of the window along the dims of the tensor; None where there are several windows."""
    given, window = list(update.type.shape), list(numbers.update_window_dims)
    if any(n != 1 for d, n in enumerate(given) if d not in window) or 0 in given:
        return None
    rest = iter([given[d] for d in window])
    inserted = list(numbers.inserted_window_dims)
    return [1 if d in inserted else next(rest) for d in range(len(value.type.shape))]


def _numbers(value: ir.Value) -> list[int] | None:
    """Return integers that are written out, in one constant or side by side; None where they are computed."""
    made = producer(value)
    if made is None:
        return None
    if made.name == "stablehlo.concatenate":
        parts = [_numbers(v) for v in made.operands]
        known = [part for part in parts if part is not None]
        return [n for part in known for n in part] if len(known) == len(parts) else None
    count = math.prod(value.type.shape)
    if made.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        held = _numbers(made.operands[0])
        return held if held is not None and len(held) == count else None
    constant = made.attributes["value"] if made.name == "stablehlo.constant" else None
    if not isinstance(constant, ir.DenseIntElementsAttr):
        return None
    if constant.is_splat:
        return [int(constant.get_splat_value().value)] * count
    return [int(n) for n in constant]
