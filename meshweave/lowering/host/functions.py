"""Keep functions that a program calls several times, so that they are compiled once; inline all others.

Such a function is lowered as the step itself is, with buffers for its arguments and results and an arena of its
own, its *frame*: a block of the caller's arena while the call runs. MLIR's inliner leaves functions alone that hold
ops of dialects defined in Python, so this one is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from meshweave.dialects.dist import LENGTH
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.trips import trips_around
from meshweave.transforms.base import functions, ops_of, port_attrs, walk

MAIN = "main"
SMALLEST = 16  # ops from which on a call is worth its frame


def keep_functions(module: ir.Module) -> set[str]:
    """Return the names of the functions that are worth a call.

    These are called several times, take and give tensors, have several ops, and are not recursive.
    """
    kept: set[str] = set()
    by_name = {name_of(f): f for f in functions(module)}
    if any(LENGTH in mark for mark in port_attrs(by_name[MAIN], "arg_attrs")):
        return kept  # where sizes end is known in @main
    calls = {
        name: Counter(op.operation.attributes["callee"].value for op in ops_of(f, "func.call"))
        for name, f in by_name.items()
    }
    times = sum(calls.values(), Counter[str]())
    for name, function in by_name.items():
        if name != MAIN and times[name] > 1 and _is_plain(function):
            reached = set[str]()
            for callee in calls[name]:
                _visit(callee, calls, [], reached)
            if name not in reached:
                kept.add(name)
    return kept


def kept_functions(module: ir.Module) -> tuple[list[ir.OpView], dict[str, int]]:
    """Return the functions that @main reaches, and how often a step runs each.

    Callees come before their callers, @main last.
    """
    by_name = {name_of(f): f for f in functions(module)}
    if list(by_name) == [MAIN]:
        return [by_name[MAIN]], {MAIN: 1}
    calls = {name: _times_called(f) for name, f in by_name.items()}
    order: list[str] = []
    _visit(MAIN, calls, order, set())
    times = dict.fromkeys(order, 0) | {MAIN: 1}
    for caller in reversed(order):
        for callee, count in calls[caller].items():
            if callee in times:
                times[callee] += count * times[caller]
    return [by_name[name] for name in order], times


def inline_calls(module: ir.Module, kept: Collection[str]) -> None:
    """Put the body of every function that is called, but for those in `kept`, in the place of each call.

    Raises CompileError for a function that calls itself. Calls of functions without a body stay.
    """
    by_name = {name_of(f): f for f in functions(module)}
    done: set[str] = set()

    def inline_into(name: str, path: tuple[str, ...]) -> None:
        if name in done:
            return
        for view in ops_of(by_name[name], "func.call"):
            call = view.operation
            callee = call.attributes["callee"].value
            if callee not in by_name:
                continue
            if callee in (*path, name):
                message = f"call of @{callee}: it has no body, or calls itself"
                raise CompileError(message, location_text(call.location))
            inline_into(callee, (*path, name))
            if callee not in kept and len(by_name[callee].operation.regions[0].blocks) == 1:
                _splice(call, by_name[callee].operation)
        done.add(name)

    for name in by_name:
        inline_into(name, ())


def erase_unreached(module: ir.Module) -> None:
    """Erase the functions with a body that @main does not reach."""
    reached = {name_of(function) for function in kept_functions(module)[0]}
    for function in functions(module):
        if name_of(function) not in reached:
            function.operation.erase()


def _splice(call: ir.Operation, callee: ir.Operation) -> None:
    """Put a copy of the body of `callee` in the place of `call`."""
    copy = callee.clone(ip=False)
    block = copy.regions[0].blocks[0]
    for argument, value in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(value)
    *ops, end = (view.operation for view in block.operations)
    for op in ops:
        for inner in walk(op):
            inner.location = ir.Location.callsite(inner.location, [call.location])
        op.move_before(call)
    for result, value in zip(call.results, list(end.operands), strict=True):
        result.replace_all_uses_with(value)
    call.erase()


def name_of(function: ir.OpView) -> str:
    """Return the symbol of a function."""
    return str(function.operation.attributes["sym_name"].value)


def _times_called(function: ir.OpView) -> Counter[str]:
    """Count how often a run of `function` calls each function."""
    found: Counter[str] = Counter()
    for view in ops_of(function, "func.call", "mw.call"):
        found[view.operation.attributes["callee"].value] += trips_around(view.operation)
    return found


def _is_plain(function: ir.OpView) -> bool:
    type_ = function.operation.attributes["function_type"].value
    blocks = function.operation.regions[0].blocks
    return (
        len(blocks) == 1
        and len(blocks[0].operations) >= SMALLEST
        and len(type_.results) > 0
        and all(
            isinstance(t, ir.RankedTensorType) and t.has_static_shape
            for t in (*type_.inputs, *type_.results)
        )
    )


def _visit(name: str, calls: dict[str, Counter[str]], order: list[str], seen: set[str]) -> None:
    """Add a function to `order`, behind all that it calls, and these to `seen`."""
    if name in calls and name not in seen:
        seen.add(name)
        for callee in calls[name]:
            _visit(callee, calls, order, seen)
        order.append(name)
