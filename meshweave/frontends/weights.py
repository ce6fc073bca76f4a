"""Make arguments of the constants that have been taken out of a program's text: its weights.

    %w = arith.constant dense_resource<weight_5feceb66...> : tensor<4096x4096xf32>

becomes an argument of @main behind its own, `%w: tensor<4096x4096xf32> {dist.weight = "5feceb66..."}`. So weights have
layouts as other arguments have. In a function that is called they are arguments too, and its callers pass them on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshweave.dialects.dist import WEIGHT, LayoutAttr
from meshweave.errors import CompileError
from meshweave.files.constants import NAME, REFERENCE
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, functions_of, ops_named, ops_where, replace_op
from meshweave.layout import Layout

_REFERS = re.compile(f"dense_resource<{NAME}")


def add_weights(module: ir.Module, text: str) -> None:
    """Replace the constants that stand for weights by arguments of @main. text: of the module."""
    if not _REFERS.search(text):
        return
    functions = functions_of(module)
    found = {name: _constants(function) for name, function in functions.items()}
    weights = {name: dict.fromkeys(_key(op) for op in ops) for name, ops in found.items()}
    calls = {name: ops_named(f, "func.call") for name, f in functions.items()}
    _pass_up(weights, calls)
    main = _entry(functions)
    for name, function in functions.items():
        if weights[name]:
            block, first = body_of(function), len(body_of(function).arguments)
            for kind, _ in weights[name]:
                block.add_argument(ir.Type.parse(kind), function.location)
            held = dict(zip(weights[name], list(block.arguments)[first:], strict=True))
            _use(found[name], calls[name], held, weights)
            _declare(function, list(weights[name]), marked=name == main)


_Key = tuple[str, str]  # the type and the SHA-256 of a weight
_Weights = dict[str, dict[_Key, None]]  # of each function


def _constants(function: ir.Operation) -> list[ir.Operation]:
    """Return the constants of a function that stand for weights."""

    def refers(op: ir.Operation) -> bool:
        value = op.attributes.get("value")
        if value is None or isinstance(value, ir.DenseElementsAttr):
            return False  # whose text has all elements
        return bool(_REFERS.match(str(value)))

    return ops_where(function, refers)


def _key(op: ir.Operation) -> _Key:
    said = REFERENCE.fullmatch(str(op.attributes["value"]))
    if said is None or len(op.results) != 1:
        raise CompileError("a large constant that is no tensor of numbers", location_text(op))
    return said[2], said[1]


def _manual_around(op: ir.Operation) -> ir.Operation | None:
    """Return the manual computation that an op is in."""
    around = op.parent
    while around is not None and around.name != "sdy.manual_computation":
        around = around.parent
    return around


def _entered(value: ir.Value, manual: ir.Operation) -> ir.Value:
    """Return a weight as each rank of a manual computation has it: whole."""
    b = OpBuilder(ir.InsertionPoint.at_block_begin(body_of(manual)), manual.location)
    layout = LayoutAttr.make(str(Layout.replicated(value.type.rank)))
    return b.one("dist.to_local", value.type, value, layout=layout)


def _callee(call: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _pass_up(weights: _Weights, calls: dict[str, list[ir.Operation]]) -> None:
    """Let each function have the weights of those that it calls."""
    changed = True
    while changed:
        changed = False
        for name, inside in calls.items():
            for call in inside:
                wanted = weights.get(_callee(call), {}).keys() - weights[name].keys()
                changed = changed or bool(wanted)
                weights[name].update(dict.fromkeys(sorted(wanted)))


def _entry(functions: dict[str, ir.Operation]) -> str:
    """Return the name of the function that the program is."""
    if "main" in functions or not functions:
        return "main"
    public = [
        name
        for name, f in functions.items()
        if "sym_visibility" not in f.attributes or f.attributes["sym_visibility"].value == "public"
    ]
    return public[0] if public else next(iter(functions))


def _use(
    constants: Sequence[ir.Operation],
    calls: Sequence[ir.Operation],
    held: dict[_Key, ir.Value],
    weights: _Weights,
) -> None:
    """Let a function read its new arguments, and pass them on."""
    for op in constants:
        value, manual = held[_key(op)], _manual_around(op)
        replace_op(op, [value if manual is None else _entered(value, manual)])
    for call in calls:
        more = [held[key] for key in weights.get(_callee(call), {})]
        if more:
            made = ir.Operation.create(
                call.name,
                results=[r.type for r in call.results],
                operands=[*call.operands, *more],
                attributes={name: call.attributes[name] for name in call.attributes},
                loc=call.location,
                ip=ir.InsertionPoint(call),
            )
            replace_op(call, list(made.results))


def _declare(function: ir.Operation, keys: Sequence[_Key], marked: bool) -> None:
    """Say in the type of a function, and in the attributes of @main, what the new arguments are."""
    types = function.attributes["function_type"].value
    inputs = [argument.type for argument in body_of(function).arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(inputs, types.results)
    )
    if not marked and "arg_attrs" not in function.attributes:
        return
    given = list(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else []
    given += [ir.DictAttr.get({})] * (len(inputs) - len(keys) - len(given))
    given += [
        ir.DictAttr.get({WEIGHT: ir.StringAttr.get(digest)} if marked else {}) for _, digest in keys
    ]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(given)
