"""Make arguments of the arrays that a function holds, which JAX's face has taken out of the program's text."""

from collections.abc import Sequence

from meshweave.frontends.stablehlo import CAPTURED
from meshweave.ir.bindings import ir
from meshweave.ir.ops import body_of, replace_op


def is_captured(op: ir.Operation) -> bool:
    """Tell whether a custom_call stands for an array."""
    return bool(ir.StringAttr(op.attributes["call_target_name"]).value == CAPTURED)


def add_captured(main: ir.Operation, calls: Sequence[ir.Operation]) -> None:
    """Replace the calls that stand for arrays by arguments behind those of `main`, one for each number, in order."""
    block, types = body_of(main), main.attributes["function_type"].value
    found: dict[int, list[ir.Operation]] = {}
    for op in filter(is_captured, calls):
        found.setdefault(int(ir.StringAttr(op.attributes["backend_config"]).value), []).append(op)
    for number in sorted(found):
        argument = block.add_argument(found[number][0].results[0].type, main.location)
        for op in found[number]:
            replace_op(op, [argument])
    inputs = [argument.type for argument in block.arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types.results))
    if "arg_attrs" in main.attributes:
        given = list(ir.ArrayAttr(main.attributes["arg_attrs"]))
        given += [ir.DictAttr.get({})] * (len(inputs) - len(given))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(given)
