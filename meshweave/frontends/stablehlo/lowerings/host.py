"""Lower calls: of functions of Python, which JAX's face has given numbers, to `mw.host`, and of LAPACK."""

from meshweave.errors import CompileError
from meshweave.frontends.stablehlo import CALLBACK
from meshweave.frontends.stablehlo.lowerings.lapack import lower_library_call
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64, tensor_type
from meshweave.ir.calls import HOST
from meshweave.ir.locations import location_text


def is_callback(op: ir.Operation) -> bool:
    """Tell whether a custom_call calls a function of Python that this process has."""
    return bool(ir.StringAttr(op.attributes["call_target_name"]).value == CALLBACK)


def lower_custom_call(op: ir.Operation) -> None:
    """Lower a stablehlo.custom_call of what is known here; leave others."""
    if is_callback(op):
        _lower_callback(op)
    else:
        lower_library_call(op)


def _lower_callback(op: ir.Operation) -> None:
    """Lower a call of Python. Integers are signless in it, and what has no elements is left out."""
    number, _, name = ir.StringAttr(op.attributes["backend_config"]).value.partition(" ")
    names = ["effects", *["first"] * (not _is_of_ranks(op))] if _has_effects(op) else []
    effects = dict.fromkeys(names, ir.UnitAttr.get())
    if effects and len(op.results):
        raise CompileError(
            f"not supported: {name} of Python has effects and results: jax.pure_callback, without effects, is right",
            location_text(op),
        )
    b = OpBuilder.before(op)
    operands = [_as(b, v, _signless(v.type)) for v in op.operands if 0 not in v.type.shape]
    results = [result for result in op.results if 0 not in result.type.shape]
    types = [_signless(result.type) for result in results]
    if effects:
        types = [tensor_type([], ir.IntegerType.get_signless(1))]
    said = {"number": i64(int(number)), "function": ir.StringAttr.get(name), **effects}
    made = b.op(HOST, types, operands, **said).results
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


def _as(b: OpBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return a value's bits as another type."""
    return value if value.type == type_ else b.one("stablehlo.bitcast_convert", type_, value)


LOWER = {"stablehlo.custom_call": lower_custom_call}
