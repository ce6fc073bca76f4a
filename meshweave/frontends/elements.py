"""Element types that upstream's lowering of StableHLO handles badly: unsigned integers, and sums
in 16 bits.
"""

from typing import Any

from meshweave.bindings import ir


def broadcast_bits(op: Any) -> None:
    """Upstream makes wrong linalg of a broadcast of an unsigned scalar: broadcast its bits as a
    signless one.
    """
    value, result = op.operands[0], op.results[0]
    kind = value.type
    if (
        kind.rank
        or not isinstance(kind.element_type, ir.IntegerType)
        or not kind.element_type.is_unsigned
    ):
        return
    signless = ir.IntegerType.get_signless(kind.element_type.width)
    narrow = ir.RankedTensorType.get([], signless)
    wide = ir.RankedTensorType.get(result.type.shape, signless)
    dims = {"broadcast_dimensions": op.attributes["broadcast_dimensions"]}
    bits = _before(op, "stablehlo.bitcast_convert", narrow, value)
    spread = _before(op, "stablehlo.broadcast_in_dim", wide, bits, **dims)
    result.replace_all_uses_with(_before(op, "stablehlo.bitcast_convert", result.type, spread))
    op.erase()


def accumulate_wide(op: Any) -> None:
    """A product of 16-bit floats adds up in f32 and is rounded once, as it is wherever there is
    hardware for it.
    """
    result = op.results[0]
    kind = result.type
    if not isinstance(kind.element_type, ir.FloatType) or kind.element_type.width >= 32:
        return
    wide = ir.RankedTensorType.get(kind.shape, ir.F32Type.get())
    attrs = {name: op.attributes[name] for name in op.attributes}
    product = _before(op, op.name, wide, *op.operands, **attrs)
    result.replace_all_uses_with(_before(op, "stablehlo.convert", kind, product))
    op.erase()


def _before(op: Any, name: str, kind: Any, *operands: Any, **attributes: Any) -> Any:
    """An op with one result in front of `op`; the result."""
    ip = ir.InsertionPoint(op)
    return ir.Operation.create(
        name, [kind], list(operands), attributes, loc=op.location, ip=ip
    ).result
