"""Element types that upstream's lowering of StableHLO handles badly: unsigned integers, sums in 16 bits, and floats
that no integer holds.
"""

from typing import Any

from meshweave.bindings import ir
from meshweave.frontends.build import Builder


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
    hardware for it. An algorithm that the program names is never more exact than ours; upstream refuses them all.
    """
    if "algorithm" in op.attributes:
        del op.attributes["algorithm"]
    result = op.results[0]
    kind = result.type
    if not isinstance(kind.element_type, ir.FloatType) or kind.element_type.width >= 32:
        return
    wide = ir.RankedTensorType.get(kind.shape, ir.F32Type.get())
    attrs = {name: op.attributes[name] for name in op.attributes}
    product = _before(op, op.name, wide, *op.operands, **attrs)
    result.replace_all_uses_with(_before(op, "stablehlo.convert", kind, product))
    op.erase()


def make_signless(main: Any) -> None:
    """Unsigned arguments that only come back as results: upstream converts types where there are ops."""
    block = main.regions[0].blocks[0]
    types = [_signless(argument.type) for argument in block.arguments]
    if types == [argument.type for argument in block.arguments]:
        return
    for argument, kind in zip(block.arguments, types, strict=True):
        argument.set_type(kind)
    end = block.operations[len(block.operations) - 1].operation
    kind = ir.FunctionType.get(types, [value.type for value in end.operands])
    main.attributes["function_type"] = ir.TypeAttr.get(kind)


def _signless(kind: Any) -> Any:
    element = getattr(kind, "element_type", None)
    if not isinstance(element, ir.IntegerType) or element.is_signless:
        return kind
    return ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(element.width))


def saturate(module: Any) -> None:
    """Floats to integers as XLA does it: what is too large or too small becomes the nearest integer there is, NaN
    becomes 0. The ops of arith leave it open.
    """
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in ("arith.fptosi", "arith.fptoui"):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        _saturate(op)


def _saturate(op: Any) -> None:
    value, result = op.operands[0], op.results[0]
    width, signed = result.type.width, op.name == "arith.fptosi"
    b = Builder(ir.InsertionPoint(op), op.location)

    def chosen(predicate: str, bound: float, limit: int, otherwise: Any) -> Any:
        number = ir.FloatAttr.get(value.type, bound)
        other = b.one("arith.constant", value.type, value=number)
        return b.select(b.compare_floats(predicate, value, other), integer(limit), otherwise)

    def integer(number: int) -> Any:
        unsigned = number - (1 << width) if number >= 1 << (width - 1) else number
        return b.number(unsigned, result.type)

    low, high = (-(1 << (width - 1)), 1 << (width - 1)) if signed else (0, 1 << width)
    converted = b.one(op.name, result.type, value)
    # Powers of two: floats hold them, or are infinite.
    held = chosen("oge", float(high), high - 1, chosen("ole", float(low), low, converted))
    result.replace_all_uses_with(chosen("uno", 0.0, 0, held))
    op.erase()


def _before(op: Any, name: str, kind: Any, *operands: Any, **attributes: Any) -> Any:
    """An op with one result in front of `op`; the result."""
    ip = ir.InsertionPoint(op)
    return ir.Operation.create(
        name, [kind], list(operands), attributes, loc=op.location, ip=ip
    ).result
