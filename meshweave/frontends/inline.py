"""Private functions into the entry function: one function is left.

The upstream inliner refuses functions that hold ops of dialects without C++ (ours, Shardy's), so
this is our own: callees first, so that each call splices a body that has no calls; the last call
of a function takes its body, the others a copy.
"""

from collections import Counter
from typing import Any

from meshweave.bindings import ir
from meshweave.errors import CompileError
from meshweave.locations import location_text

CALLS = ("func.call", "sdy.call")
_DEEPEST = 200  # calls within calls


def entry_function(module: Any) -> Any:
    """The function the program starts with: @main, or the only one there is. CompileError when
    that is not clear.
    """
    functions = _functions(module)
    if "main" in functions:
        return functions["main"]
    if len(functions) == 1:
        (only,) = functions.values()
        return only
    names = ", ".join(f"@{name}" for name in functions) or "none"
    raise CompileError(
        f"needs one function @main; functions here: {names}", location_text(module.operation)
    )


def inline_calls(module: Any, main: Any) -> None:
    """Inline every call that `main` reaches and erase all other functions.

    main: the function op; only its wrapper stays valid. Raises CompileError for recursion, a
    callee without a body or with branches.
    """
    functions = _functions(module)
    calls: dict[str, list[Any]] = {}
    order: list[str] = []
    _visit(_name(main), functions, calls, order, ())
    remaining = Counter(_callee(call) for name in order for call in calls[name])
    for name in order:
        for call in calls[name]:
            callee = _callee(call)
            remaining[callee] -= 1
            _splice(call, functions[callee], last=remaining[callee] == 0)
    for name, function in functions.items():
        if name != _name(main):
            function.erase()


def _functions(module: Any) -> dict[str, Any]:
    ops = [op.operation for op in module.body.operations]
    return {_name(op): op for op in ops if op.name == "func.func"}


def _name(function: Any) -> str:
    return function.attributes["sym_name"].value


def _callee(call: Any) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def _visit(
    name: str,
    functions: dict[str, Any],
    calls: dict[str, list[Any]],
    order: list[str],
    path: tuple[str, ...],
) -> None:
    """Put `name` into `order` behind all that it calls, and its calls into `calls`."""
    calls[name] = _calls_in(functions[name])
    for call in calls[name]:
        callee = _callee(call)
        if callee in (*path, name):
            raise CompileError(
                f"@{callee} calls itself: recursion is not supported", location_text(call)
            )
        if callee not in functions or not functions[callee].regions[0].blocks:
            raise CompileError(
                f"call of @{callee}, which has no body in this module", location_text(call)
            )
        if len(functions[callee].regions[0].blocks) > 1:
            raise CompileError(
                f"call of @{callee}, which has branches (cf dialect)", location_text(call)
            )
        _check_types(call, functions[callee])
        if len(path) > _DEEPEST:
            raise CompileError(f"calls are nested deeper than {_DEEPEST}", location_text(call))
        if callee not in calls:
            _visit(callee, functions, calls, order, (*path, name))
    order.append(name)


def _check_types(call: Any, callee: Any) -> None:
    """MLIR has checked func.call; sdy.call is one that it could not check."""
    kind = callee.attributes["function_type"].value
    given = ([v.type for v in call.operands], [v.type for v in call.results])
    if given != (list(kind.inputs), list(kind.results)):
        raise CompileError(f"call of @{_name(callee)}: its type is {kind}", location_text(call))


def _calls_in(function: Any) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in CALLS:
            found.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return found


def _splice(call: Any, callee: Any, last: bool) -> None:
    """Put the body of `callee` in the place of `call`; `last`: the body itself, not a copy of
    it.
    """
    body = callee if last else callee.clone(ip=False)
    block = body.regions[0].blocks[0]
    _keep_shardings(call, callee)
    for argument, value in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(value)
    *ops, end = list(block.operations)
    if _is_named(call.location):
        for op in ops:
            _place_under(op.operation, call.location)
    for op in ops:
        op.operation.move_before(call)
    for result, value in zip(call.results, list(end.operands), strict=True):
        result.replace_all_uses_with(value)
    call.erase()


def _is_named(loc: Any) -> bool:
    """Is it JAX's: a name, and the lines of the user's function where that is known?"""
    return isinstance(loc, ir.NameLoc)


def _place_under(op: Any, loc: Any) -> None:
    """JAX's own functions are without lines: let their ops be where the call is."""
    own = op.location
    if isinstance(own, ir.NameLoc):
        inner = own.child_loc
        while isinstance(inner, ir.NameLoc):
            inner = inner.child_loc
        if isinstance(inner, ir.UnknownLoc):
            op.location = ir.Location.name(own.name_str, childLoc=loc)
    for region in op.regions:
        for block in region.blocks:
            for inner_op in block.operations:
                _place_under(inner_op.operation, loc)


def _keep_shardings(call: Any, callee: Any) -> None:
    """What a callee's signature says of shardings becomes constraints around the call."""
    for key, values in (("arg_attrs", call.operands), ("res_attrs", call.results)):
        if key not in callee.attributes:
            continue
        for i, attrs in enumerate(callee.attributes[key]):
            if "sdy.sharding" not in attrs:
                continue
            value = values[i]
            constraint = ir.Operation.create(
                "sdy.sharding_constraint",
                [value.type],
                [value],
                {"sharding": attrs["sdy.sharding"]},
                loc=call.location,
                ip=ir.InsertionPoint(call),
            )
            if key == "arg_attrs":
                call.operands[i] = constraint.result
            else:
                constraint.move_after(call)
                value.replace_all_uses_except(constraint.result, constraint)
