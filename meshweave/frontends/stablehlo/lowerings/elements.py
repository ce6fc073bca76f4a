"""Mend what upstream's lowering of StableHLO gets wrong by element type.

These are unsigned integers, booleans, sums in 16 bits, and floats that no integer or no mantissa holds.
"""

import math

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder, i64, i64_array, tensor_type
from meshweave.ir.ops import body_of, ops_named, replace_op, terminator


def _broadcast(op: ir.Operation) -> None:
    """Broadcast without dims of one element that become longer: upstream makes wrong linalg of some."""
    value, result = op.operands[0], op.results[0]
    shape = tuple(value.type.shape)
    if 1 in shape and len(shape) < result.type.rank and value.type.has_static_shape:
        dims = list(op.attributes["broadcast_dimensions"])
        kept = [k for k, d in enumerate(dims) if shape[k] != 1 or result.type.shape[d] == 1]
        if len(kept) < len(dims):
            b = OpBuilder.before(op)
            type_ = tensor_type([shape[k] for k in kept], value.type.element_type)
            op.operands[0] = b.one("stablehlo.reshape", type_, value)
            op.attributes["broadcast_dimensions"] = i64_array([dims[k] for k in kept])
    _broadcast_bits(op)


def _broadcast_bits(op: ir.Operation) -> None:
    """Broadcast an unsigned scalar as a signless one: upstream makes wrong linalg of the unsigned."""
    value, result = op.operands[0], op.results[0]
    element = value.type.element_type
    if value.type.rank or not isinstance(element, ir.IntegerType) or not element.is_unsigned:
        return
    b, signless = OpBuilder.before(op), ir.IntegerType.get_signless(element.width)
    wide = tensor_type(result.type.shape, signless)
    dims = op.attributes["broadcast_dimensions"]
    bits = b.one("stablehlo.bitcast_convert", tensor_type([], signless), value)
    bits = b.one("stablehlo.broadcast_in_dim", wide, bits, broadcast_dimensions=dims)
    replace_op(op, [b.one("stablehlo.bitcast_convert", result.type, bits)])


def _accumulate_wide(op: ir.Operation) -> None:
    """Add a product of 16-bit floats up in f32 and round it once, as hardware does.

    An algorithm that the program names is never more exact than ours, and upstream refuses them all: it is dropped.
    """
    if "algorithm" in op.attributes:
        del op.attributes["algorithm"]
    type_ = op.results[0].type
    if not isinstance(type_.element_type, ir.FloatType) or type_.element_type.width >= 32:
        return
    b = OpBuilder.before(op)
    attrs = {name: op.attributes[name] for name in op.attributes}
    product = b.one(op.name, tensor_type(type_.shape, ir.F32Type.get()), *op.operands, **attrs)
    replace_op(op, [b.one("stablehlo.convert", type_, product)])


def make_signless(main: ir.Operation) -> None:
    """Make unsigned arguments that only come back as results signless: upstream converts types where there are ops."""
    block = body_of(main)
    types = [_signless(argument.type) for argument in block.arguments]
    if types == [argument.type for argument in block.arguments]:
        return
    for argument, type_ in zip(block.arguments, types, strict=True):
        argument.set_type(type_)
    results = [value.type for value in terminator(block).operands]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, results))


def _signless(type_: ir.Type) -> ir.Type:
    element = getattr(type_, "element_type", None)
    if not isinstance(element, ir.IntegerType) or element.is_signless:
        return type_
    return tensor_type(type_.shape, ir.IntegerType.get_signless(element.width))


def saturate(module: ir.Module) -> None:
    """Convert floats to integers as XLA does: the nearest integer there is, and 0 for NaN.

    The ops of arith leave open what becomes of floats that no integer holds.
    """
    for op in ops_named(module.operation, "arith.fptosi", "arith.fptoui"):
        _saturate(op)


