"""Let loops call the C library where an argument lies outside of what vector code can do.

before:  for i in n: y[i] = sin(x[i])
after:   for k in n by 1024:
             outside = any(|x[i]| > most for i in k .. k + 1024)
             if outside: for i in ..: y[i] = sin(x[i])  (of the C library)
             else:       for i in ..: y[i] = sin(x[i])

Only innermost loops are divided so, in which arguments are made of what is loaded and not of what is carried; in all
other places the C library's functions are called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import body_of, clone_body, ops_named, producer, replace_op

RUN = 1024
"""Iterations that are looked at together; what they load lies in the first cache."""

LIBRARY = "mw.library"
"""Marks an op that the C library has to compute."""

Outside: TypeAlias = Callable[[ir.Operation, Sequence[ir.Value]], ir.Value]
"""Writes an i1 that tells whether an op may not be replaced, given its operands."""

_PURE = ("arith.", "math.", "llvm.getelementptr", "llvm.load")


def guard_loops(module: ir.Module, limited: Collection[ir.Operation], outside: Outside) -> None:
    """Divide the loops around ops `limited`; what the C library has to compute is marked `LIBRARY`."""
    for op in limited:
        op.attributes[LIBRARY] = ir.UnitAttr.get()
    for loop in ops_named(module, "scf.for"):
        marked = _marked(loop)
        needed = _needed(loop, marked) if marked else None
        if needed is not None:
            _divide(loop, needed, marked, outside)


def _marked(loop: ir.Operation) -> list[ir.Operation]:
    """Return the marked ops of a loop; none where a loop or a branch is inside it."""
    ops = [view.operation for view in body_of(loop).operations]
    if any(len(op.regions) for op in ops):
        return []
    return [op for op in ops if LIBRARY in op.attributes]


def _needed(loop: ir.Operation, marked: Sequence[ir.Operation]) -> list[ir.Operation] | None:
    """Return the ops of a loop that make the operands of some, in order; None where that cannot be done before it."""
    body = body_of(loop)
    wanted = {v for op in marked for v in op.operands}
    found = []
    for op in reversed([view.operation for view in body.operations]):
        if wanted.isdisjoint(op.results):
            continue
        if not op.name.startswith(_PURE):
            return None
        wanted.update(op.operands)
        found.append(op)
    carried = list(body.arguments)[1:]
    if not wanted.isdisjoint(carried) or _may_change(loop, found):
        return None
    return found[::-1]


def _may_change(loop: ir.Operation, ops: Sequence[ir.Operation]) -> bool:
    """Tell whether a round of the loop may change what `ops` load in another round."""
    stores = [s.operation for s in body_of(loop).operations if s.operation.name == "llvm.store"]
    loads = [op.operands[0] for op in ops if op.name == "llvm.load"]
    return any(
        _touch(load, store.operands[1], body_of(loop).arguments[0])
        for load in loads
        for store in stores
    )


def _touch(load: ir.Value, store: ir.Value, counter: ir.Value) -> bool:
    """Tell whether an address may be that of a store in another round."""
    if load == store:
        op = producer(load)
        return op is None or op.name != "llvm.getelementptr" or not _moves(op.operands[1], counter)
    one, other = _root(load), _root(store)
    return one == other or not (_is_alone(one) or _is_alone(other))


def _moves(index: ir.Value, counter: ir.Value) -> bool:
    """Tell whether an index is another one in each round: the counter times a number, plus what stays."""
    if index == counter:
        return True
    op = producer(index)
    if op is None or op.name not in ("arith.addi", "arith.muli"):
        return False
    return any(_moves(v, counter) for v in op.operands)


def _root(pointer: ir.Value) -> ir.Value:
    """Return what a pointer points into."""
    op = producer(pointer)
    if op is None or op.name != "llvm.getelementptr":
        return pointer
    return _root(op.operands[0])


def _is_alone(pointer: ir.Value) -> bool:
    """Tell whether no other pointer points to the same."""
    op = producer(pointer)
    if op is not None:
        return bool(op.name == "llvm.alloca")
    function = pointer.owner.owner
    settings = function.attributes.get("arg_attrs", ())
    number = list(pointer.owner.arguments).index(pointer)
    return number < len(settings) and "llvm.noalias" in settings[number]


def _divide(
    loop: ir.Operation,
    needed: Sequence[ir.Operation],
    marked: Sequence[ir.Operation],
    outside: Outside,
) -> None:
    low, high, step, *start = loop.operands
    block, b = body_of(loop), OpBuilder.before(loop)
    run = b.binary("muli", step, b.integer(RUN, step.type))

    def part(b: OpBuilder, first: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
        end = b.binary("minsi", b.binary("addi", first, run), high)

        def copied(b: OpBuilder) -> list[ir.Value]:
            return b.loop(
                first, end, carried, lambda b, i, v: clone_body(block, [i, *v], b.ip), step
            )

        def unmarked(b: OpBuilder) -> list[ir.Value]:
            for op in marked:
                del op.attributes[LIBRARY]
            return copied(b)

        condition = _any(b, (first, end, step), block.arguments[0], needed, marked, outside)
        return b.if_else(condition, [v.type for v in carried], copied, unmarked)

    replace_op(loop, b.loop(low, high, start, part, run))


def _any(
    b: OpBuilder,
    bounds: tuple[ir.Value, ir.Value, ir.Value],
    counter: ir.Value,
    needed: Sequence[ir.Operation],
    marked: Sequence[ir.Operation],
    outside: Outside,
) -> ir.Value:
    """Write the loop that looks at the operands of marked ops; return whether any is outside."""
    low, high, step = bounds
    i32 = ir.IntegerType.get_signless(32)

    def look(b: OpBuilder, index: ir.Value, found: Sequence[ir.Value]) -> list[ir.Value]:
        values = {counter: index} | _copied(needed, {counter: index}, b.ip)
        (result,) = found
        with b.ip, b.loc:
            for op in marked:
                given = outside(op, [values.get(v, v) for v in op.operands])
                result = arith.ori(result, arith.extui(i32, given))
        return [result]

    (found,) = b.loop(low, high, [b.integer(0, i32)], look, step)
    return b.compare(arith.CmpIPredicate.ne, found, b.integer(0, i32))


def _copied(
    ops: Sequence[ir.Operation], values: Mapping[ir.Value, ir.Value], to: ir.InsertionPoint
) -> dict[ir.Value, ir.Value]:
    """Copy ops, in which `values` stand for others and no mark stays; return what stands for their results."""
    known = dict(values)
    for op in ops:
        copy = op.clone(to).operation
        if LIBRARY in copy.attributes:
            del copy.attributes[LIBRARY]
        for number, value in enumerate(op.operands):
            copy.operands[number] = known.get(value, value)
        known.update(zip(op.results, copy.results, strict=True))
    return known
