"""Control flow of StableHLO to scf: while, case, if; and barriers, which bind nothing here.

A while that counts, as every scan and most fori_loops do, becomes scf.for: its counter is then an
index, not a tensor.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshweave.bindings import ir
from meshweave.frontends.build import Builder


@dataclass(frozen=True)
class Count:
    """`for k in range(start, stop, step)`, where k is the loop's value number `place`."""

    place: int
    start: int
    stop: int
    step: int


def lower_while(op: Any) -> None:
    """stablehlo.while to scf.for when it counts over a constant range, else to scf.while."""
    count = find_count(op)
    results = _to_while(op) if count is None else _to_for(op, count)
    _replace(op, results)


def lower_case(op: Any) -> None:
    """stablehlo.case to scf.if, one in the other; an index out of range takes the last branch."""
    b = Builder(ir.InsertionPoint(op), op.location)
    index = b.element(op.operands[0])
    types = [r.type for r in op.results]

    def branch(b: Builder, number: int) -> list[Any]:
        if number == len(op.regions) - 1:
            return _spliced(op.regions[number].blocks[0], b)
        condition = b.compare("eq", index, b.number(number, index.type))
        return b.choose(
            condition,
            types,
            lambda inner: _spliced(op.regions[number].blocks[0], inner),
            lambda inner: branch(inner, number + 1),
        )

    if len(op.regions) == 1:
        *ops, end = list(op.regions[0].blocks[0].operations)
        for inner in ops:
            inner.operation.move_before(op)
        _replace(op, list(end.operands))
        return
    _replace(op, branch(b, 0))


def lower_if(op: Any) -> None:
    """stablehlo.if to scf.if."""
    b = Builder(ir.InsertionPoint(op), op.location)
    results = b.choose(
        b.element(op.operands[0]),
        [r.type for r in op.results],
        *((lambda inner, r=r: _spliced(r.blocks[0], inner)) for r in op.regions),
    )
    _replace(op, results)


def lower_barrier(op: Any) -> None:
    """stablehlo.optimization_barrier: orders nothing that we reorder."""
    _replace(op, list(op.operands))


def _replace(op: Any, values: list[Any]) -> None:
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _spliced(block: Any, b: Builder) -> list[Any]:
    """Move the ops of a region without arguments to the end of where `b` builds; what it
    returns.
    """
    *ops, end = list(block.operations)
    values = list(end.operands)
    for op in ops:
        b.ip.block.append(op.operation)
    return values


def _constant(value: Any) -> int | None:
    """The integer that a tensor without dims always is, or None."""
    if isinstance(value, ir.BlockArgument):
        return None
    op = value.owner
    if op.name not in ("stablehlo.constant", "arith.constant"):
        return None
    attr = op.attributes["value"]
    kind = value.type.element_type
    if not isinstance(kind, ir.IntegerType) or kind.is_unsigned or kind.width < 8:
        return None
    return int(np.array(attr).reshape(-1)[0]) if len(attr) == 1 else None


def find_count(op: Any) -> Count | None:
    """How `op` (a stablehlo.while) counts, or None when that cannot be seen.

    Seen is: the condition is `k < constant`, k starts from a constant and the body's next k is k +
    a positive constant.
    """
    condition, body = (region.blocks[0] for region in op.regions)
    *tests, end = [o.operation for o in condition.operations]
    compare = tests[-1] if tests else None
    if (
        compare is None
        or compare.name != "stablehlo.compare"
        or any(o.name != "stablehlo.constant" for o in tests[:-1])
        or end.operands[0] != compare.result
        or "LT" not in str(compare.attributes["comparison_direction"])
    ):
        return None
    left, right = compare.operands
    arguments = list(condition.arguments)
    if left not in arguments:
        return None
    place, stop = arguments.index(left), _constant(right)
    start = _constant(op.operands[place])
    step = _step(body, place)
    if start is None or stop is None or step is None or step <= 0:
        return None
    return Count(place, start, stop, step)


def _step(body: Any, place: int) -> int | None:
    """The constant that the body adds to its argument `place` before it returns it there."""
    end = body.operations[len(body.operations) - 1].operation
    value = end.operands[place]
    if isinstance(value, ir.BlockArgument) or value.owner.name != "stablehlo.add":
        return None
    add = value.owner
    for own, other in ((0, 1), (1, 0)):
        if add.operands[own] == body.arguments[place]:
            return _constant(add.operands[other])
    return None


def _to_for(op: Any, count: Count) -> list[Any]:
    b = Builder(ir.InsertionPoint(op), op.location)
    source = op.regions[1].blocks[0]
    integer = op.operands[count.place].type.element_type

    def body(inner: Builder, i: Any, values: Any) -> list[Any]:
        counter = inner.boxed(inner.one("arith.index_cast", integer, i))
        given = list(values)
        given.insert(count.place, counter)
        for argument, value in zip(source.arguments, given, strict=True):
            argument.replace_all_uses_with(value)
        returned = _spliced(source, inner)
        del returned[count.place]
        return returned

    carried = list(op.operands)
    del carried[count.place]
    # the counter may be of a narrow type: indices are wide enough for every start and stop it can
    # hold
    bounds = (b.number(count.start), b.number(max(count.start, count.stop)))
    results = b.loop(*bounds, carried, body, step=b.number(count.step))
    rounds = max(0, -(-(count.stop - count.start) // count.step))
    last = b.number(count.start + rounds * count.step, integer)
    results.insert(count.place, b.boxed(last))
    return results


def _to_while(op: Any) -> list[Any]:
    b = Builder(ir.InsertionPoint(op), op.location)
    types = [v.type for v in op.operands]
    new = b.op("scf.while", types, list(op.operands), regions=2)
    for region, target in zip(op.regions, new.regions, strict=True):
        region.blocks[0].append_to(target)
    before, after = (region.blocks[0] for region in new.regions)
    end = before.operations[len(before.operations) - 1].operation
    at_end = Builder(ir.InsertionPoint(end), op.location)
    condition = at_end.element(end.operands[0])
    at_end.op("scf.condition", [], [condition, *before.arguments])
    end.erase()
    end = after.operations[len(after.operations) - 1].operation
    Builder(ir.InsertionPoint(end), op.location).op("scf.yield", [], list(end.operands))
    end.erase()
    return list(new.results)