def _saturate(op: ir.Operation) -> None:
    value, result = op.operands[0], op.results[0]
    width, signed = result.type.width, op.name == "arith.fptosi"
    b = OpBuilder.before(op)
    low, high = (-(1 << (width - 1)), 1 << (width - 1)) if signed else (0, 1 << width)
    # Floats that hold the limits are chosen among themselves: choices between numbers of another width cost more.
    as_floats = width <= _MANTISSA.get(str(value.type), 0)
    found = value if as_floats else b.one(op.name, result.type, value)
    # The bounds are powers of two, or limits: floats hold them, or are infinite.
    for predicate, bound, limit in (
        (arith.CmpFPredicate.OLE, low, low),
        (arith.CmpFPredicate.OGE, high - as_floats, high - 1 if signed else -1),  # -1: all bits
        (arith.CmpFPredicate.UNO, 0, 0),
    ):
        edge = b.constant(ir.FloatAttr.get(value.type, float(bound)))
        chosen = edge if as_floats else b.integer(limit, result.type)
        found = b.select(b.compare(predicate, value, edge), chosen, found)
    replace_op(op, [b.one(op.name, result.type, found) if as_floats else found])


_MANTISSA = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}
"""Bits of whole numbers, all of which a float holds."""


def add_booleans(op: ir.Operation) -> None:
    """Make a sum of booleans an `or`, as StableHLO defines it: upstream adds their bits."""
    type_ = op.results[0].type
    if isinstance(type_.element_type, ir.IntegerType) and str(type_.element_type) == "i1":
        replace_op(op, [OpBuilder.before(op).one("stablehlo.or", type_, *op.operands)])


def _reduce_precision(op: ir.Operation) -> None:
    """Make infinities of NaNs where no bits of the mantissa are left to tell them apart; upstream keeps them."""
    value, type_ = op.operands[0], op.results[0].type
    if ir.IntegerAttr(op.attributes["mantissa_bits"]).value:
        return
    b = OpBuilder.before(op)
    endless = ir.DenseElementsAttr.get_splat(type_, ir.FloatAttr.get(type_.element_type, math.inf))
    i1 = tensor_type(type_.shape, ir.IntegerType.get_signless(1))
    direction = ir.Attribute.parse("#stablehlo<comparison_direction NE>")
    nan = b.one("stablehlo.compare", i1, value, value, comparison_direction=direction)
    infinity = b.one("stablehlo.constant", type_, value=endless)
    number = b.one("stablehlo.select", type_, nan, infinity, value)
    op.operands[0] = number


def _complex_bits(op: ir.Operation) -> None:
    """Take bits of complex numbers part by part: upstream crashes on them."""
    (value,), type_ = op.operands, op.results[0].type
    if not isinstance(type_.element_type, ir.ComplexType):
        return
    if value.type == type_:
        replace_op(op, [value])
        return
    b, shape = OpBuilder.before(op), list(type_.shape)
    given, made = value.type.element_type.element_type, type_.element_type.element_type
    own, part = list(value.type.shape), tensor_type([*shape, 1], made)
    parts = [
        b.one(
            "stablehlo.reshape",
            tensor_type([*own, 1], given),
            b.one(name, tensor_type(own, given), value),
        )
        for name in ("stablehlo.real", "stablehlo.imag")
    ]
    both = b.one(
        "stablehlo.concatenate", tensor_type([*own, 2], given), *parts, dimension=i64(len(own))
    )
    bits = b.one("stablehlo.bitcast_convert", tensor_type([*shape, 2], made), both)
    halves = []
    for k in (0, 1):
        where = {"start_indices": [0] * len(shape) + [k], "limit_indices": [*shape, k + 1]}
        limits = {name: ir.DenseI64ArrayAttr.get(at) for name, at in where.items()}
        strides = ir.DenseI64ArrayAttr.get([1] * len(part.shape))
        half = b.one("stablehlo.slice", part, bits, strides=strides, **limits)
        halves.append(b.one("stablehlo.reshape", tensor_type(shape, made), half))
    replace_op(op, [b.one("stablehlo.complex", type_, *halves)])


LOWER = {
    "stablehlo.bitcast_convert": _complex_bits,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.dot_general": _accumulate_wide,
    "stablehlo.reduce_precision": _reduce_precision,
}
