"""Functions that stay functions: what a program calls several times is compiled once.

Such a function is lowered as the step itself is, with buffers for its arguments and results and an
arena of its own, its *frame*: a block of the caller's arena while the call runs. To bufferisation a
call is a carrier (see fuse.py) with `mw.function`. All other calls are inlined.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from meshweave.bindings import ir
from meshweave.lowering.fuse import marked
from meshweave.lowering.items import FUNCTION
from meshweave.lowering.trips import trips_around
from meshweave.transforms.base import functions, ops_of

MAIN = "main"
SMALLEST = 16  # ops from which on a call is worth its frame


def keep_functions(module: Any) -> set[str]:
    """Mark what is called several times, so that upstream does not inline it: functions from
    tensors to tensors, of several ops, that do not call themselves. Their names.
    """
    kept = set()
    by_name = {name_of(f): f for f in functions(module)}
    calls = {name: _callees(f) for name, f in by_name.items()}
    times = Counter(callee for found in calls.values() for callee in found)
    for name, function in by_name.items():
        attributes = function.operation.attributes
        wanted = name != MAIN and times[name] > 1 and _is_plain(function)
        if wanted and not _reaches(name, name, calls, set()):
            attributes["no_inline"] = ir.UnitAttr.get()
            kept.add(name)
        elif "no_inline" in attributes:
            del attributes["no_inline"]
    return kept


def kept_functions(module: Any) -> tuple[list[Any], dict[str, int]]:
    """The functions of a module in which all else is inlined, callees before their callers, @main
    last; and how often a step runs each.
    """
    by_name = {name_of(f): f for f in functions(module)}
    calls = {name: _times_called(f) for name, f in by_name.items()}
    order: list[str] = []
    _visit(MAIN, calls, order, set())
    times = dict.fromkeys(order, 0) | {MAIN: 1}
    for caller in reversed(order):
        for callee, count in calls[caller].items():
            if callee in times:
                times[callee] += count * times[caller]
    return [by_name[name] for name in order], times


def carry_calls(function: Any, numbers: dict[str, int]) -> None:
    """Put a carrier in the place of each call of a function in `numbers` (by name)."""
    for view in ops_of(function, "func.call"):
        op = view.operation
        number = numbers.get(op.attributes["callee"].value)
        if number is None:
            continue
        outs = [_empty(op, result.type) for result in op.results]
        made = marked(op, number, list(op.operands), outs, FUNCTION)
        for old, new in zip(op.results, made.results):
            old.replace_all_uses_with(new)
        op.erase()


def name_of(function: Any) -> str:
    """Its symbol."""
    return str(function.operation.attributes["sym_name"].value)


def _callees(function: Any) -> list[str]:
    return [op.operation.attributes["callee"].value for op in ops_of(function, "func.call")]


def _times_called(function: Any) -> Counter[str]:
    """How often a run of `function` calls each function."""
    found: Counter[str] = Counter()
    for view in ops_of(function, "func.call"):
        found[view.operation.attributes["callee"].value] += trips_around(view.operation)
    return found


def _reaches(start: str, goal: str, calls: dict[str, list[str]], seen: set[str]) -> bool:
    for callee in calls.get(start, ()):
        if callee == goal:
            return True
        if callee not in seen:
            seen.add(callee)
            if _reaches(callee, goal, calls, seen):
                return True
    return False


def _is_plain(function: Any) -> bool:
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
    seen.add(name)
    for callee in calls[name]:
        if callee in calls and callee not in seen:
            _visit(callee, calls, order, seen)
    order.append(name)


def _empty(before: Any, type_: Any) -> Any:
    return ir.Operation.create(
        "tensor.empty", results=[type_], loc=before.location, ip=ir.InsertionPoint(before)
    ).result
