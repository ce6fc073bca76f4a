"""Inline private functions into the entry function, which alone is left.

The upstream inliner refuses functions that hold ops of dialects without C++ (ours, Shardy's), so this is our own. It
takes callees first: each call splices a body that has no calls. The last call of a function takes its body, the others
a copy.
"""

from collections import Counter

from meshweave.errors import CompileError
from meshweave.frontends.shardy.shardings import per_value_texts
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, functions_of, move_body, ops_named, replace_op, terminator

CALLS = ("func.call", "sdy.call")
_MAX_DEPTH = 200  # of calls within calls


def entry_function(module: ir.Module) -> ir.Operation:
    """Return the function the program starts with: @main, or the only one there is; it has a body.

    Raises CompileError otherwise.
    """
    functions = functions_of(module)
    entry = functions.get("main") or next(iter(functions.values()), None)
    if entry is None or (len(functions) > 1 and "main" not in functions):
        names = ", ".join(f"@{name}" for name in functions) or "none"
        raise CompileError(
            f"needs one function @main; functions here: {names}", location_text(module.operation)
        )
    if not entry.regions[0].blocks:
        raise CompileError(f"@{_name(entry)} has no body", location_text(entry))
    return entry


def inline_calls(module: ir.Module, main: ir.Operation) -> None:
    """Inline every call that `main` reaches and erase all other functions.

    main: the function op; only its wrapper stays valid. Raises CompileError for recursion, a callee without a body or
    with branches.
    """
    functions = functions_of(module)
    calls: dict[str, list[ir.Operation]] = {}
    order: list[str] = []
    _visit(_name(main), functions, calls, order, ())
    remaining = Counter(callee_of(call) for name in order for call in calls[name])
    for name in order:
        for call in calls[name]:
            callee = callee_of(call)
            remaining[callee] -= 1
            _splice(call, functions[callee], last=remaining[callee] == 0)
    for name, function in functions.items():
        if name != _name(main):
            function.erase()


def _name(function: ir.Operation) -> str:
    return str(function.attributes["sym_name"].value)


def callee_of(call: ir.Operation) -> str:
    """Return the name of the function that `call` calls."""
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _visit(
    name: str,
    functions: dict[str, ir.Operation],
    calls: dict[str, list[ir.Operation]],
    order: list[str],
    path: tuple[str, ...],
) -> None:
    """Append `name` to `order`, behind all functions that it calls; put its calls into `calls`."""
    if len(functions[name].regions[0].blocks) == 1:
        last = terminator(body_of(functions[name]))
        # MLIR takes an op that it does not know for one that ends a block.
        if last.name != "func.return":
            raise CompileError(f"@{name} ends in {last.name}, not in a return", location_text(last))
    calls[name] = ops_named(functions[name], *CALLS)
    for call in calls[name]:
        callee = callee_of(call)
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
        # MLIR has checked the types of func.call, but not those of sdy.call.
        kind = functions[callee].attributes["function_type"].value
        given = ([v.type for v in call.operands], [v.type for v in call.results])
        if given != (list(kind.inputs), list(kind.results)):
            raise CompileError(f"call of @{callee}: its type is {kind}", location_text(call))
        if len(path) > _MAX_DEPTH:
            raise CompileError(f"calls are nested deeper than {_MAX_DEPTH}", location_text(call))
        if callee not in calls:
            _visit(callee, functions, calls, order, (*path, name))
    order.append(name)


def _splice(call: ir.Operation, callee: ir.Operation, last: bool) -> None:
    """Put the body of `callee` in the place of `call`: where it is the `last` call the body itself, else a copy."""
    body = callee if last else callee.clone(ip=False)
    block = body_of(body)
    _keep_shardings(call, callee)
    for argument, value in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(value)
    if isinstance(call.location, ir.NameLoc):  # JAX's: a name, and the user's line where known
        for op in block.operations:
            _place_under(op.operation, call.location)
    replace_op(call, move_body(block, ir.InsertionPoint(call)))


def _place_under(op: ir.Operation, loc: ir.Location) -> None:
    """Place the ops of JAX's own functions, which have no lines, where the call is."""
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


def _keep_shardings(call: ir.Operation, callee: ir.Operation) -> None:
    """Make constraints around the call of the shardings that it has, and of those in the signature of `callee`."""
    if "sdy.sharding" in call.attributes:
        texts = per_value_texts(str(call.attributes["sdy.sharding"]))
        if len(texts) != len(call.results):
            raise CompileError(
                f"{len(texts)} shardings for {len(call.results)} results", location_text(call)
            )
        for value, text in zip(call.results, texts, strict=True):
            _constrain_result(call, value, ir.Attribute.parse(text))
    for key, values in (("arg_attrs", call.operands), ("res_attrs", call.results)):
        if key not in callee.attributes:
            continue
        for i, attrs in enumerate(callee.attributes[key]):
            if "sdy.sharding" not in attrs:
                continue
            value = values[i]
            sharding = attrs["sdy.sharding"]
            if key == "res_attrs":
                _constrain_result(call, value, sharding)
                continue
            constraint = OpBuilder.before(call).op(
                "sdy.sharding_constraint", [value.type], [value], sharding=sharding
            )
            call.operands[i] = constraint.result


def _constrain_result(call: ir.Operation, value: ir.Value, sharding: ir.Attribute) -> None:
    constraint = OpBuilder.before(call).op(
        "sdy.sharding_constraint", [value.type], [value], sharding=sharding
    )
    constraint.move_after(call)
    value.replace_all_uses_except(constraint.result, constraint)
