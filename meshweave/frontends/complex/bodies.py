"""Make ops with scalar bodies on the parts of complex tensors: linalg ops, scans and scatters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from meshweave.frontends.complex.pairs import Pairs, is_complex, real_types
from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import (
    IteratorType,
    OpBuilder,
    iterator_types,
    iterator_types_attr,
    segments,
)
from meshweave.ir.ops import body_of, replace_op, terminator
from meshweave.ir.scans import SCAN
from meshweave.ir.scatters import SCATTER

PAIR = "mw.pair"
"""Mark of an op that makes several parts, which `separate` makes apart if it can."""
_FREE = ("arith.constant", "linalg.index")


class IterationSpace(NamedTuple):
    """Hold the loops of a linalg op: a map for each operand, and which loops reduce."""

    maps: list[ir.AffineMap]
    kinds: list[IteratorType]

    @classmethod
    def of(cls, op: ir.Operation) -> IterationSpace:
        """Read the loops of a linalg op, named or generic."""
        maps = [attr.value for attr in linalg.get_indexing_maps(op.opview)]
        if op.name == "linalg.generic":
            return cls(maps, list(iterator_types(op)))
        written = {e.position for m in maps[len(maps) - len(op.results) :] for e in m.results}
        kinds = [
            IteratorType.PARALLEL if d in written else IteratorType.REDUCTION
            for d in range(maps[0].n_dims)
        ]
        return cls(maps, kinds)

    def attributes(self, outputs: int) -> dict[str, ir.Attribute]:
        """Return the attributes of a linalg.generic with these loops."""
        return {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in self.maps]),
            "iterator_types": iterator_types_attr(self.kinds),
            "operandSegmentSizes": segments(len(self.maps) - outputs, outputs),
        }


def expand_body(
    op: ir.Operation, pairs: Pairs, split: Callable[[Sequence[ir.Operation]], None]
) -> Sequence[ir.Value]:
    """Make an op on the parts of the operands of `op`. split: splits the ops of its body."""
    types, operands = real_types(op.results), pairs.flat(op.operands)
    name = "linalg.generic" if op.name.startswith("linalg.") else op.name
    b = OpBuilder.before(op)
    made = b.op(name, types, operands, 1, **_attributes(op, len(types)))
    if len(types) > 1:
        made.attributes[PAIR] = ir.UnitAttr.get()
    old = body_of(op)
    missing = list(op.operands)[len(old.arguments) :] if name == "linalg.generic" else []
    given = [t for a in old.arguments for t in real_types([a])]
    given += [t.element_type for v in missing for t in real_types([v])]
    inner, arguments = b.block(made.regions[0], given)
    places = _standing(inner, old.arguments, arguments, pairs)
    ops = clone_ops([view.operation for view in old.operations][:-1], places, inner.ip)
    ends = [places.get(v, v) for v in terminator(old).operands]
    end = inner.op("linalg.yield" if name == "linalg.generic" else "mw.yield", [], ends)
    split([*ops, end])
    return list(made.results)


def _attributes(op: ir.Operation, outputs: int) -> dict[str, ir.Attribute]:
    """Return the attributes of an op on parts: a map of a complex operand counts for both."""
    if op.name == SCATTER:
        *maps, last = op.attributes["maps"]
        twice = [m for m, v in zip(maps, op.operands) for _ in real_types([v])]
        return {"maps": ir.ArrayAttr.get([*twice, last])}
    if op.name == SCAN:
        return {name: op.attributes[name] for name in op.attributes}
    maps, kinds = IterationSpace.of(op)
    twice = [m for m, v in zip(maps, op.operands, strict=True) for _ in real_types([v])]
    return IterationSpace(twice, kinds).attributes(outputs)


def _standing(
    b: OpBuilder, old: Iterable[ir.Value], new: Sequence[ir.Value], pairs: Pairs
) -> dict[ir.Value, ir.Value]:
    """Return what stands for each argument of a body among the new ones: complex numbers are put together."""
    found, rest = {}, list(new)
    for argument in old:
        if is_complex(argument.type):
            parts = (rest.pop(0), rest.pop(0))
            found[argument] = b.one("complex.create", argument.type, *parts)
            pairs.put(found[argument], parts)
        else:
            found[argument] = rest.pop(0)
    return found


def clone_ops(
    ops: Iterable[ir.Operation], values: dict[ir.Value, ir.Value], to: ir.InsertionPoint
) -> list[ir.Operation]:
    """Copy ops, which read `values` in the place of what they read; their results are put there too."""

    def mapped(inner: ir.Operation) -> ir.WalkResult:
        for number, value in enumerate(inner.operands):
            if value in values:
                inner.operands[number] = values[value]
        return ir.WalkResult.ADVANCE

    made = []
    for op in ops:
        copy = op.clone(to).operation
        copy.walk(mapped)
        values.update(zip(op.results, copy.results, strict=True))
        made.append(copy)
    return made


# Products


def multiply_real(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value] | None:
    """Write a sum of products as four of real numbers, which libraries know; None for any other op."""
    if not op.name.startswith("linalg.") or not _adds_products(op):
        return None
    loops, b = IterationSpace.of(op), OpBuilder.before(op)
    left, right, start = [(pairs.part(v, 0), pairs.part(v, 1)) for v in op.operands]

    def added(x: ir.Value, y: ir.Value, to: ir.Value) -> ir.Value:
        def body(inner: OpBuilder, given: list[ir.Value]) -> Sequence[ir.Value]:
            a, c, total = given
            return [inner.binary("addf", total, inner.binary("mulf", a, c))]

        return b.generic([x, y], [to], loops.maps, loops.kinds, body).result

    less = added(left[0], right[0], start[0])
    minus = b.elementwise(
        [left[1]], b.empty(left[1].type), lambda inner, v: inner.one("arith.negf", v[0].type, v[0])
    )
    more = added(left[0], right[1], start[1])
    return [added(minus, right[1], less), added(left[1], right[0], more)]


def _adds_products(op: ir.Operation) -> bool:
    """Tell whether an op adds up products of the elements of two complex tensors."""
    block = body_of(op)
    names = [view.operation.name for view in block.operations]
    if names[:2] != ["complex.mul", "complex.add"] or len(names) != 3 or len(op.operands) != 3:
        return False
    if IteratorType.REDUCTION not in IterationSpace.of(op).kinds:
        return False
    product, total = (block.operations[k].operation for k in (0, 1))
    a, c, out = block.arguments
    return (
        {*product.operands} == {a, c}
        and {*total.operands} == {out, product.result}
        and list(terminator(block).operands) == [total.result]
    )


# Parts that are made apart


def separate(op: ir.Operation) -> None:
    """Make each result of an op by an op of its own, where no two share what takes time.

    One that combines element by element is known as a sum only on its own: its results may share anything but what
    they combine.
    """
    del op.attributes[PAIR]
    block, count = body_of(op), len(op.results)
    ends = list(terminator(block).operands)
    common, own = ends[: len(ends) - count], ends[len(ends) - count :]
    needed = [_needed([*common, value], block) for value in own]
    carried = _carried(op, block)
    for number, found in enumerate(needed):
        others = {*carried} - {carried[number]}
        if op.name == SCAN:
            others |= {k + count for k in others}
        if found.arguments & others:
            return
    combines = any(found.arguments & {*carried} for found in needed)
    if not combines and _share(needed):
        return
    make = _MAKERS.get(op.name, _own_generic)
    replace_op(op, [make(op, number, found) for number, found in enumerate(needed)])


class _Needed(NamedTuple):
    """Hold what a result is made of: ops of the body in order, and numbers of its arguments."""

    ops: list[ir.Operation]
    arguments: set[int]


def _needed(values: Sequence[ir.Value], block: ir.Block) -> _Needed:
    reached, arguments = set(values), {a: k for k, a in enumerate(block.arguments)}
    ops = []
    for view in reversed(list(block.operations)[:-1]):
        op = view.operation
        if any(result in reached for result in op.results):
            ops.append(op)
            reached.update(_read(op))
    return _Needed(ops[::-1], {k for a, k in arguments.items() if a in reached})


def _read(op: ir.Operation) -> set[ir.Value]:
    """Return what an op and the ops in its regions read."""
    found: set[ir.Value] = set()

    def visit(inner: ir.Operation) -> ir.WalkResult:
        found.update(inner.operands)
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return found


def _carried(op: ir.Operation, block: ir.Block) -> list[int]:
    """Return the argument of the body that is what each result holds so far."""
    count, arguments = len(op.results), len(block.arguments)
    first = 0 if op.name == SCAN else arguments - count
    return list(range(first, first + count))


def _share(needed: Sequence[_Needed]) -> bool:
    """Tell whether two results need the same op."""
    seen: set[ir.Operation] = set()
    for found in needed:
        mine = {op for op in found.ops if op.name not in _FREE}
        if seen & mine:
            return True
        seen |= mine
    return False


def _body(
    made: ir.Operation, op: ir.Operation, found: _Needed, kept: Sequence[int], ends: Sequence[int]
) -> None:
    """Give an op the body of `op` as far as it needs it. kept: its arguments; ends: what it yields."""
    block = body_of(op)
    inner, arguments = OpBuilder.before(op).block(
        made.regions[0], [block.arguments[k].type for k in kept]
    )
    values = {block.arguments[k]: a for k, a in zip(kept, arguments)}
    clone_ops(found.ops, values, inner.ip)
    end = terminator(block)
    inner.op(end.name, [], [values.get(v, v) for v in (end.operands[k] for k in ends)])


def _own_generic(op: ir.Operation, number: int, found: _Needed) -> ir.Value:
    maps, kinds = IterationSpace.of(op)
    inputs = len(op.operands) - len(op.results)
    kept = [k for k in range(inputs) if k in found.arguments]
    out = inputs + number
    known = {e.position for k in [*kept, out] for e in maps[k].results if _is_loop(e)}
    if len(known) < len(kinds):
        kept = list(range(inputs))  # something has to say how long the loops are
    kept.append(out)
    attributes = IterationSpace([maps[k] for k in kept], kinds).attributes(1)
    operands = [op.operands[k] for k in kept]
    made = OpBuilder.before(op).op(
        "linalg.generic", [op.results[number].type], operands, 1, **attributes
    )
    _body(made, op, found, kept, [number])
    return made.result


def _is_loop(expr: ir.AffineExpr) -> bool:
    return isinstance(expr, ir.AffineDimExpr)


def _own_scan(op: ir.Operation, number: int, found: _Needed) -> ir.Value:
    kept = [number, len(op.results) + number]
    attributes = {name: op.attributes[name] for name in op.attributes}
    operands, type_ = [op.operands[k] for k in kept], op.results[number].type
    made = OpBuilder.before(op).op(SCAN, [type_], operands, 1, **attributes)
    _body(made, op, found, kept, [number])
    return made.result


def _own_scatter(op: ir.Operation, number: int, found: _Needed) -> ir.Value:
    maps = list(op.attributes["maps"])
    reads, loops = len(maps) - 1, maps[0].value.n_dims
    kept = [k for k in range(reads) if loops + k in found.arguments]
    known = {e.position for k in kept for e in maps[k].value.results}
    if len(known) < loops or not kept:
        kept = list(range(reads))
    attribute = ir.ArrayAttr.get([*[maps[k] for k in kept], maps[-1]])
    operands = [op.operands[k] for k in [*kept, reads + number]]
    type_ = op.results[number].type
    made = OpBuilder.before(op).op(SCATTER, [type_], operands, 1, maps=attribute)
    arguments = [*range(loops), *[loops + k for k in [*kept, reads + number]]]
    common = len(terminator(body_of(op)).operands) - len(op.results)
    _body(made, op, found, arguments, [*range(common), common + number])
    return made.result


_MAKERS: Mapping[str, Callable[[ir.Operation, int, _Needed], ir.Value]] = {
    SCATTER: _own_scatter,
    SCAN: _own_scan,
}
