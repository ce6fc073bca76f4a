"""Lower calls: of functions of Python, which JAX's face has given numbers, to `mw.host`, of LAPACK, of selections."""

from meshweave.frontends.stablehlo import CALLBACK
from meshweave.frontends.stablehlo.lowerings.lapack import lower_library_call
from meshweave.frontends.stablehlo.lowerings.sorting import (
    approximate_order,
    lower_approximate_top_k,
)
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64, tensor_type
from meshweave.ir.calls import HOST


def is_callback(op: ir.Operation) -> bool:
    """Tell whether a custom_call calls a function of Python that this process has."""
    return bool(ir.StringAttr(op.attributes["call_target_name"]).value == CALLBACK)


def lower_custom_call(op: ir.Operation) -> None:
    """Lower a stablehlo.custom_call of what is known here; leave others."""
    if is_callback(op):
        _lower_callback(op)
    elif (how := approximate_order(op)) is not None:
        lower_approximate_top_k(op, how)
    else:
        lower_library_call(op)


def _lower_callback(op: ir.Operation) -> None:
    """Lower a call of Python. Integers are signless in it, and what has no elements is left out."""
    number, _, name = ir.StringAttr(op.attributes["backend_config"]).value.partition(" ")
    by_first = _has_effects(op) and not _is_of_ranks(op)
    names = ["effects", *["first"] * by_first] if _has_effects(op) else []
    b = OpBuilder.before(op)
    operands = [_as(b, v, _signless(v.type)) for v in op.operands if 0 not in v.type.shape]
    results = [result for result in op.results if 0 not in result.type.shape]
    types = [_bits(r.type) if by_first else _signless(r.type) for r in results]
    if names and not types:
        types = [tensor_type([], ir.IntegerType.get_signless(1))]
    said = {"number": i64(int(number)), "function": ir.StringAttr.get(name)}
    made = b.op(HOST, types, operands, **said, **dict.fromkeys(names, ir.UnitAttr.get())).results
    for value, result in zip(made, results):
        result.replace_all_uses_with(_as(b, value, result.type))
    for result in op.results:
        if 0 in result.type.shape:
            result.replace_all_uses_with(b.empty(result.type))
    op.erase()


def _has_effects(op: ir.Operation) -> bool:
    return "has_side_effect" in op.attributes and bool(
        ir.BoolAttr(op.attributes["has_side_effect"]).value
    )


def _is_of_ranks(op: ir.Operation) -> bool:
    """Tell whether an op is in a `shard_map`: there every rank has its own part, and calls for it."""
    parent = op.parent
    while parent is not None and "dist.manual" not in parent.operation.attributes:
        parent = parent.operation.parent
    return parent is not None


def _signless(type_: ir.Type) -> ir.Type:
    element = type_.element_type
    if not isinstance(element, ir.IntegerType):
        return type_
    return tensor_type(type_.shape, ir.IntegerType.get_signless(element.width))


def _bits(type_: ir.Type) -> ir.Type:
    """Return the integers that have the bits of elements: ranks add zeros to these, which changes none."""
    element = type_.element_type
    width = 8 if str(element) == "i1" else element.width
    return tensor_type(type_.shape, ir.IntegerType.get_signless(width))


def _as(b: OpBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return a value's bits as another type; bytes of 0 and 1 as i1."""
    if value.type == type_:
        return value
    same = value.type.element_type.width == type_.element_type.width
    return b.one("stablehlo.bitcast_convert" if same else "stablehlo.convert", type_, value)


LOWER = {"stablehlo.custom_call": lower_custom_call}
