"""Lower the control flow of StableHLO to scf: while, case, if.

A while that counts, as every scan and most fori_loops do, becomes scf.for: its counter is then an index, not a tensor.
"""

from typing import NamedTuple

import numpy as np

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder, Values
from meshweave.ir.ops import body_of, move_body, producer, replace_op, terminator


class _Count(NamedTuple):
    """Describe how a loop counts: `for k in range(start, stop, step)`, where k is its value number `place`."""

    place: int
    start: int
    stop: int
    step: int


def lower_while(op: ir.Operation) -> None:
    """Lower stablehlo.while to scf.for when it counts over a constant range, else to scf.while."""
    count = _find_count(op)
    replace_op(op, _to_while(op) if count is None else _to_for(op, count))


def lower_case(op: ir.Operation) -> None:
    """Lower stablehlo.case to nested scf.if; an index out of range takes the last branch."""
    b = OpBuilder.before(op)
    if len(op.regions) == 1:
        replace_op(op, move_body(body_of(op), b.ip))
        return
    index = b.element(op.operands[0])
    types = [r.type for r in op.results]

    def branch(b: OpBuilder, number: int) -> list[ir.Value]:
        if number == len(op.regions) - 1:
            return move_body(body_of(op, number), b.ip)
        return b.if_else(
            b.compare(arith.CmpIPredicate.eq, index, b.integer(number, index.type)),
            types,
            lambda inner: move_body(body_of(op, number), inner.ip),
            lambda inner: branch(inner, number + 1),
        )

    replace_op(op, branch(b, 0))


def lower_if(op: ir.Operation) -> None:
    """Lower stablehlo.if to scf.if."""
    b = OpBuilder.before(op)
    results = b.if_else(
        b.element(op.operands[0]),
        [r.type for r in op.results],
        lambda yes: move_body(body_of(op), yes.ip),
        lambda no: move_body(body_of(op, 1), no.ip),
    )
    replace_op(op, results)


def _constant(value: ir.Value) -> int | None:
    """Return the integer that a tensor without dims always is, or None."""
    op = producer(value)
    if op is None or op.name not in ("stablehlo.constant", "arith.constant"):
        return None
    attr, element = op.attributes["value"], value.type.element_type
    if not isinstance(element, ir.IntegerType) or element.is_unsigned or element.width < 8:
        return None
    return int(np.array(attr).reshape(-1)[0]) if len(attr) == 1 else None


def _find_count(op: ir.Operation) -> _Count | None:
    """Return how `op`, a stablehlo.while, counts, or None when that cannot be seen.

    It is seen where the condition is `k < constant`, k starts from a constant and the body's next k is k + a positive
    constant.
    """
    condition, body = body_of(op), body_of(op, 1)
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
    return _Count(place, start, stop, step)


def _step(body: ir.Block, place: int) -> int | None:
    """Return the constant that the body adds to its argument `place` before it returns it there."""
    add = producer(terminator(body).operands[place])
    if add is None or add.name != "stablehlo.add":
        return None
    for own, other in ((0, 1), (1, 0)):
        if add.operands[own] == body.arguments[place]:
            return _constant(add.operands[other])
    return None


def _to_for(op: ir.Operation, count: _Count) -> list[ir.Value]:
    b, source = OpBuilder.before(op), body_of(op, 1)
    integer = op.operands[count.place].type.element_type

    def body(inner: OpBuilder, i: ir.Value, values: Values) -> list[ir.Value]:
        counter = inner.scalar_tensor(inner.one("arith.index_cast", integer, i))
        given = [*values[: count.place], counter, *values[count.place :]]
        for argument, value in zip(source.arguments, given, strict=True):
            argument.replace_all_uses_with(value)
        returned = move_body(source, inner.ip)
        del returned[count.place]
        return returned

    carried = list(op.operands)
    del carried[count.place]
    # The counter may be of a narrow type: indices hold every start and stop that it can hold.
    stop = max(count.start, count.stop)
    results = b.loop(count.start, stop, carried, body, step=count.step)
    rounds = max(0, -(-(count.stop - count.start) // count.step))
    last = b.integer(count.start + rounds * count.step, integer)
    results.insert(count.place, b.scalar_tensor(last))
    return results


def _to_while(op: ir.Operation) -> list[ir.Value]:
    new = OpBuilder.before(op).op("scf.while", [v.type for v in op.operands], list(op.operands), 2)
    for region, target in zip(op.regions, new.regions, strict=True):
        region.blocks[0].append_to(target)
    before, after = body_of(new), body_of(new, 1)
    end = terminator(before)
    b = OpBuilder(ir.InsertionPoint(end), op.location)
    b.op("scf.condition", [], [b.element(end.operands[0]), *before.arguments])
    end.erase()
    end = terminator(after)
    OpBuilder(ir.InsertionPoint(end), op.location).op("scf.yield", [], list(end.operands))
    end.erase()
    return list(new.results)


LOWER = {
    "stablehlo.while": lower_while,
    "stablehlo.case": lower_case,
    "stablehlo.if": lower_if,
}
